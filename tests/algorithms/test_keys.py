"""Every key of every part matters: two values, two results. A key without a row here fails."""

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import rlfw
from rlfw import registry
from rlfw.knobs import Controls, Knobs
from rlfw.run import checkpoints

pytestmark = pytest.mark.medium

registry.load_components()

# axis.part.key -> two values, and what else must hold for them to differ
KEYS: dict[str, tuple[object, object, list[str]]] = {
    "sampler.steps.num_envs": (2, 3, []),
    "sampler.steps.num_steps": (4, 5, []),
    "sampler.episodes.num_episodes": (8, 16, []),
    "sampler.episodes.group_size": (2, 4, []),
    "reward.kl.coef": (0.05, 0.5, []),
    "reward.kl.estimator": ("k1", "k3", []),
    "reward.clip.limit": (0.5, 1.0, []),
    "reward.weighted.weights": ("{a: 1}", "{a: 1, b: 1}", []),
    "baseline.critic.gae_lambda": (0.9, 1.0, []),
    "baseline.critic.coef": (0.5, 1.0, []),
    "baseline.critic.clip": ("null", 0.1, []),
    "baseline.critic.network": ("own", "head", []),
    "baseline.critic.bootstrap_truncated": ("true", "false", []),
    "baseline.critic.lr": ("null", 0.1, []),
    "baseline.critic.max_grad_norm": (0.5, 0.001, []),
    "normalize.group_std.ddof": (0, 1, []),
    "normalize.group_std.eps": (0.0, 0.1, []),
    "normalize.group_std.scope": ("rollout", "minibatch", ["weight=truncated"]),
    "normalize.batch_std.of": ("rewards", "advantages", []),
    "normalize.batch_std.ddof": (0, 1, []),
    "normalize.batch_std.eps": (0.0, 0.1, []),
    "normalize.batch_std.scope": ("rollout", "minibatch", ["weight=truncated"]),
    "normalize.whiten.shift": ("true", "false", ["baseline=none"]),
    "normalize.whiten.ddof": (0, 1, []),
    "normalize.whiten.eps": (0.0, 0.1, []),
    "normalize.whiten.scope": ("rollout", "minibatch", ["weight=truncated"]),
    **{f"ratio.{level}.source": ("old", "behaviour", []) for level in ("token", "sequence", "product")},
    "regularizer.clip.low": (0.1, 0.2, ["baseline=batch_mean"]),
    "regularizer.clip.high": (0.1, 0.2, []),
    "regularizer.entropy.coef": (0.0, 0.1, []),
    "aggregation.constant.length": (4, 8, []),
    "controller.anneal.knob": ("lr", "low", []),
    "controller.anneal.shape": ("linear", "cosine", []),
    "controller.anneal.final": (0.0, 0.5, []),
    "controller.target_kl.target": (0.01, 0.02, []),
    "controller.target_kl.factor": (1.5, 3.0, []),
    "optimizer.adam.beta1": (0.9, 0.5, []),
    "optimizer.adam.beta2": (0.999, 0.5, []),
    "optimizer.adam.eps": (1e-8, 0.1, []),
    "optimizer.adam.weight_decay": (0.0, 0.1, []),
    "optimizer.rmsprop.alpha": (0.99, 0.5, []),
    "optimizer.rmsprop.eps": (1e-8, 0.1, []),
    "optimizer.rmsprop.momentum": (0.0, 0.9, []),
    "optimizer.sgd.momentum": (0.0, 0.9, []),
}
for name in ("kl", "kl_old"):
    KEYS |= {
        f"regularizer.{name}.coef": (0.1, 0.2, []),
        f"regularizer.{name}.estimator": ("k2", "k3", []),
        f"regularizer.{name}.to": ("reference", "old", []),
        f"regularizer.{name}.force": ("true", "false", [f"regularizer.{name}.estimator=k1"]),
    }
IN_TRAINING = ("baseline.critic.network", "baseline.critic.lr", "baseline.critic.max_grad_norm")
ELSEWHERE = ("env", "policy")  # the axes whose keys other tests answer for


def test_every_key_has_a_row():
    axes = [axis for axis in registry.AXES if axis not in ELSEWHERE]
    known = {
        f"{axis}.{name}.{key}"
        for axis in axes
        for name in registry.names(axis)
        for key in registry.entry(axis, name).keys
    }
    assert set(KEYS) == known


def probed(overrides: list[str]) -> object:
    """Two groups of three ragged rows, moved away from the old policy, one row truncated."""
    generator = torch.Generator().manual_seed(0)

    def numbers(*shape: int) -> torch.Tensor:
        return torch.rand(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(4) < torch.tensor([4, 2, 1, 3, 4, 2])[:, None]
    base = ["baseline=critic", "normalize=none", "ratio=token", "regularizer=none", "aggregation=token_mean"]
    try:
        found = rlfw.probe(
            [*base, "gamma=0.9", *overrides],
            **{"rewards": {"a": numbers(6) + 0.2, "b": 2 * numbers(6)}, "mask": mask, "group": [0, 0, 0, 1, 1, 1]},
            **{"logprobs": -numbers(6, 4), "old_logprobs": -numbers(6, 4), "behaviour_logprobs": -numbers(6, 4)},
            **{"ref_logprobs": -numbers(6, 4), "entropy": numbers(6, 4)},
            **{"values": numbers(6, 5), "new_values": numbers(6, 4), "truncated": [True] + [False] * 5},
        )
    except rlfw.UserError as error:
        return str(error)
    value_gradient = [] if found.value_gradient is None else found.value_gradient.tolist()
    return [found.loss.item(), found.gradient.tolist(), value_gradient]


def trained(overrides: list[str], folder: Path) -> dict[str, torch.Tensor]:
    """The weights after one iteration."""
    small = ["iterations=1", "sampler.steps.num_envs=2", "sampler.steps.num_steps=8", "tensorboard=false"]
    words = ["algorithm=a2c", "env=cartpole", *small, "progress=false", f"out={folder}"]
    run = rlfw.train([*words, *overrides])
    (file,) = (checkpoints(run)[-1] / "policy").glob("*.safetensors")
    return load_file(file)


def built(axis: str, name: str, key: str, value: object) -> Any:
    return rlfw.build(
        axis, {"part": name, **{k: v for k, (_, v) in registry.entry(axis, name).keys.items()}, key: value}
    )


def turned(controller: Any) -> list[float]:
    """What a controller makes of two knobs at a quarter of the budget, and of KLs."""
    knobs, numbers = Knobs(), {"lr": 1.0, "low": 0.2}
    for key in numbers:
        knobs.add(key, lambda key=key: numbers[key], lambda value, key=key: numbers.update({key: value}))
    controller.start(Controls(knobs, None))
    controller.before_iteration(0.25)
    return [*numbers.values(), *(controller.stops(kl) for kl in (0.02, 0.025, 0.04, 0.1))]


def stepped(optimizer: Any) -> list[float]:
    """A weight after two steps."""
    weight = torch.nn.Parameter(torch.ones(1))
    rule = optimizer.build([{"params": [weight], "lr": 0.1}])
    for gradient in (2.0, 1.0):
        weight.grad = torch.tensor([gradient])
        rule.step()
    return weight.detach().tolist()


class Asked:
    """An env that hands back what it was asked for."""

    def collect(self, request: object, actor: object) -> object:
        return request


@pytest.mark.parametrize("path", [path for path in KEYS if path not in IN_TRAINING])
def test_key_changes_the_result(path: str):
    axis, name, key = path.split(".")
    first, second, more = KEYS[path]
    if axis == "sampler":
        one, two = (built(axis, name, key, value).collect(Asked(), None) for value in (first, second))
    elif axis == "controller":
        one, two = (turned(built(axis, name, key, value)) for value in (first, second))
    elif axis == "optimizer":
        one, two = (stepped(built(axis, name, key, value)) for value in (first, second))
    else:
        one, two = (probed([f"{axis}={name}", f"{path}={value}", *more]) for value in (first, second))
    assert one != two


@pytest.mark.medium
@pytest.mark.parametrize("path", IN_TRAINING)
def test_key_changes_the_training(path: str, tmp_path: Path):
    first, second, more = KEYS[path]
    one, two = (trained([f"{path}={value}", *more], tmp_path / str(value)) for value in (first, second))
    same = one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert not same

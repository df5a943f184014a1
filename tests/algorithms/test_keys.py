"""Every key of every part matters: two values, two results. A key without a row here fails."""

from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from gymnasium import spaces
from safetensors.torch import load_file

import rlfw
from rlfw import registry
from rlfw.context import Observations
from rlfw.interfaces import ControlSpec, Steps
from rlfw.knobs import Controls, Knobs
from rlfw.reference import Reference
from rlfw.rollout import Episodes, Rollout
from rlfw.run import checkpoints
from rlfw.seeding import Streams

pytestmark = pytest.mark.medium

registry.load_components()

CRITICS_OPTIMIZER = ("network", "lr", "max_grad_norm")

# axis.part.key -> two values, and what else must hold for them to differ
KEYS: dict[str, tuple[object, object, list[str]]] = {
    "sampler.steps.num_envs": (2, 3, []),
    "sampler.steps.num_steps": (4, 5, []),
    "sampler.episodes.num_episodes": (8, 16, []),
    "sampler.episodes.group_size": (2, 4, []),
    "sampler.episodes.no_signal": ("keep", "drop", ["group_size=2"]),
    "sampler.episodes.max_rounds": (1, 2, ["group_size=2", "no_signal=resample"]),
    "reward.kl.coef": (0.05, 0.5, []),
    "reward.kl.estimator": ("k1", "k3", []),
    "reward.clip.limit": (0.5, 1.0, []),
    "reward.weighted.weights": ("{a: 1}", "{a: 1, b: 1}", []),
    "reward.overlong.cache": (1, 3, ["reward.overlong.length=4"]),
    "reward.overlong.length": (4, 8, []),
    "reward.overlong.coef": (0.5, 1.0, ["reward.overlong.length=4"]),
    "reward.missing_eos.penalty": (0.5, 1.0, []),
    "reward.decoupled.weights": ("{a: 1}", "{}", []),
    "reward.decoupled.ddof": (0, 1, []),
    "reward.decoupled.eps": (0.0, 0.1, []),
    "reward.running_scale.eps": (0.0, 1.0, []),
    "baseline.constant.value": (0.0, 0.5, []),
    "baseline.ema.decay": (0.9, 0.5, ["initial=0.0"]),
    "baseline.ema.initial": ("null", 0.0, []),
    "baseline.critic.gae_lambda": (0.9, 1.0, []),
    "baseline.critic.value_lambda": ("null", 1.0, []),
    "baseline.adaptive_critic.alpha": (1.0, 2.0, []),
    "baseline.adaptive_critic.value_lambda": ("null", 1.0, ["baseline.adaptive_critic.alpha=1"]),
    "normalize.group_std.ddof": (0, 1, []),
    "normalize.group_std.eps": (0.0, 0.1, []),
    "normalize.group_std.scope": ("rollout", "minibatch", ["weight=truncated"]),
    "normalize.batch_std.of": ("rewards", "advantages", []),
    "normalize.batch_std.ddof": (0, 1, []),
    "normalize.batch_std.eps": (0.0, 0.1, []),
    "normalize.batch_std.scope": ("rollout", "minibatch", ["weight=truncated"]),
    "normalize.group_mean.eps": (0.0, 0.1, []),
    "normalize.signal.of": ("groups", "rewards", ["reward=clip", "reward.clip.limit=0.1"]),
    "normalize.whiten.shift": ("true", "false", ["baseline=none"]),
    "normalize.whiten.ddof": (0, 1, []),
    "normalize.whiten.eps": (0.0, 0.1, []),
    "normalize.whiten.scope": ("rollout", "minibatch", ["weight=truncated"]),
    **{f"ratio.{level}.source": ("old", "behaviour", []) for level in ("token", "sequence", "product")},
    "regularizer.clip.low": (0.1, 0.2, ["baseline=batch_mean"]),
    "regularizer.clip.high": (0.1, 0.2, []),
    "regularizer.entropy.coef": (0.0, 0.1, []),
    **{f"regularizer.{part}.low": (0.1, 0.2, ["baseline=batch_mean"]) for part in ("dual_clip", "two_sided", "gmpo")},
    **{f"regularizer.{part}.high": (0.1, 0.2, []) for part in ("dual_clip", "two_sided", "gmpo")},
    **{f"regularizer.{part}.cap": (1.3, 1.5, ["baseline=batch_mean"]) for part in ("dual_clip", "two_sided")},
    "regularizer.cispo.max": (1.0, 1.2, []),
    "regularizer.cispo.min": (0.0, 0.9, []),
    "regularizer.sapo.positive": (1.0, 2.0, []),
    "regularizer.sapo.negative": (1.0, 2.0, ["baseline=batch_mean"]),
    "regularizer.dppo.delta": (0.05, 0.15, []),
    "regularizer.topr.max": (0.9, 1.0, ["baseline=batch_mean"]),
    "regularizer.dro.beta": (0.0, 1.0, []),
    "regularizer.vespo.positive_k": (1.0, 2.0, []),
    "regularizer.vespo.positive_lambda": (1.0, 2.0, []),
    "regularizer.vespo.negative_k": (1.0, 2.0, ["baseline=batch_mean"]),
    "regularizer.vespo.negative_lambda": (1.0, 2.0, ["baseline=batch_mean"]),
    "regularizer.kl_cov.fraction": (0.1, 0.5, []),
    "regularizer.kl_cov.coef": (0.5, 1.0, []),
    "regularizer.nll.coef": (0.1, 0.2, []),
    "regularizer.nll.threshold": (0.0, 2.0, []),
    "weight.top_entropy.fraction": (0.2, 0.5, []),
    "weight.clip_cov.fraction": (0.1, 0.3, ["weight.clip_cov.low=0"]),
    "weight.clip_cov.low": (-1.0, 1.0, ["weight.clip_cov.fraction=1"]),
    "weight.clip_cov.high": (0.05, 5.0, ["weight.clip_cov.low=0", "weight.clip_cov.fraction=1"]),
    **{f"weight.{part}.cap": (1.1, 1.3, []) for part in ("tis", "mis")},
    **{f"weight.{part}.level": ("token", "geometric", []) for part in ("tis", "mis")},
    "weight.icepop.low": (0.5, 0.9, []),
    "weight.icepop.high": (1.1, 2.0, []),
    "weight.sequence_mask.low": (0.5, 0.9, []),
    "weight.sequence_mask.high": (1.1, 2.0, ["weight.sequence_mask.low=0.5"]),
    "weight.off_policy_mask.delta": (0.0, 0.5, ["baseline=batch_mean"]),
    "aggregation.constant.length": (4, 8, []),
    "controller.anneal.knob": ("lr", "low", []),
    "controller.anneal.shape": ("linear", "cosine", []),
    "controller.anneal.final": (0.0, 0.5, []),
    "controller.target_kl.target": (0.01, 0.02, []),
    "controller.target_kl.factor": (1.5, 3.0, []),
    "controller.adaptive_kl.knob": ("lr", "low", []),
    "controller.adaptive_kl.target": (0.01, 1.0, []),
    "controller.adaptive_kl.unit": ("per_token", "per_sequence", ["target=0.5"]),
    "controller.adaptive_kl.horizon": (100, 1000, []),
    "controller.doubling_kl.knob": ("lr", "low", []),
    "controller.doubling_kl.target": (0.01, 1.0, []),
    "controller.kl_guard.spike": (3.0, 9.0, []),
    "controller.kl_guard.floor": (0.01, 0.5, []),
    "controller.kl_guard.knob": ("lr", "low", []),
    "controller.kl_guard.backoff": (0.5, 2.0, []),
    "controller.kl_guard.recover": (1.1, 1.5, []),
    "controller.kl_guard.to": ("reference", "old", []),
    "controller.ref_sync.rate": (0.6, 1.0, ["every=2"]),
    "controller.ref_sync.every": (1, 2, []),
    "controller.adaptive_entropy.knob": ("lr", "low", ["target=0.2"]),
    "controller.adaptive_entropy.target": (0.2, 1.0, []),
    "controller.adaptive_entropy.delta": (0.005, 0.01, ["target=1.0"]),
    "controller.critic_warmup.iterations": (1, 3, []),
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
        f"regularizer.{name}.unbiased": ("true", "false", []),
    }
for name, more in (("critic", []), ("adaptive_critic", ["baseline=adaptive_critic", "sampler=episodes"])):
    KEYS |= {
        f"baseline.{name}.coef": (0.5, 1.0, []),
        f"baseline.{name}.clip": ("null", 0.1, []),
        f"baseline.{name}.network": ("own", "head", more),
        f"baseline.{name}.bootstrap_truncated": ("true", "false", []),
        f"baseline.{name}.lr": ("null", 0.1, more),
        f"baseline.{name}.max_grad_norm": (0.5, 0.001, more),
    }
IN_TRAINING = [f"baseline.{name}.{key}" for name in ("critic", "adaptive_critic") for key in CRITICS_OPTIMIZER]
WITH_MEMORY = ("baseline.ema.decay",)  # the second rollout shows them
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
    size = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=8"]
    if "sampler=episodes" in overrides:
        size = ["sampler.episodes.num_episodes=2"]
    words = ["algorithm=a2c", "env=cartpole", *size, "iterations=1", "tensorboard=false", "progress=false"]
    words.append(f"out={folder}")
    run = rlfw.train([*words, *overrides])
    (file,) = (checkpoints(run)[-1] / "policy").glob("*.safetensors")
    return load_file(file)


def built(axis: str, name: str, key: str, value: object, more: list[str]) -> Any:
    """A part of its defaults; a key without one takes the first value of its row above."""
    keys = {k: default for k, (_, default) in registry.entry(axis, name).keys.items()}
    keys |= {k: KEYS[f"{axis}.{name}.{k}"][0] for k, default in keys.items() if default == "???"}
    keys |= {k: yaml.safe_load(v) for k, _, v in (word.partition("=") for word in more)}
    return rlfw.build(axis, {"part": name, **keys, key: value})


def turned(controller: Any) -> list[list[float]]:
    """What a controller makes of knobs and of a reference in four iterations, and of KLs."""
    names = ("lr", "low", "reward.kl.coef", "regularizer.kl_old.coef", "regularizer.entropy.coef", "baseline.critic.lr")
    knobs, numbers = Knobs(), dict.fromkeys(names, 1.0)
    for key in numbers:
        knobs.add(key, lambda key=key: numbers[key], lambda value, key=key: numbers.update({key: value}))
    spec = ControlSpec((1,), "float32", spaces.Discrete(2), None)
    policy = rlfw.build("policy", {"part": "mlp", "hidden_sizes": [1]}, env_spec=spec, streams=Streams(0))
    reference = Reference(policy)
    policy.output.weight.data += 1
    controller.start(Controls(knobs, reference))
    found = []
    for i, kl in enumerate((0.02, 0.1, 0.02, 0.02)):
        controller.before_iteration(0.25 * i)
        weight = float(reference.frozen.output.weight[0, 0])
        found.append([*numbers.values(), weight, *(controller.stops(kl) for kl in (0.02, 0.025, 0.04, 0.1))])
        seen = {
            "objective/kl_per_token": kl,
            "objective/kl": 20 * kl,
            "policy/approxkl_avg": 0.02,
            "group/n_used": 64.0,
        }
        controller.after_iteration({**seen, "objective/entropy": 0.5})
    return found


def stepped(optimizer: Any) -> list[float]:
    """A weight after two steps."""
    weight = torch.nn.Parameter(torch.ones(1))
    rule = optimizer.build([{"params": [weight], "lr": 0.1}])
    for gradient in (2.0, 1.0):
        weight.grad = torch.tensor([gradient])
        rule.step()
    return weight.detach().tolist()


def remembered(baseline: Any) -> list[float]:
    """The advantages of a second rollout."""
    group = torch.tensor([0, 1])
    baseline.compare(torch.tensor([1.0, 2.0]), group)
    found: list[float] = baseline.compare(torch.tensor([4.0, 6.0]), group).tolist()
    return found


class Asked:
    """An env of rows of one step that keeps its requests; of two groups one pays all its rows the same."""

    def __init__(self) -> None:
        self.requests: list[Any] = []

    def collect(self, request: Any, actor: object) -> Rollout:
        self.requests.append(request)
        B, size = (request.num_envs, 1) if isinstance(request, Steps) else (request.num_episodes, request.group_size)
        group, mask = torch.arange(B) // size, torch.ones(B, 1, dtype=torch.bool)
        paid, none = (group % 2 * torch.arange(B)).float(), torch.zeros(B, dtype=torch.bool)
        return Rollout(
            **{"context": Observations(torch.zeros(B, 1), None, mask), "actions": group[:, None], "mask": mask},
            **{"logprobs": torch.zeros(B, 1), "rewards": paid[:, None], "terminated": ~none, "truncated": none},
            **{"group": group, "episode": group, "episodes": Episodes(paid, torch.ones(B)), "spent": B},
        )


def asked(sampler: Any) -> list[object]:
    """What a sampler asks for, and how many rows it returns."""
    env = Asked()
    rows = len(sampler.collect(env, None).mask)
    return [*env.requests, rows]


@pytest.mark.parametrize("path", [path for path in KEYS if path not in IN_TRAINING])
def test_key_changes_the_result(path: str):
    axis, name, key = path.split(".")
    first, second, more = KEYS[path]
    if axis == "sampler":
        one, two = (asked(built(axis, name, key, value, more)) for value in (first, second))
    elif axis == "controller":
        one, two = (turned(built(axis, name, key, value, more)) for value in (first, second))
    elif path in WITH_MEMORY:
        one, two = (remembered(built(axis, name, key, value, more)) for value in (first, second))
    elif axis == "optimizer":
        one, two = (stepped(built(axis, name, key, value, more)) for value in (first, second))
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

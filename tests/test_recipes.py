"""The published algorithms: each recipe's own loss and gradient on numbers from its paper or worked out here."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import yaml

import rlfw
from rlfw import registry
from rlfw.explain.recipes import AXES

registry.load_components()
RECIPES = sorted(registry.presets("algorithm"))
FOLDER = Path(__file__).parents[1] / "algorithms"

# ------------------------------------------------------------------------------------------------ the files


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_decides_every_axis_and_nothing_of_its_env(name: str) -> None:
    node = yaml.safe_load((FOLDER / f"{name}.yaml").read_text())
    decided = [key for entry in node["defaults"] for key in entry]
    assert sorted(decided) == sorted(f"override /{axis}" for axis in AXES)
    assert set(node) <= {"defaults", "epochs", "num_minibatches", *AXES}
    assert node["epochs"] >= 1
    assert node["num_minibatches"] >= 1


@pytest.mark.parametrize("name", RECIPES)
def test_a_recipe_begins_with_its_name_paper_and_sentence(name: str) -> None:
    first = registry.presets("algorithm")[name]
    assert re.match(r"[^:]+ \((arXiv:\d{4}\.\d{5}|Williams 1992)[^)]*\)[^:]*: .+[^.]$", first) or name == "ppo"


# ------------------------------------------------------------------------------------------------ by number

GOLDEN = json.loads((Path(__file__).parent / "fixtures" / "golden.json").read_text())
MASK = torch.tensor(GOLDEN["mask"])  # [2, 3]: one group, rows of 3 steps and of 1
ROOT_HALF = math.sqrt(0.5)  # rewards 1 and 0: +-1/2 about their mean, +-sqrt(1/2) over their deviation
RATIOS = (1.5, 1.0, 0.7, 4.0)  # of the four steps
LOGPROBS = [math.log(p) for p in (0.3, 0.5, 0.14, 0.8)]
LONG = "aggregation.constant.length=8"
EXACT = "normalize.group_std.eps=0"


def rows(first: float, second: float) -> torch.Tensor:
    """One number a row, on each of its steps."""
    return torch.tensor([first, second]).double()[:, None].expand(MASK.shape) * MASK


def published(name: str) -> tuple[float, list[float]]:
    return GOLDEN["compositions"][name]["loss"], GOLDEN["compositions"][name]["gradient"]


UNIT = {"advantages": rows(1, -1)}
ENTROPY = torch.full(MASK.shape, 0.5).double()  # [2, 3] nats
# A critic that says 0 where the return is 1: (0 - 1)^2 / 2 a step.
CRITIC = {**UNIT, "returns": rows(1, 1), "values": torch.zeros(2, 3), "entropy": ENTROPY}
CRITIC_LOSS, ENTROPY_LOSS = 0.5 * 0.5, -0.01 * 0.5  # coef 0.5, coef 0.01

# recipe -> what the fixture fixes, what else is given, and the loss and gradient of the paper's numbers. The gradient
# is that of the loss with respect to the log-probs of the four steps.
PUBLISHED = {
    "reinforce_pp": (["reward.kl.coef=0"], {}, *published("reinforce_pp")),
    "reinforce_pp_baseline": ([], {}, *published("reinforce_pp_baseline")),
    "grpo": ([EXACT], {}, *published("grpo_kl")),
    "dr_grpo": ([LONG], {}, *published("dr_grpo")),
    "dapo": ([EXACT, "reward.overlong.length=8"], {}, *published("dapo")),
    "rloo": (["reward.kl.coef=0"], {}, *published("rloo")),
    "remax": (["reward.kl.coef=0"], {"greedy_returns": [0, 0]}, *published("remax")),
    "opo": ([], {}, *published("opo")),
    "gpg": ([], {}, *published("gpg")),
    "maxrl": (["aggregation=sequence_mean"], {}, *published("maxrl")),
    "gspo": ([EXACT], {}, *published("gspo")),
    "gmpo": ([EXACT], {}, *published("gmpo")),
    "cispo": ([EXACT], {}, *published("cispo_wide")),
    # The same weights; one group makes its mean over tokens the whole batch's.
    "scale_rl": (["normalize.batch_std.eps=0"], {}, *published("cispo_wide")),
    "sapo": ([EXACT], {}, *published("sapo")),
    "dppo": (
        ["regularizer.dppo.delta=0.05", "normalize=group_std", EXACT, "aggregation=token_mean"],
        {},
        *published("dppo"),
    ),
    "topr": (["aggregation=token_mean"], UNIT, *published("topr")),
    "kl_cov": (["regularizer.kl_cov.fraction=0.5"], UNIT, *published("kl_cov")),
    "vespo": ([], UNIT, 0.907635, [-0.948931 / 4, -0.948931 / 4, -0.948931 / 4, 0.158640 / 4]),
    "ppo": (
        ["normalize=none"],
        CRITIC,
        0.275 + ENTROPY_LOSS + CRITIC_LOSS,
        published("ppo_clip")[1],
    ),
    "a2c": ([], CRITIC, 0.910022 + ENTROPY_LOSS + CRITIC_LOSS, [-0.25, -0.25, -0.25, 0.25]),
    # Undiscounted and without a baseline the advantages are ReMax's with greedy returns 0.
    "reinforce": ([], {}, *published("remax")),
    # Two functions whose z-scores are opposed: twice the one less the other is GRPO's advantage once it is scaled.
    "gdpo": (
        ["reward.decoupled.weights={a: 2, b: 1}", "reward.decoupled.eps=0", "normalize.batch_std.eps=0"],
        {"rewards": {"a": [1.0, 0.0], "b": [0.0, 5.0]}},
        *published("grpo"),
    ),
}


def check(name: str, overrides: list[str], given: dict[str, object], loss: float, gradient: list[float]) -> None:
    policies = {f"{key}logprobs": torch.tensor(GOLDEN[p]).double().log() for key, p in POLICIES.items()}
    steps = {"rewards": GOLDEN["rewards"], "mask": MASK, "group": [0, 0], **policies}
    probed = rlfw.probe([f"algorithm={name}", *overrides], **{**steps, **given})
    assert float(probed.loss) == pytest.approx(loss, abs=2e-6)
    assert probed.gradient[MASK].tolist() == pytest.approx(gradient, abs=2e-6)


POLICIES = {"": "p_new", "old_": "p_old", "ref_": "p_ref"}


@pytest.mark.parametrize("name", PUBLISHED)
def test_loss_and_gradient_are_the_published_ones(name: str) -> None:
    check(name, *PUBLISHED[name])


def test_every_recipe_is_proved() -> None:
    here = set(PUBLISHED) | {name.removeprefix("test_").removesuffix("_by_hand") for name in globals()}
    assert not set(RECIPES) - here


def test_ppo_kl_by_hand() -> None:
    """r A without a clip, and KL(old || new) as r - 1 - log r with coefficient 1."""
    kl = sum(r - 1 - math.log(r) for r in RATIOS) / 4
    plain = (-1.5 - 1 - 0.7 + 4) / 4
    gradient = [(-sign * r + (r - 1)) / 4 for r, sign in zip(RATIOS, (1, 1, 1, -1), strict=True)]
    check("ppo_kl", ["normalize=none"], CRITIC, plain + kl + ENTROPY_LOSS + CRITIC_LOSS, gradient)


def whitened(values: list[float]) -> list[float]:
    mean = sum(values) / len(values)
    deviation = math.sqrt(sum((x - mean) ** 2 for x in values) / (len(values) - 1))
    return [(x - mean) / deviation for x in values]


def clipped(advantages: list[float], low: float, high: float) -> tuple[float, list[float]]:
    """PPO's clip as a mean over the four steps: the loss and its gradient."""
    loss, gradient = 0.0, []
    for ratio, advantage in zip(RATIOS, advantages, strict=True):
        held = min(max(ratio, 1 - low), 1 + high)
        loss -= min(ratio * advantage, held * advantage) / 4
        gradient.append(-ratio * advantage / 4 if ratio * advantage <= held * advantage else 0.0)
    return loss, gradient


def test_ppo_rlhf_by_hand() -> None:
    """The second row is cut by the limit; V is 0 before the update and 0.3 after it."""
    kl = [0, 0, math.log(0.2 / 0.28), math.log(0.2 / 0.4)]  # log old - log ref
    rewards = [0 - 0.05 * kl[0], 0 - 0.05 * kl[1], 1 - 0.05 * kl[2], 0 - 1 - 0.05 * kl[3]]
    advantages = [0.95**2 * rewards[2], 0.95 * rewards[2], rewards[2], rewards[3]]  # gamma 1, lambda 0.95
    loss, gradient = clipped(whitened(advantages), 0.2, 0.2)
    critic = sum(max((0.3 - R) ** 2, (0.2 - R) ** 2) / 2 for R in advantages) / 4  # the values are held within 0.2
    given = {"values": torch.zeros(2, 4), "new_values": torch.full((2, 3), 0.3), "truncated": [False, True]}
    check("ppo_rlhf", [], given, loss + 0.1 * critic, gradient)


def test_rloo_with_its_kl_by_hand() -> None:
    """The KL is taken off the reward before the rows are compared."""
    first = 1 - 0.05 * math.log(0.2 / 0.28)
    second = 0 - 0.05 * math.log(0.2 / 0.4)
    advantage = first - second
    loss = (-advantage * sum(LOGPROBS[:3]) + advantage * LOGPROBS[3]) / 2
    check("rloo", [], {}, loss, [-advantage / 2] * 3 + [advantage / 2])


def test_remax_with_its_kl_by_hand() -> None:
    first = 1 - 0.05 * math.log(0.2 / 0.28) - 0.25
    second = 0 - 0.05 * math.log(0.2 / 0.4) - 0.25
    loss = (-first * sum(LOGPROBS[:3]) - second * LOGPROBS[3]) / 2
    check("remax", [], {"greedy_returns": [0.25, 0.25]}, loss, [-first / 2] * 3 + [-second / 2])


def test_reinforce_pp_with_its_kl_by_hand() -> None:
    kl = [math.log(0.2 / 0.28), math.log(0.2 / 0.4)]
    first, second = 1 - 0.01 * kl[0], 0 - 0.01 * kl[1]
    check("reinforce_pp", [], {}, *clipped(whitened([first, first, first, second]), 0.2, 0.2))


def test_maxrl_of_whole_sequences_by_hand() -> None:
    """Advantages +-0.5 over the mean 0.5; the log-prob of a sequence is the sum of its steps'."""
    check("maxrl", [], {}, (-sum(LOGPROBS[:3]) + LOGPROBS[3]) / 2, [-0.5, -0.5, -0.5, 0.5])


def test_lite_ppo_by_hand() -> None:
    advantages = [ROOT_HALF, ROOT_HALF, ROOT_HALF, -ROOT_HALF]  # the rewards 1 and 0 deviate by sqrt(1/2)
    check("lite_ppo", ["normalize.batch_std.eps=0"], {}, *clipped(advantages, 0.2, 0.2))


def test_dppo_by_hand() -> None:
    """Probabilities move by 0.1, 0, -0.06 and, against its advantage, 0.6: none is dropped at delta 0.15."""
    c = 1 / (2 * 8)
    gradient = [-0.5 * r * c for r in RATIOS[:3]] + [0.5 * 4 * c]
    check("dppo", [LONG], {}, sum(gradient), gradient)
    dropped = [0.0, *gradient[1:]]  # beyond delta 0.05 the first would move further away
    check("dppo", [LONG, "regularizer.dppo.delta=0.05"], {}, sum(dropped), dropped)


def test_topr_by_hand() -> None:
    """The ratio of the second row, 4, is held at 1; that of the first is not asked."""
    loss = (-0.5 * sum(LOGPROBS[:3]) + 0.5 * LOGPROBS[3]) / 2
    check("topr", [], {}, loss, [-0.25, -0.25, -0.25, 0.25])


def test_luspo_by_hand() -> None:
    """Row ratios 1.05^(1/3), held at 1.0025, and 4; each row's loss times its length."""
    loss = (-3 * 1.0025 * ROOT_HALF + 1 * 4 * ROOT_HALF) / 2
    check("luspo", [EXACT], {}, loss, [0, 0, 0, 4 * ROOT_HALF / 2])


def test_clip_cov_by_hand() -> None:
    """The covariances are -0.081, 0.243, -0.081 and 0.243: two steps lie above 0.2, none above 1."""
    a, wide = ROOT_HALF, "weight.clip_cov.fraction=1"
    kept = [-a * 1.5 / 4, -a * 1.0 / 4, -a * 0.7 / 4, a * 4 / 4]
    check("clip_cov", [EXACT, wide], {}, sum(kept), kept)
    dropped = [kept[0], 0, kept[2], 0]
    check("clip_cov", [EXACT, wide, "weight.clip_cov.low=0.2"], {}, sum(dropped), dropped)


def test_eighty_twenty_by_hand() -> None:
    """DAPO's loss on the two of the four steps with the highest entropy; the mean is still over all four."""
    entropy = torch.tensor([[0.1, 0.9, 0.2], [0.3, 0, 0]]).double()
    fixed = [EXACT, "reward.overlong.length=8", "weight.top_entropy.fraction=0.5"]
    gradient = [0, -ROOT_HALF / 4, 0, 4 * ROOT_HALF / 4]
    check("eighty_twenty", fixed, {"entropy": entropy}, sum(gradient), gradient)


def test_vapo_by_hand() -> None:
    """With alpha 1 the rows of 3 and 1 steps have lambda 2/3 and 0; V is 0.5 before the update, 0.6 after it."""
    lam = 1 - 1 / 3
    deltas = [0.0, 0.0, 0.5]  # 0.5 - 0.5, 0.5 - 0.5, 1 - 0.5
    last = deltas[2]
    advantages = [lam**2 * last, lam * last, last, 0 - 0.5]
    loss, gradient = clipped(whitened(advantages), 0.2, 0.28)
    loss -= 0.1 * sum(LOGPROBS[:3]) / 3  # only the first row pays
    gradient = [g - 0.1 / 3 if i < 3 else g for i, g in enumerate(gradient)]
    critic = (3 * (0.6 - 1) ** 2 + (0.6 - 0) ** 2) / 2 / 4  # lambda 1: towards the plain returns
    given = {"values": torch.full((2, 3), 0.5), "new_values": torch.full((2, 3), 0.6)}
    check("vapo", ["baseline.adaptive_critic.alpha=1"], given, loss + 0.5 * critic, gradient)


# ------------------------------------------------------------------------------------------------ real training

SMALL_MODEL = ["policy.causal_lm.hidden_size=8", "policy.causal_lm.num_layers=1", "policy.causal_lm.num_heads=1"]
EPISODES, STEPS = ["sampler.episodes.num_episodes=16"], ["sampler.steps.num_envs=2", "sampler.steps.num_steps=16"]
CONTROL = ["env=cartpole", "policy.mlp.hidden_sizes=[8]", "env.gym.max_episode_steps=20"]

LETTERS = """
from rlfw import register
from rlfw.envs.text import TextEnv, TextTask


@register("env", "paid_letters")
def paid_letters(streams) -> TextEnv:
    \"\"\"Every a pays, and so does every b.\"\"\"
    rewards = {
        "a": lambda completions: [text.count("a") for text in completions],
        "b": lambda completions: [text.count("b") / 2 for text in completions],
    }
    return TextEnv(streams, TextTask(prompts=["ab", "ba"], rewards=rewards, max_new_tokens=6))
"""


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """One file for all: an env is registered once, and forgotten at the end."""
    path = tmp_path_factory.mktemp("plugins") / "paid_letters.py"
    path.write_text(LETTERS)
    yield path
    registry._PARTS["env"].pop("paid_letters", None)


def train(out: Path, *words: str) -> list[dict[str, float]]:
    run = rlfw.train([*words, "progress=false", "tensorboard=false", "iterations=2", f"out={out}"])
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


def check_learning(metrics: list[dict[str, float]], name: str) -> None:
    """Every planned optimizer step was taken, on a gradient that is not zero."""
    node = registry.preset("algorithm", name).node
    assert len(metrics) == 2
    for row in metrics:
        assert row["optim/num_steps"] >= node["epochs"] * min(node["num_minibatches"], 2)
        assert math.isfinite(row["loss/total"])
        assert row["optim/grad_norm"] > 0


@pytest.mark.medium
@pytest.mark.parametrize("name", RECIPES)
def test_it_trains_a_language_model(name: str, plugin: Path, tmp_path: Path) -> None:
    words = [f"plugins=[{plugin}]", "env=paid_letters", "policy=causal_lm", "sampler=episodes", *SMALL_MODEL, *EPISODES]
    check_learning(train(tmp_path / "run", f"algorithm={name}", *words), name)


@pytest.mark.medium
@pytest.mark.parametrize("name", [name for name in RECIPES if name != "gdpo"])  # it needs named reward functions
def test_it_trains_on_cartpole(name: str, tmp_path: Path) -> None:
    steps = "steps" in registry.preset("algorithm", name).node.get("sampler", {"steps": {}})
    words = [f"algorithm={name}", *CONTROL, *(STEPS if steps else EPISODES)]
    check_learning(train(tmp_path / "run", *words), name)

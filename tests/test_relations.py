"""What no combination of registered parts may break: padding, the order of rows, labels, degenerate batches.

The combinations cover every part and every pair of parts, those registered later included. The refused pairs are
tests/fixtures/refused.json: a refusal that is not in it fails, and so does a refused pair that runs.
"""

import itertools
import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import rlfw
from rlfw import registry
from rlfw.composition import ALGORITHM_AXES, Composition
from rlfw.seeding import Streams

pytestmark = pytest.mark.medium

registry.load_components()
REFUSED: dict[str, str] = json.loads((Path(__file__).parent / "fixtures" / "refused.json").read_text())
NEEDED = {  # keys without which a part does not stand
    "reward=weighted": {"reward.weighted.weights": {"a": 1.0, "b": -0.5}},
    "reward=overlong": {"reward.overlong.length": 4, "reward.overlong.cache": 3},
    "aggregation=constant": {"aggregation.constant.length": 8},
    "sampler=episodes": {"sampler.episodes.group_size": 4},
}
SETS = {"regularizer": [("clip", "kl"), ("clip", "kl_old", "entropy")], "reward": [("kl", "clip")]}
VARIANTS = {  # a part under other settings, which take other paths
    "normalize=group_std": {"normalize.group_std.scope": "minibatch"},
    "normalize=whiten": {"normalize.whiten.scope": "minibatch"},
    "normalize=batch_std": {"normalize.batch_std.of": "advantages", "normalize.batch_std.scope": "minibatch"},
    "baseline=critic": {"baseline.critic.clip": 0.2},
}
NAMED = {"reward=[weighted]", "reward=[decoupled]"}  # they read reward functions by name
NEUTRAL = {
    "sampler": "episodes",
    "baseline": "critic",
    "normalize": "none",
    "ratio": "token",
    "aggregation": "token_mean",
}


def levels(axis: str) -> list[str]:
    """Every choice on an axis, as a person types it."""
    names = registry.names(axis)
    if axis in registry.SINGLE:
        return [f"{axis}={name}" for name in names]
    return [f"{axis}=[{','.join(group)}]" for group in [(), *((name,) for name in names), *SETS.get(axis, [])]]


def parts_of(word: str) -> list[str]:
    axis, _, names = word.partition("=")
    return [f"{axis}={name}" for name in names.strip("[]").split(",") if name]


def compose(words: tuple[str, ...], *, variant: bool = False) -> Composition:
    """The parts of ``words``, neutral ones elsewhere, under their defaults or as a variant."""
    nodes: dict[str, dict[str, Any]] = {axis: {} for axis in ALGORITHM_AXES}
    axes = {word.partition("=")[0] for word in words}
    for word in (*words, *(f"{axis}={name}" for axis, name in NEUTRAL.items() if axis not in axes)):
        for part in parts_of(word):
            axis, name = part.split("=")
            keys = {key: default for key, (_, default) in registry.entry(axis, name).keys.items()}
            given = {**NEEDED.get(part, {}), **(VARIANTS.get(part, {}) if variant else {})}
            nodes[axis][name] = {"part": name, **keys, **{path.split(".")[-1]: x for path, x in given.items()}}
    composition = Composition(nodes, gamma=0.9, max_steps=None, streams=Streams(0))
    composition.check_sampler()
    return composition


def refusal(words: tuple[str, ...]) -> str | None:
    try:
        compose(words)
    except rlfw.UserError as error:
        return str(error)
    return None


def refused_pairs(words: tuple[str, ...]) -> list[str]:
    parts = [part for word in words for part in parts_of(word)]
    return [pair for pair in REFUSED if set(pair.split(" ")) <= set(parts)]


def covering(axes: list[str]) -> list[tuple[str, ...]]:
    """Combinations that hold every pair of choices that is not refused: greedy, and the same every time."""
    draw = random.Random(0)
    choices = [levels(axis) for axis in axes]
    pairs = {
        pair
        for first, second in itertools.combinations(choices, 2)
        for pair in itertools.product(first, second)
        if not refused_pairs(pair)
    }
    found = []
    while pairs:
        candidates = []
        for pair in draw.sample(sorted(pairs), min(20, len(pairs))):
            for _ in range(20):
                pinned = {word.partition("=")[0]: word for word in pair}
                candidates.append(
                    tuple(pinned.get(axis) or draw.choice(c) for axis, c in zip(axes, choices, strict=True))
                )
        candidates = [words for words in candidates if not refused_pairs(words)]
        best = max(candidates, key=lambda words: len(pairs & set(itertools.combinations(words, 2))))
        pairs -= set(itertools.combinations(best, 2))
        found.append(best)
    return found


COMBINATIONS = covering([axis for axis in ALGORITHM_AXES if axis != "sampler"])


def batch(words: tuple[str, ...]) -> dict[str, Any]:
    """Two groups of four ragged rows; steps off the mask hold garbage."""
    generator = torch.Generator().manual_seed(3)

    def numbers(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(5) < torch.tensor([5, 1, 3, 2, 4, 4, 1, 2])[:, None]
    cut = torch.tensor([False, False, True, False, False, True, False, False])
    return {
        "rewards": {"a": numbers(8), "b": numbers(8)} if NAMED & set(words) else numbers(8, 5),
        "mask": mask,
        "logprobs": -numbers(8, 5).abs(),
        "old_logprobs": -numbers(8, 5).abs(),
        "ref_logprobs": -numbers(8, 5).abs(),
        "behaviour_logprobs": -numbers(8, 5).abs(),
        "entropy": numbers(8, 5).abs(),
        "greedy_returns": numbers(8),
        "values": numbers(8, 6),
        "new_values": numbers(8, 5),
        "group": torch.tensor([0, 0, 1, 1, 0, 1, 1, 0]),
        "truncated": cut,
        "terminated": ~cut,
    }


def run(words: tuple[str, ...], given: dict[str, Any]) -> Any:
    return rlfw.probe(compose(words, variant=COMBINATIONS.index(words) % 2 == 1), **given)


def assert_same(found: Any, expected: Any, rows: Tensor, width: int) -> None:
    """``found`` is ``expected`` at ``rows`` and in the first ``width`` steps, and nothing anywhere else."""
    for name in ("advantages", "gradient", "value_gradient"):
        one, two = getattr(found, name), getattr(expected, name)
        if two is not None:
            wide = torch.zeros_like(one)
            wide[rows, :width] = two
            torch.testing.assert_close(one, wide, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-9, atol=1e-12)
    assert found.metrics == pytest.approx(expected.metrics, rel=1e-9, abs=1e-12)


ids = " ".join
combinations = pytest.mark.parametrize("words", COMBINATIONS, ids=ids)


def wider(given: Any, mask: Tensor) -> Any:
    """Every field with three more columns and a row without any step, NaN wherever the mask is False."""
    if isinstance(given, dict):
        return {name: wider(field, mask) for name, field in given.items()}
    if given.dim() == 1:
        return torch.cat([given, given[:1]])
    if given.dtype == torch.bool:
        return torch.nn.functional.pad(given, (0, 3, 0, 1))
    T = mask.shape[1]
    steps = [given[:, :T].masked_fill(~mask, torch.nan), torch.full((len(mask), 3), torch.nan), given[:, T:]]
    return torch.nn.functional.pad(torch.cat(steps, 1), (0, 0, 0, 1), value=torch.nan)  # V of the end stays last


def reordered(given: Any, order: Tensor) -> Any:
    if isinstance(given, dict):
        return {name: reordered(field, order) for name, field in given.items()}
    return given[order]


@combinations
def test_padding_order_and_labels_change_nothing(words: tuple[str, ...]):
    given = batch(words)
    order = torch.tensor([3, 8, 0, 6, 1, 7, 2, 5, 4])  # row 8 is the one without steps
    changed = reordered(wider(given, given["mask"]), order)
    changed["group"] = torch.tensor([70, -4])[changed["group"]]
    assert_same(run(words, changed), run(words, given), order.argsort()[:8], 5)


@combinations
def test_extreme_batches_give_finite_numbers(words: tuple[str, ...]):
    """float32: log-ratios of +-100, a group of equal rewards, rows of one step and of none; then no step at all."""
    given = batch(words)
    given["logprobs"] = torch.tensor([100.0, -100.0, 0.0, 1e4]).repeat(10).reshape(8, 5)
    given["old_logprobs"] = torch.zeros(8, 5)
    given["ref_logprobs"] = -given["logprobs"]
    given["mask"][7] = False
    rewards, equal = given["rewards"], given["group"] == 0
    for tensor in rewards.values() if isinstance(rewards, dict) else [rewards]:
        tensor[equal] = 0.3
    for mask in (given["mask"], torch.zeros(8, 5, dtype=torch.bool)):
        found = run(words, {**given, "mask": mask})
        assert found.loss.dtype == torch.float32
        for tensor in (found.loss, found.gradient, found.advantages, found.value_gradient):
            assert tensor is None or bool(tensor.isfinite().all())
        assert all(torch.tensor(value).isfinite() for value in found.metrics.values()), found.metrics
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())


MOVED_BY_A_CONSTANT = {
    *("normalize=batch_std", "normalize=group_mean", "reward=[clip]", "reward=[kl,clip]", "reward=[running_scale]"),
    *("regularizer=[nll]", "weight=[clip_cov]"),
}
SHIFTED = [
    words
    for words in COMBINATIONS
    if {"baseline=group_mean", "baseline=leave_one_out"} & set(words) and not MOVED_BY_A_CONSTANT & set(words)
]


@pytest.mark.parametrize("words", SHIFTED, ids=ids)
def test_constant_added_to_one_group_changes_no_gradient(words: tuple[str, ...]):
    given = batch(words)
    expected = run(words, given)
    rewards = given["rewards"]
    in_group = (given["group"] == 1).double() * 1000
    if isinstance(rewards, dict):
        shifted = {**rewards, "a": rewards["a"] + in_group}
    else:
        shifted = rewards.clone()
        shifted[:, 0] += in_group
    found = run(words, {**given, "rewards": shifted})
    torch.testing.assert_close(found.gradient, expected.gradient, rtol=1e-9, atol=1e-10)


EQUAL = [
    *itertools.product(("baseline=group_mean", "baseline=leave_one_out", "baseline=batch_mean"), levels("normalize")),
    ("baseline=none", "normalize=whiten"),
    ("baseline=none", "normalize=group_std"),
]


@pytest.mark.parametrize("words", EQUAL, ids=ids)
def test_equal_rewards_give_advantages_of_exactly_zero(words: tuple[str, ...]):
    """In float32 the mean of equal numbers is off by an ulp, which a division by their std would make 1."""
    several = words[0] in ("baseline=group_mean", "baseline=leave_one_out")
    groups = list(itertools.product((0.3, 0.35, 0.4, 0.7, 1 / 3), (7, 8, 16))) if several else [(0.3, 7)]
    size = torch.tensor([size for _, size in groups])
    rewards = torch.tensor([value for value, _ in groups]).repeat_interleave(size)  # [B] float32
    mask = torch.arange(9) < 1 + torch.arange(len(rewards))[:, None] % 9
    zeros = torch.zeros(mask.shape)
    found = rlfw.probe(
        ["regularizer=none", *words],
        **{"rewards": rewards, "mask": mask, "logprobs": zeros, "old_logprobs": zeros},
        group=torch.arange(len(groups)).repeat_interleave(size),
    )
    assert found.advantages.dtype == torch.float32
    assert not bool(found.advantages.any())


# ------------------------------------------------------------------------------------------------ refusals

ALL_LEVELS = {axis: levels(axis) for axis in ALGORITHM_AXES}


def test_refused_pairs_are_those_of_the_committed_table():
    found = {}
    for first, second in itertools.combinations(ALL_LEVELS.values(), 2):
        for pair in itertools.product(first, second):
            if all(len(parts_of(word)) == 1 for word in pair) and (message := refusal(pair)):
                found[" ".join(part for word in pair for part in parts_of(word))] = message
    assert found == REFUSED


def test_combinations_are_refused_where_a_pair_of_theirs_is():
    draw = random.Random(1)
    for _ in range(1500):
        words = tuple(draw.choice(choices) for choices in ALL_LEVELS.values())
        assert (refusal(words) is not None) == bool(refused_pairs(words)), words


def test_two_surrogates_are_refused():
    with pytest.raises(rlfw.UserError, match="both replace the objective; choose one"):
        rlfw.probe(["algorithm=ppo", "+regularizer@regularizer.wide=clip"], **batch(()))


# ------------------------------------------------------------------------------------------------ aggregation


@pytest.mark.parametrize("name", registry.names("aggregation"))
def test_coefficients_of_a_whole_batch(name: str):
    """Zero off the mask; what they add up to is what each aggregation's name says; more padding changes nothing."""
    mask = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 0, 0]]).bool()
    group = torch.tensor([5, 5, 9, 9])
    aggregation = compose((f"aggregation={name}",)).aggregation
    found = aggregation(mask, group, torch.float64)
    sums = {"token_mean": 1, "sequence_mean": 1, "prompt_mean": 1, "sequence_sum": 2, "constant": 2 / 8, "token_sum": 6}
    assert float(found.sum()) == pytest.approx(sums[name])
    assert not bool(found[~mask].any())
    assert not bool(aggregation(torch.zeros_like(mask), group, torch.float64).any())
    wide = torch.nn.functional.pad(mask, (0, 5))
    torch.testing.assert_close(aggregation(wide, group, torch.float64)[:, :4], found)

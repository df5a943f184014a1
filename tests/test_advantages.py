"""Advantages that groups make of rewards: published numbers, and what has no signal, through rlfw.probe."""

import itertools
import math

import pytest
import torch

import rlfw
from rlfw import registry
from rlfw.rollout import Batch

registry.load_components()


def advantages(overrides: list[str], rewards: object, lengths: list[int], group: list[int], **given: object) -> object:
    """Each row's advantage, on its first step; rewards lie on the last."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    zeros = torch.zeros(mask.shape).double()
    given = {"mask": mask, "group": group, "logprobs": zeros, "old_logprobs": zeros, **given}
    return rlfw.probe(["ratio=none", "regularizer=[]", *overrides], rewards=rewards, **given).advantages[:, 0]


# Rewards 1, 0, 0, 0 and 1, 1, 0, 0: the advantage of a 1 and of a 0 in each.
TWO_GROUPS = {
    "OPO": (["baseline=length_weighted", "normalize=none"], (0.875, -0.125), (0.5, -0.5)),
    "MaxRL": (["baseline=group_mean", "normalize=group_mean"], (3, -1), (1, -1)),
    "MaxRL without centre": (["baseline=constant", "normalize=group_mean"], (4, 0), (2, 0)),
    "GPG": (["baseline=group_mean", "normalize=signal"], (0.75, -0.25), (0.5, -0.5)),
    "GPG of verl": (
        ["baseline=group_mean", "normalize=signal", "normalize.signal.of=rewards"],
        (2, -0.666667),
        (1.333333, -1.333333),
    ),
    "ReMax, greedy returns 0 and 1": (["baseline=greedy", "normalize=none"], (1, 0), (0, -1)),
    "pass@k": (["baseline=best_of_group", "normalize=none"], (1, 0), (0, 0)),
    "pass@k over the group's deviation": (
        ["baseline=best_of_group", "normalize=group_std", "normalize.group_std.eps=0"],
        (2, 0),  # the deviation of 1, 0, 0, 0 is 1/2
        (0, 0),
    ),
    "the first rollout's mean": (["baseline=ema", "normalize=none"], (0.625, -0.375), (0.625, -0.375)),
    "a constant": (
        ["baseline=constant", "baseline.constant.value=0.25", "normalize=none"],
        (0.75, -0.25),
        (0.75, -0.25),
    ),
}


@pytest.mark.parametrize("name", TWO_GROUPS)
def test_advantages_of_two_groups(name: str):
    overrides, (one, zero), (second_one, second_zero) = TWO_GROUPS[name]
    rows = {"lengths": [2, 4, 4, 6, 3, 1, 2, 2], "group": [0] * 4 + [1] * 4, "greedy_returns": [0] * 4 + [1] * 4}
    found = advantages(overrides, [1, 0, 0, 0, 1, 1, 0, 0], **rows)
    expected = torch.tensor([one, zero, zero, zero, second_one, second_one, second_zero, second_zero]).double()
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


EIGHT = {  # 3 of 8 right
    "MaxRL": (["baseline=group_mean", "normalize=group_mean"], 1.666667, -1),
    "GPG of verl": (["baseline=group_mean", "normalize=signal", "normalize.signal.of=rewards"], 1.666667, -1),
    "pass@k": (["baseline=best_of_group", "normalize=none"], 0, 0),
    "OPO": (["baseline=length_weighted", "normalize=none"], 0.625, -0.375),
}


@pytest.mark.parametrize("name", EIGHT)
def test_advantages_of_a_group_of_eight(name: str):
    overrides, right, wrong = EIGHT[name]
    found = advantages(overrides, [1] * 3 + [0] * 5, [1] * 8, [7] * 8)
    torch.testing.assert_close(found, torch.tensor([right] * 3 + [wrong] * 5).double(), rtol=0, atol=1e-6)


def test_groups_without_signal_raise_the_others():
    """GPG: 4 of 12 rows lie in a group that failed altogether, so the rest counts 12 / 8."""
    words = ["baseline=group_mean", "normalize=signal"]
    found = advantages(words, [1, 0, 0, 0, 1, 1, 0, 0, 0, 0, 0, 0], [1] * 12, [0] * 4 + [1] * 4 + [2] * 4)
    expected = [1.125, -0.375, -0.375, -0.375, 0.75, 0.75, -0.75, -0.75, 0, 0, 0, 0]
    torch.testing.assert_close(found, torch.tensor(expected).double())


@pytest.mark.parametrize("ddof", [0, 1])
def test_no_group_of_zeros_and_ones_exceeds_its_bound(ddof: int):
    """sqrt(G - 1) with ddof 0, (G - 1) / sqrt(G) with 1.

    The deviation of the OTHERS would be 0 for one success in four, and eps alone would give 1e6.
    """
    words = ["baseline=group_mean", "normalize=group_std", f"normalize.group_std.ddof={ddof}"]
    for size in (2, 3, 4, 5):
        outcomes = list(itertools.product([0.0, 1.0], repeat=size))
        rewards = list(itertools.chain.from_iterable(outcomes))
        group = [g for g in range(len(outcomes)) for _ in range(size)]
        found = advantages(words, rewards, [1] * len(rewards), group)
        bound = math.sqrt(size - 1) if ddof == 0 else (size - 1) / math.sqrt(size)
        assert bound - 1e-4 < float(found.abs().max()) <= bound


# ------------------------------------------------------------------------------------------------ no signal

BASELINES = registry.names("baseline")
NORMALIZES = registry.names("normalize")
COMPARES_WITHIN_GROUPS = ("group_mean", "leave_one_out", "length_weighted", "best_of_group")


LENGTHS = torch.tensor([2, 3, 1, 2, 2, 1, 1, 2, 0])
GROUP = torch.tensor([0, 0, 0, 1, 1, 2, 2, 3, 3])
TOTALS = torch.tensor([0.1, 0.1, 0.1, 0, 0, 1, 1.00001, 3, 5])  # a tie, all failed, a near tie, alone, without steps


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("baseline", "normalize"), itertools.product(BASELINES, NORMALIZES))
def test_no_degenerate_batch_gives_a_number_that_is_not_finite(baseline: str, normalize: str, dtype: torch.dtype):
    keys = {"eps": 0.0} if "eps" in registry.entry("normalize", normalize).keys else {}
    scale = rlfw.build("normalize", {"part": normalize, **keys})
    for rows in (list(range(9)), [0, 1, 2], [3, 4], [5, 6], [7], [8, 7], [8, 0, 1]):
        compare = rlfw.build("baseline", {"part": baseline}, gamma=1.0)
        mask = torch.arange(3) < LENGTHS[rows, None]
        batch = degenerate_batch(TOTALS[rows].to(dtype), mask, GROUP[rows])
        found, _ = compare(batch)
        found = scale(found, batch.with_(advantages=found))
        assert found.dtype == dtype
        assert bool(found.isfinite().all())
        assert not bool(found[~mask].any())
        if baseline in COMPARES_WITHIN_GROUPS and normalize != "whiten":
            near_tie = (GROUP[rows] == 2)[:, None]  # nothing else is a signal
            assert not bool(found[~near_tie.expand_as(found)].any())


def degenerate_batch(totals: torch.Tensor, mask: torch.Tensor, group: torch.Tensor) -> Batch:
    """A row's total on its first step."""
    rewards = torch.zeros(mask.shape, dtype=totals.dtype)
    rewards[:, 0] = totals
    terminated = torch.ones(len(mask), dtype=torch.bool)
    return Batch(
        **{"context": None, "actions": None, "logprobs": torch.zeros_like(rewards), "rewards": rewards, "mask": mask},
        **{"terminated": terminated, "truncated": ~terminated, "group": group, "episode": torch.arange(len(mask))},
        values=torch.zeros(len(mask), mask.shape[1] + 1, dtype=totals.dtype),
        greedy_returns=torch.full((len(mask),), 0.1, dtype=totals.dtype),
    )


@pytest.mark.parametrize("normalize", NORMALIZES)
def test_rows_that_a_weight_takes_out_still_belong_to_their_groups(normalize: str):
    """weight=truncated acts after the statistics of a rollout."""
    rows = {"rewards": [1, 0, 1, 0], "lengths": [1, 2, 2, 1], "group": [0] * 4, "truncated": [True, False, True, True]}
    words = ["algorithm=reinforce", "baseline=group_mean", f"normalize={normalize}"]
    torch.testing.assert_close(advantages([*words, "weight=truncated"], **rows), advantages(words, **rows))

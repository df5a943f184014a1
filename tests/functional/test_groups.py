"""Statistics within groups against loops written here and numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from rlfw import functional as F

ids = torch.tensor([3, 8, 3, 8, 8, 1])


def close(found: Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_mean_of_each_members_group():
    x = random(6)
    close(F.group_mean(x, ids), [x[ids == g].mean() for g in ids])


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3])
def test_mean_of_equal_numbers_is_that_number(value: float):
    x = torch.full((7,), value)
    assert bool((F.group_mean(x, torch.zeros(7).long()) == x).all())


def test_weighted_mean_taken_off():
    """Lengths 2, 4, 4, 6 and rewards 1, 0, 0, 0: the mean is 2 / 16."""
    x, group, length = torch.tensor([1.0, 0, 0, 0]), torch.zeros(4).long(), torch.tensor([2, 4, 4, 6])
    close(F.group_center(x, group, weights=length), [0.875, -0.125, -0.125, -0.125])


@pytest.mark.parametrize("include_self", [True, False])
def test_weights_alike_are_no_weights(include_self: bool):
    x = random(6)
    found = F.group_center(x, ids, weights=torch.full((6,), 7), include_self=include_self)
    close(found, F.group_center(x, ids, include_self=include_self))


def test_weighted_mean_of_the_others():
    x, w = random(6), torch.tensor([1, 2, 3, 4, 5, 6])
    found = F.group_center(x, ids, include_self=False, weights=w)
    for i in range(5):
        others = (ids == ids[i]) & (torch.arange(6) != i)
        close(found[i], x[i] - (w[others] * x[others]).sum() / w[others].sum())
    assert float(found[5]) == 0  # alone


def test_zscores_are_those_of_each_group():
    x = random(6)
    for ddof in (0, 1):
        found = F.group_zscore(x, ids, ddof, 0.5)
        for g in (3, 8):
            members = x[ids == g]
            close(found[ids == g], (members - members.mean()) / (members.std(correction=ddof) + 0.5))
        assert float(found[5]) == 0  # alone


def test_zscores_without_spread_are_zero_without_eps():
    close(F.group_zscore(torch.full((4,), 0.1), torch.zeros(4).long(), 1, 0), [0, 0, 0, 0])


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        ([1, 0, 0, 0], [1, 0, 0, 0]),
        ([1, 1, 0, 0], [0, 0, 0, 0]),
        ([2, 5, 4.5, -1], [0, 0.5, 0, 0]),
        ([-3, -1, -2, -9], [0, 1, 0, 0]),
        ([0.1, 0.1, 0.1, 0.1], [0, 0, 0, 0]),
    ],
)
def test_margin_of_the_best(x: list[float], expected: list[float]):
    close(F.group_margin(torch.tensor(x).double(), torch.zeros(4).long()), expected)


def test_margin_is_the_leave_one_out_advantage_of_the_maximum():
    """max over the group less max over the others, for every member."""
    x = random(6)
    found = F.group_margin(x, ids)
    for i in range(5):
        others = (ids == ids[i]) & (torch.arange(6) != i)
        close(found[i], max(float(x[i]), float(x[others].max())) - float(x[others].max()))
    assert float(found[5]) == 0  # alone


@pytest.mark.parametrize(
    "function", [F.group_mean, F.group_center, F.group_margin, lambda x, g: F.group_zscore(x, g, 1, 0)]
)
def test_no_rows_no_numbers(function: object):
    assert function(torch.zeros(0), torch.zeros(0).long()).shape == (0,)


def test_a_group_of_zeros_and_ones_is_bounded_under_its_own_std():
    """At most (G - 1) / sqrt(G): a deviation of the OTHERS is 0 for one success in G, which divides by eps alone."""
    for size in range(2, 9):
        for successes in range(size + 1):
            x = (torch.arange(size) < successes).double()
            z = F.group_zscore(x, torch.zeros(size).long(), 1, 1e-6)
            assert float(z.abs().max()) <= (size - 1) / math.sqrt(size)

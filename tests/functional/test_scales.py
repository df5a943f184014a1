"""Moments that grow rollout by rollout."""

import pytest
import torch

from rlfw import functional as F


def test_merged_moments_are_those_of_all_numbers():
    generator = torch.Generator().manual_seed(0)
    seen, moments = torch.zeros(0), (0, 0.0, 0.0)
    for size in (3, 1, 0, 10):
        x = 5 + torch.randn(size, generator=generator)
        seen, moments = torch.cat([seen, x]), F.merge_moments(*moments, x)
    count, mean, m2 = moments
    assert count == 14
    assert mean == pytest.approx(float(seen.double().mean()), abs=1e-12)
    assert m2 == pytest.approx(float(((seen.double() - seen.double().mean()) ** 2).sum()), abs=1e-12)


def test_moments_far_from_zero_keep_their_digits():
    """1e8 + 0, 1 and 1e8 + 2, 3: a variance of 5 / 4, where a mean of squares in float32 has no digit left."""
    moments = (0, 0.0, 0.0)
    for pair in ([0.0, 1], [2.0, 3]):
        moments = F.merge_moments(*moments, 1e8 + torch.tensor(pair).double())
    assert moments[2] / moments[0] == pytest.approx(1.25, abs=1e-6)


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 1e8 + 0.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_numbers_have_no_spread_in_any_number_of_rollouts(value: float, dtype: torch.dtype):
    moments = (0, 0.0, 0.0)
    for size in (3, 7, 1):
        moments = F.merge_moments(*moments, torch.full((size,), value, dtype=dtype))
    assert moments[2] == 0


def test_division_by_a_negative_scale_is_zero():
    found = F.safe_divide(torch.tensor([2.0, 2, 2]), torch.tensor([4.0, 0, -4]), 0)
    torch.testing.assert_close(found, torch.tensor([0.5, 0, 0]))

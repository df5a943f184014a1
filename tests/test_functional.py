"""The mathematics against loops written here and numbers worked out by hand."""

import math

import pytest
import torch
from torch import Tensor

from rlfw import functional as F


def close(found: Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# Rows with gaps, as observation tokens leave them; right-padded rows; a row without any step.
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [1, 0, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()


# ------------------------------------------------------------------------------------------------ rows


def test_masked_drops_nan_from_values_and_gradients():
    x = torch.tensor([[1.0, math.nan]], requires_grad=True)
    F.masked(x * x, torch.tensor([[True, False]])).sum().backward()
    assert x.grad is not None
    close(F.masked(x, torch.tensor([[True, False]])).detach(), [[1, 0]])
    assert float(x.grad[0, 0]) == 2


def test_row_sums_and_means():
    x = torch.tensor([[1.0, 2, 3], [4, math.nan, math.nan], [math.nan] * 3])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [0, 0, 0]]).bool()
    close(F.row_sum(x, mask), [6, 4, 0])
    close(F.row_mean(x, mask), [2, 4, 0])
    close(F.spread(torch.tensor([1.0, 2, 3]), mask), [[1, 1, 1], [2, 0, 0], [0, 0, 0]])


def test_row_mean_of_equal_numbers_is_that_number_whatever_the_length():
    mask = torch.arange(40) < torch.arange(1, 41)[:, None]
    assert bool((F.row_mean(torch.full((40, 40), 0.3), mask) == torch.tensor(0.3)).all())


def test_row_mean_has_the_gradient_of_a_mean():
    x = random(5, 5).requires_grad_()
    F.row_mean(x, MASK).sum().backward()
    assert x.grad is not None
    close(x.grad, MASK.double() / MASK.sum(1, keepdim=True).clamp(min=1))


# ------------------------------------------------------------------------------------------------ returns


def returns_by_loop(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    found = torch.zeros_like(rewards)
    for row in range(len(mask)):
        G = 0.0
        for t in reversed(range(mask.shape[1])):
            if mask[row, t]:
                G = float(rewards[row, t]) + gamma * G
                found[row, t] = G
    return found


def gae_by_loop(rewards: Tensor, values: Tensor, mask: Tensor, bootstrap: Tensor, gamma: float, lam: float) -> Tensor:
    found = torch.zeros_like(rewards)
    for row in range(len(mask)):
        after, A = float(values[row, -1]) if bootstrap[row] else 0.0, 0.0
        for t in reversed(range(mask.shape[1])):
            if mask[row, t]:
                delta = float(rewards[row, t]) + gamma * after - float(values[row, t])
                A = delta + gamma * lam * A
                after = float(values[row, t])
                found[row, t] = A
    return found


@pytest.mark.parametrize("gamma", [0, 0.5, 0.99, 1])
def test_returns_to_go(gamma: float):
    rewards = random(5, 5)
    close(F.returns_to_go(rewards.masked_fill(~MASK, math.nan), MASK, gamma), returns_by_loop(rewards, MASK, gamma))


def test_returns_stop_at_the_episode_border():
    """Two episodes with rewards 0, 1 are two rows: nothing of the second is in the first."""
    close(F.returns_to_go(torch.tensor([[0.0, 1], [0, 1]]), torch.ones(2, 2).bool(), 1.0), [[1, 1], [1, 1]])


@pytest.mark.parametrize(("gamma", "lam"), [(0.9, 0.8), (1, 1), (0.99, 0), (1, 0.95), (0, 0.5)])
def test_gae(gamma: float, lam: float):
    rewards, values, bootstrap = random(5, 5), random(5, 6, seed=1), torch.tensor([True, False, True, False, True])
    garbage = torch.cat([values[:, :-1].masked_fill(~MASK, math.nan), values[:, -1:]], 1)
    garbage[~bootstrap, -1] = math.nan
    found = F.gae(rewards.masked_fill(~MASK, math.nan), garbage, MASK, bootstrap, gamma, lam)
    close(found, gae_by_loop(rewards, values, MASK, bootstrap, gamma, lam))


def test_gae_does_not_feel_where_a_rollout_was_cut():
    """With lambda 1 and perfect values, one row of six steps and its pieces say the same."""
    rewards = torch.ones(1, 6).double()
    values = torch.tensor([[6.0, 5, 4, 3, 2, 1, 0]]).double()
    whole = F.gae(rewards, values, torch.ones(1, 6).bool(), torch.tensor([False]), 1.0, 1.0)
    close(whole, torch.zeros(1, 6))
    for cut in (1, 2, 5):
        piece = F.gae(rewards[:, :cut], values[:, : cut + 1], torch.ones(1, cut).bool(), torch.tensor([True]), 1.0, 1.0)
        close(piece, whole[:, :cut])


@pytest.mark.parametrize("lam", [0, 0.95, 1])
def test_truncation_bootstraps_and_termination_does_not(lam: float):
    """Reward 1 for ever, gamma 0.9: V = 10 everywhere has no advantage, unless the time limit counts as an end."""
    rewards, mask, values = torch.ones(1, 5).double(), torch.ones(1, 5).bool(), torch.full((1, 6), 10.0).double()
    close(F.gae(rewards, values, mask, torch.tensor([True]), 0.9, lam), torch.zeros(1, 5))
    ended = F.gae(rewards, values, mask, torch.tensor([False]), 0.9, lam)
    close(ended, [[-9 * (0.9 * lam) ** (4 - t) for t in range(5)]])


def test_last_step_of_a_rollout_is_bootstrapped():
    zeros, ones, mask = torch.zeros(1, 3).double(), torch.ones(1, 4).double(), torch.ones(1, 3).bool()
    close(F.gae(zeros, ones, mask, torch.tensor([True]), 1.0, 1.0), [[0, 0, 0]])
    close(F.gae(zeros, ones, mask, torch.tensor([False]), 1.0, 1.0), [[-1, -1, -1]])


# ------------------------------------------------------------------------------------------------ groups


def test_group_statistics_follow_ids_not_positions():
    rewards, group = torch.tensor([0.0, 10, 1, 11]), torch.tensor([0, 1, 0, 1])
    close(F.group_center(rewards, group), [-0.5, -0.5, 0.5, 0.5])
    close(F.group_std(rewards, group, 0), [0.5, 0.5, 0.5, 0.5])
    close(F.group_std(rewards, group, 1), [math.sqrt(0.5)] * 4, 1e-7)
    close(F.group_center(rewards, torch.tensor([7, -3, 7, -3])), [-0.5, -0.5, 0.5, 0.5])


def test_equal_starts_with_different_ids_stay_apart():
    close(F.group_center(torch.tensor([0.0, 0, 1, 1]), torch.tensor([0, 0, 1, 1])), [0, 0, 0, 0])


@pytest.mark.parametrize("include_self", [True, False])
def test_alone_in_a_group_there_is_nothing_to_compare(include_self: bool):
    close(F.group_center(torch.tensor([3.0]), torch.tensor([0]), include_self=include_self), [0])
    for ddof in (0, 1):
        close(F.group_std(torch.tensor([3.0]), torch.tensor([0]), ddof), [0])


def test_group_mean_and_leave_one_out():
    rewards, group = torch.tensor([1.0, 0, 0, 0]).double(), torch.zeros(4).long()
    close(F.group_center(rewards, group), [0.75, -0.25, -0.25, -0.25])
    close(F.group_center(rewards, group, include_self=False), [1, -1 / 3, -1 / 3, -1 / 3])
    uneven, group = torch.tensor([1.0, 0, 5]).double(), torch.tensor([0, 0, 1])
    close(F.group_center(uneven, group, include_self=False), [1, -1, 0])


@pytest.mark.parametrize("size", [7, 8, 16])
@pytest.mark.parametrize("value", [0.1, 0.3, 0.35, 0.4, 0.7, 1 / 3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_equal_numbers_have_no_spread_in_any_precision(value: float, size: int, dtype: torch.dtype):
    x, group = torch.full((size,), value, dtype=dtype), torch.zeros(size).long()
    for found in (F.group_center(x, group), F.group_std(x, group, 1), F.center(x), F.std(x, 0), F.std(x, 1)):
        assert not bool(found.any())


def test_small_differences_survive_low_precision():
    """3, 3, 3, 3 and 3 + 1/64 in bfloat16: taking the minimum off first keeps what subtraction of a mean loses."""
    x, group = torch.tensor([3, 3, 3, 3, 3.015625], dtype=torch.bfloat16), torch.zeros(5).long()
    scaled = F.safe_divide(F.group_center(x, group), F.group_std(x, group, 1), 0)
    close(scaled, [-0.4472] * 4 + [1.7889], 0.02)


@pytest.mark.parametrize("ddof", [0, 1])
def test_standardised_members_of_a_group_are_bounded(ddof: int):
    """|z| <= sqrt(G - 1) with ddof 0 and (G - 1) / sqrt(G) with ddof 1, reached by one among equals."""
    for size in (2, 5, 16):
        x, group = torch.zeros(size).double(), torch.zeros(size).long()
        x[0] = 1
        bound = math.sqrt(size - 1) if ddof == 0 else (size - 1) / math.sqrt(size)
        assert float((F.group_center(x, group) / F.group_std(x, group, ddof))[0]) == pytest.approx(bound)
        z = F.group_center(random(size), group) / F.group_std(random(size), group, ddof)
        assert float(z.abs().max()) <= bound + 1e-12


def test_std_is_the_usual_one():
    x = random(20)
    for ddof in (0, 1):
        close(F.std(x, ddof), x.std(correction=ddof))
        close(F.group_std(x, torch.zeros(20).long(), ddof), x.std(correction=ddof).expand(20))
    close(F.center(x), x - x.mean())


@pytest.mark.parametrize("ddof", [0, 1])
def test_statistics_of_one_and_of_none_are_zero(ddof: int):
    for x in (torch.tensor([3.0]), torch.tensor([])):
        close(F.std(x, ddof), 0)
        close(F.center(x), torch.zeros(len(x)))


def test_division_by_no_spread_is_zero_whatever_eps():
    close(F.safe_divide(torch.tensor([2.0, 2, 2]), torch.tensor([4.0, 0, 0]), 0), [0.5, 0, 0])
    close(F.safe_divide(torch.tensor([2.0, 2]), torch.tensor([3.0, 0]), 1), [0.5, 0])


# ------------------------------------------------------------------------------------------------ ratio and KL


def objective(log_ratio: float, advantage: float) -> tuple[float, float]:
    x = torch.tensor([float(log_ratio)], requires_grad=True)
    value = F.clip_surrogate(x, torch.tensor([advantage]), 0.2, 0.2)
    value.sum().backward()
    assert x.grad is not None
    return float(value.detach()), float(x.grad)


@pytest.mark.parametrize(
    ("ratio", "advantage", "value", "gradient"),
    [(0.5, 1, 0.5, 0.5), (1.5, 1, 1.2, 0), (0.5, -1, -0.8, 0), (1.5, -1, -1.5, -1.5)],
)
def test_clip_takes_the_smaller_objective(ratio: float, advantage: float, value: float, gradient: float):
    assert objective(math.log(ratio), advantage) == pytest.approx((value, gradient), abs=1e-6)


def test_huge_ratio_has_no_nan_behind_the_clip():
    assert objective(100, 1) == pytest.approx((1.2, 0))
    value, gradient = objective(100, -1)
    assert math.isfinite(value)
    assert value < -1e6
    assert math.isfinite(gradient)


def test_huge_ratio_off_the_mask_has_no_nan():
    """Loss -(r A) on the first of two steps: -1, with gradient (-1, 0)."""
    x = torch.tensor([[0.0, 100.0]], requires_grad=True)
    loss = -F.masked(F.exp_ratio(x), torch.tensor([[True, False]])).sum()
    loss.backward()
    assert x.grad is not None
    close(loss.detach(), -1)
    close(x.grad, [[-1, 0]])


def test_kl_estimators():
    d = torch.tensor([0.5, -0.3, 0], dtype=torch.float64)
    close(F.kl_estimate(d, "k1"), [0.5, -0.3, 0])
    close(F.kl_estimate(d, "k2"), [0.125, 0.045, 0])
    close(F.kl_estimate(d, "k3"), [math.exp(-0.5) - 0.5, math.exp(0.3) - 1.3, 0])
    close(F.kl_estimate(d, "abs"), [0.5, 0.3, 0])
    with pytest.raises(ValueError, match="no such KL estimator: k4"):
        F.kl_estimate(d, "k4")


def test_estimates_of_the_kl_between_two_updates():
    """log pi_new - log pi_old of 0.5 and -0.3: the signed estimate hides what k3 shows."""
    d = -torch.tensor([0.5, -0.3], dtype=torch.float64)
    close(F.kl_estimate(d, "k1").mean(), -0.1)
    close(F.kl_estimate(d, "k2").mean(), 0.085)
    close(F.kl_estimate(d, "k3").mean(), 0.094770, 1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3", "abs"])
@pytest.mark.parametrize("d", [-1e4, -100.0, -3, -0.1, 0.1, 3, 100, 1e4])
def test_kl_estimates_are_finite_and_never_pull_away(estimator: str, d: float):
    x = torch.tensor([float(d)], requires_grad=True)
    value = F.kl_estimate(x, estimator)
    value.sum().backward()
    assert x.grad is not None
    assert 0 <= float(value.detach()) < math.inf
    assert math.isfinite(float(x.grad))
    assert float(x.grad) * d >= 0


# ------------------------------------------------------------------------------------------------ values


def test_value_loss_is_half_the_square():
    close(F.value_loss(torch.tensor([[2.0]]), torch.tensor([[5.0]]), None, None), [[4.5]])


@pytest.mark.parametrize(
    ("old", "new", "target", "loss", "gradient"),
    [(0, 1, 1, 0.32, 0), (0.5, 0.9, 1, 0.045, 0), (1, 2, 3, 1.62, 0), (1, 2, 1.1, 0.405, 0.9), (1, 1, 3, 2, -2)],
)
def test_value_clip_takes_the_larger_loss(old: float, new: float, target: float, loss: float, gradient: float):
    v = torch.tensor([[float(new)]], requires_grad=True)
    found = F.value_loss(v, torch.tensor([[float(target)]]), torch.tensor([[float(old)]]), 0.2)
    found.sum().backward()
    assert v.grad is not None
    close(found.detach(), [[loss]], 1e-6)
    close(v.grad, [[gradient]], 1e-6)


def test_a_clip_without_upper_end_is_the_plain_product():
    """min(r A, clip(r, 0, inf) A) = r A, at A = 0 too."""
    log_ratio = torch.tensor([-1.0, 0.0, 2.0])
    for advantage in (-1.0, 0.0, 1.0):
        found = F.clip_surrogate(log_ratio, torch.full((3,), advantage), 1.0, math.inf)
        torch.testing.assert_close(found, log_ratio.exp() * advantage)

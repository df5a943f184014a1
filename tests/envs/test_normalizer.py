"""Running moments against numpy's, and the published accumulators of the discounted return."""

import numpy as np
import pytest
import torch

from rlfw.envs.normalizer import ObservationNormalizer, RewardNormalizer, RunningMoments


def test_moments_of_batches_are_those_of_the_whole():
    x = np.random.default_rng(0).normal(1e6, 3.0, size=(1000, 2)) * [1, 1e-3]  # far from 0: E[x^2] - E[x]^2 would fail
    moments = RunningMoments((2,))
    for part in np.split(x, [1, 2, 7, 300, 301]):
        moments.update(part)
    np.testing.assert_allclose(moments.mean, x.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments.var, x.var(0), rtol=1e-7)


def test_equal_numbers_have_no_scale():
    moments = RunningMoments(())
    moments.update(np.full(8, 0.3))
    assert moments.var == 1


def test_observations_are_standardised_and_clipped():
    x = np.random.default_rng(1).normal(5, 2, size=(500, 3)).astype(np.float32)
    normalizer = ObservationNormalizer((3,), np.array([True, True, False]))
    normalizer.update(x)
    seen = normalizer(x)
    expected = (x.astype(np.float64) - x.mean(0, dtype=np.float64)) / x.std(0, dtype=np.float64)
    np.testing.assert_allclose(seen[:, :2], expected[:, :2], rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(seen[:, 2], x[:, 2])
    assert seen.dtype == np.float32
    assert normalizer(np.full((1, 3), 1e9, np.float32))[0, :2].tolist() == [10, 10]


@pytest.mark.parametrize("ends", ["terminated", "truncated"])  # the normaliser hears of both as done
def test_the_discounted_return_starts_anew_with_every_episode(ends):
    normalizer = RewardNormalizer(0.5)
    normalizer.start(1)
    live, seen = np.ones(1, bool), []
    for t in range(6):
        before = normalizer.returns.copy()
        normalizer(np.ones(1), np.array([t % 3 == 2]), live)
        seen.append(float(0.5 * before[0] + 1))
    assert seen == [1, 1.5, 1.75, 1, 1.5, 1.75]
    assert normalizer.moments.mean == pytest.approx(np.mean(seen), abs=1e-12)
    assert normalizer.moments.var == pytest.approx(np.var(seen), abs=1e-12)


def test_rewards_are_divided_by_the_std_and_not_centred():
    normalizer = RewardNormalizer(0.0)  # the return is the reward itself
    normalizer.start(4)
    rewards, live = np.array([1.0, 2.0, 3.0, 6.0]), np.ones(4, bool)
    seen = normalizer(rewards, ~live, live)
    np.testing.assert_allclose(seen, rewards / np.sqrt(3.5), rtol=1e-7)  # population variance of 1, 2, 3, 6
    assert normalizer(np.full(4, 1e9), ~live, ~live).tolist() == [10] * 4


def test_sub_envs_that_did_not_step_are_not_counted():
    normalizer = RewardNormalizer(0.9)
    normalizer.start(2)
    normalizer(np.array([4.0, 0.0]), np.zeros(2, bool), np.array([True, False]))
    assert normalizer.moments.count == 1
    assert normalizer.moments.mean == 4


def test_state_comes_back():
    normalizer, other = RewardNormalizer(0.9), RewardNormalizer(0.9)
    normalizer.start(2)
    normalizer(np.array([1.0, 3.0]), np.zeros(2, bool), np.ones(2, bool))
    other.load_state_dict(normalizer.state_dict())
    rewards, live = np.array([2.0, 5.0]), np.ones(2, bool)
    np.testing.assert_array_equal(normalizer(rewards, ~live, live), other(rewards, ~live, live))
    assert isinstance(normalizer.state_dict()["returns"], torch.Tensor)

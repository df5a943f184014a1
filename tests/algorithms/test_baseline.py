"""Baselines: which rows are compared, what the critic learns from, what carries no gradient."""

import pytest
import torch

import rlfw


def probed(overrides: list[str], rewards: object, mask: object, **given: object) -> rlfw.probe:
    zeros = torch.zeros(torch.as_tensor(mask).shape).double()
    given = {"group": [0] * len(zeros), "logprobs": zeros, "old_logprobs": zeros, **given}
    return rlfw.probe(
        ["normalize=none", "ratio=none", "regularizer=none", *overrides], rewards=rewards, mask=mask, **given
    )


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("group_mean", [0.75, -0.25, -0.25, -0.25]),
        ("leave_one_out", [1, -1 / 3, -1 / 3, -1 / 3]),
        ("batch_mean", [0.75, -0.25, -0.25, -0.25]),
        ("none", [1, 0, 0, 0]),
    ],
)
def test_one_success_in_four(name: str, expected: list[float]):
    found = probed([f"baseline={name}"], [1, 0, 0, 0], [[1]] * 4).advantages[:, 0]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-7)


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out"])
def test_groups_are_told_by_ids_in_any_order(name: str):
    found = probed([f"baseline={name}"], [0, 10, 1, 11], [[1]] * 4, group=[4, 2, 4, 2]).advantages[:, 0]
    half = 0.5 if name == "group_mean" else 1
    torch.testing.assert_close(found, torch.tensor([-half, -half, half, half]).double())


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out"])
def test_group_of_one_has_no_advantage(name: str):
    assert not bool(probed([f"baseline={name}"], [3, 1, 2], [[1]] * 3, group=[0, 1, 1]).advantages[0].any())


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "batch_mean"])
def test_row_without_steps_is_in_no_group(name: str):
    """A rejected sample: neither its reward nor its absence of one moves the others."""
    for reward in (0.0, 10.0):
        found = probed([f"baseline={name}"], [1, 1, 1, reward], [[1, 1]] * 3 + [[0, 0]])
        assert not bool(found.advantages.any())
        assert not bool(found.gradient.any())


@pytest.mark.parametrize("name", ["group_mean", "leave_one_out", "batch_mean"])
def test_row_baselines_compare_totals_and_spread_the_result(name: str):
    found = probed([f"baseline={name}"], [[1, 2, 3], [4, 9, 9]], [[1, 1, 1], [1, 0, 0]])  # totals 6 and 4
    scale = 2 if name == "leave_one_out" else 1
    torch.testing.assert_close(found.advantages, scale * torch.tensor([[1, 1, 1], [-1, 0, 0]]).double())
    assert found.returns is not None
    torch.testing.assert_close(found.returns, torch.tensor([[6, 6, 6], [4, 0, 0]]).double())


@pytest.mark.parametrize(("gamma", "expected"), [(1, [[1, 1], [1, 1]]), (0.5, [[0.5, 1], [0.5, 1]])])
def test_returns_end_with_their_episode(gamma: float, expected: list[list[float]]):
    found = probed(["baseline=none", f"gamma={gamma}"], [[0, 1], [0, 1]], [[1, 1], [1, 1]])
    torch.testing.assert_close(found.advantages, torch.tensor(expected).double())


CRITIC = ["baseline=critic", "baseline.critic.gae_lambda=1"]


def test_advantages_carry_no_gradient_to_the_critic():
    """Reward 5, value 2: the policy's loss does not know the value; the critic's pulls it with coef * (2 - 5)."""
    given = {"rewards": [5], "mask": [[1]], "values": [[2]], "new_values": [[2]]}
    found = probed([*CRITIC, "baseline.critic.coef=0"], **given)
    assert found.value_gradient is not None
    assert float(found.advantages) == 3
    assert float(found.gradient) == -3
    assert float(found.value_gradient) == 0
    with_loss = probed([*CRITIC, "baseline.critic.coef=0.5"], **given)
    assert with_loss.value_gradient is not None
    assert float(with_loss.value_gradient) == 0.5 * (2 - 5)
    torch.testing.assert_close(with_loss.gradient, found.gradient)


def test_values_and_returns_are_compared_step_by_step():
    """Returns 3, 2, 1 and values 3, 2, 1: a value loss of 0, where a broadcast of [3] against [3, 1] gives 4/3."""
    found = probed(CRITIC, [[1, 1, 1]], [[1, 1, 1]], values=[[3, 2, 1]])
    assert found.critic_loss is not None
    assert float(found.critic_loss) == 0
    assert found.metrics["value/explained_variance"] == 1
    rows = probed(CRITIC, [[1], [2], [3]], [[1], [1], [1]], values=[[1], [2], [3]])
    assert rows.critic_loss is not None
    assert float(rows.critic_loss) == 0


@pytest.mark.parametrize(
    ("terminated", "truncated", "advantage"),
    [(False, True, 1 + 0.9 * 5 - 2), (True, False, 1 - 2), (True, True, 1 - 2), (False, False, 1 + 0.9 * 5 - 2)],
)
def test_an_end_by_itself_is_not_bootstrapped(terminated: bool, truncated: bool, advantage: float):
    """r = 1, gamma = 0.9, V = 2, V of the final observation 5."""
    ends = {"terminated": [terminated], "truncated": [truncated]}
    found = probed(["baseline=critic", "gamma=0.9"], [[1]], [[1]], values=[[2, 5]], **ends)
    assert float(found.advantages) == pytest.approx(advantage)


def test_bootstrapping_of_truncated_rows_can_be_switched_off():
    ends = {"terminated": [False, False], "truncated": [True, False]}  # the second row ends with the rollout
    overrides = ["baseline=critic", "gamma=0.9", "baseline.critic.bootstrap_truncated=false"]
    found = probed(overrides, [[1], [1]], [[1], [1]], values=[[2, 5], [2, 5]], **ends)
    assert found.advantages[:, 0].tolist() == pytest.approx([-1, 3.5])


@pytest.mark.parametrize(("new", "clipped"), [(0.1, 0), (0.3, 1)])
def test_value_clip_is_about_the_values_at_the_start(new: float, clipped: float):
    given = {"rewards": [[1]], "mask": [[1]], "values": [[0]], "new_values": [[new]]}
    assert probed([*CRITIC, "baseline.critic.clip=0.2"], **given).metrics["value/clipfrac"] == clipped


@pytest.mark.parametrize(
    ("key", "value"),
    [("gae_lambda", 1.5), ("coef", -1), ("clip", 0), ("network", "big"), ("lr", -1), ("max_grad_norm", 0)],
)
def test_wrong_values_of_the_critic_are_refused(key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"baseline\.critic\.{key}={value}"):
        rlfw.build("baseline", {"part": "critic", key: value}, gamma=1.0)

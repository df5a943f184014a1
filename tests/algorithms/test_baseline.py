"""Baselines: which rows are compared, what the critic learns from, what carries no gradient."""

import json
from typing import Any

import pytest
import torch

import rlfw
from rlfw import registry
from rlfw.rollout import Batch

registry.load_components()


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
        ("length_weighted", [0.75, -0.25, -0.25, -0.25]),
        ("best_of_group", [1, 0, 0, 0]),
        ("batch_mean", [0.75, -0.25, -0.25, -0.25]),
        ("ema", [0.75, -0.25, -0.25, -0.25]),
        ("constant", [1, 0, 0, 0]),
        ("none", [1, 0, 0, 0]),
    ],
)
def test_one_success_in_four(name: str, expected: list[float]):
    found = probed([f"baseline={name}"], [1, 0, 0, 0], [[1]] * 4).advantages[:, 0]
    torch.testing.assert_close(found, torch.tensor(expected).double(), rtol=0, atol=1e-7)


IN_GROUPS = ["group_mean", "leave_one_out", "length_weighted", "best_of_group"]


@pytest.mark.parametrize(
    ("name", "worse", "better"),
    [("group_mean", -0.5, 0.5), ("leave_one_out", -1, 1), ("length_weighted", -0.5, 0.5), ("best_of_group", 0, 1)],
)
def test_groups_are_told_by_ids_in_any_order(name: str, worse: float, better: float):
    found = probed([f"baseline={name}"], [0, 10, 1, 11], [[1]] * 4, group=[4, 2, 4, 2]).advantages[:, 0]
    torch.testing.assert_close(found, torch.tensor([worse, worse, better, better]).double())


@pytest.mark.parametrize("name", IN_GROUPS)
def test_group_of_one_has_no_advantage(name: str):
    assert not bool(probed([f"baseline={name}"], [3, 1, 2], [[1]] * 3, group=[0, 1, 1]).advantages[0].any())


@pytest.mark.parametrize("name", [*IN_GROUPS, "batch_mean", "ema"])
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


def test_a_constant_is_taken_off_every_total():
    found = probed(["baseline=constant", "baseline.constant.value=0.25"], [[0, 1], [3, 9]], [[1, 1], [1, 0]])
    torch.testing.assert_close(found.advantages, torch.tensor([[0.75, 0.75], [2.75, 0]]).double())


def test_longer_rows_weigh_more():
    """Totals 4 and 1 of rows with 1 and 3 steps: the baseline is (4 + 3) / 4."""
    found = probed(["baseline=length_weighted"], [[4, 9, 9], [0, 0, 1]], [[1, 0, 0], [1, 1, 1]]).advantages
    torch.testing.assert_close(found, torch.tensor([[2.25, 0, 0], [-0.75, -0.75, -0.75]]).double())


@pytest.mark.parametrize("near", [2.0, 2 - 1e-9])
def test_two_that_are_best_alike_leave_no_margin(near: float):
    found = probed(["baseline=best_of_group"], [1, 2, near], [[1]] * 3).advantages[:, 0]
    torch.testing.assert_close(found, torch.tensor([0, 2 - near, 0]).double(), rtol=0, atol=1e-15)


def test_each_row_is_compared_with_the_greedy_episode_from_its_start():
    rows = {"rewards": [1, 0, 1, 0], "mask": [[1, 1], [1, 1], [1, 0], [0, 0]], "group": [0, 0, 1, 1]}
    found = probed(["baseline=greedy"], **rows, greedy_returns=[0, 0, 1, 1]).advantages
    torch.testing.assert_close(found, torch.tensor([[1, 1], [0, 0], [0, 0], [0, 0]]).double())
    with pytest.raises(rlfw.UserError, match="baseline=greedy needs greedy_returns"):
        probed(["baseline=greedy"], **rows)


def test_the_greedy_return_is_the_envs_own():
    """A reward part takes 0.5 off the sampled row alone."""
    words = ["baseline=greedy", "reward=missing_eos", "reward.missing_eos.penalty=0.5"]
    found = probed(words, [1], [[1]], greedy_returns=[1], truncated=[True])
    assert float(found.advantages) == -0.5


# ------------------------------------------------------------------------------------------------ memory


def rollout(totals: list[float]) -> Batch:
    """Rows of one step each."""
    zeros, rows = torch.zeros(len(totals), 1).double(), torch.arange(len(totals))
    no = torch.zeros(len(totals), dtype=torch.bool)
    return Batch(
        **{
            "context": None,
            "actions": None,
            "logprobs": zeros,
            "rewards": torch.tensor(totals, dtype=torch.float64)[:, None],
        },
        **{"mask": torch.ones_like(zeros).bool(), "terminated": ~no, "truncated": no, "group": rows, "episode": rows},
    )


def compared(baseline: Any, totals: list[float]) -> list[float]:
    return baseline(rollout(totals))[0][:, 0].tolist()


def test_a_rollout_is_compared_with_the_average_of_those_before_it():
    """Means 1, 3 and 5 with decay 0.75: compared with 1, with 1, with 0.75 + 0.75."""
    ema = rlfw.build("baseline", {"part": "ema", "decay": 0.75})
    assert ema.report() == {}
    assert compared(ema, [0, 2]) == [-1, 1]
    assert compared(ema, [3, 3]) == [2, 2]
    assert ema.report() == {"baseline/ema": 1.5}
    assert compared(ema, [5]) == [3.5]
    assert ema.report() == {"baseline/ema": 0.75 * 1.5 + 0.25 * 5}


def test_the_average_can_start_from_a_number():
    ema = rlfw.build("baseline", {"part": "ema", "decay": 0.5, "initial": 0.0})
    assert compared(ema, [4, 4]) == [4, 4]
    assert compared(ema, [4]) == [2]


def test_an_empty_rollout_leaves_the_average():
    ema = rlfw.build("baseline", {"part": "ema"})
    assert compared(ema, []) == []
    assert compared(ema, [2.0]) == [0]


def test_the_average_goes_on_from_a_checkpoint():
    one, two = (rlfw.build("baseline", {"part": "ema", "decay": 0.9, "initial": 7.0}) for _ in range(2))
    compared(one, [0.1, 0.7])
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert compared(two, [0.3]) == compared(one, [0.3]) != compared(two, [0.3])


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_wrong_decay_is_refused(decay: float):
    with pytest.raises(rlfw.UserError, match=rf"baseline\.ema\.decay={decay}"):
        rlfw.build("baseline", {"part": "ema", "decay": decay})


# ------------------------------------------------------------------------------------------------ critic

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


# Reward 1 at the end of four steps with values .5, .6, .7, .8, gamma 1: the advantages of each lambda.
REWARD_AT_THE_END = {"rewards": [[0, 0, 0, 1]], "mask": [[1, 1, 1, 1]], "values": [[0.5, 0.6, 0.7, 0.8]]}
ADVANTAGES = {1.0: [0.5, 0.4, 0.3, 0.2], 0.95: [0.456725, 0.3755, 0.29, 0.2], 0.0: [0.1, 0.1, 0.1, 0.2]}


@pytest.mark.parametrize("policy", ADVANTAGES)
@pytest.mark.parametrize("value", [None, *ADVANTAGES])
def test_the_critic_learns_from_a_lambda_of_its_own(policy: float, value: float | None):
    own = [] if value is None else [f"baseline.critic.value_lambda={value}"]
    found = probed(["baseline=critic", f"baseline.critic.gae_lambda={policy}", *own], **REWARD_AT_THE_END)
    torch.testing.assert_close(found.advantages[0], torch.tensor(ADVANTAGES[policy]).double())
    values = torch.tensor(REWARD_AT_THE_END["values"][0]).double()
    learned = values + torch.tensor(ADVANTAGES[policy if value is None else value])
    assert found.returns is not None
    torch.testing.assert_close(found.returns[0], learned, rtol=0, atol=1e-6)


ADAPTIVE = "baseline=adaptive_critic"


def test_lambda_grows_with_the_length_of_the_row():
    """alpha .05: lambda 0, .5, .8 for 20, 40, 100 steps. Values 0, reward 1 at the end: A = lambda^(steps to it)."""
    lengths = torch.tensor([20, 40, 100])
    mask = torch.arange(100) < lengths[:, None]
    found = probed([ADAPTIVE], [1, 1, 1], mask, values=torch.zeros(3, 100))
    left = (lengths[:, None] - 1 - torch.arange(100)).clamp(min=0)
    expected = (torch.tensor([0, 0.5, 0.8]).double()[:, None] ** left) * mask
    torch.testing.assert_close(found.advantages, expected)
    assert found.returns is not None
    torch.testing.assert_close(found.returns, mask.double())  # value_lambda 1: the plain return


@pytest.mark.parametrize(("value_lambda", "last"), [("1.0", 1.0), ("null", 0.5), ("0.0", 0.0)])
def test_the_adaptive_critic_learns_from_a_lambda_of_its_own(value_lambda: str, last: float):
    """Two steps with lambda 1 - 1 / (1 * 2), values 0, reward 1 at the end: the first step's return is lambda."""
    words = [ADAPTIVE, "baseline.adaptive_critic.alpha=1", f"baseline.adaptive_critic.value_lambda={value_lambda}"]
    found = probed(words, [1], [[1, 1]], values=[[0, 0]])
    assert found.advantages.tolist() == [[0.5, 1]]
    assert found.returns is not None
    assert found.returns.tolist() == [[last, 1]]


def test_observation_tokens_do_not_lengthen_a_row():
    """Three steps of the policy, lambda 2/3, with two tokens of the env among them, and without."""
    words = [ADAPTIVE, "baseline.adaptive_critic.alpha=1"]
    gaps = probed(words, [1], [[1, 1, 0, 0, 1]], values=[[0.5, 0.6, 9, 9, 0.8]]).advantages[0, [0, 1, 4]]
    torch.testing.assert_close(gaps, probed(words, [1], [[1, 1, 1]], values=[[0.5, 0.6, 0.8]]).advantages[0])
    torch.testing.assert_close(gaps, torch.tensor([0.1 + 2 / 3 * (0.2 + 2 / 3 * 0.2), 0.2 + 2 / 3 * 0.2, 0.2]).double())


@pytest.mark.parametrize("part", ["critic", "adaptive_critic"])
@pytest.mark.parametrize(
    ("key", "value"),
    [("value_lambda", 1.5), ("coef", -1), ("clip", 0), ("network", "big"), ("lr", -1), ("max_grad_norm", 0)],
)
def test_wrong_values_of_a_critic_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"baseline\.{part}\.{key}={value}"):
        rlfw.build("baseline", {"part": part, key: value}, gamma=1.0)


@pytest.mark.parametrize(("part", "key", "value"), [("critic", "gae_lambda", 1.5), ("adaptive_critic", "alpha", 0)])
def test_wrong_lambdas_of_the_policy_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"baseline\.{part}\.{key}={value}"):
        rlfw.build("baseline", {"part": part, key: value}, gamma=1.0)


@pytest.mark.parametrize("more", [{}, {"clip": 0.2}, {"value_lambda": 0.5}])
@pytest.mark.parametrize("name", registry.names("baseline"))
def test_every_formula_names_the_keys_that_it_reads(name: str, more: dict[str, object]):
    keys = {key: default for key, (_, default) in registry.entry("baseline", name).keys.items()}
    keys |= {key: value for key, value in more.items() if key in keys}
    formula = rlfw.build("baseline", {"part": name, **keys}, gamma=1.0).formula.format_map(keys)
    assert formula.startswith("A = ")
    assert "None" not in formula
    assert all(str(value) in formula for key, value in more.items() if key in keys)

"""Samplers: the request that an env receives, and what becomes of groups without signal."""

import pytest
import torch

import rlfw
from rlfw.context import Observations
from rlfw.interfaces import EpisodeGroups, Steps
from rlfw.rollout import Episodes, Rollout


class Asked:
    """An env that hands back what it was asked for."""

    def collect(self, request: object, actor: object) -> object:
        return request


def request(part: str, **keys: int) -> object:
    return rlfw.build("sampler", {"part": part, **keys}).collect(Asked(), actor=None)


def test_steps_ask_for_steps():
    assert request("steps", num_envs=3, num_steps=5) == Steps(num_envs=3, num_steps=5)


def test_episodes_ask_for_whole_groups():
    assert request("episodes", num_episodes=12, group_size=4) == EpisodeGroups(num_episodes=12, group_size=4)
    with pytest.raises(rlfw.UserError, match=r"num_episodes=10 is not a multiple of sampler\.episodes\.group_size=4"):
        request("episodes", num_episodes=10, group_size=4)


@pytest.mark.parametrize(
    ("part", "key"),
    [("steps", "num_envs"), ("steps", "num_steps"), ("episodes", "num_episodes"), ("episodes", "group_size")],
)
def test_nothing_is_no_request(part: str, key: str):
    with pytest.raises(rlfw.UserError, match=rf"sampler\.{part}\.{key}=0: it must be at least 1"):
        request(part, **{key: 0})


# ---------------------------------------------------------------------------------------------------- no signal


class Paying:
    """An env whose groups pay what a script says: one list of row totals a group, in the order in which it is asked.

    The reward falls on the first and the last step of a row; row b of collection k has 1 + (b + k) % 3 steps.
    """

    def __init__(self, *groups: list[float]) -> None:
        self.groups, self.asked, self.requests = list(groups), 0, []

    def collect(self, request: EpisodeGroups, actor: object) -> Rollout:
        self.requests.append(request)
        num = request.num_episodes // request.group_size
        totals = self.groups[self.asked : self.asked + num]
        group = torch.arange(self.asked, self.asked + num).repeat_interleave(torch.tensor([len(t) for t in totals]))
        self.asked += num
        flat = torch.tensor([x for t in totals for x in t])
        B = len(flat)
        lengths = 1 + (torch.arange(B) + len(self.requests)) % 3
        mask = torch.arange(int(lengths.max())) < lengths[:, None]
        rewards = torch.zeros(mask.shape)
        rewards[:, 0] += flat / 2
        rewards[torch.arange(B), lengths - 1] += flat / 2
        return Rollout(
            context=Observations(torch.zeros(int(lengths.sum()), 1), torch.zeros(B, 1), mask),
            actions=torch.zeros(mask.shape, dtype=torch.long),
            logprobs=torch.zeros(mask.shape),
            rewards=rewards,
            mask=mask,
            terminated=torch.ones(B, dtype=torch.bool),
            truncated=torch.zeros(B, dtype=torch.bool),
            group=group,
            episode=torch.arange(B) + 100 * len(self.requests),
            episodes=Episodes(flat, lengths),
            greedy_returns=10.0 * group if request.greedy else None,
            spent=B,
            num_generated=request.num_episodes,
        )


EVEN, MIXED, BACKWARDS = [1.0, 1.0], [0.0, 1.0], [1.0, 0.0]  # the totals of a group's two rows


def sampled(env: Paying, *, greedy: bool = False, **keys: object):
    sampler = rlfw.build("sampler", {"part": "episodes", "num_episodes": 6, "group_size": 2, **keys})
    return sampler.collect(env, None, greedy=greedy).check("env"), sampler


def totals(rollout: Rollout) -> list[float]:
    return rollout.rewards.sum(1).tolist()


def test_keep_leaves_all_groups():
    rollout, sampler = sampled(Paying(EVEN, MIXED, EVEN))
    assert totals(rollout) == [1, 1, 0, 1, 1, 1]
    assert sampler.report() == {}


def test_drop_leaves_out_the_groups_without_signal():
    rollout, _ = sampled(Paying(EVEN, MIXED, EVEN), no_signal="drop")
    assert totals(rollout) == [0, 1]
    assert rollout.group.tolist() == [1, 1]
    assert (rollout.spent, rollout.num_generated, len(rollout.episodes.returns)) == (6, 6, 6)


def test_resampling_asks_for_what_is_missing_until_it_is_there():
    env = Paying(EVEN, MIXED, EVEN, EVEN, BACKWARDS, [5.0, 7.0], MIXED)
    rollout, sampler = sampled(env, no_signal="resample", greedy=True)
    assert env.requests == [EpisodeGroups(num, 2, True) for num in (6, 4, 2)]
    assert totals(rollout) == [0, 1, 1, 0, 5, 7]
    assert rollout.group.tolist() == [1, 1, 4, 4, 5, 5]
    assert rollout.greedy_returns.tolist() == [10, 10, 40, 40, 50, 50]
    assert (rollout.spent, rollout.num_generated, len(rollout.episodes.returns)) == (12, 12, 12)
    assert sampler.report() == {"group/rounds": 3}


def test_resampling_ends_after_its_rounds_with_what_it_has():
    env = Paying(*[EVEN] * 100)
    rollout, sampler = sampled(env, no_signal="resample", max_rounds=4)
    assert len(env.requests) == 4
    assert rollout.mask.shape[0] == 0
    assert (rollout.spent, rollout.num_generated) == (24, 24)
    assert sampler.report() == {"group/rounds": 4}


def test_one_round_is_enough_where_all_groups_carry_a_signal():
    env = Paying(*[MIXED] * 100)
    rollout, sampler = sampled(env, no_signal="resample")
    assert len(env.requests) == 1
    assert totals(rollout) == [0, 1, 0, 1, 0, 1]
    assert sampler.report() == {"group/rounds": 1}


def test_a_row_that_was_left_alone_carries_no_signal_and_a_smaller_group_is_a_group():
    """Rows that nothing scored are missing already: of one group of three two are left, of another one."""
    env = Paying([0.0, 1.0], [1.0], [2.0, 3.0, 4.0])
    rollout, _ = sampled(env, no_signal="resample", num_episodes=6, group_size=3)
    assert [request.num_episodes for request in env.requests] == [6, 3]
    assert totals(rollout) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("no_signal", ["drop", "resample"])
def test_a_group_of_one_has_nothing_to_compare(no_signal: str):
    with pytest.raises(
        rlfw.UserError, match=rf"no_signal={no_signal} compares.*set sampler\.episodes\.group_size >= 2"
    ):
        request("episodes", no_signal=no_signal, group_size=1)


def test_other_words_are_refused():
    with pytest.raises(rlfw.UserError, match=r"no_signal=skip: choose one of keep, drop, resample"):
        request("episodes", no_signal="skip", group_size=2)
    with pytest.raises(rlfw.UserError, match=r"sampler\.episodes\.max_rounds=0: it must be at least 1"):
        request("episodes", max_rounds=0)

"""Rollouts that are filtered and joined: what a policy says of a row does not depend on the rows beside it."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import rlfw
from rlfw.envs.gym import GymEnv
from rlfw.envs.text import Example, TextEnv, TextTask
from rlfw.interfaces import EpisodeGroups, Policy
from rlfw.rollout import Rollout
from rlfw.seeding import Streams

FIELDS = ("actions", "logprobs", "rewards", "mask")
ROW_FIELDS = ("terminated", "truncated", "group", "episode", "greedy_returns")


def gym_rollouts() -> tuple[Policy, list[Rollout]]:
    """Three collections of CartPole, each as wide as its longest episode, in groups of two; a critic beside."""
    streams = Streams(0)
    env = GymEnv(gamma=0.99, streams=streams, id="CartPole-v1", max_episode_steps=40)
    policy = rlfw.build("policy", {"part": "mlp", "hidden_sizes": [8]}, env_spec=env.spec, streams=streams)
    policy.add_critic("own")
    return policy, [env.collect(EpisodeGroups(n, 2, True), policy.actor(streams)).check("x") for n in (6, 2, 4)]


class Words(TextTask):
    """Prompts of 1 to 9 letters."""

    def draw(self, rng: np.random.Generator) -> Example:
        return Example("".join(rng.choice(["a", "b"], size=rng.integers(1, 10))))


def text_rollouts() -> tuple[Policy, list[Rollout]]:
    """Three collections of a text task, whose prompts and completions differ in length; two reward functions."""
    streams = Streams(0)
    rewards = {
        "chars": lambda completions: list(map(len, completions)),
        "a": lambda completions: ["a" in c for c in completions],
    }
    env = TextEnv(streams, Words(rewards=rewards, alphabet="ab", max_prompt_chars=9, max_new_tokens=6))
    keys = {"part": "causal_lm", "hidden_size": 8, "num_layers": 1, "num_heads": 1}
    policy = rlfw.build("policy", keys, env_spec=env.spec, streams=streams)
    policy.add_critic("head")
    found = [env.collect(EpisodeGroups(n, 2, True), policy.actor(streams)).check("x") for n in (4, 2, 2)]
    assert len({rollout.context.ids.shape[1] for rollout in found}) > 1
    return policy, found


@pytest.fixture(params=[gym_rollouts, text_rollouts])
def found(request) -> tuple[Policy, list[Rollout]]:
    return request.param()


def said(policy: Policy, rollout: Rollout) -> list[list[float]]:
    """The log-probs of each row's own steps, then its values, that of its end included."""
    with torch.no_grad():
        scored = policy.score(rollout.context, rollout.actions, rollout.mask)
        values = policy.values(rollout.context, rollout.actions, rollout.mask)
    rows = range(len(rollout.mask))
    return [
        [*scored.logprobs[b][rollout.mask[b]].tolist(), *values[b, :-1][rollout.mask[b]].tolist(), float(values[b, -1])]
        for b in rows
    ]


def assert_same(one: list[list[float]], two: list[list[float]]) -> None:
    assert [len(row) for row in one] == [len(row) for row in two]
    for a, b in zip(one, two, strict=True):
        assert a == pytest.approx(b, abs=1e-5)


def test_joined_rollouts_hold_every_row_as_it_was(found):
    policy, rollouts = found
    widths = {rollout.mask.shape[1] for rollout in rollouts}
    assert len(widths) > 1
    joined = Rollout.cat(rollouts).check("joined")
    assert joined.mask.shape == (sum(len(r.mask) for r in rollouts), max(widths))
    start = 0
    for rollout in rollouts:
        B, T = rollout.mask.shape
        for name in FIELDS:
            whole = getattr(joined, name)[start : start + B]
            assert torch.equal(whole[:, :T], getattr(rollout, name)), name
            assert not whole[:, T:].any(), name
        for name in ROW_FIELDS:
            assert torch.equal(getattr(joined, name)[start : start + B], getattr(rollout, name)), name
        for name, score in rollout.scores.items():
            assert torch.equal(joined.scores[name][start : start + B], score)
        if rollout.samples is not None:
            assert joined.samples[start : start + B] == rollout.samples
        start += B
    assert len(joined.group.unique()) == sum(len(r.group.unique()) for r in rollouts)
    assert joined.spent == sum(r.spent for r in rollouts)
    assert joined.num_generated == sum(r.num_generated for r in rollouts)
    assert joined.episodes.returns.tolist() == [x for r in rollouts for x in r.episodes.returns.tolist()]
    assert joined.episodes.lengths.tolist() == [x for r in rollouts for x in r.episodes.lengths.tolist()]
    assert_same(said(policy, joined), [row for r in rollouts for row in said(policy, r)])


def test_picked_rows_are_what_they_were(found):
    policy, rollouts = found
    whole = Rollout.cat(rollouts)
    index = torch.tensor([5, 0, 3])
    some = whole.rows(index).check("some")
    for name in (*FIELDS, *ROW_FIELDS):
        assert torch.equal(getattr(some, name), getattr(whole, name)[index]), name
    assert all(torch.equal(some.scores[name], score[index]) for name, score in whole.scores.items())
    if whole.samples is not None:
        assert some.samples == [whole.samples[i] for i in (5, 0, 3)]
    assert (some.spent, some.num_generated) == (whole.spent, whole.num_generated)
    assert torch.equal(some.episodes.returns, whole.episodes.returns)
    everything = said(policy, whole)
    assert_same(said(policy, some), [everything[i] for i in (5, 0, 3)])


def test_no_row_at_all_joins_with_others(found):
    policy, rollouts = found
    none = [rollout.rows(torch.zeros(0, dtype=torch.long)).check("none") for rollout in rollouts]
    empty = Rollout.cat(none).check("empty")
    assert len(empty.mask) == len(empty.group) == len(empty.greedy_returns) == 0
    assert empty.spent == sum(r.spent for r in rollouts)
    joined = Rollout.cat([none[0], rollouts[1], none[2]]).check("joined")
    assert torch.equal(joined.group, rollouts[1].group)
    assert_same(said(policy, joined), said(policy, rollouts[1]))

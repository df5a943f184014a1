"""An env by itself, with the policy that its preset brings."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlfw import registry
from rlfw.interfaces import EpisodeGroups, Steps
from rlfw.seeding import Streams

from .invariance import through_checkpoint
from .policies import stir
from .report import Result, failed, passed

if TYPE_CHECKING:
    from rlfw.interfaces import Env, Request
    from rlfw.rollout import Rollout

    from .machinery import Machine


class Played:
    """An env with the streams that it draws from, and a policy."""

    def __init__(self, subject: Machine, seed: int = 0) -> None:
        self.streams = Streams(seed)
        self.env: Env = subject.build(streams=self.streams)
        node: Any = subject.wires["policy"]
        self.policy: Any = registry.build("policy", node, env_spec=self.env.spec, streams=self.streams)
        stir(self.policy, 1)

    def collect(self, request: Request) -> Rollout:
        return self.env.collect(request, self.policy.actor(self.streams))


def requests(env: Env) -> dict[str, Request]:
    episodes: dict[str, Request] = {"groups of two whole episodes": EpisodeGroups(4, 2)}
    return episodes if env.whole_episodes_only else {"8 steps of two envs": Steps(2, 8), **episodes}


def keeps_its_word(subject: Machine) -> Result:
    """Rows never cross an episode's end, terminated and truncated are told apart, rewards are zero off the mask, ids
    are new with every call. All that comes later trusts it."""
    words = []
    for name, request in requests(Played(subject).env).items():
        played = Played(subject)
        groups: set[int] = set()
        for _ in range(2):
            rollout = played.collect(request).check(f"env={subject.name}")
            if isinstance(request, EpisodeGroups):
                sizes = rollout.group.unique(return_counts=True)[1]
                if not bool((sizes <= request.group_size).all()):
                    return failed(f"{name}: there is a group of {int(sizes.max())} rows")
                if not bool((rollout.terminated | rollout.truncated).all()):
                    return failed(f"{name}: a row is neither terminated nor truncated")
            elif int(rollout.mask.sum()) != request.num_envs * request.num_steps:
                return failed(f"{name}: {int(rollout.mask.sum())} steps came")
            if isinstance(request, EpisodeGroups) and groups & set(rollout.group.tolist()):
                return failed(f"{name}: two rollouts share a group's id")
            groups |= set(rollout.group.tolist())
            if rollout.spent <= 0:
                return failed(f"{name}: spent is {rollout.spent}")
        words.append(f"{name}: {len(rollout.mask)} rows, {int(rollout.mask.sum())} steps")
    return passed("; ".join(words))


def scored(subject: Machine) -> Result:
    """What the env stored is what the policy saw: scored again, the log-probs are those of acting. Observations stored
    before a normaliser, or after a reset, show here as a first ratio other than 1."""
    worst = 0.0
    for name, request in requests(Played(subject).env).items():
        played = Played(subject)
        played.collect(request)
        rollout = played.collect(request)
        with torch.no_grad():
            found = played.policy.score(rollout.context, rollout.actions, rollout.mask).logprobs
        gap = float((found - rollout.logprobs)[rollout.mask].abs().max())
        if not gap <= 1e-3:
            return failed(f"{name}: scored again, the log-probs are up to {gap:.3g} nats off")
        worst = max(worst, gap)
    return passed(f"scored again, the log-probs are those of acting, within {worst:.1g} nats")


def seeded(subject: Machine) -> Result:
    """One seed, one run; another seed, another run. An env that draws from a generator of its own repeats nothing."""
    for name, request in requests(Played(subject).env).items():
        one, two, other = (_numbers(Played(subject, seed).collect(request)) for seed in (0, 0, 1))
        if not _same(one, two):
            return failed(f"{name}: two runs of one seed differ")
        if _same(one, other):
            return failed(f"{name}: another seed gives the same rollout")
    return passed("one seed gives one rollout, another seed another")


def goes_on(subject: Machine) -> Result:
    """A checkpoint is between two rollouts. What an env does not save (a running episode, a normaliser, a counter of
    seeds) makes the resumed run another one."""
    for name, request in requests(Played(subject).env).items():
        lived = Played(subject)
        lived.collect(request)
        state, streams = through_checkpoint(lived.env.state_dict()), copy.deepcopy(lived.streams.state_dict())
        expected = _numbers(lived.collect(request))
        loaded = Played(subject)
        loaded.env.load_state_dict(state)
        loaded.streams.load_state_dict(streams)
        if not _same(_numbers(loaded.collect(request)), expected):
            return failed(f"{name}: after a save and a load the next rollout is another one")
    return passed("saved and loaded between two rollouts, it goes on exactly")


def evaluates_aside(subject: Machine) -> Result:
    """Evaluation has envs and seeds of its own: a run that is evaluated is the same run."""
    for name, request in requests(Played(subject).env).items():
        plain, looked_at = Played(subject), Played(subject)
        found: list[Rollout] = []
        for played in (plain, looked_at):
            played.collect(request)
            if played is looked_at:
                metrics = played.env.evaluate(played.policy.actor(Streams(5)), 2, Streams(5).child("evaluation"))
                if not metrics or any(len(values) != 2 for values in metrics.values()):
                    return failed(f"asked for 2 episodes, evaluate gives {metrics}")
            found.append(played.collect(request))
        if not _same(*(_numbers(rollout) for rollout in found)):
            return failed(f"{name}: an evaluation between two rollouts changes the second")
    return passed(f"two episodes give {', '.join(metrics)}; an evaluation between two rollouts changes neither")


def _numbers(rollout: Rollout) -> list[Tensor]:
    return [rollout.actions, rollout.rewards, rollout.mask, rollout.logprobs, rollout.terminated, rollout.truncated]


def _same(one: list[Tensor], two: list[Tensor]) -> bool:
    return all(x.shape == y.shape and torch.equal(x, y) for x, y in zip(one, two, strict=True))

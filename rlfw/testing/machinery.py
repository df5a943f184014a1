"""Parts beside the loss: samplers, controllers and optimizers, driven by hand."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlfw import registry
from rlfw.context import Observations
from rlfw.interfaces import ControlSpec, Env, EpisodeGroups, Policy, Steps
from rlfw.knobs import Controls, Knobs
from rlfw.optim import FlatOptimizer, ParameterGroup
from rlfw.reference import Reference
from rlfw.rollout import Episodes, Rollout
from rlfw.seeding import Streams

from .invariance import listed, through_checkpoint
from .report import Result, failed, passed, skipped
from .subject import defaults

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlfw.interfaces import Request


@dataclass(frozen=True)
class Machine:
    """A part that stands by itself."""

    axis: str
    name: str
    node: Mapping[str, Any]
    needs: frozenset[str]
    formula: str
    wires: Mapping[str, Any] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        return self.axis

    def build(self, **wires: Any) -> Any:
        return registry.build(self.axis, self.node, **{**self.wires, **wires})


# ------------------------------------------------------------------------------------------------ sampler


class Toy(Env):
    """Episodes of one to four steps with random rewards; every third group gets equal ones."""

    name, unit = "toy", "env steps"
    spec = ControlSpec((1,), "float32", spaces.Discrete(2), 4)

    def __init__(self, streams: Streams) -> None:
        self.streams, self.groups, self.episodes, self.spent = streams, 0, 0, 0

    def collect(self, request: Request, actor: Any) -> Rollout:
        rng = self.streams.torch("toy")
        if isinstance(request, Steps):
            lengths = torch.full((request.num_envs,), request.num_steps)
            size, whole = 1, False
        else:
            lengths = torch.randint(1, 5, (request.num_episodes,), generator=rng)
            size, whole = request.group_size, True
        B, T = len(lengths), int(lengths.max())
        mask = torch.arange(T) < lengths[:, None]
        group = self.groups + torch.arange(B) // size
        totals = torch.rand(B, generator=rng)
        totals = torch.where(group % 3 == 0, 0.5, totals)
        rewards = torch.zeros(B, T).scatter(1, lengths[:, None] - 1, totals[:, None])
        ended = torch.full((B,), whole)
        self.groups, self.episodes = int(group.max()) + 1, self.episodes + B
        spent = int(lengths.sum())
        self.spent += spent
        flat = torch.rand(spent, 1, generator=rng)
        greedy = isinstance(request, EpisodeGroups) and request.greedy
        return Rollout(
            context=Observations(flat, torch.zeros(B, 1), mask),
            actions=torch.zeros(B, T, dtype=torch.int64),
            logprobs=torch.where(mask, -math.log(2), 0.0),
            rewards=rewards,
            mask=mask,
            terminated=ended,
            truncated=~ended & False,
            group=group,
            episode=self.episodes + torch.arange(B),
            episodes=Episodes(totals[ended], lengths[ended].float()),
            greedy_returns=torch.rand(B, generator=rng) if greedy else None,
            spent=spent,
            num_generated=B,
        )

    def evaluate(
        self, actor: Any, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        return {"return": [0.0] * num_episodes}


def collected(subject: Machine) -> Result:
    """What a sampler asks for and hands on is what the whole update stands on. A group that lost a row without losing
    its label, or work that is not counted, makes two runs incomparable."""
    sampler, env = subject.build(), Toy(Streams(0))
    for _ in range(3):
        before = env.spent
        rollout = sampler.collect(env, None)
        rollout.check("the sampler's rollout")
        if not len(rollout.mask):
            return failed("it hands on a rollout without rows")
        if rollout.spent != env.spent - before:
            return failed(
                f"the env played {env.spent - before} steps, and the rollout says that it cost {rollout.spent}"
            )
        if sampler.whole_episodes and not bool((rollout.terminated | rollout.truncated).all()):
            return failed("whole_episodes is True, and a row has no end")
        sizes = rollout.group.unique(return_counts=True)[1]
        if sampler.group_size > 1 and not bool((sizes == sampler.group_size).all()):
            return failed(f"group_size is {sampler.group_size}, and there are groups of {sizes.unique().tolist()} rows")
    if sampler.whole_episodes and sampler.collect(env, None, greedy=True).greedy_returns is None:
        return failed("asked for greedy episodes, it hands on none")
    kind = "whole episodes" if sampler.whole_episodes else "stretches of steps"
    return passed(
        f"{len(rollout.mask)} rows, {kind}, groups of {int(sizes.max())}; {rollout.num_generated} rows generated, "
        f"{rollout.spent} steps counted"
    )


def collects_again(subject: Machine) -> Result:
    """Two runs of one seed collect the same, before and after a checkpoint."""
    runs = []
    for _ in range(2):
        sampler, env = subject.build(), Toy(Streams(0))
        sampler.collect(env, None)
        state = through_checkpoint(sampler.state_dict())
        fresh = subject.build()
        fresh.load_state_dict(state)
        runs.append((sampler.collect(copy.deepcopy(env), None), fresh.collect(env, None)))
    rollouts = [rollout for pair in runs for rollout in pair]
    for other in rollouts[1:]:
        if not torch.equal(other.rewards, rollouts[0].rewards):
            return failed("the second rollout differs between two runs of one seed, or after a save and a load")
    return passed("the same seed collects the same, through a save and a load as well")


# ------------------------------------------------------------------------------------------------ optimizer


def _optimizer(subject: Machine, lr: float, start: Tensor) -> tuple[FlatOptimizer, nn.Parameter]:
    weight = nn.Parameter(start.clone())
    return FlatOptimizer(subject.build(), [ParameterGroup("policy", [weight], lr, math.inf)]), weight


def _descend(optimizer: FlatOptimizer, weight: nn.Parameter, steps: int) -> float:
    for _ in range(steps):
        optimizer.zero_grad()
        loss = ((weight - 1) ** 2 * torch.tensor([1.0, 10.0])).sum()
        loss.backward()
        optimizer.step()
    return float(((weight - 1) ** 2).sum().detach())


def descends(subject: Machine) -> Result:
    """A step goes downhill, and is as long as the learning rate says: at 0 nothing moves, weight decay included."""
    start = torch.tensor([3.0, -2.0])
    still, weight = _optimizer(subject, 0.0, start)
    _descend(still, weight, 3)
    if not torch.equal(weight.detach(), start):
        return failed(f"lr is 0, and three steps move a weight from {start.tolist()} to {weight.tolist()}")
    optimizer, weight = _optimizer(subject, 0.02, start)
    before, after = float(((start - 1) ** 2).sum()), _descend(optimizer, weight, 300)
    if not after < 0.5 * before:
        return failed(
            f"300 steps of lr .02 on a bowl: the squared distance to the minimum goes from {before} to {after:.3g}"
        )
    return passed(f"lr 0 moves nothing; 300 steps of lr .02 on a bowl: squared distance {before:.3g} -> {after:.2g}")


def moments(subject: Machine) -> Result:
    """Moments that a checkpoint does not hold start at zero, and the first steps after it are wild."""
    start = torch.tensor([3.0, -2.0])
    lived, weight = _optimizer(subject, 0.02, start)
    _descend(lived, weight, 5)
    state = {name: value.clone() for name, value in lived.state_dict().items()}
    loaded, twin = _optimizer(subject, 0.02, weight.detach())
    loaded.load_state_dict(state)
    _descend(lived, weight, 5)
    _descend(loaded, twin, 5)
    gap = float((weight - twin).abs().max().detach())
    if gap != 0:
        return failed(f"five steps after a save and a load, the weights are {gap:.2g} apart")
    names = sorted({name.partition(".")[2] for name in state})
    return passed(f"saved and loaded, it goes on exactly; it keeps {listed(names)}")


# ------------------------------------------------------------------------------------------------ controller

REPORTED = [
    "objective/scores",
    "objective/scores_std",
    "objective/rlhf_reward",
    "objective/non_score_reward",
    "objective/kl",
    "objective/kl_per_token",
    "objective/entropy",
    "policy/approxkl_avg",
    "policy/approxkl_k1",
    "policy/clipfrac_avg",
    "val/ratio",
    "val/ratio_var",
    "loss/total",
    "loss/policy_avg",
    "loss/value_avg",
    "value/mean",
    "value/explained_variance",
    "advantage/mean",
    "advantage/std",
    "group/frac_reward_zero_std",
    "group/reward_std",
    "group/n_generated",
    "group/n_used",
    "response_length/mean",
    "response_length/clip_ratio",
    "optim/grad_norm",
    "optim/lr",
    "optim/num_steps",
]


def _knobs() -> tuple[Knobs, dict[str, float]]:
    """lr, and every number of every part of the algorithm; and the values in force."""
    knobs, values = Knobs(), {"lr": 3e-4}
    for axis in ("reward", "baseline", "normalize", "regularizer", "weight"):
        for name in registry.names(axis):
            for key, (kind, default) in registry.entry(axis, name).keys.items():
                if kind.startswith("float"):
                    values[f"{axis}.{name}.{key}"] = default if isinstance(default, float) and default > 0 else 0.1
    for name in list(values):
        knobs.add(name, partial(values.__getitem__, name), partial(values.__setitem__, name))
    return knobs, values


def _started(subject: Machine, knobs: Knobs) -> Any:
    torch_policy: Policy = registry.build("policy", defaults("policy", "mlp"), env_spec=Toy.spec, streams=Streams(0))
    controller = subject.build()
    controller.start(Controls(knobs, Reference(torch_policy)))
    return controller


def _iterate(controller: Any, steps: range, kl: float, *, learnt: bool = True) -> None:
    for i in steps:
        controller.before_iteration(min(i / 60, 1.0))
        numbers = dict.fromkeys(REPORTED, kl) if learnt else {"optim/num_steps": 0.0}
        if learnt:
            numbers["group/n_used"] = 64.0
        controller.after_iteration(numbers)
        controller.report()


def turns(subject: Machine) -> Result:
    """A controller multiplies for hours. A KL of 0, a leap, an iteration from which nothing was learnt must not send a
    knob to infinity, below zero or to NaN."""
    moved = set()
    for kl in (0.0, 0.01, 1e3):
        knobs, values = _knobs()
        start = dict(values)
        controller = _started(subject, knobs)
        for steps, learnt in ((range(30), True), (range(30, 32), False), (range(32, 60), True)):
            _iterate(controller, steps, kl, learnt=learnt)
        for name, value in values.items():
            if not math.isfinite(value) or value < 0:
                return failed(f"after 60 iterations with every metric at {kl:g}, {name} is {value:g}")
            if value != start[name]:
                moved.add(name)
    what = f"it turned {listed(sorted(moved))}" if moved else "it turned no knob"
    return passed(f"60 iterations with every metric at 0, .01 and 1000: finite and not negative; {what}")


def stopping(subject: Machine) -> Result:
    """A controller that ends updates is asked only if it says so, and never ends one before the policy moved."""
    controller = _started(subject, _knobs()[0])
    if controller.stops(0.0):
        return failed("the policy has not moved, and the update is ended")
    if controller.stops(1e6) and not controller.watches_kl:
        return failed("it would end an update, and is never asked: set watches_kl = True")
    if not controller.watches_kl:
        return skipped("it ends no update")
    if not controller.stops(1e6):
        return failed("watches_kl is True, and a KL of 1e6 nats does not end the update")
    return passed("a KL of 0 does not end an update, one of 1e6 nats does")


def remembers(subject: Machine) -> Result:
    """What a controller has counted or averaged belongs into the checkpoint; the knobs' courses are saved beside it."""
    (knobs, values), (others, twins) = _knobs(), _knobs()
    lived, loaded = _started(subject, knobs), _started(subject, others)
    _iterate(lived, range(7), 0.05)
    state = through_checkpoint(lived.state_dict())
    others.load_state_dict(knobs.state_dict())
    loaded.load_state_dict(state)
    for kl, steps in ((0.3, range(7, 9)), (0.001, range(9, 14))):
        for controller in (lived, loaded):
            _iterate(controller, steps, kl)
        for name, value in values.items():
            if value != twins[name]:
                return failed(f"seven iterations, a save and a load: {name} is {twins[name]:g} in place of {value:g}")
    kept = f"it keeps {listed(list(state))}" if state else "it keeps nothing but its knob"
    return passed(f"saved and loaded, it turns the same knobs by the same numbers; {kept}")

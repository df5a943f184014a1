"""An algorithm: its parts, what they need, the credit they give and the loss they make.

A composition knows no env and no policy, so the trainer and ``rlfw.probe`` share it.

    B rows   T steps
    loss = sum(coefficients * (weights * -surrogate + penalties)) + the critic's loss, with the same coefficients
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlfw import functional as F
from rlfw import registry
from rlfw.checks import one_of
from rlfw.errors import UserError
from rlfw.interfaces import NEEDS, LearnedBaseline, Part, Penalty, Scored, Surrogate
from rlfw.rollout import ABSENT, Batch, Current

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from torch import Tensor

    from rlfw.interfaces import Aggregation, Baseline, Env, Normalize, Ratio, Reward, Sampler, Weight
    from rlfw.seeding import Streams

ALGORITHM_AXES = ("sampler", "reward", "baseline", "normalize", "ratio", "regularizer", "weight", "aggregation")


@dataclass(frozen=True)
class Loss:
    """One forward pass: scalars, and what the policy said."""

    total: Tensor
    policy: Tensor  # the surrogate's and the penalties' share
    critic: Tensor | None  # the critic's share
    new: Current
    batch: Batch  # the rows, as the parts read them

    def detach(self) -> Loss:
        """Without the graph, whose memory is free again."""
        critic = None if self.critic is None else self.critic.detach()
        return Loss(self.total.detach(), self.policy.detach(), critic, self.new.detach(), self.batch)


class Composition:
    """One part on each axis of the algorithm."""

    def __init__(self, cfg: Mapping[str, Any], *, gamma: float, max_steps: int | None, streams: Streams) -> None:
        self.max_steps = max_steps  # of the env's longest row; None: it has no limit, or is not known
        wires = {"gamma": gamma, "max_steps": max_steps, "streams": streams}
        self.parts: dict[str, Part] = {}  # "axis.name" -> part, in the order of the pipeline
        self.names: dict[int, str] = {}  # id of a part -> how a person writes it
        for axis in ALGORITHM_AXES:
            for name, node in cfg[axis].items():
                part = registry.build(axis, node, instance=name, **wires)
                written = f"{axis}={name}" if name == node["part"] else f"{axis}.{name} ({node['part']})"
                unknown = part.needs - NEEDS
                if unknown:
                    raise UserError(f"{written} needs {', '.join(unknown)}{registry.suggest(min(unknown), NEEDS)}")
                self.parts[f"{axis}.{name}"] = part
                self.names[id(part)] = written
        self.sampler: Sampler = self._one("sampler")
        self.rewards: list[Reward] = self._all("reward")
        self.baseline: Baseline = self._one("baseline")
        self.normalize: Normalize = self._one("normalize")
        self.ratio: Ratio = self._one("ratio")
        self.weights: list[Weight] = self._all("weight")
        self.aggregation: Aggregation = self._one("aggregation")
        regularizers = self._all("regularizer")
        self.penalties: list[Penalty] = [part for part in regularizers if isinstance(part, Penalty)]
        surrogates = [part for part in regularizers if isinstance(part, Surrogate)]
        if len(surrogates) > 1:
            both = " and ".join(self.names[id(part)] for part in surrogates)
            raise UserError(f"{both} both replace the objective; choose one")
        self.surrogate: Surrogate | None = surrogates[0] if surrogates else None
        self.critic = self.baseline if isinstance(self.baseline, LearnedBaseline) else None
        self.needs: frozenset[str] = frozenset().union(*(part.needs for part in self))
        before = (*self.rewards, self.baseline, self.normalize, *self.weights)
        self.needs_before_update: frozenset[str] = frozenset().union(*(part.needs for part in before))
        self._check()

    def _all(self, axis: str) -> list[Any]:
        return [part for key, part in self.parts.items() if key.startswith(f"{axis}.")]

    def _one(self, axis: str) -> Any:
        return self._all(axis)[0]

    def needing(self, need: str) -> str:
        """The first part that declares ``need``, as a person writes it."""
        return next(self.names[id(part)] for part in self.parts.values() if need in part.needs)

    def __iter__(self) -> Iterator[Part]:
        return iter(self.parts.values())

    def _check(self) -> None:
        """What can be refused without an env: one sentence, the part and the remedy."""
        for reward in self.rewards[1:]:
            if reward.replaces:
                name = self.names[id(reward)]
                raise UserError(f"{name} replaces the rewards, so what stands before it has no effect: list it first")
        if "ratio" in self.needs and self.ratio.absent:
            raise UserError(
                f"{self.needing('ratio')} bounds a ratio and {self.names[id(self.ratio)]} has none: set ratio=token"
            )
        if "step_ratio" in self.needs and not self.ratio.of_steps:
            raise UserError(
                f"{self.needing('step_ratio')} takes the ratio of each step and {self.names[id(self.ratio)]} spreads "
                "one over the row: set ratio=token"
            )
        if self.critic is not None:
            one_of(f"the network of {self.names[id(self.critic)]}", self.critic.network, ("own", "head"))
        if "values" in self.needs and self.critic is None:
            raise UserError(f"{self.needing('values')} reads values, which a critic gives: set baseline=critic")

    def check_env(self, env: Env) -> None:
        """Refuse a sampler or parts that ask for what ``env`` cannot give."""
        self.check_sampler()
        env.check_training()
        self.check_scores(env.name, env.score_names)
        if "greedy_returns" in self.needs:
            env.check_greedy()
        if env.whole_episodes_only and not self.sampler.whole_episodes:
            raise UserError(f"env={env.name} gives whole episodes alone: set sampler=episodes")

    def check_scores(self, env: str, names: Sequence[str]) -> None:
        """Refuse a reward part that reads what the env does not score."""
        for reward in self.rewards:
            if reward.reads_scores and not names:
                raise UserError(
                    f"{self.names[id(reward)]} reads reward functions by name and env={env} has none: set reward=[] "
                    "or choose an env that scores by name"
                )
            for missing in sorted(reward.scores - set(names)):
                there = registry.suggest(missing, names) if names else "; it scores nothing by name"
                raise UserError(f"{self.names[id(reward)]}: env={env} has no reward function {missing}{there}")

    def check_sampler(self) -> None:
        """Refuse a sampler that cannot give what the parts need."""
        if "groups" in self.needs and self.sampler.group_size < 2:
            part = self.needing("groups")
            raise UserError(
                f"{part} compares samples within a group: set sampler=episodes and sampler.episodes.group_size >= 2"
            )
        if "greedy_returns" in self.needs and not self.sampler.whole_episodes:
            part = self.needing("greedy_returns")
            raise UserError(f"{part} plays a greedy episode from each group's start: set sampler=episodes")
        if "whole_episodes" in self.needs and not self.sampler.whole_episodes:
            raise UserError(f"{self.needing('whole_episodes')} needs whole episodes: set sampler=episodes")

    # ------------------------------------------------------------------------------------------------ credit

    def _seen(self, batch: Batch, part: Part) -> Batch:
        if torch.compiler.is_compiling():  # the guard is for people; the compiler cannot trace it
            return batch
        return batch.seen_by(part, self.names[id(part)], part.needs)

    def credit(self, batch: Batch) -> Batch:
        """Reward parts in their order -> baseline -> normalize -> weights. No gradient passes through any of it.

        A batch that has advantages already is taken as it is.
        """
        if batch.advantages is not None:
            return batch
        for reward in self.rewards:
            batch = batch.with_(rewards=F.masked(reward(self._seen(batch, reward)), batch.mask))
        advantages, returns = self.baseline(self._seen(batch, self.baseline))
        batch = batch.with_(advantages=advantages.detach(), returns=returns.detach())
        if self.normalize.scope == "rollout":
            batch = self.normalized(batch)
        for weight in self.weights:
            found = weight(self._seen(batch, weight)).detach()
            if found.dtype.is_floating_point:
                batch = batch.with_(weights=found if batch.weights is None else batch.weights * found)
            else:
                batch = batch.with_(mask=batch.mask & found, full=False)
        return batch.with_(old_values=ABSENT if batch.values is None else batch.values[:, :-1])

    def normalized(self, batch: Batch) -> Batch:
        return batch.with_(advantages=self.normalize(batch.advantages, self._seen(batch, self.normalize)))

    # ------------------------------------------------------------------------------------------------ loss

    def prepare(self, minibatch: Batch) -> tuple[Batch, Tensor]:
        """An optimizer batch, before any split: its advantages normalised if that is the scope, its coefficients."""
        if self.normalize.scope == "minibatch":
            minibatch = self.normalized(minibatch)
        return minibatch, self.aggregation(minibatch.mask, minibatch.group, minibatch.advantages.dtype)

    def loss(self, scored: Scored, batch: Batch, coefficients: Tensor) -> Loss:
        """The loss of some rows of an optimizer batch, with their coefficients [b, T]."""
        if batch.old_logprobs is None:  # a single optimizer step: the current policy IS the old one
            batch = batch.with_(old_logprobs=scored.logprobs.detach())
        log_ratio = self.ratio(scored.logprobs, self._seen(batch, self.ratio))
        new = Current(scored.logprobs, ABSENT if log_ratio is None else log_ratio, scored.entropy, scored.values)
        per_step = -self._objective(new, batch)
        for penalty in self.penalties:
            per_step = per_step + penalty(new, self._seen(batch, penalty))
        policy = (coefficients * batch.on_mask(per_step)).sum()
        if self.critic is None:
            return Loss(policy, policy, None, new, batch)
        critic = (coefficients * batch.on_mask(self.critic.loss(new, self._seen(batch, self.critic)))).sum()
        return Loss(policy + critic, policy, critic, new, batch)

    def _objective(self, new: Current, batch: Batch) -> Tensor:
        """[B, T]: the surrogate, or r A, or A log pi where there is no ratio; weighted."""
        if self.surrogate is not None:
            objective = self.surrogate(new, self._seen(batch, self.surrogate))
        elif new.log_ratio is not None:
            objective = F.exp_ratio(new.log_ratio) * batch.advantages
        else:
            objective = new.logprobs * batch.advantages
        return objective if batch.weights is None else batch.weights * objective

    def terms(self, new: Current, batch: Batch) -> dict[str, Tensor]:
        """What the loss is made of, unreduced [B, T], each by a name that a person knows; in the order it is made."""
        fields = {
            "advantages": batch.advantages,
            "returns": batch.returns,
            "log-probs": new.logprobs,
            "values": new.values,
            "log-ratio": new.log_ratio,
        }
        found = {f"the {name}": tensor for name, tensor in fields.items() if tensor is not None}
        surrogate = "the objective" if self.surrogate is None else self.names[id(self.surrogate)]
        found[surrogate] = self._objective(new, batch)
        for penalty in self.penalties:
            found[self.names[id(penalty)]] = penalty(new, self._seen(batch, penalty))
        if self.critic is not None:
            found[self.names[id(self.critic)]] = self.critic.loss(new, self._seen(batch, self.critic))
        return found

    def metrics(self, new: Current, batch: Batch) -> dict[str, torch.Tensor]:
        """Every part's per-step metrics [B, T] over a whole update."""
        found: dict[str, torch.Tensor] = {}
        for key, part in self.parts.items():
            instance = key.partition(".")[2]
            own = self.names[id(part)].endswith(f"={instance}")  # the first instance of a part bears the part's name
            for name, per_step in part.metrics(new, self._seen(batch, part)).items():
                found[name if own and name not in found else f"{name}/{instance}"] = per_step
        return found

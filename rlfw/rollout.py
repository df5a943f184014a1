"""The data that flows: what happened (Rollout), what the parts asked for (Batch), what holds now (Current).

    B  rows.   A row is one stretch of ONE episode: it never crosses an episode's end.
    T  steps.  A step is one action of the policy: one token, or one env.step.
    A  action dimensions, where an action is a vector.

Rows are right-padded. ``mask`` is True on the steps that the policy chose. Log-probs and entropies are in nats.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol, cast

import torch
from torch import Tensor

from rlfw.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


class Context(Protocol):
    """What the policy saw: opaque to all but the env that wrote it and the policy that reads it."""

    def rows(self, index: Tensor) -> Context:
        """The context of the rows ``index`` [b], as wide as before."""
        ...

    def steps(self, row: Tensor, step: Tensor) -> Context:
        """The context of single steps, each a row of its own: ``row``, ``step`` [n] -> n rows of one step."""
        ...

    def split(self, sizes: list[int]) -> Sequence[Context]:
        """Consecutive rows, ``sizes[k]`` of them in part k."""
        ...

    def cat(self, others: Sequence[Any]) -> Context:
        """The rows of this context, then those of the ``others``, which may be wider or narrower."""
        ...


@dataclass(frozen=True)
class Episodes:
    """The episodes that ended during a rollout, in the env's own units, before any shaping or normalisation."""

    returns: Tensor  # [E] undiscounted sum of the env's rewards
    lengths: Tensor  # [E] steps


@dataclass(frozen=True)
class Rollout:
    """What happened. Frozen: nothing downstream edits it."""

    context: Context
    actions: Tensor  # [B, T] or [B, T, A]
    logprobs: Tensor  # [B, T] under the policy that acted (the behaviour policy)
    rewards: Tensor  # [B, T] as the env gave them; zero off the mask
    mask: Tensor  # [B, T] bool
    terminated: Tensor  # [B] bool: the episode ended by itself, nothing is bootstrapped after the last step
    truncated: Tensor  # [B] bool: the episode was cut by a limit. Neither: the row ends where the rollout ended
    group: Tensor  # [B] int64: rows of one group started from the same prompt or the same reset
    episode: Tensor  # [B] int64: rows of one episode, in order
    episodes: Episodes
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [B], each reward function's own value
    samples: list[dict[str, Any]] | None = None  # text only: one record a row (prompt, completion, ...)
    greedy_returns: Tensor | None = None  # [B] the return of a greedy episode from each row's start, where asked for
    spent: int = 0  # what collecting it cost, in the env's unit: rows that were dropped and greedy episodes included
    num_generated: int = 0  # sampled rows, those included that nothing scored or a sampler dropped

    def check(self, source: str) -> Rollout:
        """Raise a RunError that names ``source`` (the env) if a shape, a type or a number is wrong."""
        B, T = self.mask.shape
        shapes = {
            "logprobs": (self.logprobs, (B, T)),
            "rewards": (self.rewards, (B, T)),
            "actions": (self.actions, (B, T, *self.actions.shape[2:])),
            "terminated": (self.terminated, (B,)),
            "truncated": (self.truncated, (B,)),
            "group": (self.group, (B,)),
            "episode": (self.episode, (B,)),
            **{f"scores[{name}]": (score, (B,)) for name, score in self.scores.items()},
        }
        if self.greedy_returns is not None:
            shapes["greedy_returns"] = (self.greedy_returns, (B,))
        for name, (tensor, shape) in shapes.items():
            if tuple(tensor.shape) != shape:
                raise RunError(f"{source}: {name} has shape {tuple(tensor.shape)}, expected {shape}")
        for name in ("mask", "terminated", "truncated"):
            if getattr(self, name).dtype != torch.bool:
                raise RunError(f"{source}: {name} is {getattr(self, name).dtype}, expected torch.bool")
        if bool((self.terminated & self.truncated).any()):
            raise RunError(f"{source}: a row is both terminated and truncated; an episode that ended is terminated")
        if bool((self.mask[:, 1:] & ~self.mask[:, :1]).any()):
            raise RunError(f"{source}: a row's first step is masked; rows start with a step of the policy")
        for name in ("rewards", "logprobs"):
            bad = self.mask & ~getattr(self, name).isfinite()
            if bool(bad.any()):
                row, step = (int(i) for i in bad.nonzero()[0])
                value = float(getattr(self, name)[row, step])
                raise RunError(f"{source}: {name} of row {row}, step {step} is {value}; it must be finite")
        if bool((self.rewards[~self.mask] != 0).any()):
            raise RunError(f"{source}: rewards are non-zero where the mask is False")
        return self

    def rows(self, index: Tensor) -> Rollout:
        """The rows ``index`` [b]. What collecting cost, and the episodes that ended, stay those of all rows."""
        tensors = {name: getattr(self, name)[index] for name in (*_ROLLOUT_FIELDS, *_ROLLOUT_ROW_FIELDS)}
        return dataclasses.replace(
            self,
            context=self.context.rows(index),
            scores={name: score[index] for name, score in self.scores.items()},
            greedy_returns=None if self.greedy_returns is None else self.greedy_returns[index],
            samples=None if self.samples is None else [self.samples[b] for b in index.tolist()],
            **tensors,
        )

    @classmethod
    def cat(cls, rollouts: Sequence[Rollout]) -> Rollout:
        """Several rollouts of one env and one policy as one; their group and episode ids are distinct already."""
        first, *others = rollouts
        width = max(rollout.mask.shape[1] for rollout in rollouts)

        def padded(x: Tensor) -> Tensor:  # [B, t, ...] -> [B, T, ...]
            return torch.cat([x, x.new_zeros(len(x), width - x.shape[1], *x.shape[2:])], 1)

        def joined(name: str) -> Tensor:
            return torch.cat([getattr(rollout, name) for rollout in rollouts])

        greedy = None if first.greedy_returns is None else joined("greedy_returns")
        return cls(
            context=first.context.cat([rollout.context for rollout in others]),
            **{name: torch.cat([padded(getattr(r, name)) for r in rollouts]) for name in _ROLLOUT_FIELDS},
            **{name: joined(name) for name in _ROLLOUT_ROW_FIELDS},
            episodes=Episodes(
                torch.cat([rollout.episodes.returns for rollout in rollouts]),
                torch.cat([rollout.episodes.lengths for rollout in rollouts]),
            ),
            scores={name: torch.cat([rollout.scores[name] for rollout in rollouts]) for name in first.scores},
            samples=None if first.samples is None else [s for r in rollouts for s in r.samples or ()],
            greedy_returns=greedy,
            spent=sum(rollout.spent for rollout in rollouts),
            num_generated=sum(rollout.num_generated for rollout in rollouts),
        )


_ROLLOUT_FIELDS = ("actions", "logprobs", "rewards", "mask")  # [B, T, ...]
_ROLLOUT_ROW_FIELDS = ("terminated", "truncated", "group", "episode")  # [B]

ABSENT: Any = None  # a field that no part asked for


@dataclass(frozen=True)
class Batch:
    """A rollout and what the parts asked for. A field that no part declared is ABSENT.

    In an optimizer's minibatch the same fields hold for its rows; under the layout of steps T is 1.
    """

    context: Context
    actions: Tensor  # [B, T] or [B, T, A]
    logprobs: Tensor  # [B, T] behaviour
    rewards: Tensor  # [B, T] after the reward parts
    mask: Tensor  # [B, T] bool
    terminated: Tensor  # [B] bool
    truncated: Tensor  # [B] bool
    group: Tensor  # [B] int64
    episode: Tensor  # [B] int64
    scores: Mapping[str, Tensor] = field(default_factory=dict)  # name -> [B]
    values: Tensor = ABSENT  # [B, T+1] V before step t; column T is V of the row's own final observation
    old_values: Tensor = ABSENT  # [B, T] V before step t at the start of the update
    old_logprobs: Tensor = ABSENT  # [B, T] at the start of the update
    ref_logprobs: Tensor = ABSENT  # [B, T] under the frozen reference
    entropy: Tensor = ABSENT  # [B, T] at the start of the update
    greedy_returns: Tensor = ABSENT  # [B] return of the greedy episode from the same start
    weights: Tensor = ABSENT  # [B, T] product of the float weights
    advantages: Tensor = ABSENT  # [B, T]
    returns: Tensor = ABSENT  # [B, T] the critic's targets, or the reward-to-go
    full: bool = False  # the layout of single steps: every cell is on the mask

    @classmethod
    def of(cls, rollout: Rollout) -> Batch:
        """The fields of a rollout, nothing else filled."""
        shared = {f.name for f in dataclasses.fields(cls)} & {f.name for f in dataclasses.fields(Rollout)}
        return cls(**{name: getattr(rollout, name) for name in shared})

    @classmethod
    def cat(cls, batches: list[Batch]) -> Batch:
        """The rows of several batches of one width, without their context."""
        filled: dict[str, Any] = {"context": ABSENT, "actions": ABSENT}
        for f in dataclasses.fields(cls):
            if f.name in _FIELDS and getattr(batches[0], f.name) is not None:
                filled[f.name] = torch.cat([getattr(batch, f.name) for batch in batches])
        filled["full"] = batches[0].full
        return cls(**filled)

    def rows(self, index: Tensor) -> Batch:
        """The rows ``index`` [b]."""
        picked = {
            name: getattr(self, name).index_select(0, index)
            for name in (*_FIELDS, "actions")
            if getattr(self, name) is not None
        }
        return dataclasses.replace(self, context=self.context.rows(index), scores={}, **picked)

    def steps(self) -> Batch:
        """The layout of single steps: every step of the mask is a row of its own, [S, 1]; in row order."""
        row, step = self.mask.nonzero(as_tuple=True)
        picked = {}
        for name in (*_FIELDS, "actions"):
            if name != "values" and (tensor := getattr(self, name)) is not None:
                picked[name] = tensor[row] if name in _ROW_FIELDS else tensor[row, step][:, None]
        context = self.context.steps(row, step)
        return dataclasses.replace(self, context=context, scores={}, values=ABSENT, full=True, **picked)

    def split(self, sizes: list[int]) -> list[Batch]:
        """Consecutive rows, ``sizes[k]`` of them in part k."""
        names = [name for name in (*_FIELDS, "actions") if getattr(self, name) is not None]
        columns = [getattr(self, name).split(sizes) for name in names]
        return [
            dataclasses.replace(self, context=context, scores={}, **dict(zip(names, fields, strict=True)))
            for context, *fields in zip(self.context.split(sizes), *columns, strict=True)
        ]

    def on_mask(self, x: Tensor) -> Tensor:
        """x [B, T] on the mask, 0 elsewhere, whatever stands there (NaN included)."""
        return x if self.full else torch.where(self.mask, x, torch.zeros_like(x))

    def gather(self, x: Tensor) -> Tensor:
        """[B, T] -> [S]: the steps on the mask."""
        return x[:, 0] if self.full else x[self.mask]

    def scatter(self, steps: Tensor) -> Tensor:
        """[S] -> [B, T]: the inverse of gather, 0 off the mask."""
        return steps[:, None] if self.full else steps.new_zeros(self.mask.shape).masked_scatter(self.mask, steps)

    def with_(self, **fields: Any) -> Batch:
        """A copy with these fields replaced."""
        return dataclasses.replace(self, **fields)

    def seen_by(self, part: object, name: str, needs: frozenset[str]) -> Batch:
        """This batch as ``part`` may read it: a field on demand that it did not declare raises, with its name."""
        return cast("Batch", _Seen(self, name, needs))


_ROW_FIELDS = ("terminated", "truncated", "group", "episode", "greedy_returns")  # [B]
_FIELDS = tuple(f.name for f in dataclasses.fields(Batch) if f.name not in ("context", "actions", "scores", "full"))

ON_DEMAND = frozenset({"values", "old_logprobs", "ref_logprobs", "entropy", "greedy_returns"})


class _Seen:
    __slots__ = ("_batch", "_name", "_needs")

    def __init__(self, batch: Batch, name: str, needs: frozenset[str]) -> None:
        self._batch, self._name, self._needs = batch, name, needs

    def __getattr__(self, field: str) -> Any:
        need = "values" if field == "old_values" else field
        if need in ON_DEMAND and need not in self._needs:
            raise AttributeError(f'{self._name} reads batch.{field} but does not declare it: add "{need}" to needs')
        return getattr(self._batch, field)


@dataclass(frozen=True)
class Current:
    """What the policy says now, with gradients: the `new` that every part of the loss receives."""

    logprobs: Tensor  # [B, T]
    log_ratio: Tensor = ABSENT  # [B, T] log(pi / pi_old) at the ratio's level; None under ratio=none
    entropy: Tensor = ABSENT  # [B, T]
    values: Tensor = ABSENT  # [B, T]

    def detach(self) -> Current:
        """The same numbers without gradients."""
        fields = (self.logprobs, self.log_ratio, self.entropy, self.values)
        return Current(*(ABSENT if x is None else x.detach() for x in fields))

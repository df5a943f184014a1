"""Batches with known numbers, and what a composition makes of them.

    B rows   T steps   C cells: the places of one case where a step may stand

Every number that the current policy says belongs to a cell, and each batch carries the cell of each of its steps as
its context. So rows may be permuted, padded, split or cut into single steps, and what comes out is compared cell by
cell.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlfw.interfaces import Scored
from rlfw.rollout import ABSENT, Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.composition import Composition, Loss
    from rlfw.seeding import Streams

LENGTHS = (5, 1, 3, 2, 4, 4, 1, 2, 3, 5, 2, 1)  # steps of the rows
GROUPS = (7, 3, 11) * 4  # three groups of four, their rows apart: a positional reshape mixes them up
WIDTH = 5  # T; B is 12, so that [B, B] and [B, T] are told apart


@dataclass(frozen=True)
class Cells:
    """The context of a case: the cell of each step."""

    index: Tensor  # [B, T]

    def rows(self, index: Tensor) -> Cells:
        return Cells(self.index[index])

    def steps(self, row: Tensor, step: Tensor) -> Cells:
        return Cells(self.index[row, step][:, None])

    def split(self, sizes: list[int]) -> list[Cells]:
        return [Cells(index) for index in self.index.split(sizes)]

    def cat(self, others: Sequence[Cells]) -> Cells:
        return Cells(torch.cat([self.index, *(cells.index for cells in others)]))


@dataclass(frozen=True)
class Watched(Batch):
    """A batch that remembers which of its fields each part read."""

    reads: dict[str, set[str]] = field(default_factory=dict)  # part -> fields

    def seen_by(self, part: object, name: str, needs: frozenset[str]) -> Any:
        return _Reader(super().seen_by(part, name, needs), self.reads.setdefault(name, set()))


class _Reader:
    __slots__ = ("_reads", "_seen")

    def __init__(self, seen: Any, reads: set[str]) -> None:
        self._seen, self._reads = seen, reads

    def __getattr__(self, name: str) -> Any:
        self._reads.add(name)
        return getattr(self._seen, name)


@dataclass(frozen=True)
class Case:
    """A batch before credit, and what the current policy says in each cell."""

    batch: Watched
    logprobs: Tensor  # [C]
    entropy: Tensor  # [C]
    values: Tensor  # [C]

    def saying(self, name: str, numbers: Tensor) -> Case:
        """The same case with other numbers [C] of the current policy."""
        said = {"logprobs": self.logprobs, "entropy": self.entropy, "values": self.values, name: numbers}
        return Case(self.batch, **said)

    @property
    def cells(self) -> Tensor:
        """[S] the cells on the mask."""
        return self._index[self.batch.mask]

    @property
    def _index(self) -> Tensor:
        context: Any = self.batch.context
        index: Tensor = context.index
        return index

    def with_(self, **fields: Any) -> Case:
        """The same case with other fields of its batch."""
        return dataclasses.replace(self, batch=dataclasses.replace(self.batch, **fields))

    def to(self, dtype: torch.dtype) -> Case:
        """In another precision."""

        def cast(x: Any) -> Any:
            if isinstance(x, dict):
                return {name: cast(value) for name, value in x.items()}
            return x.to(dtype) if isinstance(x, Tensor) and x.is_floating_point() else x

        batch = Watched(**{f.name: cast(getattr(self.batch, f.name)) for f in dataclasses.fields(self.batch)})
        return Case(batch, cast(self.logprobs), cast(self.entropy), cast(self.values))

    def permuted(self, order: Tensor) -> Case:
        """The rows in another order."""

        def pick(x: Any) -> Any:
            if isinstance(x, dict):
                return {name: value[order] for name, value in x.items()}
            return x[order] if isinstance(x, Tensor) else x

        fields = {f.name: pick(getattr(self.batch, f.name)) for f in dataclasses.fields(Batch) if f.name != "context"}
        return self.with_(context=Cells(self._index[order]), **fields)

    def padded(self, *, empty_row: bool) -> Case:
        """Three more columns and perhaps a row without any step; off the mask stand numbers that mean nothing.

        Rewards alone are zero there: that is promised (``Rollout.check``).
        """
        generator = torch.Generator().manual_seed(5)
        batch, more = self.batch, 3
        B, T = batch.mask.shape
        rows = B + int(empty_row)
        mask = torch.zeros(rows, T + more, dtype=torch.bool)
        mask[:B, :T] = batch.mask

        def garbage(*shape: int) -> Tensor:
            return -30 * torch.rand(*shape, generator=generator, dtype=self.logprobs.dtype)

        def steps(x: Tensor, fill: Tensor) -> Tensor:  # [B, T] -> [rows, T + 3]
            wide = fill.to(x.dtype)
            wide[:B, :T] = torch.where(batch.mask, x, wide[:B, :T])
            return wide

        fields: dict[str, Any] = {"mask": mask}
        for name in ("logprobs", "old_logprobs", "ref_logprobs", "entropy"):
            fields[name] = steps(getattr(batch, name), garbage(rows, T + more))
        fields["rewards"] = steps(batch.rewards, torch.zeros(rows, T + more))
        fields["actions"] = steps(batch.actions, torch.zeros(rows, T + more))
        before = steps(batch.values[:, :-1], garbage(rows, T + more))
        last = torch.cat([batch.values[:, -1:], batch.values.new_zeros(rows - B, 1)])
        fields["values"] = torch.cat([before, last], 1)
        for name in ("terminated", "truncated", "group", "episode", "greedy_returns"):
            row = getattr(batch, name)
            fields[name] = torch.cat([row, row[: rows - B]])
        fields["scores"] = {name: torch.cat([x, x[: rows - B]]) for name, x in batch.scores.items()}
        C = len(self.logprobs)
        beyond = torch.full((rows, T + more), C)
        fields["context"] = Cells(steps(self._index, beyond))  # one more cell, for all that is off the mask
        extra = garbage(1)
        return Case(
            Watched(**fields),
            *(torch.cat([x, extra]) for x in (self.logprobs, self.entropy, self.values)),
        )


def random_case(seed: int = 0, *, moved: bool = True, cut: bool = False) -> Case:
    """Three groups of four ragged rows in float64. ``moved``: the current policy has left the old one.

    ``cut``: one row ends because the rollout ended. One row or two are truncated in any case.
    """
    generator = torch.Generator().manual_seed(seed)
    B, T = len(LENGTHS), WIDTH

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    mask = torch.arange(T) < torch.tensor(LENGTHS)[:, None]
    old = -0.2 - normal(B, T).abs()
    values = normal(B, T + 1)
    truncated = torch.zeros(B, dtype=torch.bool)
    truncated[[2, 5]] = True
    terminated = ~truncated
    terminated[9] = not cut
    new = old + 0.3 * normal(B, T) * moved
    behaviour = old + 0.2 * normal(B, T) * moved
    entropy = 0.5 + normal(B, T).abs()
    batch = Watched(
        context=Cells(torch.arange(B * T).reshape(B, T)),
        actions=torch.zeros(B, T, dtype=torch.int64),
        logprobs=torch.where(mask, behaviour, 0),
        rewards=torch.where(mask, normal(B, T), 0),
        mask=mask,
        terminated=terminated,
        truncated=truncated,
        group=torch.tensor(GROUPS),
        episode=torch.arange(B),
        scores={"a": normal(B), "b": normal(B)},
        values=values,
        old_logprobs=torch.where(mask, old, 0),
        ref_logprobs=torch.where(mask, old + 0.3 * normal(B, T), 0),
        entropy=torch.where(mask, entropy, 0),
        greedy_returns=normal(B),
    )
    now = (torch.where(mask, new, 0), torch.where(mask, entropy, 0), values[:, :-1] + 0.3 * normal(B, T))
    return Case(batch, *(x.reshape(-1) for x in now))


@dataclass
class Assembled:
    """A composition with the part under test, and the streams that it draws from."""

    composition: Composition
    streams: Streams
    part: Any


@dataclass
class Outcome:
    """What a composition made of a case, cell by cell."""

    rewards: Tensor  # [C] after the reward parts
    advantages: Tensor  # [C] as the loss sees them
    weights: Tensor  # [C] 1 where there are none, 0 where a step was taken out
    coefficients: Tensor  # [C]
    gradient: dict[str, Tensor]  # what the policy said -> d loss / d that [C]
    loss: Tensor  # scalar
    minibatch: Batch
    share: Tensor  # [B, T] coefficients
    losses: list[Loss]

    def differs(self, other: Outcome, cells: Tensor) -> tuple[float, str]:
        """The largest relative difference on ``cells``, and where it is."""
        pairs = {"the loss": (self.loss.reshape(1), other.loss.reshape(1))}
        for name in ("rewards", "advantages", "weights", "coefficients"):
            pairs[f"the {name}"] = (getattr(self, name)[cells], getattr(other, name)[cells])
        for name, gradient in self.gradient.items():
            pairs[f"the gradient in {name}"] = (gradient[cells], other.gradient[name][cells])
        found = (0.0, "")
        for name, (one, two) in pairs.items():
            gap = distance(one, two)
            if not gap <= found[0]:  # NaN included
                found = (gap, name)
        return found


def distance(one: Tensor, two: Tensor) -> float:
    """The largest difference, relative to the largest number (at least 1)."""
    if one.numel() == 0:
        return 0.0
    scale = max(1.0, float(two.abs().max()))
    return float((one - two).abs().max()) / scale


def run(
    assembled: Assembled, case: Case, *, sizes: list[int] | None = None, by_steps: bool = False, backward: bool = True
) -> Outcome:
    """Credit, the optimizer batch, loss and backward, as the trainer does them.

    ``sizes``: rows of each micro-batch; ``by_steps``: every step is a row of its own.
    """
    composition = assembled.composition
    with torch.no_grad():
        credited = composition.credit(case.batch)
        minibatch, share = composition.prepare(credited.steps() if by_steps else credited)
    said = Said.of(case, composition)
    splits = [len(share)] if sizes is None else sizes
    losses = [
        composition.loss(said.score(rows), rows, coefficients)
        for rows, coefficients in zip(minibatch.split(splits), share.split(splits), strict=True)
    ]
    if backward:
        for loss in losses:
            if loss.total.requires_grad:
                loss.total.backward()
    C = len(case.logprobs)
    context: Any = minibatch.context
    mask, index = minibatch.mask, context.index

    def spread(x: Tensor) -> Tensor:  # [B, T] -> [C]
        return x.new_zeros(C).index_put((index[mask],), x[mask])

    weights = mask.to(share.dtype) if minibatch.weights is None else minibatch.weights
    return Outcome(
        rewards=spread(minibatch.rewards),
        advantages=spread(minibatch.advantages),
        weights=spread(weights),
        coefficients=spread(share),
        gradient=said.gradient(),
        loss=torch.stack([loss.total.detach() for loss in losses]).sum(),
        minibatch=minibatch,
        share=share,
        losses=losses,
    )


@dataclass
class Said:
    """The numbers of the current policy as leaves of the graph, those alone that the parts asked for."""

    leaves: dict[str, Tensor]  # name -> [C]

    @classmethod
    def of(cls, case: Case, composition: Composition) -> Said:
        names = ["logprobs"]
        if "entropy" in composition.needs:
            names.append("entropy")
        if composition.critic is not None:
            names.append("values")
        return cls({name: getattr(case, name).detach().clone().requires_grad_() for name in names})

    def score(self, rows: Batch) -> Scored:
        context: Any = rows.context
        found = {name: leaf[context.index] for name, leaf in self.leaves.items()}
        return Scored(found["logprobs"], found.get("entropy", ABSENT), found.get("values", ABSENT))

    def gradient(self) -> dict[str, Tensor]:
        return {name: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for name, leaf in self.leaves.items()}

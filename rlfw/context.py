"""The two contexts that ship: observations of an environment, and prompts of a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Sequence


@dataclass(frozen=True)
class Observations:
    """Flat observations of ragged rows: the padding of the rectangle is never stored nor computed.

    S steps in all, in row order; B rows of at most T steps.
    """

    flat: Tensor  # [S, ...] the observation before each step, as the policy saw it
    final: Tensor | None  # [B, ...] the observation after each row's last step; None in a minibatch
    mask: Tensor  # [B, T] bool: which cells of the rectangle the S steps fill
    single: bool = False  # every row is one step: T == 1 and S == B

    def rows(self, index: Tensor) -> Observations:
        if self.single:
            return replace(self, flat=self.flat.index_select(0, index))
        length = self.mask.sum(1)  # [B]
        start = length.cumsum(0) - length
        mask = self.mask[index]
        position = (start[index][:, None] + torch.arange(mask.shape[1]))[mask]
        final = None if self.final is None else self.final[index]
        return replace(self, flat=self.flat.index_select(0, position), final=final, mask=mask)

    def steps(self, row: Tensor, step: Tensor) -> Observations:
        length = self.mask.sum(1)
        position = (length.cumsum(0) - length)[row] + step
        return Observations(
            self.flat.index_select(0, position), None, torch.ones(len(row), 1, dtype=torch.bool), single=True
        )

    def split(self, sizes: list[int]) -> list[Observations]:
        if self.single:
            parts = zip(self.flat.split(sizes), self.mask.split(sizes), strict=True)
            return [replace(self, flat=flat, mask=mask) for flat, mask in parts]
        return [self.rows(index) for index in torch.arange(len(self.mask)).split(sizes)]

    def cat(self, others: Sequence[Observations]) -> Observations:
        every = (self, *others)
        width = max(context.mask.shape[1] for context in every)
        mask = [torch.nn.functional.pad(context.mask, (0, width - context.mask.shape[1])) for context in every]
        finals = [context.final for context in every if context.final is not None]
        return replace(
            self,
            flat=torch.cat([context.flat for context in every]),
            final=torch.cat(finals) if finals else None,
            mask=torch.cat(mask),
        )

    def gather(self, rectangle: Tensor) -> Tensor:
        """[B, T, ...] -> [S, ...]: the filled cells, in row order."""
        return rectangle[:, 0] if self.single else rectangle[self.mask]

    def scatter(self, flat: Tensor) -> Tensor:
        """[S] -> [B, T], zero elsewhere; differentiable."""
        if self.single:
            return flat[:, None]
        rectangle = flat.new_zeros(self.mask.shape)
        return rectangle.masked_scatter(self.mask, flat)


@dataclass(frozen=True)
class Prompts:
    """Token ids of distinct prompts, shared by the rows that answer them; the completions are the actions.

    P prompts of at most L tokens, right-padded; B rows.
    """

    ids: Tensor  # [P, L] int64
    length: Tensor  # [P] int64: tokens of each prompt
    row: Tensor  # [B] int64: the prompt that each row answers

    def to(self, device: torch.device) -> Prompts:
        return Prompts(self.ids.to(device), self.length.to(device), self.row.to(device))

    def rows(self, index: Tensor) -> Prompts:
        return replace(self, row=self.row[index])

    def steps(self, row: Tensor, step: Tensor) -> Prompts:
        raise TypeError("a token's context is its whole prefix: a language model is scored by rows, never by steps")

    def split(self, sizes: list[int]) -> list[Prompts]:
        return [replace(self, row=row) for row in self.row.split(sizes)]

    def cat(self, others: Sequence[Prompts]) -> Prompts:
        every = (self, *others)
        width = max(context.ids.shape[1] for context in every)
        first = torch.tensor([0, *(len(context.ids) for context in every)]).cumsum(0)  # number of each one's prompt 0
        return Prompts(
            ids=torch.cat([torch.nn.functional.pad(c.ids, (0, width - c.ids.shape[1])) for c in every]),
            length=torch.cat([context.length for context in every]),
            row=torch.cat([context.row + start for context, start in zip(every, first.tolist(), strict=False)]),
        )

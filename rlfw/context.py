"""The two contexts that ship: observations of an environment, and prompts of a language model."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


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

    def rows(self, index: Tensor) -> Prompts:
        return replace(self, row=self.row[index])

    def steps(self, row: Tensor, step: Tensor) -> Prompts:
        raise TypeError("a token's context is its whole prefix: a language model is scored by rows, never by steps")

    def split(self, sizes: list[int]) -> list[Prompts]:
        return [replace(self, row=row) for row in self.row.split(sizes)]

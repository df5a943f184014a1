"""How prompts and completions are fed to a causal model for scoring: without padding where it costs, the prompt once.

    B rows   T completion tokens   P distinct prompts   L tokens of the longest prompt   N cells

Cell (b, t) is what the model says after the first t completion tokens of row b: the distribution of token t, the value
before it. A layout computes the cells that are asked for, in an order of its own: ``row``, ``step`` [N].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlfw.context import Prompts

    Forward = Callable[..., tuple[Tensor, ...]]  # (keep [b, s] bool, **inputs of the model) -> outputs there, [n, ...]

NUM_CHUNKS = 4  # rows of like length go together, in at most this many forward passes
WORTHWHILE = 0.85  # a layout that leaves this share of the tokens is worth further forward passes


class Layout(ABC):
    """Rows, and the cells of them that are wanted."""

    row: Tensor  # [N]
    step: Tensor  # [N]

    @staticmethod
    def of(context: Prompts, actions: Tensor, cells: Tensor, *, cacheable: bool) -> Layout:
        """The cheaper layout. ``cells`` [B, T+1] bool. ``cacheable``: the prompt may be handed on as a cache."""
        used, row = context.row.unique(return_inverse=True)  # the prompts of these rows alone
        ids, length = context.ids[used], context.length[used]
        ids = ids[:, : int(length.max())]
        apart = len(row) * ids.shape[1]  # tokens that the prompts take, a copy in each row
        total = apart + actions.numel()
        if cacheable and total - apart + ids.numel() < WORTHWHILE * total:
            return SharedPrompts(ids, length, row, actions, cells)
        return PaddedRows(ids, length, row, actions, cells)

    @abstractmethod
    def run(self, forward: Forward) -> tuple[Tensor, ...]:
        """``forward``'s outputs at the cells, [N, ...] each."""


class PaddedRows(Layout):
    """Prompt and completion in one line, right-padded: causality hides the padding, positions are 0, 1, 2, ..."""

    def __init__(self, ids: Tensor, length: Tensor, row: Tensor, actions: Tensor, cells: Tensor) -> None:
        T = actions.shape[1]
        start = length[row][:, None]  # [B, 1] prompt tokens
        seen = _last(cells)[:, None]  # [B, 1] completion tokens that are needed
        step = torch.arange(int((start + seen).max())) - start  # [B, S] the completion token here; prompt: negative
        prompt = ids[:, torch.arange(step.shape[1]).clamp(max=ids.shape[1] - 1)][row]
        self.ids = torch.where(step < 0, prompt, actions.gather(1, step.clamp(0, T - 1)))
        self.keep = cells.gather(1, (step + 1).clamp(0, T)) & (step >= -1) & (step < T)
        self.chunks = list(_chunks((start + seen)[:, 0]))
        self.row, self.step = _order([(rows, cells[rows], 0) for rows, _ in self.chunks])

    def run(self, forward: Forward) -> tuple[Tensor, ...]:
        return _cat(
            forward(self.keep[rows, :width], input_ids=self.ids[rows, :width], use_cache=False)
            for rows, width in self.chunks
        )


class SharedPrompts(Layout):
    """Each prompt once; its keys and values, with their gradient, are the cache of all rows that answer it."""

    def __init__(self, ids: Tensor, length: Tensor, row: Tensor, actions: Tensor, cells: Tensor) -> None:
        self.ids, self.length, self.prompt, self.actions, self.cells = ids, length, row, actions, cells
        self.first = cells[:, 0].nonzero()[:, 0]  # rows whose first cell, after the prompt alone, is wanted
        seen = _last(cells)
        longer = seen.nonzero()[:, 0]
        self.chunks = [(longer[rows], width) for rows, width in _chunks(seen[longer])]
        self.row, self.step = _order(
            [(self.first, cells[self.first, :1], 0), *((rows, cells[rows, 1:], 1) for rows, _ in self.chunks)]
        )

    def run(self, forward: Forward) -> tuple[Tensor, ...]:
        from transformers import DynamicCache

        filled = torch.arange(self.ids.shape[1]) < self.length[:, None]  # [P, L]
        last = torch.arange(self.ids.shape[1]) == self.length[:, None] - 1
        prompts: Any = DynamicCache()
        after = forward(last, input_ids=self.ids, cache=prompts, use_cache=True)  # causality hides the padding
        outputs = [tuple(output.index_select(0, self.prompt[self.first]) for output in after)]
        for rows, width in self.chunks:
            prompt = self.prompt[rows]
            cache = DynamicCache()
            for i, layer in enumerate(prompts.layers):
                cache.update(layer.keys.index_select(0, prompt), layer.values.index_select(0, prompt), i)
            mask = None
            if not bool(filled.all()):
                mask = torch.nn.functional.pad(filled[prompt].long(), (0, width), value=1)
            outputs.append(
                forward(
                    self.cells[rows, 1 : width + 1],
                    input_ids=self.actions[rows, :width],
                    attention_mask=mask,
                    position_ids=self.length[prompt][:, None] + torch.arange(width),
                    cache=cache,
                    use_cache=True,
                )
            )
        return _cat(outputs)


def _last(cells: Tensor) -> Tensor:
    """The number of completion tokens before each row's last cell, [B]."""
    return (cells * torch.arange(cells.shape[1])).amax(1)


def _chunks(lengths: Tensor) -> Iterator[tuple[Tensor, int]]:
    """Rows of like length with their longest, in as many parts as drop enough padding."""
    if not len(lengths):
        return
    order = lengths.argsort(stable=True)
    several = [(rows, int(lengths[rows[-1]])) for rows in order.tensor_split(min(NUM_CHUNKS, len(order)))]
    if sum(len(rows) * width for rows, width in several) < WORTHWHILE * len(order) * int(lengths.max()):
        yield from several
    else:
        yield torch.arange(len(order)), int(lengths.max())


def _order(parts: list[tuple[Tensor, Tensor, int]]) -> tuple[Tensor, Tensor]:
    """(rows, cells of these rows from column ``offset`` on) -> row and step of every cell, part after part."""
    found = [(rows, cells.nonzero(), offset) for rows, cells, offset in parts]
    row = torch.cat([rows[cell[:, 0]] for rows, cell, _ in found])
    return row, torch.cat([cell[:, 1] + offset for _, cell, offset in found])


def _cat(parts: Any) -> tuple[Tensor, ...]:
    return tuple(torch.cat(column) for column in zip(*parts, strict=True))

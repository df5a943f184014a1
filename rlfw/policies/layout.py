"""How prompts and completions are fed to a causal model for scoring: without padding, each prompt once.

    B rows   T completion tokens   P distinct prompts   L tokens of the longest prompt   N cells   D width of a head

Cell (b, t) is what the model says after the first t completion tokens of row b: the distribution of token t, the value
before it. A layout computes the cells that are asked for, in an order of its own: ``row``, ``step`` [N].
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from rlfw.context import Prompts

    Body = Callable[..., Any]  # a transformers model without its head: its inputs -> .last_hidden_state [b, s, width]

BLOCK_COST = 64  # tokens of padding that a further rectangle of packed rows is worth
PASS_COST = 1024  # tokens of padding that a further forward pass over padded rows is worth


class Layout(ABC):
    """Rows, and the cells of them that are wanted. Indices lie on the CPU, a forward pass on the model's device."""

    row: Tensor  # [N]
    step: Tensor  # [N]

    @staticmethod
    def of(context: Prompts, actions: Tensor, cells: Tensor, *, packed: bool) -> Layout:
        """``cells`` [B, T+1] bool. ``packed``: whether the model takes packed rows."""
        used, row = context.row.unique(return_inverse=True)  # the prompts of these rows alone
        ids, length = context.ids[used], context.length[used]
        ids = ids[:, : int(length.max())]
        return (Packed if packed else PaddedRows)(ids, length, row, actions, cells)

    @abstractmethod
    def __init__(self, ids: Tensor, length: Tensor, row: Tensor, actions: Tensor, cells: Tensor) -> None:
        """``ids`` [P, L], ``length`` [P], ``row`` [B] in P, ``actions`` [B, T], ``cells`` [B, T+1]."""

    @abstractmethod
    def run(self, body: Body, device: torch.device) -> Tensor:
        """What ``body`` says at the cells, [N, width]."""


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
        self.chunks = list(_chunks((start + seen)[:, 0], PASS_COST))
        found = [(rows, self.keep[rows, :width].nonzero()) for rows, width in self.chunks]
        self.row = torch.cat([rows[cell[:, 0]] for rows, cell in found])
        self.step = torch.cat([step[rows[cell[:, 0]], cell[:, 1]] + 1 for rows, cell in found])

    def run(self, body: Body, device: torch.device) -> Tensor:
        said = []
        for rows, width in self.chunks:
            at = body(input_ids=self.ids[rows, :width].to(device), use_cache=False).last_hidden_state
            said.append(at[self.keep[rows, :width].to(device)])
        return torch.cat(said)


@dataclass
class Block:
    """Rows of like length as a rectangle of tokens, right-padded, in the line."""

    rows: Tensor  # [r]
    width: int
    start: int  # the place of its first token

    def places(self, row: Tensor, column: Tensor) -> Tensor:
        """The place of each token in the line; ``row`` counts the block's rows."""
        return self.start + row * self.width + column


class Packed(Layout):
    """All tokens in one line: each prompt once, then the completions, rows of like length together.

    A token is computed by itself everywhere but in attention, which takes the line apart again: the keys of a row are
    its prompt's and its own. No prompt is repeated, and padding is what rows of like length differ by.
    """

    def __init__(self, ids: Tensor, length: Tensor, row: Tensor, actions: Tensor, cells: Tensor) -> None:
        self.prompts, line = _blocks(length, 0)
        seen = _last(cells)
        self.completions, self.num_tokens = _blocks(seen, line)
        first = torch.zeros(len(length), dtype=torch.long)  # [P] place of each prompt's first token
        for block in self.prompts:
            first[block.rows] = block.places(torch.arange(len(block.rows)), torch.zeros_like(block.rows))
        pieces = [ids[block.rows, : block.width].flatten() for block in self.prompts]
        positions = [torch.arange(block.width).repeat(len(block.rows)) for block in self.prompts]
        after_prompt = cells[:, 0].nonzero()[:, 0]  # rows whose cell 0 is wanted
        keep = [(first + length - 1)[row[after_prompt]]]
        kept = [(after_prompt, torch.zeros_like(after_prompt))]
        self.prompt_places, self.masks = [], []
        for block in self.completions:
            start = length[row[block.rows]][:, None]  # [r, 1]
            column = torch.arange(block.width)
            pieces.append(actions[block.rows, : block.width].flatten())
            positions.append((start + column).flatten())
            cell = cells[block.rows, 1 : block.width + 1].nonzero()
            keep.append(block.places(cell[:, 0], cell[:, 1]))
            kept.append((block.rows[cell[:, 0]], cell[:, 1] + 1))
            before = torch.arange(int(start.max()))  # [l]
            self.prompt_places.append((first[row[block.rows]][:, None] + before.clamp(max=start - 1)).flatten())
            self.masks.append(_causal(before < start, block.width))
        self.ids, self.positions = torch.cat(pieces)[None], torch.cat(positions)[None]
        self.keep = torch.cat(keep)
        self.row, self.step = (torch.cat(column) for column in zip(*kept, strict=True))

    def run(self, body: Body, device: torch.device) -> Tensor:
        self.prompt_places = [places.to(device) for places in self.prompt_places]
        self.masks = [mask.to(device) for mask in self.masks]
        at = body(
            input_ids=self.ids.to(device),
            position_ids=self.positions.to(device),
            attention_mask=torch.ones(1, 1, 1, 1, dtype=torch.bool, device=device),  # nothing is left to be masked
            use_cache=False,
            packed=self,
        ).last_hidden_state
        found: Tensor = at[0].index_select(0, self.keep.to(device))
        return found

    def attend(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> Tensor:
        """query [1, H, tokens, D], key and value [1, G, tokens, D] -> [1, tokens, H, D], for the whole line."""
        from rlfw.policies.attention import attend

        sizes = [len(block.rows) * block.width for block in (*self.prompts, *self.completions)]
        every = [x[0].transpose(0, 1) for x in (query, key, value)]  # [tokens, heads, D] each
        queries, keys, values = (x.split(sizes) for x in every)
        said = []
        for i, block in enumerate(self.prompts):
            q, k, v = (_rectangle(x[i], len(block.rows)) for x in (queries, keys, values))
            said.append(attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), None, scaling))
        for i, block in enumerate(self.completions, len(self.prompts)):
            r, j = len(block.rows), i - len(self.prompts)
            q = _rectangle(queries[i], r)
            k, v = (
                torch.cat([_rectangle(line.index_select(0, self.prompt_places[j]), r), _rectangle(own[i], r)], 1)
                for line, own in zip(every[1:], (keys, values), strict=True)
            )  # [r, l + width, G, D]
            said.append(attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), self.masks[j], scaling))
        return torch.cat([x.transpose(1, 2).flatten(0, 1) for x in said])[None]


def _rectangle(line: Tensor, r: int) -> Tensor:
    """[r * width, heads, D] -> [r, width, heads, D]."""
    return line.view(r, -1, *line.shape[1:])


def _causal(prompt: Tensor, width: int) -> Tensor:
    """bool [., 1, width, l + width]: a completion token sees its prompt ``prompt`` [r, l] and what stands before it."""
    r, before = prompt.shape
    own = torch.ones(width, width, dtype=torch.bool).tril()
    if bool(prompt.all()):
        prompt, r = prompt[:1], 1
    return torch.cat([prompt[:, None].expand(r, width, before), own.expand(r, width, width)], 2)[:, None]


def _last(cells: Tensor) -> Tensor:
    """The number of completion tokens before each row's last cell, [B]."""
    return (cells * torch.arange(cells.shape[1])).amax(1)


def _chunks(lengths: Tensor, cost: int) -> Iterator[tuple[Tensor, int]]:
    """Rows of like length with their longest; rows of length 0 are left out.

    From short to long: longer rows join those before them while these are padded with no more than ``cost`` tokens.
    """
    order = lengths.argsort(stable=True)
    order = order[lengths[order] > 0]
    widths, counts = lengths[order].unique_consecutive(return_counts=True)
    begin = end = width = padding = 0
    for wider, count in zip(widths.tolist(), counts.tolist(), strict=True):
        padding += (end - begin) * (wider - width)
        if padding > cost:
            yield order[begin:end], width
            begin, padding = end, 0
        end, width = end + count, wider
    if end:
        yield order[begin:end], width


def _blocks(lengths: Tensor, start: int) -> tuple[list[Block], int]:
    """Blocks from place ``start`` on, and the place behind them."""
    blocks = []
    for rows, width in _chunks(lengths, BLOCK_COST):
        blocks.append(Block(rows, width, start))
        start += len(rows) * width
    return blocks, start


@torch.no_grad()
def why_padded(model: Any, body: Body) -> str | None:
    """None where packed rows give what padded rows give; else the reason why they cannot be used.

    The two may differ by a thousandth of what another prompt would change.
    """
    if not _keeps_all_tokens(model):
        return "a layer does not see all tokens (a sliding window, or a running state)"
    size, (P, L, T) = getattr(model.config, "max_position_embeddings", None), (2, 4, 3)
    if isinstance(size, int) and 0 < size < L + T:
        return f"its context of {size} tokens is too short for a trial"
    tokens = torch.arange(P * L + 2 * P * T) % model.get_input_embeddings().weight.shape[0]
    ids, actions = tokens[: P * L].view(P, L), tokens[P * L :].view(2 * P, T)
    length, row = torch.tensor([L, L - 2]), torch.arange(P).repeat(2)
    cells = torch.arange(T + 1) <= torch.tensor([T, 0, 1, T])[:, None]

    def says(kind: type[Layout], ids: Tensor) -> Tensor:
        layout = kind(ids, length, row, actions, cells)
        found = layout.run(body, model.device)
        return found.new_zeros(*cells.shape, found.shape[1]).index_put((layout.row, layout.step), found)

    whole, other = says(PaddedRows, ids), says(PaddedRows, ids.flip(0))
    try:
        packed = says(Packed, ids)
    except Exception as error:  # what a model that cannot take them raises depends on the model
        return f"packed rows fail: {error!r:.100}"
    apart, effect = (float((x - whole).abs().max()) for x in (packed, other))
    return (
        None
        if apart < 0.001 * effect
        else f"packed rows are off by {apart:.1g}, where another prompt moves {effect:.1g}"
    )


def _keeps_all_tokens(model: Any) -> bool:
    """Whether every layer's cache holds the keys and values of all tokens."""
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    layers = DynamicCache(config=model.config).layers
    return bool(layers) and all(type(layer) is DynamicLayer for layer in layers)

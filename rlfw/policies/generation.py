"""Writing completions with any transformers causal LM: its own forward, a decode loop and a cache layer of ours.

Imports transformers: import it where it is needed, not at the top of a module.

    B rows   P distinct prompts   L tokens of the longest prompt   T new tokens   R rows still being written
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from rlfw.context import Prompts
from rlfw.interfaces import Completions, TextActor
from rlfw.policies.shaping import sample, selected_logprobs

if TYPE_CHECKING:
    from rlfw.policies.causal_lm import CausalLM

DROP_SHARE = 0.25  # ended rows leave the batch once they are this share of it: copying the cache pays off from there


class CausalLMActor(TextActor):
    """Samples from the policy's present weights: each distinct prompt is computed once, ended rows are dropped."""

    def __init__(self, policy: CausalLM, generator: torch.Generator) -> None:
        self.policy, self.generator = policy, generator

    def complete(
        self, prompts: list[str], *, group_size: int, max_new_tokens: int, greedy: bool = False
    ) -> Completions:
        distinct = {prompt: i for i, prompt in enumerate(dict.fromkeys(prompts))}
        ids, length = self.policy.encode_prompts(list(distinct), room=max_new_tokens)
        row = torch.tensor([distinct[prompt] for prompt in prompts]).repeat_interleave(group_size)
        context = Prompts(ids, length, row)
        uniform = None
        if not greedy:
            uniform = torch.rand(len(row), max_new_tokens, generator=self.generator, dtype=torch.float64)
        actions, logprobs = self._write(context, max_new_tokens, uniform)
        stop = torch.isin(actions, self.policy.eos)  # [B, T]
        ended = stop.any(1)
        lengths = torch.where(ended, stop.int().argmax(1) + 1, max_new_tokens)
        T = int(lengths.max())
        mask = torch.arange(T) < lengths[:, None]
        return Completions(
            context=context,
            ids=actions[:, :T].where(mask, 0),
            logprobs=logprobs[:, :T].where(mask, 0),
            mask=mask,
            ended=ended,
            texts=self.policy.decode(actions, lengths - ended.long()),
        )

    @torch.no_grad()
    def _write(self, context: Prompts, T: int, uniform: Tensor | None) -> tuple[Tensor, Tensor]:
        """Tokens and log-probs [B, T]; what stands behind a row's first end-of-sequence token is meaningless."""
        model, shaping = self.policy.runs, self.policy.shaping
        context, eos = context.to(model.device), self.policy.eos.to(model.device)
        uniform = None if uniform is None else uniform.to(model.device)
        tokens = torch.zeros(len(context.row), T, dtype=torch.long, device=model.device)
        logprobs = torch.zeros(len(context.row), T, device=model.device)
        cache, logits, attention = self._prefill(model, context, T)
        position = context.length[context.row]  # [R] of the token that comes next
        live = torch.arange(len(context.row), device=model.device)  # [R]
        ended = torch.zeros_like(live, dtype=torch.bool)  # [R]
        for t in range(T):
            shaped = shaping(logits)
            token = shaped.argmax(-1) if uniform is None else sample(shaped, uniform[live, t])
            tokens[live, t], logprobs[live, t] = token, selected_logprobs(shaped, token)
            ended |= torch.isin(token, eos)
            num_ended = int(ended.sum())
            if num_ended == len(live) or t == T - 1:
                break
            if num_ended >= DROP_SHARE * len(live):
                keep = (~ended).nonzero()[:, 0]
                cache.reorder_cache(keep)
                live, ended, token, position = live[keep], ended[keep], token[keep], position[keep]
                attention = attention if attention is None else attention[keep]
            logits = model(
                input_ids=token[:, None],
                attention_mask=None if attention is None else attention[:, : context.ids.shape[1] + t + 1],
                position_ids=position[:, None],
                cache=cache,
                use_cache=True,
                logits_to_keep=1,
            ).logits[:, -1]
            position = position + 1
        return tokens.cpu(), logprobs.cpu()

    def _prefill(self, model: Any, context: Prompts, room: int) -> tuple[Any, Tensor, Tensor | None]:
        """The prompts once, left-padded, then repeated: cache of B rows, logits [B, V], attention [B, L + room]."""
        L = context.ids.shape[1]
        column = torch.arange(L, device=model.device) - (L - context.length[:, None])  # [P, L]
        padded = bool((column < 0).any())
        cache: Any = DynamicCache(config=model.config)
        logits = model(
            input_ids=context.ids.gather(1, column.clamp(min=0)),
            attention_mask=(column >= 0).long() if padded else None,
            position_ids=column.clamp(min=0),
            cache=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits[:, -1]  # [P, V]
        for i, layer in enumerate(cache.layers):
            if type(layer) is DynamicLayer and layer.is_initialized:
                cache.layers[i] = Slab(layer, context.row, room)
            else:
                layer.reorder_cache(context.row)
        attention = None
        if padded:
            attention = torch.nn.functional.pad((column >= 0).long()[context.row], (0, room), value=1)
        return cache, logits[context.row], attention


class Slab(DynamicLayer):
    """A cache layer in one buffer with room for what comes: a step writes a column instead of copying them all."""

    keys: Tensor
    values: Tensor

    def __init__(self, layer: Any, row: Tensor, room: int) -> None:
        """Row b begins as row ``row[b]`` of ``layer``."""
        super().__init__()
        self.lazy_initialization(layer.keys, layer.values)
        self._buffers = tuple(_with_room(x, row, room) for x in (layer.keys, layer.values))
        self._fill(layer.keys.shape[-2])

    def _fill(self, num_columns: int) -> None:
        self.keys, self.values = (buffer[:, :, :num_columns] for buffer in self._buffers)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        start = self.keys.shape[-2]
        self._fill(start + key_states.shape[-2])
        self.keys[:, :, start:], self.values[:, :, start:] = key_states, value_states
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Tensor) -> None:
        num_columns = self.keys.shape[-2]
        self._buffers = tuple(buffer[beam_idx] for buffer in self._buffers)
        self._fill(num_columns)


def _with_room(x: Tensor, row: Tensor, room: int) -> Tensor:
    """[P, H, L, D] -> [B, H, L + room, D], of which L columns are filled."""
    _, H, L, D = x.shape
    buffer = x.new_empty(len(row), H, L + room, D)
    buffer[:, :, :L] = x[row]
    return buffer

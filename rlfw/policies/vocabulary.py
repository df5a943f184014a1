"""From hidden states to log-probs over the vocabulary: the model's own head, a part of the positions at a time.

N positions   D width of a hidden state   V tokens of the vocabulary
"""

from __future__ import annotations

import copy
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from rlfw.policies.shaping import entropy as entropy_of
from rlfw.policies.shaping import selected_logprobs
from rlfw.rollout import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable

    from rlfw.policies.layout import Body
    from rlfw.policies.shaping import Shaping

    Head = Callable[[Tensor], Tensor]  # [n, D] -> logits [n, V]

LOGITS_AT_ONCE = 2**24  # 64 MB in float32


def scores(
    head: Head, hidden: Tensor, tokens: Tensor, shaping: Shaping, vocab_size: int, *, entropy: bool
) -> tuple[Tensor, Tensor]:
    """Log-probs [N] of ``tokens`` [N] after ``hidden`` [N, D], and entropies [N] where asked for, in nats.

    No more than LOGITS_AT_ONCE logits are held: where there are more, each part is computed again for its gradient.
    """

    def part(hidden: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        logits = shaping(head(hidden), tokens)
        found = selected_logprobs(logits, tokens)
        return (found, entropy_of(logits)) if entropy else (found,)

    n = max(1, LOGITS_AT_ONCE // vocab_size)
    if len(tokens) <= n:
        found = part(hidden, tokens)
    else:
        parts = [
            checkpoint(part, h, t, use_reentrant=False, preserve_rng_state=False)
            for h, t in zip(hidden.split(n), tokens.split(n), strict=True)
        ]
        found = tuple(torch.cat(column) for column in zip(*parts, strict=True))
    return found[0], (found[1] if entropy else ABSENT)


@torch.no_grad()
def comes_apart(model: Any) -> bool:
    """Whether ``model`` is its ``base_model`` with a head on it, as nearly all transformers causal LMs are."""
    ids = torch.ones(1, 2, dtype=torch.long, device=model.device)
    whole = model(input_ids=ids, use_cache=False).logits[0]
    try:
        again = head_of(model)(model.base_model(input_ids=ids, use_cache=False).last_hidden_state[0])
    except (AttributeError, TypeError):  # its body stands one level further down
        return False
    return torch.equal(again, whole)


def body_and_head(model: Any, *, apart: bool) -> tuple[Body, Head]:
    """Tokens -> hidden states, hidden states -> logits; one that does not come ``apart`` says its logits at once."""
    if apart:
        return model.base_model, head_of(model)

    def whole(**inputs: Any) -> Any:
        return SimpleNamespace(last_hidden_state=model(**inputs).logits)

    return whole, lambda logits: logits


def head_of(model: Any) -> Head:
    """What ``model``, a transformers causal LM, makes of its body's hidden states: its head, scale and cap included."""
    head = copy.copy(model)  # shares every weight
    head._modules = {**model._modules, model.base_model_prefix: _HandOn()}

    def logits(hidden: Tensor) -> Tensor:
        found: Tensor = head(inputs_embeds=hidden[None], use_cache=False).logits[0]
        return found

    return logits


class _HandOn(nn.Module):
    """A body that says what it is given, also where it is asked for as a decoder within."""

    @property
    def decoder(self) -> _HandOn:
        return self

    def forward(self, input_ids: None = None, inputs_embeds: Tensor | None = None, **_: Any) -> Any:
        from transformers.modeling_outputs import BaseModelOutputWithPastAndCrossAttentions

        return BaseModelOutputWithPastAndCrossAttentions(last_hidden_state=inputs_embeds)  # type: ignore[arg-type]

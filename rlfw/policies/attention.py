"""The attention that causal_lm's models are run with: transformers' own call, which also knows packed rows.

transformers hands further keyword arguments of a forward pass on to the attention function of every layer; ``packed``
is one. Imports transformers: import it where it is needed, not at the top of a module.

    b rows   H query heads   G key heads   s queries   n keys   D width of a head
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

if TYPE_CHECKING:
    from rlfw.policies.layout import Packed

NAME = "rlfw"
FURTHER = ("position_bias", "softcap", "s_aux", "sliding_window")  # what changes the products, where it is not None


def install(model: Any) -> None:
    """Run ``model`` with this attention, where it takes scaled_dot_product_attention at all."""
    if model.config._attn_implementation == "sdpa":
        model.set_attn_implementation(NAME)


def forward(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    packed: Packed | None = None,
    **further: Any,
) -> tuple[Tensor, None]:
    """query [b, H, s, D], key and value [b, G, n, D] -> [b, s, H, D]."""
    plain = all(further.get(name) is None for name in FURTHER)
    if packed is not None:
        if not plain:
            raise NotImplementedError(f"{type(module).__name__} does more than softmax(q k) v")
        return packed.attend(query, key, value, scaling), None
    if plain and query.device.type == "cpu" and (query.dtype == torch.bfloat16 or query.shape[2] == 1):
        return attend(query, key, value, attention_mask, scaling).transpose(1, 2), None
    return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **further)


def attend(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scaling: float | None) -> Tensor:
    """softmax(q k) v: [b, H, s, D], [b, G, n, D] twice -> [b, H, s, D]. ``mask`` bool [., ., s, n]; None: causal.

    On a CPU torch's own function is slow for one query, and in bfloat16 its backward pass takes ten times as long.
    """
    H, s, n = query.shape[1], query.shape[2], key.shape[2]
    written = query.device.type == "cpu" and (query.dtype == torch.bfloat16 or s == 1)
    if not written:
        return torch.nn.functional.scaled_dot_product_attention(
            query, key, value, mask, is_causal=mask is None, scale=scaling, enable_gqa=key.shape[1] != H
        )
    grouped = query.reshape(len(query), key.shape[1], -1, query.shape[3])  # [b, G, (H/G) s, D]
    scores = grouped @ key.transpose(2, 3) * (query.shape[3] ** -0.5 if scaling is None else scaling)
    if mask is None and s > 1:
        mask = torch.ones(s, n, dtype=torch.bool, device=query.device).tril()
    if mask is not None:
        scores = scores.view(*scores.shape[:2], -1, s, n)  # [b, G, H/G, s, n]
        lowest = torch.finfo(scores.dtype).min  # not -inf: padding on the left sees nothing, and must stay finite
        scores = scores.masked_fill(~(mask if mask.dim() == 2 else mask[:, :, None]), lowest).flatten(2, 3)
    return (scores.softmax(-1) @ value).reshape(len(query), H, s, -1)


AttentionInterface.register(NAME, forward)  # type: ignore[arg-type]
AttentionMaskInterface.register(NAME, sdpa_mask)

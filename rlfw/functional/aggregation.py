"""How per-step losses become one number."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .groups import group_index, group_sum

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Coefficients [B, T], zero off the mask: the loss is sum(coefficients * per-step loss). An empty batch gives zeros.


def _nonempty(mask: Tensor) -> Tensor:
    """[B] bool: the row has any step."""
    return mask.any(1)


def token_sum(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """sum of all steps."""
    return mask.to(dtype)


def token_mean(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / N on each of the N steps."""
    return mask.to(dtype) / mask.sum().clamp(min=1)


def sequence_sum(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / B: the mean over the B non-empty rows of each row's sum."""
    return mask.to(dtype) / _nonempty(mask).sum().clamp(min=1)


def sequence_mean(mask: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / (B n_i): the mean over the B non-empty rows of each row's mean over its n_i steps."""
    return sequence_sum(mask, dtype) / mask.sum(1, keepdim=True).clamp(min=1)


def prompt_mean(mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
    """1 / (P n_p): the mean over the P prompts (groups) of each prompt's mean over all its n_p steps."""
    index, num_groups = group_index(group)
    steps = group_sum(mask.sum(1).to(dtype), index, num_groups)  # [P]
    prompts = (steps > 0).sum().clamp(min=1)
    return mask.to(dtype) / (prompts * steps.clamp(min=1))[index][:, None]

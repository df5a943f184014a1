"""Sums and means over the steps of rows."""

from __future__ import annotations

import torch
from einops import repeat
from torch import Tensor


def masked(x: Tensor, mask: Tensor) -> Tensor:
    """x on the mask, 0 elsewhere, whatever stands there (NaN included)."""
    return torch.where(mask, x, 0)


def row_sum(x: Tensor, mask: Tensor) -> Tensor:
    """[B, T] -> [B]: the sum over a row's steps."""
    return masked(x, mask).sum(1)


def row_mean(x: Tensor, mask: Tensor) -> Tensor:
    """[B, T] -> [B]: the mean over a row's steps; 0 for a row without any.

    One of its steps is taken off first, so that a row of equal numbers has exactly their mean, whatever its length.
    """
    any_step = x.detach().gather(1, mask.to(torch.int8).argmax(1, keepdim=True))  # [B, 1]
    any_step = masked(any_step, mask.any(1, keepdim=True))
    return any_step[:, 0] + row_sum(x - any_step, mask) / mask.sum(1).clamp(min=1)


def spread(x: Tensor, mask: Tensor) -> Tensor:
    """[B] -> [B, T]: a row's number on each of its steps, 0 off the mask."""
    return masked(repeat(x, "b -> b t", t=mask.shape[1]), mask)


def on_last_step(x: Tensor, mask: Tensor) -> Tensor:
    """[B] -> [B, T]: a row's number on its last step, 0 on the others; a row without steps has it nowhere."""
    last = mask.shape[1] - 1 - mask.flip(1).to(torch.int8).argmax(1, keepdim=True)  # [B, 1]
    return masked(x.new_zeros(mask.shape).scatter(1, last, x[:, None]), mask)

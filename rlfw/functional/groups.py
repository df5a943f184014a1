"""Rows that share a start."""

from __future__ import annotations

import torch
from torch import Tensor


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Any labels [B] -> indices 0..N-1 [B], and N."""
    labels, index = group.unique(return_inverse=True)
    return index, len(labels)


def group_sum(x: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """[B] -> [N]."""
    return x.new_zeros(num_groups).index_add(0, index, x)


def group_center(x: Tensor, group: Tensor, *, include_self: bool = True) -> Tensor:
    """x_i minus the mean of its group [B]; without itself (leave-one-out), G/(G-1) times that. Alone in a group: 0.

    The group's minimum is taken off first, so that equal members give exactly 0 in any precision.
    """
    index, N = group_index(group)
    low = x.new_full((N,), torch.inf).scatter_reduce(0, index, x, "amin")
    x = x - low[index]
    size = group_sum(torch.ones_like(x), index, N)
    centered = x - (group_sum(x, index, N) / size)[index]
    if include_self:
        return centered
    return centered * (size / (size - 1).clamp(min=1))[index]


def group_std(x: Tensor, group: Tensor, ddof: int) -> Tensor:
    """The standard deviation of each member's group [B]; 0 where ddof leaves no degree of freedom."""
    index, N = group_index(group)
    size = group_sum(torch.ones_like(x), index, N)
    square = group_sum(group_center(x, group) ** 2, index, N)
    return (square / (size - ddof).clamp(min=1)).sqrt()[index]

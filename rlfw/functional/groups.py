"""Rows that share a start."""

from __future__ import annotations

import torch
from torch import Tensor

from .scales import safe_divide


def group_index(group: Tensor) -> tuple[Tensor, int]:
    """Any labels [B] -> indices 0..N-1 [B], and N."""
    labels, index = group.unique(return_inverse=True)
    return index, len(labels)


def group_sum(x: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """[B] -> [N]."""
    return x.new_zeros(num_groups).index_add(0, index, x)


def group_min(x: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """[B] -> [N]."""
    return x.new_full((num_groups,), torch.inf).scatter_reduce(0, index, x, "amin")


def group_max(x: Tensor, index: Tensor, num_groups: int) -> Tensor:
    """[B] -> [N]."""
    return x.new_full((num_groups,), -torch.inf).scatter_reduce(0, index, x, "amax")


def group_mean(x: Tensor, group: Tensor) -> Tensor:
    """The mean of each member's group [B]."""
    index, N = group_index(group)
    low = group_min(x, index, N)
    size = group_sum(torch.ones_like(x), index, N)
    return (low + group_sum(x - low[index], index, N) / size)[index]


def group_center(x: Tensor, group: Tensor, *, include_self: bool = True, weights: Tensor | None = None) -> Tensor:
    """x_i minus the mean of its group [B]; without itself (leave-one-out), G/(G-1) times that. Alone in a group: 0.

    ``weights`` [B], at least 1: minus the weighted mean sum(w x) / sum(w), of which w_i / sum(w) is itself.
    The group's minimum is taken off first, so that equal members give exactly 0 in any precision.
    """
    index, N = group_index(group)
    x = x - group_min(x, index, N)[index]
    w = torch.ones_like(x) if weights is None else weights.to(x.dtype)
    size = group_sum(w, index, N)
    centered = x - (group_sum(w * x, index, N) / size)[index]
    if include_self:
        return centered
    return centered * (size[index] / (size[index] - w).clamp(min=1))


def group_std(x: Tensor, group: Tensor, ddof: int) -> Tensor:
    """The standard deviation of each member's group [B]; 0 where ddof leaves no degree of freedom."""
    index, N = group_index(group)
    size = group_sum(torch.ones_like(x), index, N)
    square = group_sum(group_center(x, group) ** 2, index, N)
    return (square / (size - ddof).clamp(min=1)).sqrt()[index]


def group_zscore(x: Tensor, group: Tensor, ddof: int, eps: float) -> Tensor:
    """(x_i - mean) / (std + eps) of its group [B]; 0 in a group without spread."""
    return safe_divide(group_center(x, group), group_std(x, group, ddof), eps)


def group_margin(x: Tensor, group: Tensor) -> Tensor:
    """The best of its group less the second best, 0 for all others [B] (arXiv:2503.19595).

    That is the leave-one-out advantage of max(x). Two that are best alike give 0; so does one alone.
    """
    index, N = group_index(group)
    best = x == group_max(x, index, N)[index]
    second = group_max(torch.where(best, -torch.inf, x), index, N)[index]
    single = group_sum(best.to(x.dtype), index, N)[index] == 1
    return torch.where(best & single & second.isfinite(), x - second, 0.0)

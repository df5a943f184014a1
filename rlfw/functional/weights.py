"""Which steps weigh how much."""

from __future__ import annotations

import torch
from torch import Tensor

from .objectives import exp_ratio
from .rows import row_mean, row_sum, spread
from .scales import center

LEVELS = ("token", "sequence", "geometric")


def importance_weight(log_ratio: Tensor, mask: Tensor, level: str) -> Tensor:
    """w = e^x of each step [B, T], from x [B, T]; or one w a row on each of its steps, 0 off the mask.

    token: e^x_t; sequence: the product over the row's steps; geometric: their geometric mean.
    """
    if level == "token":
        return exp_ratio(log_ratio)
    if level == "sequence":
        return spread(exp_ratio(row_sum(log_ratio, mask)), mask)
    if level == "geometric":
        return spread(exp_ratio(row_mean(log_ratio, mask)), mask)
    raise ValueError(f"no such level: {level}; there are {', '.join(LEVELS)}")


def effective_share(w: Tensor) -> Tensor:
    """(sum w)^2 / (S sum w^2) of S weights: the effective sample size as a share of S; 0 where there is none."""
    square = len(w) * (w**2).sum()
    return w.sum() ** 2 / torch.where(square > 0, square, 1.0)


def covariance(advantages: Tensor, logprobs: Tensor) -> Tensor:
    """(A - mean A) (l - mean l) of each step [S]: its share of their covariance (arXiv:2505.22617)."""
    return center(advantages) * center(logprobs)


def top_fraction(x: Tensor, fraction: float) -> Tensor:
    """[S] bool: the floor(fraction S) largest, at least one; ties with the last of them are in as well."""
    if len(x) == 0:
        return torch.zeros_like(x, dtype=torch.bool)
    count = max(int(fraction * len(x) + 1e-9), 1)
    return x >= x.topk(count).values[-1]

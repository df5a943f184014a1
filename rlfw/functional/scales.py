"""Centres and standard deviations of vectors."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def center(x: Tensor) -> Tensor:
    """A vector minus its mean; exactly 0 where all are equal, in any precision."""
    if len(x) == 0:
        return x
    x = x - x[:1]
    return x - x.mean()


def whiten(x: Tensor, ddof: int, eps: float) -> Tensor:
    """A vector less its mean over its standard deviation + eps; exactly 0 where all are equal, in any precision."""
    if len(x) <= ddof:
        return torch.zeros_like(x)
    x = x - x[:1]
    scale, mean = torch.std_mean(x, correction=ddof)
    return safe_divide(x - mean, scale, eps)


def std(x: Tensor, ddof: int) -> Tensor:
    """The standard deviation of a vector; 0 where all are equal or ddof leaves no degree of freedom."""
    return std_of_centered(center(x), ddof)


def std_of_centered(x: Tensor, ddof: int) -> Tensor:
    """The same for a vector whose mean is 0."""
    norm: Tensor = torch.linalg.vector_norm(x)
    return norm / math.sqrt(max(len(x) - ddof, 1))


def safe_divide(x: Tensor, scale: Tensor, eps: float) -> Tensor:
    """x / (scale + eps), and 0 where the scale is not above 0: no spread, no signal, whatever eps."""
    return x / torch.where(scale > 0, scale + eps, torch.inf)


def merge_moments(count: int, mean: float, m2: float, x: Tensor) -> tuple[int, float, float]:
    """Count, mean and sum of squared deviations of numbers seen before and of a vector, in float64 (Chan et al. 1983).

    With n' of mean' and M2' after n of mean and M2: mean + (mean' - mean) n' / (n + n') and
    M2 + M2' + (mean' - mean)^2 n n' / (n + n').
    """
    if len(x) == 0:
        return count, mean, m2
    x = x.double()
    own = float(x[0] + (x - x[0]).mean())  # exactly the number, where all are equal
    total, gap = count + len(x), own - mean
    return total, mean + gap * (len(x) / total), m2 + float(center(x).square().sum()) + gap**2 * count * len(x) / total

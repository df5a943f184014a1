"""Sums along the steps that follow: returns-to-go and advantages."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from .rows import masked


def _has_gaps(mask: Tensor) -> bool:
    return bool((mask[:, 1:] & ~mask[:, :-1]).any())


def _discount_matrix(T: int, discount: float, like: Tensor) -> Tensor:
    """[T, T] with entry (k, t) = discount^(k - t) for k >= t: x @ M is the discounted sum of what follows t."""
    k = torch.arange(T, device=like.device)
    gap = k[:, None] - k[None, :]
    return torch.where(gap >= 0, like.new_tensor(discount) ** gap.clamp(min=0), like.new_zeros(()))


BLOCK = 512  # steps: longer rows are summed block by block, so that the matrix stays small


def discounted_sum(x: Tensor, mask: Tensor, discount: float | Tensor) -> Tensor:
    """y_t = x_t + discount * y_{t+1} along a row, where t + 1 is the row's next step ON the mask. [B, T].

    ``discount``: one number, or one a row [B].
    """
    if _has_gaps(mask):  # close the gaps, sum, and open them again: masked positions cost no discount
        order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
        closed = discounted_sum(x.gather(1, order), mask.gather(1, order), discount)
        return torch.zeros_like(x).scatter(1, order, closed)
    x, T = masked(x, mask), x.shape[1]
    if isinstance(discount, Tensor):
        return masked(_sum_by_doubling(x, discount), mask)
    if T <= BLOCK:
        return masked(x @ _discount_matrix(T, discount, x), mask)
    y = torch.zeros_like(x)
    for start in reversed(range(0, T, BLOCK)):
        stop = min(start + BLOCK, T)
        block = x[:, start:stop].clone()
        if stop < T:
            block[:, -1] += discount * y[:, stop]
        y[:, start:stop] = block @ _discount_matrix(stop - start, discount, x)
    return masked(y, mask)


def _sum_by_doubling(y: Tensor, discount: Tensor) -> Tensor:
    """The same with a discount a row: after each pass y_t reaches twice as far, log2(T) passes in all."""
    reach = 1
    while reach < y.shape[1]:
        y = y + discount[:, None] ** reach * pad(y[:, reach:], (0, reach))
        reach *= 2
    return y


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = sum_k gamma^k r_{t+k} within the row. [B, T]."""
    return discounted_sum(rewards, mask, gamma)


def adaptive_lambda(length: Tensor, alpha: float) -> Tensor:
    """GAE's lambda for rows of ``length`` n [B]: max(0, 1 - 1 / (alpha n)) (VAPO, arXiv:2504.05118).

    So chosen that sum_k lambda^k is alpha n: the same share of every row. Rows of n <= 1 / alpha get 0.
    """
    return (1 - 1 / (alpha * length)).clamp(min=0)


def gae(
    rewards: Tensor, values: Tensor, mask: Tensor, bootstrap: Tensor, gamma: float, gae_lambda: float | Tensor
) -> Tensor:
    """Generalised advantage estimation (arXiv:1506.02438). [B, T].

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, within the row.
    ``gae_lambda``: one number, or one a row [B].
    ``values`` [B, T+1]: V before each step; column T is V of the row's own final observation, used as V_{t+1} of
    the last step where ``bootstrap`` [B] is True (the row did not terminate) and replaced by 0 elsewhere.
    """
    if _has_gaps(mask):
        order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
        closed_values = torch.cat([values[:, :-1].gather(1, order), values[:, -1:]], 1)
        closed = gae(rewards.gather(1, order), closed_values, mask.gather(1, order), bootstrap, gamma, gae_lambda)
        return torch.zeros_like(rewards).scatter(1, order, closed)
    B = rewards.shape[0]
    after = values[:, 1:].clone()  # [B, T] V after step t
    last = (mask.sum(1) - 1).clamp(min=0)
    after[torch.arange(B, device=after.device), last] = torch.where(bootstrap, values[:, -1], 0.0)
    delta = masked(rewards + gamma * after - values[:, :-1], mask)
    return discounted_sum(delta, mask, gamma * gae_lambda)

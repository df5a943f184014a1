"""The mathematics: pure functions, tensors in, tensors out.

    B rows   T steps   mask [B, T] bool   group [B] int64, any labels

Log-probs, log-ratios and KL are in nats. Every function keeps the dtype it is given.
"""

from __future__ import annotations

import math

import torch
from einops import repeat
from torch import Tensor
from torch.nn.functional import mse_loss

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: larger ratios are held here, so that no exp overflows behind a clip


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


# ------------------------------------------------------------------------------------------------ returns


def _has_gaps(mask: Tensor) -> bool:
    return bool((mask[:, 1:] & ~mask[:, :-1]).any())


def _discount_matrix(T: int, discount: float, like: Tensor) -> Tensor:
    """[T, T] with entry (k, t) = discount^(k - t) for k >= t: x @ M is the discounted sum of what follows t."""
    k = torch.arange(T, device=like.device)
    gap = k[:, None] - k[None, :]
    return torch.where(gap >= 0, like.new_tensor(discount) ** gap.clamp(min=0), like.new_zeros(()))


BLOCK = 512  # steps: longer rows are summed block by block, so that the matrix stays small


def discounted_sum(x: Tensor, mask: Tensor, discount: float) -> Tensor:
    """y_t = x_t + discount * y_{t+1} along a row, where t + 1 is the row's next step ON the mask. [B, T]."""
    if _has_gaps(mask):  # close the gaps, sum, and open them again: masked positions cost no discount
        order = (~mask).to(torch.int8).argsort(dim=1, stable=True)
        closed = discounted_sum(x.gather(1, order), mask.gather(1, order), discount)
        return torch.zeros_like(x).scatter(1, order, closed)
    x, T = masked(x, mask), x.shape[1]
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


def returns_to_go(rewards: Tensor, mask: Tensor, gamma: float) -> Tensor:
    """G_t = sum_k gamma^k r_{t+k} within the row. [B, T]."""
    return discounted_sum(rewards, mask, gamma)


def gae(rewards: Tensor, values: Tensor, mask: Tensor, bootstrap: Tensor, gamma: float, gae_lambda: float) -> Tensor:
    """Generalised advantage estimation (arXiv:1506.02438). [B, T].

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lambda A_{t+1}, within the row.
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


# ------------------------------------------------------------------------------------------------ groups


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
    """x / (scale + eps), and 0 where the scale is 0: no spread, no signal, whatever eps."""
    return x / torch.where(scale > 0, scale + eps, torch.inf)


# ------------------------------------------------------------------------------------------------ ratio and KL


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """exp of a log-ratio, held at e^20: beyond it the value is constant and the gradient 0."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def clip_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """PPO's objective min(r A, clip(r, 1 - low, 1 + high) A) (arXiv:1707.06347), to be maximised. [B, T].

    That is r A, held at (1 + high) A where A > 0 and at (1 - low) A elsewhere.
    """
    ceiling = torch.where(advantages > 0, (1 + high) * advantages, (1 - low) * advantages)
    return (exp_ratio(log_ratio) * advantages).clamp(max=ceiling)


KL_ESTIMATORS = ("k1", "k2", "k3", "abs")


def kl_estimate(d: Tensor, estimator: str) -> Tensor:
    """Per-step estimates of KL(pi || q) from d = log pi - log q at the step taken (joschu.net/blog/kl-approx.html).

    k1 = d; k2 = d^2 / 2; k3 = e^-d - 1 + d; abs = |d|.
    """
    if estimator == "k1":
        return d
    if estimator == "k2":
        return 0.5 * d**2
    if estimator == "k3":
        d = d.clamp(min=-MAX_LOG_RATIO)  # in both terms: held in one alone, k3 would pull away from q out there
        return exp_ratio(-d) - 1 + d
    if estimator == "abs":
        return d.abs()
    raise ValueError(f"no such KL estimator: {estimator}; there are {', '.join(KL_ESTIMATORS)}")


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None) -> Tensor:
    """(v - R)^2 / 2; with a clip the larger of that and (clip(v, v_old +- clip) - R)^2 / 2. [B, T]."""
    loss = mse_loss(values, returns, reduction="none")
    if clip is not None:
        assert old_values is not None
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.max(loss, mse_loss(clipped, returns, reduction="none"))
    return 0.5 * loss


# ------------------------------------------------------------------------------------------------ aggregation
# Coefficients [B, T], zero off the mask: the loss is sum(coefficients * per-step loss). An empty batch gives zeros.


def _nonempty(mask: Tensor) -> Tensor:
    """[B] float: 1 where a row has any step."""
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
    index, N = group_index(group)
    steps = group_sum(mask.sum(1).to(dtype), index, N)  # [N]
    prompts = (steps > 0).sum().clamp(min=1)
    return mask.to(dtype) / (prompts * steps.clamp(min=1))[index][:, None]

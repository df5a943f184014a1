"""Ratios, surrogates, KL estimates and the value loss, per step.

log_ratio, logprobs, advantages and what comes back are [B, T]; surrogates are to be maximised.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

from .rows import row_mean

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: larger ratios are held here, so that no exp overflows behind a clip


def exp_ratio(log_ratio: Tensor) -> Tensor:
    """exp of a log-ratio, held at e^20: beyond it the value is constant and the gradient 0."""
    return log_ratio.clamp(max=MAX_LOG_RATIO).exp()


def clip_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """PPO's objective min(r A, clip(r, 1 - low, 1 + high) A) (arXiv:1707.06347).

    That is r A, held at (1 + high) A where A > 0 and at (1 - low) A elsewhere.
    """
    ceiling = torch.where(advantages > 0, (1 + high) * advantages, (1 - low) * advantages)
    return (exp_ratio(log_ratio) * advantages).clamp(max=ceiling)


def dual_clip_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float, cap: float) -> Tensor:
    """PPO's objective, where A < 0 no smaller than cap A (arXiv:1912.09729): there r is held at ``cap``."""
    held = torch.where(advantages < 0, log_ratio.clamp(max=math.log(cap)), log_ratio)
    return clip_surrogate(held, advantages, low, high)


def two_sided_surrogate(log_ratio: Tensor, advantages: Tensor, low: float, high: float, cap: float) -> Tensor:
    """min(min(r, cap) A, clip(r, 1 - low, 1 + high) A) (arXiv:2505.07291)."""
    return clip_surrogate(log_ratio.clamp(max=math.log(cap)), advantages, low, high)


def cispo_surrogate(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, low: float, high: float) -> Tensor:
    """sg(clip(r, low, high)) A log pi, the bounds absolute (arXiv:2506.13585)."""
    return exp_ratio(log_ratio).clamp(low, high).detach() * advantages * logprobs


def sapo_surrogate(log_ratio: Tensor, advantages: Tensor, positive: float, negative: float) -> Tensor:
    """sigmoid(tau (r - 1)) 4 / tau A, tau = positive where A > 0, else negative (arXiv:2511.20347)."""
    tau = torch.where(advantages > 0, torch.full_like(advantages, positive), negative)
    return (tau * (exp_ratio(log_ratio) - 1)).sigmoid() * 4 / tau * advantages


def probability_shift(log_ratio: Tensor, logprobs: Tensor) -> Tensor:
    """p - p_old of the step taken, from log(p / p_old) and log p; without gradient."""
    return (exp_ratio(logprobs) - exp_ratio(logprobs - log_ratio)).detach()


def topr_surrogate(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, high: float) -> Tensor:
    """A log pi where A >= 0, sg(clip(r, 0, high)) A log pi where A < 0 (arXiv:2503.14286)."""
    tapered = exp_ratio(log_ratio).clamp(max=high).detach()
    return torch.where(advantages < 0, tapered, 1.0) * advantages * logprobs


def gmpo_surrogate(log_ratio: Tensor, advantages: Tensor, mask: Tensor, low: float, high: float) -> Tensor:
    """A exp(mean_t of the row's clipped x_t) on each of its steps (arXiv:2507.20673).

    x is held at ``high`` from above where A > 0 and at -``low`` from below elsewhere.
    """
    held = torch.where(advantages > 0, log_ratio.clamp(max=high), log_ratio.clamp(min=-low))
    return exp_ratio(row_mean(held, mask))[:, None] * advantages


def dro_surrogate(log_ratio: Tensor, logprobs: Tensor, advantages: Tensor, beta: float) -> Tensor:
    """A log pi - beta / 2 x^2 (arXiv:2405.19107)."""
    return advantages * logprobs - 0.5 * beta * log_ratio**2


def gamma_kernel(log_ratio: Tensor, power: Tensor, decay: Tensor) -> Tensor:
    """phi(W) = W^power e^{decay (1 - W)}, 1 at W = 1 (arXiv:2602.10693)."""
    return (power * log_ratio.clamp(max=MAX_LOG_RATIO) + decay * (1 - exp_ratio(log_ratio))).exp()


KL_ESTIMATORS = ("k1", "k2", "k3", "abs")
KL_LOSS_ESTIMATORS = (*KL_ESTIMATORS, "k3+")  # the last differs from k3 by its gradient alone


def kl_estimate(d: Tensor, estimator: str) -> Tensor:
    """Per-step estimates of KL(p || q) from d = log p - log q at a step drawn from p (joschu.net/blog/kl-approx.html).

    k1 = d; k2 = d^2 / 2; k3 = e^-d - 1 + d; abs = |d|; k3+ has the value of k3 and the gradient of k2.
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
    if estimator == "k3+":
        k2, k3 = kl_estimate(d, "k2"), kl_estimate(d, "k3")
        return k3.detach() + (k2 - k2.detach())
    raise ValueError(f"no such KL estimator: {estimator}; there are {', '.join(KL_LOSS_ESTIMATORS)}")


def value_loss(values: Tensor, returns: Tensor, old_values: Tensor | None, clip: float | None) -> Tensor:
    """(v - R)^2 / 2; with a clip the larger of that and (clip(v, v_old +- clip) - R)^2 / 2. [B, T]."""
    loss = mse_loss(values, returns, reduction="none")
    if clip is not None:
        assert old_values is not None
        clipped = old_values + (values - old_values).clamp(-clip, clip)
        loss = torch.max(loss, mse_loss(clipped, returns, reduction="none"))
    return 0.5 * loss

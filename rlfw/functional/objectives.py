"""Ratios, surrogates, KL estimates and the value loss, per step."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import mse_loss

MAX_LOG_RATIO = 20.0  # exp(20) = 5e8: larger ratios are held here, so that no exp overflows behind a clip


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

"""What takes the place of the plain objective r A: at most one Surrogate, unreduced [B, T], to be maximised.

Bounds named ``low`` and ``high`` are distances from ratio 1; those named ``cap``, ``max`` and ``min`` are ratios.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch

from rlfw import functional as F
from rlfw.checks import above, at_least, between
from rlfw.errors import UserError
from rlfw.interfaces import Surrogate
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current


def _clipfrac(low: Tensor, high: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """The share of steps whose gradient was cut, by the side on which it was."""
    found = {"policy/clipfrac_low": low.to(dtype), "policy/clipfrac_high": high.to(dtype)}
    return {"policy/clipfrac_avg": found["policy/clipfrac_low"] + found["policy/clipfrac_high"], **found}


class Clipped(Surrogate):
    """Base of the surrogates that hold the ratio within 1 - low and 1 + high."""

    low: float
    high: float
    needs = frozenset({"ratio"})
    acts_off_policy = True

    def check(self, name: str) -> None:
        between(f"regularizer.{name}.low", self.low, 0, 1)
        at_least(f"regularizer.{name}.high", self.high, 0)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The share of steps whose gradient the clip cut."""
        ratio = F.exp_ratio(new.log_ratio)
        low = (ratio < 1 - self.low) & (batch.advantages < 0)
        high = (ratio > 1 + self.high) & (batch.advantages > 0)
        return _clipfrac(low, high, ratio.dtype)


class Capped(Clipped):
    """Base of those that also hold a ratio that runs away where the advantage is negative."""

    cap: float

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The same, and the share of steps that the cap cut."""
        found = dict(super().metrics(new, batch))
        ratio = F.exp_ratio(new.log_ratio)
        dual = ((ratio > self.cap) & (batch.advantages < 0)).to(ratio.dtype)
        return {**found, "policy/clipfrac_avg": found["policy/clipfrac_avg"] + dual, "policy/clipfrac_dual": dual}


@register("regularizer", "clip")
@dataclass
class Clip(Clipped):
    """PPO's clipped objective min(r A, clip(r, 1 - low, 1 + high) A) (arXiv:1707.06347)."""

    _: KW_ONLY
    low: float = 0.2
    high: float = 0.2
    formula = "S = min(r A, clip(r, 1 - {low}, 1 + {high}) A)"

    def __post_init__(self) -> None:
        self.check("clip")

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.clip_surrogate(new.log_ratio, batch.advantages, self.low, self.high)


@register("regularizer", "dual_clip")
@dataclass
class DualClip(Capped):
    """PPO's clip with a floor of cap A where A < 0, so that no ratio runs away there (arXiv:1912.09729)."""

    _: KW_ONLY
    low: float = 0.2
    high: float = 0.2
    cap: float = 3.0
    formula = "S = max(min(r A, clip(r, 1 - {low}, 1 + {high}) A), {cap} A) if A < 0, without the max if A > 0"

    def __post_init__(self) -> None:
        self.check("dual_clip")
        above("regularizer.dual_clip.cap", self.cap, 1)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.dual_clip_surrogate(new.log_ratio, batch.advantages, self.low, self.high, self.cap)


@register("regularizer", "two_sided")
@dataclass
class TwoSided(Capped):
    """PPO's clip of a ratio that is held at cap on either sign (INTELLECT-2, arXiv:2505.07291).

    With a cap above 1 + high, which is asked for, the cap acts where A < 0 alone, as in dual_clip.
    """

    _: KW_ONLY
    low: float = 0.2
    high: float = 0.2
    cap: float = 4.0
    formula = "S = min(min(r, {cap}) A, clip(r, 1 - {low}, 1 + {high}) A)"

    def __post_init__(self) -> None:
        self.check("two_sided")
        if not self.cap > 1 + self.high:
            raise UserError(f"regularizer.two_sided.cap={self.cap}: it must be greater than 1 + high = {1 + self.high}")

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.two_sided_surrogate(new.log_ratio, batch.advantages, self.low, self.high, self.cap)


@register("regularizer", "cispo")
@dataclass
class Cispo(Surrogate):
    """A log pi weighted by the held ratio without its gradient, so that every step learns (arXiv:2506.13585).

    ``max`` and ``min`` are ratios, not distances from 1. ``min: 0`` is no lower bound, as in the paper, which does not
    print its ``max``; 5 is in the range of ScaleRL (arXiv:2510.13786). The clip fractions count the held weights.
    """

    _: KW_ONLY
    max: float = 5.0
    min: float = 0.0
    needs = frozenset({"ratio"})
    acts_off_policy = True
    formula = "S = sg(clip(r, {min}, {max})) A ℓ"

    def __post_init__(self) -> None:
        above("regularizer.cispo.max", self.max, 0)
        between("regularizer.cispo.min", self.min, 0, self.max)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.cispo_surrogate(new.log_ratio, new.logprobs, batch.advantages, self.min, self.max)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        ratio = F.exp_ratio(new.log_ratio)
        return _clipfrac(ratio < self.min, ratio > self.max, ratio.dtype)


@register("regularizer", "sapo")
@dataclass
class Sapo(Surrogate):
    """A soft gate in place of the clip, of slope 1 at r = 1 (arXiv:2511.20347).

    ``positive``, ``negative``: its temperature where A > 0 and elsewhere; the larger, the narrower.
    """

    _: KW_ONLY
    positive: float = 1.0
    negative: float = 1.05
    needs = frozenset({"ratio"})
    acts_off_policy = True
    formula = "S = 4 / τ sigmoid(τ (r - 1)) A, τ = {positive} if A > 0, else {negative}"

    def __post_init__(self) -> None:
        above("regularizer.sapo.positive", self.positive, 0)
        above("regularizer.sapo.negative", self.negative, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.sapo_surrogate(new.log_ratio, batch.advantages, self.positive, self.negative)


@register("regularizer", "dppo")
@dataclass
class Dppo(Surrogate):
    """r A, dropped where it would move the step's probability further away than delta (arXiv:2602.04879).

    The paper's binary total-variation form. The old probability is that of the ratio's source; the paper's is the
    behaviour policy's, ratio.token.source=behaviour. It is meant for discrete actions: a density is no probability.
    """

    _: KW_ONLY
    delta: float = 0.15
    needs = frozenset({"ratio", "step_ratio"})
    acts_off_policy = True
    formula = "S = r A · 1[sign(A) (e^ℓ - e^(ℓ - x)) ≤ {delta}]"

    def __post_init__(self) -> None:
        between("regularizer.dppo.delta", self.delta, 0, 1)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        low, high = self._cut(new, batch)
        return F.exp_ratio(new.log_ratio) * torch.where(low | high, 0.0, batch.advantages)

    def _cut(self, new: Current, batch: Batch) -> tuple[Tensor, Tensor]:
        shift = F.probability_shift(new.log_ratio, new.logprobs)
        return (shift < -self.delta) & (batch.advantages < 0), (shift > self.delta) & (batch.advantages > 0)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        return _clipfrac(*self._cut(new, batch), new.logprobs.dtype)


@register("regularizer", "topr")
@dataclass
class Topr(Surrogate):
    """A log pi, where A < 0 weighted by the held ratio without its gradient (TOPR, arXiv:2503.14286).

    The paper goes by the sign of the reward, this by that of the advantage: they agree where rewards are signed and
    nothing is subtracted. Its ratio is that of the whole row, ratio=product. The clip fraction counts the held weights.
    """

    _: KW_ONLY
    max: float = 1.0
    needs = frozenset({"ratio"})
    acts_off_policy = True
    formula = "S = A ℓ if A > 0, sg(min(r, {max})) A ℓ if A < 0"

    def __post_init__(self) -> None:
        above("regularizer.topr.max", self.max, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.topr_surrogate(new.log_ratio, new.logprobs, batch.advantages, self.max)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        ratio = F.exp_ratio(new.log_ratio)
        held = (ratio > self.max) & (batch.advantages < 0)
        return _clipfrac(torch.zeros_like(held), held, ratio.dtype)


@register("regularizer", "gmpo")
@dataclass
class Gmpo(Surrogate):
    """The geometric mean of a row's clipped ratios, times A, on each of its steps (arXiv:2507.20673).

    The clip comes before the mean, so it does not factor into a ratio and a surrogate: this part takes the ratios of
    the steps and forms the row's itself. ``low``, ``high``: bounds of log r, unlike clip's. Where advantages differ
    within a row, which the paper has not, each step has its own.
    """

    _: KW_ONLY
    low: float = 0.4
    high: float = 0.4
    needs = frozenset({"ratio", "step_ratio", "whole_rows"})
    acts_off_policy = True
    formula = "S = A exp(1/n Σ_t m h), h = min(x, {high}) if A > 0, max(x, -{low}) if A < 0"

    def __post_init__(self) -> None:
        at_least("regularizer.gmpo.low", self.low, 0)
        at_least("regularizer.gmpo.high", self.high, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.gmpo_surrogate(new.log_ratio, batch.advantages, batch.mask, self.low, self.high)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        low = (new.log_ratio < -self.low) & (batch.advantages < 0)
        high = (new.log_ratio > self.high) & (batch.advantages > 0)
        return _clipfrac(low, high, new.log_ratio.dtype)


@register("regularizer", "dro")
@dataclass
class Dro(Surrogate):
    """A log pi less a quadratic penalty on the log-ratio (DRO, arXiv:2405.19107; arXiv:2501.12599).

    The papers learn a value function of their own for A; here A is the baseline's.
    """

    _: KW_ONLY
    beta: float = 1.0
    needs = frozenset({"ratio"})
    acts_off_policy = True
    formula = "S = A ℓ - {beta}/2 x²"

    def __post_init__(self) -> None:
        at_least("regularizer.dro.beta", self.beta, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.dro_surrogate(new.log_ratio, new.logprobs, batch.advantages, self.beta)


@register("regularizer", "vespo")
@dataclass
class Vespo(Surrogate):
    """A log pi weighted by a smooth kernel of the ratio without its gradient (arXiv:2602.10693).

    The paper's ratio is that of the whole row, ratio=product. ``positive_k`` and ``positive_lambda`` hold where
    A >= 0, the others where A < 0. A larger k makes small ratios count less, a larger lambda large ones.
    """

    _: KW_ONLY
    positive_k: float = 2.0
    positive_lambda: float = 3.0
    negative_k: float = 3.0
    negative_lambda: float = 2.0
    needs = frozenset({"ratio"})
    acts_off_policy = True
    formula = (
        "S = sg(r^k e^(λ (1 - r))) A ℓ, "
        "k, λ = {positive_k}, {positive_lambda} if A ≥ 0, {negative_k}, {negative_lambda} if A < 0"
    )

    def __post_init__(self) -> None:
        for key in ("positive_k", "positive_lambda", "negative_k", "negative_lambda"):
            at_least(f"regularizer.vespo.{key}", vars(self)[key], 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        positive = batch.advantages >= 0
        power = torch.where(positive, torch.full_like(batch.advantages, self.positive_k), self.negative_k)
        decay = torch.where(positive, torch.full_like(batch.advantages, self.positive_lambda), self.negative_lambda)
        kernel = F.gamma_kernel(new.log_ratio.detach(), power, decay)
        return kernel * batch.advantages * new.logprobs

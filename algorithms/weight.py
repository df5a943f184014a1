"""Weights without gradient [B, T]: floats multiply the surrogate, bools take steps out of the loss altogether.

They are computed once a rollout, on its whole rows, before the update.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch

from rlfw import functional as F
from rlfw.checks import above, at_least, between, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Weight
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch
    from rlfw.seeding import Streams


def _check_range(name: str, low: float, high: float) -> None:
    at_least(f"weight.{name}.low", low, 0)
    if not high > low:
        raise UserError(f"weight.{name}.high={high}: it must be greater than low = {low}")


def _check_fraction(name: str, fraction: float) -> None:
    above(f"weight.{name}.fraction", fraction, 0)
    between(f"weight.{name}.fraction", fraction, 0, 1)


@register("weight", "truncated")
@dataclass
class Truncated(Weight):
    """Rows cut by a limit are left out of the loss and of its denominators (DAPO, arXiv:2503.14476)."""

    formula = "m ← m · 1[row not truncated]"

    def __call__(self, batch: Batch) -> Tensor:
        return batch.mask & ~batch.truncated[:, None]


@register("weight", "top_entropy")
@dataclass
class TopEntropy(Weight):
    """Only the ``fraction`` of the rollout's steps with the highest entropy keep their surrogate (arXiv:2506.01939).

    The denominators count all steps, as in the paper. Its threshold is that of a batch; here it is that of the rollout,
    under the policy at the start of the update, and ties with it are kept.
    """

    _: KW_ONLY
    fraction: float = 0.2
    needs = frozenset({"entropy"})
    formula = "w = 1[H among the highest {fraction} of the rollout]"

    def __post_init__(self) -> None:
        _check_fraction("top_entropy", self.fraction)

    def __call__(self, batch: Batch) -> Tensor:
        top = F.top_fraction(batch.gather(batch.entropy), self.fraction)
        return batch.scatter(top.to(batch.entropy.dtype))


@register("weight", "clip_cov")
@dataclass
class ClipCov(Weight):
    """A random few of the steps whose log-prob and advantage vary together lose their surrogate (arXiv:2505.22617).

    ``fraction`` of all steps, one at least, drawn from those with a covariance (A - mean A) (log pi - mean log pi)
    between ``low`` and ``high``. The paper takes it at each optimizer step, over its batch and among the steps that
    PPO's clip leaves; here it is that of the start of the update, over the rollout.
    """

    streams: Streams
    _: KW_ONLY
    fraction: float = 2e-4
    low: float = 1.0
    high: float = 5.0
    needs = frozenset({"old_logprobs"})
    formula = "w = 0 on {fraction} of all steps, drawn where {low} < (A - mean A) (ℓ_old - mean ℓ_old) < {high}, else 1"

    def __post_init__(self) -> None:
        _check_fraction("clip_cov", self.fraction)
        if not self.high > self.low:
            raise UserError(f"weight.clip_cov.high={self.high}: it must be greater than low = {self.low}")

    def __call__(self, batch: Batch) -> Tensor:
        covariance = F.covariance(batch.gather(batch.advantages), batch.gather(batch.old_logprobs))
        order = covariance.argsort()  # the draw goes by rank, so that the order of the rows does not matter
        candidates = order[((covariance > self.low) & (covariance < self.high))[order]]
        count = max(int(self.fraction * len(covariance) + 1e-9), 1)
        drawn = torch.randperm(len(candidates), generator=self.streams.torch("weight.clip_cov"))[:count]
        weights = torch.ones_like(covariance)
        weights[candidates[drawn.to(candidates.device)]] = 0
        return batch.scatter(weights)


class RolloutCorrection(Weight):
    """Base of the weights by w = pi_old / pi_behaviour, for a sampler that is not quite the policy that is scored."""

    needs = frozenset({"old_logprobs"})
    level: str = "token"
    numbers: Mapping[str, float] = {}

    @abstractmethod
    def corrected(self, w: Tensor) -> Tensor:
        """w [B, T] -> the weight [B, T]."""

    def __call__(self, batch: Batch) -> Tensor:
        w = F.importance_weight(batch.on_mask(batch.old_logprobs - batch.logprobs), batch.mask, self.level)
        weight = self.corrected(w)
        share, steps = F.effective_share(batch.gather(w)), batch.mask.sum().clamp(min=1)
        self.numbers = {
            "rollout_corr/ess": float(share),
            "rollout_corr/mean": float(batch.gather(weight).sum() / steps),
        }
        return weight

    def report(self) -> Mapping[str, float]:
        """The effective sample size of w, as a share of the steps, and the mean weight that came of it."""
        return self.numbers


_W = {
    "token": "e^(ℓ_old - ℓ_beh)",
    "sequence": "e^Σ_t m (ℓ_old - ℓ_beh)",
    "geometric": "e^(1/n Σ_t m (ℓ_old - ℓ_beh))",
}


@register("weight", "tis")
@dataclass
class TIS(RolloutCorrection):
    """Truncated importance sampling: min(w, cap) (fengyao.notion.site/off-policy-rl; IMPALA, arXiv:1802.01561).

    ``level``: w of each step, or one a row: the product of its steps' (sequence), or their geometric mean.
    """

    _: KW_ONLY
    cap: float = 2.0
    level: str = "token"

    def __post_init__(self) -> None:
        above("weight.tis.cap", self.cap, 0)
        one_of("weight.tis.level", self.level, F.LEVELS)
        self.formula = f"w = min({_W[self.level]}, {{cap}})"

    def corrected(self, w: Tensor) -> Tensor:
        return w.clamp(max=self.cap)


@register("weight", "mis")
@dataclass
class MIS(RolloutCorrection):
    """Masked importance sampling: w, and 0 beyond cap (Liu, Li et al. 2025, richardli.xyz/rl-collapse).

    ``level``: w of each step, or one a row: the product of its steps' (sequence), or their geometric mean.
    """

    _: KW_ONLY
    cap: float = 2.0
    level: str = "token"

    def __post_init__(self) -> None:
        above("weight.mis.cap", self.cap, 0)
        one_of("weight.mis.level", self.level, F.LEVELS)
        self.formula = f"w = w₀ · 1[w₀ ≤ {{cap}}], w₀ = {_W[self.level]}"

    def corrected(self, w: Tensor) -> Tensor:
        return torch.where(w <= self.cap, w, 0)


@register("weight", "icepop")
@dataclass
class IcePop(RolloutCorrection):
    """w within [low, high], and 0 outside, step by step (Ring-1T, arXiv:2510.18855)."""

    _: KW_ONLY
    low: float = 0.5
    high: float = 2.0
    formula = "w = w₀ · 1[{low} ≤ w₀ ≤ {high}], w₀ = e^(ℓ_old - ℓ_beh)"

    def __post_init__(self) -> None:
        _check_range("icepop", self.low, self.high)

    def corrected(self, w: Tensor) -> Tensor:
        return torch.where((w >= self.low) & (w <= self.high), w, 0)


@register("weight", "sequence_mask")
@dataclass
class SequenceMask(Weight):
    """Rows whose geometric mean of w = pi_old / pi_behaviour lies outside [low, high] are left out altogether.

    Rejection by the geometric mean (Liu, Li et al. 2025, richardli.xyz/rl-collapse); the bounds are close to 1, for a
    mean over many steps moves little.
    """

    _: KW_ONLY
    low: float = 0.999
    high: float = 1.001
    needs = frozenset({"old_logprobs"})
    formula = "m ← m · 1[{low} ≤ e^(1/n Σ_t m (ℓ_old - ℓ_beh)) ≤ {high}]"

    def __post_init__(self) -> None:
        _check_range("sequence_mask", self.low, self.high)

    def __call__(self, batch: Batch) -> Tensor:
        w = F.importance_weight(batch.on_mask(batch.old_logprobs - batch.logprobs), batch.mask, "geometric")
        return batch.mask & (w >= self.low) & (w <= self.high)


@register("weight", "off_policy_mask")
@dataclass
class OffPolicyMask(Weight):
    """Rows with A < 0 that the sampler made likelier than the policy does, by more than delta, lose their surrogate.

    DeepSeek-V3.2's (arXiv:2512.02556); denominators and penalties keep the rows. ``delta``: mean over the row of
    log(pi_behaviour / pi_old), nats a step; the report prints none, TRL suggests 0.5. It compares with the current
    policy at each optimizer step, this part with the one at the start of the update.
    """

    _: KW_ONLY
    delta: float = 0.5
    needs = frozenset({"old_logprobs"})
    formula = "w = 0 if A < 0 and 1/n Σ_t m (ℓ_beh - ℓ_old) > {delta}, else 1"

    def __post_init__(self) -> None:
        at_least("weight.off_policy_mask.delta", self.delta, 0)

    def __call__(self, batch: Batch) -> Tensor:
        drift = F.row_mean(batch.on_mask(batch.logprobs - batch.old_logprobs), batch.mask)[:, None]
        return (~((batch.advantages < 0) & (drift > self.delta))).to(drift.dtype)


@register("weight", "length")
@dataclass
class Length(Weight):
    """Times the row's number of steps, by which aggregation=sequence_mean divides (LUSPO, arXiv:2602.05261)."""

    needs = frozenset({"whole_episodes"})
    formula = "w = n"

    def __call__(self, batch: Batch) -> Tensor:
        return F.spread(batch.mask.sum(1).to(batch.advantages.dtype), batch.mask)

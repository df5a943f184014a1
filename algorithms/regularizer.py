"""What keeps an update small: at most one Surrogate, any number of Penalties, all unreduced [B, T]."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from rlfw import functional as F
from rlfw.checks import at_least, between, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Penalty, Surrogate
from rlfw.registry import register, register_alias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current


@register("regularizer", "clip")
@dataclass
class Clip(Surrogate):
    """PPO's clipped objective min(r A, clip(r, 1 - low, 1 + high) A) (arXiv:1707.06347)."""

    _: KW_ONLY
    low: float = 0.2
    high: float = 0.2
    needs = frozenset({"ratio"})

    def __post_init__(self) -> None:
        between("regularizer.clip.low", self.low, 0, 1)
        at_least("regularizer.clip.high", self.high, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return F.clip_surrogate(new.log_ratio, batch.advantages, self.low, self.high)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The share of steps whose gradient the clip cut."""
        ratio = F.exp_ratio(new.log_ratio)
        low = ((ratio < 1 - self.low) & (batch.advantages < 0)).to(ratio.dtype)
        high = ((ratio > 1 + self.high) & (batch.advantages > 0)).to(ratio.dtype)
        return {"policy/clipfrac_avg": low + high, "policy/clipfrac_low": low, "policy/clipfrac_high": high}


@dataclass
class KL(Penalty):
    """``coef`` times a per-step estimate of the KL divergence to another policy, in nats.

    k3 differentiates to the gradient of the forward KL, k2 to that of the reverse KL; k1 in a loss has an expected
    gradient of zero and is refused unless ``force`` (arXiv:2512.21852).
    """

    _: KW_ONLY
    coef: float = 0.04
    estimator: str = "k3"
    to: str = "reference"
    force: bool = False

    def __post_init__(self) -> None:
        name = "kl" if self.to == "reference" else "kl_old"
        one_of(f"regularizer.{name}.to", self.to, ("reference", "old"))
        one_of(f"regularizer.{name}.estimator", self.estimator, F.KL_ESTIMATORS)
        at_least(f"regularizer.{name}.coef", self.coef, 0)
        if self.estimator == "k1" and not self.force:
            raise UserError(
                f"regularizer.{name}.estimator=k1: its expected gradient in a loss is zero, it regularises nothing; "
                f"write k2 or k3, reward=[kl] for k1 in the reward, or regularizer.{name}.force=true to see it fail"
            )
        if self.force and self.estimator != "k1":
            raise UserError(f"regularizer.{name}.force=true has no effect: {self.estimator} needs no force")
        self.needs = frozenset({"ref_logprobs" if self.to == "reference" else "old_logprobs"})

    def estimate(self, new: Current, batch: Batch) -> Tensor:
        other = batch.ref_logprobs if self.to == "reference" else batch.old_logprobs
        assert other is not None
        return F.kl_estimate(batch.on_mask(new.logprobs - other), self.estimator)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * self.estimate(new, batch)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The estimate itself, without its coefficient."""
        return {"loss/kl_avg" if self.to == "reference" else "loss/kl_old_avg": self.estimate(new, batch)}


register("regularizer", "kl")(KL)
register("regularizer", "kl_old", to="old", coef=1.0)(KL)
register_alias("regularizer", "both", ["clip", "kl"])


@register("regularizer", "entropy")
@dataclass
class Entropy(Penalty):
    """An entropy bonus: -coef H(pi(. | s)) joins the loss (A3C, arXiv:1602.01783)."""

    _: KW_ONLY
    coef: float = 0.01
    needs = frozenset({"entropy"})

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return -self.coef * new.entropy

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss/entropy_avg": new.entropy}

"""What joins the loss beside the objective: any number of Penalties, unreduced [B, T], to be minimised."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from rlfw import functional as F
from rlfw.checks import above, between, coefficient, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Penalty
from rlfw.registry import register, register_alias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current


@register("regularizer", "kl")
@dataclass
class KL(Penalty):
    """``coef`` times a per-step estimate of the KL divergence from another policy, in nats.

    ``to: reference`` estimates KL(pi || ref) as if pi had acted. k3 differentiates to the gradient of the forward KL,
    k2 and k3+ (the value of k3) to that of the reverse KL; k1 in a loss has an expected gradient of zero and is refused
    unless ``force`` (arXiv:2512.21852). ``unbiased`` multiplies by the ratio pi / pi_old, with its gradient, so that k1
    and k3 are exact on and off policy (DeepSeek-V3.2, arXiv:2512.02556).

    ``to: old`` estimates KL(old || pi), as the old policy acted: k1 and k3 have its exact gradient.
    """

    _: KW_ONLY
    coef: float = 0.04
    estimator: str = "k3"
    to: str = "reference"
    force: bool = False
    unbiased: bool = False
    name: ClassVar[str] = "kl"

    def __post_init__(self) -> None:
        key = f"regularizer.{self.name}"
        one_of(f"{key}.to", self.to, ("reference", "old"))
        one_of(f"{key}.estimator", self.estimator, F.KL_LOSS_ESTIMATORS)
        coefficient(f"{key}.coef", self.coef)
        if self.to == "old":
            self._check_old(key)
            self.needs = frozenset({"old_logprobs"})
            self.formula = "P = {coef} {estimator}(ℓ_old - ℓ)"
            self.acts_off_policy = True
            return
        self._check_reference(key)
        self.needs = frozenset({"ref_logprobs", "old_logprobs"} if self.unbiased else {"ref_logprobs"})
        self.formula = "P = {coef} " + ("e^(ℓ - ℓ_old) " if self.unbiased else "") + "{estimator}(ℓ - ℓ_ref)"

    def _check_old(self, key: str) -> None:
        if self.unbiased:
            raise UserError(f"{key}.unbiased=true has no use towards the old policy: it acted, so nothing is off")
        if self.force:
            raise UserError(f"{key}.force=true has no effect: towards the old policy no estimator needs force")
        if self.estimator == "k3+":
            raise UserError(f"{key}.estimator=k3+: towards the old policy k3 has the exact gradient itself; write k3")

    def _check_reference(self, key: str) -> None:
        if self.unbiased and self.estimator == "k3+":
            raise UserError(f"{key}.unbiased=true gives k3 the exact gradient that k3+ puts in its place; write k3")
        if self.estimator == "k1" and not (self.force or self.unbiased):
            raise UserError(
                f"{key}.estimator=k1: its expected gradient in a loss is zero, it regularises nothing; write k2 or k3, "
                f"{key}.unbiased=true, reward=[kl] for k1 in the reward, or {key}.force=true to see it fail"
            )
        if self.force and self.unbiased:
            raise UserError(f"{key}.force=true has no effect: with unbiased=true no estimator needs force")
        if self.force and self.estimator != "k1":
            raise UserError(f"{key}.force=true has no effect: {self.estimator} needs no force")

    def estimate(self, new: Current, batch: Batch) -> Tensor:
        if self.to == "old":
            return F.kl_estimate(batch.on_mask(batch.old_logprobs - new.logprobs), self.estimator)
        found = F.kl_estimate(batch.on_mask(new.logprobs - batch.ref_logprobs), self.estimator)
        if self.unbiased:
            found = F.exp_ratio(batch.on_mask(new.logprobs - batch.old_logprobs)) * found
        return found

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * self.estimate(new, batch)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The estimate itself, without its coefficient."""
        return {"loss/kl_avg" if self.to == "reference" else "loss/kl_old_avg": self.estimate(new, batch)}


class KLOld(KL):
    """``coef`` times a per-step estimate of KL(old || pi), in nats: k3 is policy/approxkl_avg (arXiv:1707.06347, 4).

    k1 and k3 have the exact gradient, k1 the larger variance; k2 and abs are its approximations near the old policy.
    """

    name = "kl_old"


register("regularizer", "kl_old", to="old", coef=1.0)(KLOld)
register_alias("regularizer", "both", ["clip", "kl"])


@register("regularizer", "entropy")
@dataclass
class Entropy(Penalty):
    """An entropy bonus: -coef H(pi(. | s)) joins the loss (A3C, arXiv:1602.01783)."""

    _: KW_ONLY
    coef: float = 0.01
    needs = frozenset({"entropy"})
    formula = "P = -{coef} H"

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return -self.coef * new.entropy

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        return {"loss/entropy_avg": new.entropy}


@register("regularizer", "kl_cov")
@dataclass
class KLCov(Penalty):
    """coef |log pi - log pi_old| on the few steps whose log-prob and advantage vary together most (arXiv:2505.22617).

    The ``fraction`` of the optimizer batch with the largest (A - mean A) (log pi - mean log pi), one step at least.
    """

    _: KW_ONLY
    fraction: float = 2e-4
    coef: float = 1.0
    needs = frozenset({"old_logprobs", "whole_batch"})
    acts_off_policy = True
    formula = (
        "P = {coef} |ℓ - ℓ_old| on the {fraction} N steps of the optimizer batch with the largest "
        "(A - mean A) (ℓ - mean ℓ), else 0"
    )

    def __post_init__(self) -> None:
        above("regularizer.kl_cov.fraction", self.fraction, 0)
        between("regularizer.kl_cov.fraction", self.fraction, 0, 1)
        coefficient("regularizer.kl_cov.coef", self.coef)

    def distance(self, new: Current, batch: Batch) -> Tensor:
        covariance = F.covariance(batch.gather(batch.advantages), batch.gather(new.logprobs.detach()))
        chosen = batch.scatter(F.top_fraction(covariance, self.fraction).to(covariance.dtype))
        return chosen * batch.on_mask(new.logprobs - batch.old_logprobs).abs()

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * self.distance(new, batch)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The distance without its coefficient, the steps chosen among those of the whole update."""
        return {"loss/kl_cov_avg": self.distance(new, batch)}


@register("regularizer", "nll")
@dataclass
class NLL(Penalty):
    """coef times the negative log-likelihood of the rows that paid: self-imitation (VAPO, arXiv:2504.05118).

    A row pays if its total reward, after the reward parts, exceeds ``threshold``. Scaled by N / N_paid, so that under
    aggregation=token_mean it is the mean over the steps of those rows alone, as in the paper.
    """

    _: KW_ONLY
    coef: float = 0.1
    threshold: float = 0.0
    needs = frozenset({"whole_rows", "whole_episodes", "whole_batch"})
    formula = "P = -{coef} N/N₊ ℓ on rows with R > {threshold}, which have N₊ steps, else 0"

    def __post_init__(self) -> None:
        coefficient("regularizer.nll.coef", self.coef)

    def likelihood(self, new: Current, batch: Batch) -> Tensor:
        paid = batch.mask & (F.row_sum(batch.rewards, batch.mask) > self.threshold)[:, None]
        return -F.masked(new.logprobs, paid) * batch.mask.sum() / paid.sum().clamp(min=1)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * self.likelihood(new, batch)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """The mean over the steps of the rows that paid, without its coefficient."""
        return {"loss/nll_avg": self.likelihood(new, batch)}

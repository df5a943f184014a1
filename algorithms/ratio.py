"""The level at which the current policy is compared with the old one: log-probs [B, T] -> log-ratio [B, T].

``source``: old is the policy at the start of the update, behaviour the one that acted; they differ where a sampler
runs elsewhere or in another precision.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from rlfw import functional as F
from rlfw.checks import one_of
from rlfw.interfaces import Ratio
from rlfw.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from rlfw.rollout import Batch


@register("ratio", "none")
@dataclass
class NoRatio(Ratio):
    """No ratio: the plain policy gradient, objective A log pi (Williams 1992)."""

    absent = True
    formula = "S = A ℓ"

    def __call__(self, logprobs: Tensor, batch: Batch) -> None:
        return None


class LogRatio(Ratio):
    """Base of the ratios."""

    name: ClassVar[str]
    source: str
    level: ClassVar[str]  # the formula, with "d" for the log-ratio of a step

    def __post_init__(self) -> None:
        one_of(f"ratio.{self.name}.source", self.source, ("old", "behaviour"))
        self.needs = self.needs | ({"old_logprobs"} if self.source == "old" else set())
        self.formula = self.level.replace("d", "ℓ - ℓ_old" if self.source == "old" else "ℓ - ℓ_beh")

    def per_token(self, logprobs: Tensor, batch: Batch) -> Tensor:
        old = batch.old_logprobs if self.source == "old" else batch.logprobs
        return batch.on_mask(logprobs - old)


@register("ratio", "token")
@dataclass
class TokenRatio(LogRatio):
    """One ratio a step, pi / pi_old (PPO, arXiv:1707.06347)."""

    _: KW_ONLY
    source: str = "old"
    name = "token"
    level = "x = d"

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return self.per_token(logprobs, batch)


@register("ratio", "sequence")
@dataclass
class SequenceRatio(LogRatio):
    """One ratio a row, the geometric mean of its steps' ratios, with its true gradient (GSPO, arXiv:2507.18071)."""

    _: KW_ONLY
    source: str = "old"
    name = "sequence"
    level = "x = 1/n Σ_t m (d)"
    needs = frozenset({"whole_rows"})
    of_steps = False

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return F.row_mean(self.per_token(logprobs, batch), batch.mask)[:, None].expand_as(logprobs)


@register("ratio", "product")
@dataclass
class ProductRatio(LogRatio):
    """One ratio a row, the product of its steps' ratios, with its true gradient (arXiv:2402.14740)."""

    _: KW_ONLY
    source: str = "old"
    name = "product"
    level = "x = Σ_t m (d)"
    needs = frozenset({"whole_rows"})
    of_steps = False

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        return F.row_sum(self.per_token(logprobs, batch), batch.mask)[:, None].expand_as(logprobs)

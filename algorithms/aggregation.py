"""How per-step losses become one number: (mask, group) -> coefficients [B, T], computed once for an optimizer batch."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from rlfw import functional as F
from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.interfaces import Aggregation
from rlfw.registry import register

if TYPE_CHECKING:
    import torch
    from torch import Tensor


@register("aggregation", "token_mean")
@dataclass
class TokenMean(Aggregation):
    """The mean over all steps of the batch (PPO, DAPO)."""

    formula = "c = m / N"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        return F.token_mean(mask, dtype)


@register("aggregation", "sequence_mean")
@dataclass
class SequenceMean(Aggregation):
    """The mean over rows of each row's mean (GRPO, arXiv:2402.03300)."""

    needs = frozenset({"whole_rows"})
    formula = "c = m / (B n)"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        return F.sequence_mean(mask, dtype)


@register("aggregation", "sequence_sum")
@dataclass
class SequenceSum(Aggregation):
    """The mean over rows of each row's sum (REINFORCE, RLOO)."""

    needs = frozenset({"whole_rows"})
    formula = "c = m / B"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        return F.sequence_sum(mask, dtype)


@register("aggregation", "constant")
@dataclass
class Constant(Aggregation):
    """sequence_sum divided by a constant length (Dr. GRPO, arXiv:2503.20783).

    ``length``: null takes the longest row that the env allows (max_new_tokens, or the time limit).
    """

    max_steps: int | None
    _: KW_ONLY
    length: int | None = None
    needs = frozenset({"whole_rows"})

    def __post_init__(self) -> None:
        at_least("aggregation.constant.length", self.length, 1)
        if self.length is None and self.max_steps is None:
            raise UserError("aggregation=constant: this env has no longest episode; set aggregation.constant.length=N")
        self.formula = "c = m / (B {length})" if self.length is not None else f"c = m / (B {self.max_steps})"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        length = self.max_steps if self.length is None else self.length
        assert length is not None
        return F.sequence_sum(mask, dtype) / length


@register("aggregation", "prompt_mean")
@dataclass
class PromptMean(Aggregation):
    """The mean over groups of each group's mean over all its steps (ScaleRL, arXiv:2510.13786)."""

    needs = frozenset({"whole_rows", "groups"})
    formula = "c = m / (K Σ_{{i in g}} n)"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        return F.prompt_mean(mask, group, dtype)


@register("aggregation", "token_sum")
@dataclass
class TokenSum(Aggregation):
    """The sum over all steps."""

    formula = "c = m"

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        return F.token_sum(mask, dtype)

"""The scale of advantages: advantages [B, T] -> advantages [B, T].

Every standard deviation has its degrees of freedom ``ddof`` and its ``eps``, added to it before the division. Where
there is no spread at all the result is 0. ``scope``: over the rollout, or over each optimizer batch as it is drawn.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from rlfw import functional as F
from rlfw.checks import at_least, one_of
from rlfw.interfaces import Normalize
from rlfw.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from rlfw.rollout import Batch

SCOPES = ("rollout", "minibatch")


@register("normalize", "none")
@dataclass
class NoNormalize(Normalize):
    """Advantages as the baseline gave them."""

    scope = "rollout"

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        return advantages


@register("normalize", "group_std")
@dataclass
class GroupStd(Normalize):
    """Divided by the standard deviation, within the group, of the rows' mean advantages (GRPO, arXiv:2402.03300)."""

    _: KW_ONLY
    ddof: int = 1
    eps: float = 1e-6
    scope: str = "rollout"

    def __post_init__(self) -> None:
        _check("group_std", self)
        # A minibatch may hold only some rows of a group: there the statistics need whole rows at least.
        self.needs = frozenset({"groups"} | ({"whole_rows"} if self.scope == "minibatch" else set()))

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        rows = batch.mask.any(1)  # a row without steps belongs to no group
        spread = advantages.new_zeros(len(rows))
        spread[rows] = F.group_std(F.row_mean(advantages, batch.mask)[rows], batch.group[rows], self.ddof)
        return F.safe_divide(advantages, spread[:, None], self.eps)


@register("normalize", "batch_std")
@dataclass
class BatchStd(Normalize):
    """Divided by the standard deviation of the batch's rows (LitePPO, arXiv:2508.08221).

    ``of``: the rows' rewards as they are (LitePPO), or their mean advantages (REINFORCE++ with a baseline).
    """

    _: KW_ONLY
    of: str = "rewards"
    ddof: int = 1
    eps: float = 1e-4
    scope: str = "rollout"

    def __post_init__(self) -> None:
        _check("batch_std", self)
        one_of("normalize.batch_std.of", self.of, ("rewards", "advantages"))
        self.needs = frozenset({"whole_rows"} if self.scope == "minibatch" else set())
        if self.of == "rewards":
            self.needs |= {"whole_episodes"}

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        raw = self.of == "rewards"
        rows = F.row_sum(batch.rewards, batch.mask) if raw else F.row_mean(advantages, batch.mask)
        return F.safe_divide(advantages, F.std(rows[batch.mask.any(1)], self.ddof), self.eps)


@register("normalize", "whiten")
@dataclass
class Whiten(Normalize):
    """Zero mean and unit variance over steps (PPO's advantage normalisation; REINFORCE++, arXiv:2501.03262).

    ``shift: false`` keeps the mean and scales alone.
    """

    _: KW_ONLY
    shift: bool = True
    ddof: int = 1
    eps: float = 1e-8
    scope: str = "rollout"

    def __post_init__(self) -> None:
        _check("whiten", self)

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        steps = batch.gather(advantages)
        scaled = F.whiten(steps, self.ddof, self.eps)
        if not self.shift:
            scaled = scaled + steps.mean()
        return batch.scatter(scaled)


def _check(name: str, part: GroupStd | BatchStd | Whiten) -> None:
    one_of(f"normalize.{name}.scope", part.scope, SCOPES)
    one_of(f"normalize.{name}.ddof", str(part.ddof), ("0", "1"))
    at_least(f"normalize.{name}.eps", part.eps, 0)

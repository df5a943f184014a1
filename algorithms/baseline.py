"""What the return is compared with: batch -> advantages [B, T], returns [B, T].

Row baselines compare whole rows by their totals, the undiscounted sums of their rewards, and spread the result over
the row's steps. The learned ones are in critic.py.

    b rows that have any step
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import torch

from rlfw import functional as F
from rlfw.checks import at_least, below
from rlfw.interfaces import Baseline
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch


@register("baseline", "none")
@dataclass
class NoBaseline(Baseline):
    """No baseline: the discounted return-to-go of each step (REINFORCE, Williams 1992)."""

    gamma: float
    needs = frozenset({"whole_episodes"})
    unbiased = True
    formula = "A = R_t = Σ_k γ^k ρ_{{t+k}}"

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        returns = F.returns_to_go(batch.rewards, batch.mask, self.gamma)
        return returns, returns


class RowBaseline(Baseline):
    """Base of the baselines that compare whole rows."""

    needs = frozenset({"whole_episodes"})

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        """Totals of the rows [b] and their groups [b] -> their advantages [b]."""
        raise NotImplementedError

    def compare_rows(self, totals: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        """The same for a part that reads more of the batch than ``compare`` is given; ``rows`` [B] picks the b rows."""
        return self.compare(totals, batch.group[rows])

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        totals = F.row_sum(batch.rewards, batch.mask)
        rows = batch.mask.any(1)  # a row without steps belongs to no group
        advantages = torch.zeros_like(totals)
        advantages[rows] = self.compare_rows(totals[rows], batch, rows)
        return F.spread(advantages, batch.mask), F.spread(totals, batch.mask)


# ------------------------------------------------------------------------------------------------ one number for all


@register("baseline", "constant")
@dataclass
class Constant(RowBaseline):
    """A fixed number; 0 leaves the row's total as it is."""

    _: KW_ONLY
    value: float = 0.0
    unbiased = True
    formula = "A = R - {value}"

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return totals - self.value


@register("baseline", "batch_mean")
@dataclass
class BatchMean(RowBaseline):
    """The mean total of all rows of the rollout."""

    formula = "A = R - mean(R)"

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, torch.zeros_like(group))


@register("baseline", "ema")
@dataclass
class MovingAverage(RowBaseline):
    """An exponential moving average of earlier rollouts' mean totals (the reinforcement baseline, Williams 1992).

    A rollout is compared with the average before it enters it. ``initial``: the average at the start; null takes the
    first rollout's own mean.
    """

    _: KW_ONLY
    decay: float = 0.9
    initial: float | None = None
    formula = "A = R - b, then b ← {decay} b + (1 - {decay}) mean(R)"

    def __post_init__(self) -> None:
        at_least("baseline.ema.decay", self.decay, 0)
        below("baseline.ema.decay", self.decay, 1)
        self.average = self.initial

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        if len(totals) == 0:
            return totals
        mean = float(totals.double().mean())
        before = mean if self.average is None else self.average
        self.average = self.decay * before + (1 - self.decay) * mean
        return totals - before

    def report(self) -> Mapping[str, float]:
        """What the next rollout is compared with."""
        return {} if self.average is None else {"baseline/ema": self.average}

    def state_dict(self) -> dict[str, Any]:
        return {"average": self.average}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.average = state["average"]


# ------------------------------------------------------------------------------------------------ one start, many rows


@register("baseline", "group_mean")
@dataclass
class GroupMean(RowBaseline):
    """The mean total of the rows that share a start (GRPO, arXiv:2402.03300)."""

    needs = frozenset({"whole_episodes", "groups"})
    formula = "A = R - mean_g(R)"

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, group)


@register("baseline", "leave_one_out")
@dataclass
class LeaveOneOut(RowBaseline):
    """The mean total of the OTHER rows that share a start: unbiased (RLOO, arXiv:2402.14740)."""

    needs = frozenset({"whole_episodes", "groups"})
    unbiased = True
    formula = "A = G/(G - 1) (R - mean_g(R))"

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, group, include_self=False)


@register("baseline", "length_weighted")
@dataclass
class LengthWeighted(RowBaseline):
    """The mean total of the rows that share a start, each weighted by its steps (OPO, arXiv:2505.23585).

    The baseline of least variance where the squared norm of a row's gradient grows with its length.
    """

    needs = frozenset({"whole_episodes", "groups"})
    formula = "A = R - Σ_g n R / Σ_g n"

    def compare_rows(self, totals: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        return F.group_center(totals, batch.group[rows], weights=batch.mask.sum(1)[rows])


@register("baseline", "best_of_group")
@dataclass
class BestOfGroup(RowBaseline):
    """Only the best row of a group counts, by its margin over the second best (arXiv:2503.19595, for pass@k).

    The leave-one-out advantage of the group's maximum. Two rows that are best alike leave no margin.
    """

    needs = frozenset({"whole_episodes", "groups"})
    formula = "A = R - R of the second best of g on the best row of g, 0 on the others"

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_margin(totals, group)


@register("baseline", "greedy")
@dataclass
class Greedy(RowBaseline):
    """The return of one greedy episode from the same start (ReMax, arXiv:2310.10505).

    That return is as the env gave it: reward parts act on the sampled rows alone.
    """

    needs = frozenset({"whole_episodes", "greedy_returns"})
    unbiased = True
    formula = "A = R - R of the greedy episode from the same start"

    def compare_rows(self, totals: Tensor, batch: Batch, rows: Tensor) -> Tensor:
        return totals - batch.greedy_returns[rows]

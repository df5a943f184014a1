"""The scale of advantages: advantages [B, T] -> advantages [B, T].

Every standard deviation has its degrees of freedom ``ddof`` and its ``eps``, added to it before the division. Where
there is nothing to divide by (no spread, no positive mean, no row with a signal) the result is 0. ``scope``: over the
rollout, or over each optimizer batch as it is drawn.
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
    formula = "A ← A"

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        return advantages


# ------------------------------------------------------------------------------------------------ over a deviation


@register("normalize", "group_std")
@dataclass
class GroupStd(Normalize):
    """Divided by the standard deviation, within the group, of the rows' mean advantages (GRPO, arXiv:2402.03300)."""

    _: KW_ONLY
    ddof: int = 1
    eps: float = 1e-6
    scope: str = "rollout"
    formula = "A ← A / (std_g(A; ddof {ddof}) + {eps})"

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
        self.formula = f"A ← A / (std({'R' if self.of == 'rewards' else 'A'}; ddof {{ddof}}) + {{eps}}), over rows"

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        raw = self.of == "rewards"
        rows = F.row_sum(batch.rewards, batch.mask) if raw else F.row_mean(advantages, batch.mask)
        return F.safe_divide(advantages, F.std(rows[batch.mask.any(1)], self.ddof), self.eps)


@register("normalize", "whiten")
@dataclass
class Whiten(Normalize):
    """Zero mean and unit variance over steps (PPO's advantage normalisation; REINFORCE++, arXiv:2501.03262).

    ``shift: false`` adds the mean back after the division, so that it stays as it was.
    """

    _: KW_ONLY
    shift: bool = True
    ddof: int = 1
    eps: float = 1e-8
    scope: str = "rollout"

    def __post_init__(self) -> None:
        _check("whiten", self)
        mean = "" if self.shift else " + mean(A)"
        self.formula = f"A ← (A - mean(A)) / (std(A; ddof {{ddof}}) + {{eps}}){mean}, over steps"

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


# ------------------------------------------------------------------------------------------------ over a mean, a share


@register("normalize", "group_mean")
@dataclass
class GroupMeanScale(Normalize):
    """Divided by the mean total of the group's rows, for rewards that are not negative (MaxRL, arXiv:2602.02710).

    Where that mean is not above 0 the advantages are 0. With baseline=group_mean the expected gradient is that of
    log p, cut off after order G - 1; with baseline=constant after order G.
    """

    _: KW_ONLY
    eps: float = 0.0
    scope = "rollout"
    needs = frozenset({"whole_episodes", "groups"})
    formula = "A ← A / (mean_g(R) + {eps}), 0 where mean_g(R) ≤ 0"

    def __post_init__(self) -> None:
        at_least("normalize.group_mean.eps", self.eps, 0)

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        rows = batch.mask.any(1)
        mean = advantages.new_zeros(len(rows))
        mean[rows] = F.group_mean(F.row_sum(batch.rewards, batch.mask)[rows], batch.group[rows])
        return F.safe_divide(advantages, mean[:, None], self.eps)


@register("normalize", "signal")
@dataclass
class Signal(Normalize):
    """Divided by the share of rows that carry a signal (GPG, arXiv:2504.02546).

    ``of``: groups are rows whose group's totals differ (GPG), rewards are rows with a total other than 0: verl's GPG,
    which also leaves out the wrong answers of a mixed group.
    """

    _: KW_ONLY
    of: str = "groups"
    scope = "rollout"

    def __post_init__(self) -> None:
        one_of("normalize.signal.of", self.of, ("groups", "rewards"))
        self.needs = frozenset({"whole_episodes"} | ({"groups"} if self.of == "groups" else set()))
        without = "in groups whose R are all equal" if self.of == "groups" else "with R = 0"
        self.formula = f"A ← A B/(B - M), M rows of the rollout's B {without}"

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        rows = batch.mask.any(1)
        totals = F.row_sum(batch.rewards, batch.mask)[rows]
        signal = F.group_std(totals, batch.group[rows], 0) if self.of == "groups" else totals
        return F.safe_divide(advantages, (signal != 0).to(advantages.dtype).mean(), 0)

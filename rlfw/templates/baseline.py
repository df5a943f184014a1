"""A baseline of your own: baseline=my_part."""

from dataclasses import dataclass

import torch
from rlfw import functional as F
from rlfw import register
from rlfw.interfaces import Baseline
from rlfw.rollout import Batch
from torch import Tensor


@register("baseline", "my_part")
@dataclass
class MyPart(Baseline):
    """The median total of the rows that share a start (fill in: what yours is, its paper)."""

    # Keys, where you need any, follow a line `_: KW_ONLY` (from dataclasses).
    needs = frozenset({"whole_episodes", "groups"})  # what it reads: rlfw.interfaces.part
    formula = "A = R - median of R over g"

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """advantages and returns, both [B rows, T steps]."""
        totals = F.row_sum(batch.rewards, batch.mask)  # [B]
        medians = torch.zeros_like(totals)
        filled = batch.mask.any(1)  # a row without steps belongs to no group
        for group in batch.group.unique():
            rows = filled & (batch.group == group)
            if rows.any():
                medians[rows] = totals[rows].quantile(0.5)
        return F.spread(totals - medians, batch.mask), F.spread(totals, batch.mask)

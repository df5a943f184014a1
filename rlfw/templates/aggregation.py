"""An aggregation of your own: aggregation=my_part."""

from dataclasses import KW_ONLY, dataclass

import torch
from rlfw import functional as F
from rlfw import register
from rlfw.checks import between
from rlfw.interfaces import Aggregation
from torch import Tensor


@register("aggregation", "my_part")
@dataclass
class MyPart(Aggregation):
    """The mean over rows of each row's sum over a power of its length (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: aggregation.my_part.power=1
    power: float = 0.5  # 0: the row's sum, 1: its mean
    needs = frozenset({"whole_rows"})  # what it reads: rlfw.interfaces.part
    formula = "c = m / (B n^{power})"

    def __post_init__(self) -> None:
        between("aggregation.my_part.power", self.power, 0, 1)

    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        """Coefficients [B rows, T steps] of an optimizer batch; the loss is the sum of their products."""
        return F.sequence_sum(mask, dtype) / mask.sum(1, keepdim=True).clamp(min=1) ** self.power

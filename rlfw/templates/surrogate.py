"""A surrogate of your own: regularizer=my_part. It takes the place of clip; penalties may stand beside it."""

from dataclasses import KW_ONLY, dataclass

import torch
from rlfw import functional as F
from rlfw import register
from rlfw.checks import at_least, between
from rlfw.interfaces import Surrogate
from rlfw.rollout import Batch, Current
from torch import Tensor


@register("regularizer", "my_part")
@dataclass
class MyPart(Surrogate):
    """PPO's clipped objective (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: regularizer.my_part.high=0.3
    low: float = 0.2
    high: float = 0.2
    needs = frozenset({"ratio"})  # what it reads: rlfw.interfaces.part
    formula = "S = min(r A, clip(r, 1 - {low}, 1 + {high}) A)"

    def __post_init__(self) -> None:
        between("regularizer.my_part.low", self.low, 0, 1)
        at_least("regularizer.my_part.high", self.high, 0)

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        """The objective [B rows, T steps], to be maximised."""
        ratio = F.exp_ratio(new.log_ratio)
        clipped = ratio.clamp(1 - self.low, 1 + self.high)
        return torch.min(ratio * batch.advantages, clipped * batch.advantages)

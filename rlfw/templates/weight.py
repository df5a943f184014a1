"""A weight of your own: weight=[my_part]."""

from dataclasses import KW_ONLY, dataclass

import torch
from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import Weight
from rlfw.rollout import Batch
from torch import Tensor


@register("weight", "my_part")
@dataclass
class MyPart(Weight):
    """Steps with a negative advantage weigh ``negative``, the others 1 (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: weight.my_part.negative=0
    negative: float = 0.5
    formula = "w = {negative} where A < 0, 1 elsewhere"

    def __post_init__(self) -> None:
        at_least("weight.my_part.negative", self.negative, 0)

    def __call__(self, batch: Batch) -> Tensor:
        """[B rows, T steps]: floats multiply the surrogate; bools would take steps out of the loss altogether."""
        advantages = batch.advantages
        return torch.where(advantages < 0, self.negative, torch.ones_like(advantages))

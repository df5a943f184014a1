"""A stage of the rewards of your own: reward=[my_part]."""

from dataclasses import KW_ONLY, dataclass

from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import Reward
from rlfw.rollout import Batch
from torch import Tensor


@register("reward", "my_part")
@dataclass
class MyPart(Reward):
    """A row's last step pays ``coef`` for each of the row's steps (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: reward.my_part.coef=0.1
    coef: float = 0.01
    needs = frozenset({"whole_episodes"})  # what it reads: rlfw.interfaces.part
    formula = "ρ_T ← ρ_T - {coef} n"

    def __post_init__(self) -> None:
        at_least("reward.my_part.coef", self.coef, 0)

    def __call__(self, batch: Batch) -> Tensor:
        """The new rewards [B rows, T steps], from batch.rewards."""
        length = batch.mask.sum(1, keepdim=True)  # [B, 1]
        last = batch.mask & (batch.mask.cumsum(1) == length)
        return batch.rewards - self.coef * length * last

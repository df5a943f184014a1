"""A scale of advantages of your own: normalize=my_part."""

from dataclasses import KW_ONLY, dataclass

from rlfw import functional as F
from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import Normalize
from rlfw.rollout import Batch
from torch import Tensor


@register("normalize", "my_part")
@dataclass
class MyPart(Normalize):
    """Divided by the mean size of the rollout's advantages (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: normalize.my_part.eps=0
    eps: float = 1e-6
    scope = "rollout"  # or "minibatch": once for each optimizer batch
    formula = "A ← A / (mean |A| + {eps})"

    def __post_init__(self) -> None:
        at_least("normalize.my_part.eps", self.eps, 0)

    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        """advantages [B rows, T steps] -> advantages [B, T]; 0 where all are 0."""
        return F.safe_divide(advantages, batch.gather(advantages).abs().mean(), self.eps)

"""A penalty of your own: regularizer=[clip,my_part]."""

from dataclasses import KW_ONLY, dataclass

from rlfw import functional as F
from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import Penalty
from rlfw.rollout import Batch, Current
from torch import Tensor


@register("regularizer", "my_part")
@dataclass
class MyPart(Penalty):
    """``coef`` times the KL divergence to the reference, k3 per step (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: regularizer.my_part.coef=0.1
    coef: float = 0.04
    needs = frozenset({"ref_logprobs"})  # what it reads: rlfw.interfaces.part
    formula = "P = {coef} k3(ℓ - ℓ_ref)"

    def __post_init__(self) -> None:
        at_least("regularizer.my_part.coef", self.coef, 0)

    def estimate(self, new: Current, batch: Batch) -> Tensor:
        """[B, T] nats."""
        return F.kl_estimate(batch.on_mask(new.logprobs - batch.ref_logprobs), "k3")

    def __call__(self, new: Current, batch: Batch) -> Tensor:
        """The loss term [B rows, T steps], to be minimised."""
        return self.coef * self.estimate(new, batch)

    def metrics(self, new: Current, batch: Batch) -> dict[str, Tensor]:
        """Averaged over the steps of an update, without the coefficient."""
        return {"loss/my_part_avg": self.estimate(new, batch)}

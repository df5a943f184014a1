"""A ratio of your own: ratio=my_part."""

from dataclasses import KW_ONLY, dataclass

from rlfw import register
from rlfw.checks import above
from rlfw.interfaces import Ratio
from rlfw.rollout import Batch
from torch import Tensor


@register("ratio", "my_part")
@dataclass
class MyPart(Ratio):
    """One ratio a step, its log held within +-``limit`` nats (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: ratio.my_part.limit=2
    limit: float = 1.0
    needs = frozenset({"old_logprobs"})  # what it reads: rlfw.interfaces.part
    of_steps = True  # False: one ratio a row, spread over its steps
    formula = "x = clip(ℓ - ℓ_old, -{limit}, {limit})"

    def __post_init__(self) -> None:
        above("ratio.my_part.limit", self.limit, 0)

    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor:
        """log-probs [B rows, T steps] -> log-ratio [B, T]."""
        return batch.on_mask(logprobs - batch.old_logprobs).clamp(-self.limit, self.limit)

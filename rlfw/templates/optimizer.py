"""An optimizer of your own: optimizer=my_part."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from rlfw import register
from rlfw.checks import at_least, below
from rlfw.interfaces import Optimizer


@register("optimizer", "my_part")
@dataclass
class MyPart(Optimizer):
    """Adam with Nesterov's momentum (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: optimizer.my_part.beta1=0.5; learning rates are the root's lr
    beta1: float = 0.9
    beta2: float = 0.999
    formula = "NAdam with betas {beta1} and {beta2}"

    def __post_init__(self) -> None:
        for key, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            at_least(f"optimizer.my_part.{key}", beta, 0)
            below(f"optimizer.my_part.{key}", beta, 1)

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """``groups``: torch's parameter groups, each with its own lr."""
        return torch.optim.NAdam(groups, betas=(self.beta1, self.beta2))

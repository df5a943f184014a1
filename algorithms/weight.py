"""Weights without gradient [B, T]: floats multiply the surrogate, bools take steps out of the loss altogether."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlfw.interfaces import Weight
from rlfw.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from rlfw.rollout import Batch


@register("weight", "truncated")
@dataclass
class Truncated(Weight):
    """Rows cut by a limit are left out of the loss and of its denominators (DAPO, arXiv:2503.14476)."""

    def __call__(self, batch: Batch) -> Tensor:
        return batch.mask & ~batch.truncated[:, None]

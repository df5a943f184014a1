"""Products in bfloat16: a model is run with a bfloat16 copy of its weights, and trains in float32.

What does not train is stored in bfloat16 alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from rlfw.policies import lora

if TYPE_CHECKING:
    from torch import Tensor, nn


class Half:
    """A module's bfloat16 double; gradients that arrive at the double's weights are added to the module's own."""

    def __init__(self, module: Any) -> None:
        self.double = lora.sharing(module)
        pairs = zip(module.parameters(), self.double.parameters(), strict=True)
        self.pairs = [(own, copied) for own, copied in pairs if own is not copied]
        for own, copied in self.pairs:
            copied.data = copied.data.bfloat16()
            copied.register_post_accumulate_grad_hook(_passed_on_to(own))

    @torch.no_grad()
    def fresh(self) -> Any:
        """The double, with the module's present weights."""
        torch._foreach_copy_([copied for _, copied in self.pairs], [own for own, _ in self.pairs])
        return self.double


def _passed_on_to(own: nn.Parameter) -> Any:
    def pass_on(copied: Tensor) -> None:
        assert copied.grad is not None
        if own.grad is None:
            own.grad = copied.grad.float()
        else:
            own.grad.add_(copied.grad)
        copied.grad = None

    return pass_on


def store_frozen_in_half(module: nn.Module) -> None:
    """Weights that take no gradient are bfloat16 from here on."""
    for weight in module.parameters():
        if not weight.requires_grad:
            weight.data = weight.data.bfloat16()

"""Finite differences of a function in which some numbers are held: what a part detaches stays at its value.

``sg(x)`` in a formula is x without gradient. The value of such a loss moves with x and its gradient does not, so plain
finite differences disagree with it, rightly. They agree once every detached tensor is held at its first value.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

if TYPE_CHECKING:
    from collections.abc import Callable

_DETACHING = (Tensor.detach, torch.detach)


class Held(TorchFunctionMode):
    """The first pass records what is detached, or made where no gradient is recorded; later passes get it back."""

    def __init__(self) -> None:
        super().__init__()
        self.values: list[Tensor] = []
        self.passes = self.place = 0

    def __enter__(self) -> Held:
        self.passes, self.place = self.passes + 1, 0
        super().__enter__()
        return self

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if (func not in _DETACHING and torch.is_grad_enabled()) or not isinstance(found, Tensor):
            return found
        if self.passes == 1:
            self.values.append(found.clone())
            return found
        self.place += 1
        return self.values[self.place - 1]


def differences(f: Callable[[Tensor], float], x: Tensor, cells: Tensor, step: float = 1e-6) -> Tensor:
    """The central difference quotients of f at x [C], in ``cells`` alone; 0 elsewhere."""
    found = torch.zeros_like(x)
    for cell in cells.tolist():
        up, down = x.clone(), x.clone()
        up[cell] += step
        down[cell] -= step
        found[cell] = (f(up) - f(down)) / (2 * step)
    return found

"""Parameter groups as flat buffers: a gradient is clipped, checked and applied as one tensor a group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from rlfw.rollout import ABSENT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from typing import Any

    from rlfw.interfaces import Optimizer


@dataclass
class ParameterGroup:
    """Parameters with a learning rate and a gradient clip of their own."""

    name: str
    parameters: list[nn.Parameter]
    lr: float
    max_grad_norm: float
    flat: nn.Parameter = ABSENT  # set by the optimizer


class FlatOptimizer:
    """Every group's parameters and gradients become views of one buffer, which the optimizer sees as one tensor."""

    def __init__(self, rule: Optimizer, groups: Iterable[ParameterGroup]) -> None:
        self.groups = [group for group in groups if group.parameters]
        for group in self.groups:
            group.flat = _flatten(group.parameters)
        self.torch = rule.build([{"params": [group.flat], "lr": group.lr} for group in self.groups])

    def zero_grad(self) -> None:
        for group in self.groups:
            assert group.flat.grad is not None
            group.flat.grad.zero_()

    def clip(self) -> dict[str, float]:
        """Scale each group's gradient down to its norm. Group name -> norm before clipping, maybe not finite."""
        norms = {}
        for group in self.groups:
            assert group.flat.grad is not None
            norm = norms[group.name] = group.flat.grad.norm().item()
            if norm > group.max_grad_norm:
                group.flat.grad.mul_(group.max_grad_norm / norm)
        return norms

    def step(self) -> None:
        self.torch.step()

    def lr(self, name: str) -> float:
        return float(self._torch_group(name)["lr"])

    def lr_knob(self, *names: str) -> tuple[Callable[[], float], Callable[[float], None]]:
        """Reads the first group's learning rate, sets that of all."""

        def turn(lr: float) -> None:
            for name in names:
                self._torch_group(name)["lr"] = lr

        return lambda: self.lr(names[0]), turn

    def _torch_group(self, name: str) -> dict[str, Any]:
        index = next(i for i, group in enumerate(self.groups) if group.name == name)
        return self.torch.param_groups[index]

    def finite(self) -> bool:
        """Whether every parameter is a finite number."""
        return all(bool(group.flat.isfinite().all()) for group in self.groups)

    def state_dict(self) -> dict[str, Tensor]:
        """The optimizer's moments by group, as tensors."""
        found = {}
        for group in self.groups:
            for key, value in self.torch.state[group.flat].items():
                found[f"{group.name}.{key}"] = torch.as_tensor(value).clone()
        return found


def _flatten(parameters: list[nn.Parameter]) -> nn.Parameter:
    flat = nn.Parameter(torch.cat([p.detach().reshape(-1) for p in parameters]))
    flat.grad = torch.zeros_like(flat)
    offset = 0
    for p in parameters:
        size = p.numel()
        p.data = flat.data[offset : offset + size].view_as(p)
        p.grad = flat.grad[offset : offset + size].view_as(p)
        offset += size
    return flat

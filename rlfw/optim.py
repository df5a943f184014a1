"""Parameter groups as flat buffers: a gradient is clipped, checked and applied as one tensor a group."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from rlfw.interfaces import Optimizer


@dataclass
class ParameterGroup:
    """Parameters with a gradient clip of their own. ``lr`` None: they follow the first group's learning rate."""

    name: str
    parameters: list[nn.Parameter]
    lr: float | None
    max_grad_norm: float


class FlatOptimizer:
    """Parameters and gradients become views of one buffer a learning rate, which torch's optimizer sees as one tensor.

    Each group is a stretch of a buffer: its gradient is clipped and checked as one tensor.
    """

    def __init__(self, rule: Optimizer, groups: Iterable[ParameterGroup]) -> None:
        trained = [replace(group, parameters=[p for p in group.parameters if p.requires_grad]) for group in groups]
        self.groups = [group for group in trained if group.parameters]
        own = [group for group in self.groups if group.lr is not None]
        followers = [group for group in self.groups if group.lr is None]
        self.flats: list[nn.Parameter] = []
        self._gradients: dict[str, Tensor] = {}  # group -> its stretch of a flat gradient
        self._buffer: dict[str, int] = {}  # group -> its buffer
        for i, leader in enumerate(own):
            members = [leader, *followers] if i == 0 else [leader]
            flat = _flatten([p for group in members for p in group.parameters])
            assert flat.grad is not None
            sizes = [sum(p.numel() for p in group.parameters) for group in members]
            for group, gradient in zip(members, flat.grad.split(sizes), strict=True):
                self._gradients[group.name], self._buffer[group.name] = gradient, i
            self.flats.append(flat)
        self.torch = rule.build([{"params": [flat], "lr": g.lr} for flat, g in zip(self.flats, own, strict=True)])

    @property
    def layout(self) -> list[list[nn.Parameter]]:
        """The parameters of each buffer, in their order there."""
        found: list[list[nn.Parameter]] = [[] for _ in self.flats]
        for group in sorted(self.groups, key=lambda group: group.lr is None):
            found[self._buffer[group.name]] += group.parameters
        return found

    def zero_grad(self) -> None:
        for flat in self.flats:
            assert flat.grad is not None
            flat.grad.zero_()

    def clip(self) -> dict[str, float]:
        """Scale each group's gradient down to its norm. Group name -> norm before clipping, maybe not finite."""
        norms = {}
        for group in self.groups:
            gradient = self._gradients[group.name]
            norm = norms[group.name] = torch.linalg.vector_norm(gradient).item()
            if norm > group.max_grad_norm:
                gradient.mul_(group.max_grad_norm / norm)
        return norms

    def step(self) -> None:
        self.torch.step()

    def lr(self, name: str) -> float:
        return float(self.torch.param_groups[self._buffer[name]]["lr"])

    def lr_knob(self, name: str) -> tuple[Callable[[], float], Callable[[float], None]]:
        """Reads and sets the learning rate of a group and of those that follow it."""

        def turn(lr: float) -> None:
            self.torch.param_groups[self._buffer[name]]["lr"] = lr

        return lambda: self.lr(name), turn

    def finite(self) -> bool:
        """Whether every parameter is a finite number."""
        return all(bool(flat.isfinite().all()) for flat in self.flats)

    def state_dict(self) -> dict[str, Tensor]:
        """The optimizer's moments by buffer, as tensors; the learning rates are knobs."""
        found = {}
        for i, flat in enumerate(self.flats):
            for key, value in self.torch.state[flat].items():
                found[f"{i}.{key}"] = torch.as_tensor(value).clone()
        return found

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Moments as they were saved."""
        for name, value in state.items():
            buffer, _, key = name.partition(".")
            flat = self.flats[int(buffer)]
            self.torch.state[flat][key] = value.to(flat.device) if value.shape == flat.shape else value


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

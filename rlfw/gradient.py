"""The gradient of an optimizer batch: forward, loss and backward, eagerly or compiled."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from rlfw.rollout import ABSENT, Batch, Current

if TYPE_CHECKING:
    from rlfw.composition import Composition, Loss
    from rlfw.interfaces import Policy
    from rlfw.optim import FlatOptimizer


class Objective(nn.Module):
    """Policy and composition as one function of a batch."""

    def __init__(self, policy: Policy, composition: Composition) -> None:
        super().__init__()
        self.policy, self.composition = policy, composition

    def forward(self, rows: Batch, coefficients: Tensor) -> Loss:
        scored = self.policy.score(
            rows.context,
            rows.actions,
            rows.mask,
            entropy="entropy" in self.composition.needs or rows.entropy is None,
            values=self.composition.critic is not None,
        )
        return self.composition.loss(scored, rows, coefficients)


class Gradient(ABC):
    """Forward, loss and backward of some rows."""

    def __init__(self, objective: Objective, optimizer: FlatOptimizer) -> None:
        self.objective, self.optimizer = objective, optimizer

    @abstractmethod
    def add(self, rows: Batch, coefficients: Tensor) -> Loss:
        """Add the gradient of these rows to what is there. What comes back is detached."""


class EagerGradient(Gradient):
    """Autograd into the optimizer's flat buffers."""

    def add(self, rows: Batch, coefficients: Tensor) -> Loss:
        loss: Loss = self.objective(rows, coefficients)
        loss.total.backward()
        return loss.detach()


class CompiledGradient(Gradient):
    """The same as one compiled graph from flat parameters and a batch's tensors to flat gradients.

    Compiling takes seconds at the first minibatch of each shape; it pays off on small networks and long runs.
    """

    def __init__(self, objective: Objective, optimizer: FlatOptimizer) -> None:
        super().__init__(objective, optimizer)
        names = {id(p): name for name, p in objective.named_parameters()}
        self.layout = [[(names[id(p)], p.shape, p.numel()) for p in flat] for flat in optimizer.layout]
        self.compiled = torch.compile(torch.func.grad_and_value(self._loss, has_aux=True))

    def _loss(self, flats: list[Tensor], rows: Batch, coefficients: Tensor) -> tuple[Tensor, tuple[Any, ...]]:
        parameters = {}
        for flat, group in zip(flats, self.layout, strict=True):
            for (name, shape, _), piece in zip(group, flat.split([size for *_, size in group]), strict=True):
                parameters[name] = piece.view(shape)
        loss: Loss = torch.func.functional_call(self.objective, parameters, (rows, coefficients))
        fields = (loss.new.logprobs, loss.new.log_ratio, loss.new.entropy, loss.new.values)
        return loss.total, (loss.policy, loss.critic, *fields)

    def add(self, rows: Batch, coefficients: Tensor) -> Loss:
        from rlfw.composition import Loss

        flats = [flat.data for flat in self.optimizer.flats]
        gradients, (total, (policy, critic, *new)) = self.compiled(flats, rows, coefficients)
        for flat, gradient in zip(self.optimizer.flats, gradients, strict=True):
            assert flat.grad is not None
            flat.grad.add_(gradient)
        current = Current(*new)
        if rows.old_logprobs is ABSENT:
            rows = dataclasses.replace(rows, old_logprobs=current.logprobs.detach())
        return Loss(total, policy, critic, current, rows)


GRADIENTS: dict[str, type[Gradient]] = {"eager": EagerGradient, "compile": CompiledGradient}

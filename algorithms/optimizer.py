"""The rule of an optimizer step; learning rates are the root's lr and the critic's own."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch

from rlfw.checks import above, at_least, below, between
from rlfw.interfaces import Optimizer
from rlfw.registry import register


@register("optimizer", "adam")
@dataclass
class Adam(Optimizer):
    """Adam with decoupled weight decay (arXiv:1412.6980, arXiv:1711.05101)."""

    _: KW_ONLY
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-5
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for key, beta in (("beta1", self.beta1), ("beta2", self.beta2)):
            at_least(f"optimizer.adam.{key}", beta, 0)
            below(f"optimizer.adam.{key}", beta, 1)
        above("optimizer.adam.eps", self.eps, 0)
        at_least("optimizer.adam.weight_decay", self.weight_decay, 0)
        step = "(m̂ / (√v̂ + {eps}) + {weight_decay} θ)" if self.weight_decay else "m̂ / (√v̂ + {eps})"
        self.formula = f"θ ← θ - lr {step}, moments of decay {{beta1}} and {{beta2}}, unbiased"

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        betas = (self.beta1, self.beta2)
        return torch.optim.AdamW(groups, betas=betas, eps=self.eps, weight_decay=self.weight_decay, fused=True)


@register("optimizer", "rmsprop")
@dataclass
class RMSprop(Optimizer):
    """RMSprop (A2C, arXiv:1602.01783)."""

    _: KW_ONLY
    alpha: float = 0.99
    eps: float = 1e-5
    momentum: float = 0.0

    def __post_init__(self) -> None:
        between("optimizer.rmsprop.alpha", self.alpha, 0, 1)
        above("optimizer.rmsprop.eps", self.eps, 0)
        at_least("optimizer.rmsprop.momentum", self.momentum, 0)
        step = "u, u ← {momentum} u + ∇ / (√v + {eps})" if self.momentum else "∇ / (√v + {eps})"
        self.formula = f"θ ← θ - lr {step}, v ← {{alpha}} v + (1 - {{alpha}}) ∇²"

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.RMSprop(groups, alpha=self.alpha, eps=self.eps, momentum=self.momentum)


@register("optimizer", "sgd")
@dataclass
class SGD(Optimizer):
    """Plain stochastic gradient descent."""

    _: KW_ONLY
    momentum: float = 0.0

    def __post_init__(self) -> None:
        at_least("optimizer.sgd.momentum", self.momentum, 0)
        self.formula = "θ ← θ - lr u, u ← {momentum} u + ∇" if self.momentum else "θ ← θ - lr ∇"

    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, momentum=self.momentum)

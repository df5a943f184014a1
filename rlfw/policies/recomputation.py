"""Activation checkpointing (arXiv:1604.06174): a layer keeps its inputs alone; the backward pass computes it again.

transformers' own switch (activation_checkpointing_enable) acts in training mode alone, which is what switches dropout
on in some layers. Here nothing but gradients decides, so generation and scoring without gradients pay nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch.utils.checkpoint import checkpoint

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import nn


@dataclass
class Recomputed:
    """A layer's forward. A copy of the layer gets a copy of this, bound to itself."""

    forward: Callable[..., Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.forward(*args, **kwargs)
        return checkpoint(self.forward, *args, use_reentrant=False, preserve_rng_state=False, **kwargs)


def recompute_layers(model: nn.Module, key: str) -> None:
    """Every decoder layer of a transformers model; UserError, naming ``key``, for an architecture without any."""
    from transformers.modeling_layers import GradientCheckpointingLayer

    layers = [module for module in model.modules() if isinstance(module, GradientCheckpointingLayer)]
    if not layers:
        raise UserError(f"{key}=true: transformers cannot checkpoint the layers of {type(model).__name__}")
    for layer in layers:
        layer.forward = Recomputed(layer.forward)

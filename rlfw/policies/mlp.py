"""A multi-layer perceptron over flat observations."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from rlfw.checks import at_least, one_of
from rlfw.interfaces import EnvSpec  # noqa: TC001 (the registry evaluates the signature)
from rlfw.registry import register
from rlfw.seeding import Streams  # noqa: TC001

from .control import ACTIVATIONS, ControlPolicy, linear

if TYPE_CHECKING:
    from collections.abc import Callable


class _TanhLayers(torch.autograd.Function):
    """tanh(W x + b), layer by layer, as one node of the graph.

    numpy's tanh is several times faster than torch's on CPUs, where a small network costs its calls, not its numbers.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, *parameters: Tensor) -> Tensor:
        ctx.layers = []  # input, weight and output of each
        for weight, bias in zip(parameters[::2], parameters[1::2], strict=True):
            y = torch.addmm(bias, x, weight.t())
            np.tanh(y.numpy(), out=y.numpy())
            ctx.layers.append((x, weight, y.detach()))
            x = y
        return x

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        found: list[Tensor] = []
        for x, weight, y in reversed(ctx.layers):
            gradient = torch.ops.aten.tanh_backward(gradient, y)
            found += [gradient.sum(0), (x.t() @ gradient).t()]  # bias, weight
            if x is not ctx.layers[0][0] or ctx.needs_input_grad[0]:
                gradient = gradient @ weight
        return (gradient if ctx.needs_input_grad[0] else None), *reversed(found)


class TanhLayers(nn.Sequential):
    """Linear layers, each followed by a tanh."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__(*layers)
        self._all = list(self.parameters())  # asked for once: the search costs as much as a layer

    def forward(self, x: Tensor) -> Tensor:
        if torch.compiler.is_compiling() or not x.is_cpu:
            layers: Tensor = super().forward(x)
            return layers
        found: Tensor = _TanhLayers.apply(x, *self._all)
        return found


@register("policy", "mlp")
class MLPPolicy(ControlPolicy):
    """Fully connected layers of ``hidden_sizes`` units, each followed by ``activation`` (tanh or relu)."""

    name: ClassVar[str] = "mlp"

    def __init__(
        self,
        env_spec: EnvSpec,
        streams: Streams,
        *,
        hidden_sizes: list[int] = [64, 64],  # noqa: B006 (copied)
        activation: str = "tanh",
    ) -> None:
        one_of("policy.mlp.activation", activation, list(ACTIVATIONS))
        for size in hidden_sizes:
            at_least("policy.mlp.hidden_sizes", size, 1)
        self.hidden_sizes, self.activation = list(hidden_sizes), activation
        super().__init__(env_spec, streams)

    @property
    def config(self) -> dict[str, Any]:
        return {"hidden_sizes": self.hidden_sizes, "activation": self.activation}

    def prepare(self, observations: Tensor) -> Tensor:
        """[S, ...] -> [S, D], bytes scaled to 0 .. 1."""
        return super().prepare(observations).reshape(len(observations), -1)

    def build_body(self, rng: torch.Generator) -> tuple[nn.Sequential, int]:
        sizes = [math.prod(self.env_spec.observation_shape), *self.hidden_sizes]
        layers: list[nn.Module] = []
        for inputs, outputs in pairwise(sizes):
            layers += [linear(inputs, outputs, math.sqrt(2), rng), ACTIVATIONS[self.activation]()]
        return (TanhLayers if self.activation == "tanh" else nn.Sequential)(*layers), sizes[-1]

    def numpy_outputs(self) -> Callable[[np.ndarray], np.ndarray]:
        *hidden, (last_weight, last_bias) = [
            (layer.weight.detach().numpy().T.copy(), layer.bias.detach().numpy().copy())
            for layer in [*self.body, self.output]
            if isinstance(layer, nn.Linear)
        ]
        tanh = self.activation == "tanh"

        def outputs(observations: np.ndarray) -> np.ndarray:
            x: np.ndarray = observations.reshape(len(observations), -1)
            if x.dtype == np.uint8:
                x = x.astype(np.float32) / 255
            for weight, bias in hidden:
                x = x @ weight
                x += bias
                x = np.tanh(x, out=x) if tanh else np.maximum(x, 0, out=x)
            x = x @ last_weight
            x += last_bias
            return x

        return outputs

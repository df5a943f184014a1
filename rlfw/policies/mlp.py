"""A multi-layer perceptron over flat observations."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from rlfw.checks import at_least, one_of
from rlfw.interfaces import EnvSpec  # noqa: TC001 (the registry evaluates the signature)
from rlfw.registry import register
from rlfw.seeding import Streams  # noqa: TC001

from .control import ACTIVATIONS, ControlPolicy, linear

if TYPE_CHECKING:
    from collections.abc import Callable

    import torch
    from torch import Tensor


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
        return nn.Sequential(*layers), sizes[-1]

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

"""A network of your own over arrays: policy=my_part."""

import copy
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import EnvSpec
from rlfw.policies.control import ControlPolicy, linear
from rlfw.seeding import Streams
from torch import Tensor, nn


@register("policy", "my_part")
class MyPart(ControlPolicy):
    """A layer of ``width`` units with layer normalisation and tanh (fill in: what yours is, its paper)."""

    name = "my_part"

    def __init__(self, env_spec: EnvSpec, streams: Streams, *, width: int = 64) -> None:
        at_least("policy.my_part.width", width, 1)
        self.width = width
        super().__init__(env_spec, streams)

    @property
    def config(self) -> dict[str, Any]:
        """The keys that shape the network."""
        return {"width": self.width}

    def prepare(self, observations: Tensor) -> Tensor:
        """[S, ...] -> [S, D]."""
        return super().prepare(observations).reshape(len(observations), -1)

    def build_body(self, rng: torch.Generator) -> tuple[nn.Sequential, int]:
        """A network from observations [S, D] to features [S, F], and F; the critic's own one is built the same way."""
        first = linear(math.prod(self.env_spec.observation_shape), self.width, math.sqrt(2), rng)
        return nn.Sequential(first, nn.LayerNorm(self.width), nn.Tanh()), self.width

    def numpy_outputs(self) -> Callable[[np.ndarray], np.ndarray]:
        """What acts: a copy with the present weights."""
        network: Any = copy.deepcopy(nn.Sequential(self.body, self.output))
        return lambda x: network(self.prepare(torch.from_numpy(x))).detach().numpy()

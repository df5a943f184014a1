"""A convolutional network over images."""

from __future__ import annotations

import copy
import math
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.interfaces import ControlSpec, EnvSpec
from rlfw.registry import register
from rlfw.seeding import Streams  # noqa: TC001 (the registry evaluates the signature)

from .control import ControlPolicy, linear, orthogonal

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

NATURE = [(8, 4, 0), (4, 2, 0), (3, 1, 0)]  # kernel, stride, padding of the three layers, in pixels
NATURE_SIDE = 36  # pixels: the smallest image that they leave anything of


@register("policy", "cnn")
class CNNPolicy(ControlPolicy):
    """Convolutions of ``channels`` filters and a layer of ``hidden_size`` units, with relu (DQN, Nature 2015).

    Images [H, W] or [H, W, C], or [C, H, W] where the first axis is shorter than the last. From 36 pixels a side the
    layers are those of the paper; smaller images meet 3 x 3 kernels, which halve them while they have 8 pixels or more.
    """

    name: ClassVar[str] = "cnn"

    def __init__(
        self,
        env_spec: EnvSpec,
        streams: Streams,
        *,
        channels: list[int] = [32, 64, 64],  # noqa: B006 (copied)
        hidden_size: int = 512,
    ) -> None:
        for size in channels:
            at_least("policy.cnn.channels", size, 1)
        at_least("policy.cnn.hidden_size", hidden_size, 1)
        if isinstance(env_spec, ControlSpec) and len(env_spec.observation_shape) not in (2, 3):
            shape = env_spec.observation_shape
            raise UserError(f"policy=cnn sees images, and these observations have shape {shape}: write policy=mlp")
        self.channels, self.hidden_size = list(channels), hidden_size
        super().__init__(env_spec, streams)

    @property
    def config(self) -> dict[str, Any]:
        return {"channels": self.channels, "hidden_size": self.hidden_size}

    def prepare(self, observations: Tensor) -> Tensor:
        """[S, H, W], [S, H, W, C] or [S, C, H, W] -> [S, C, H, W] float, bytes scaled to 0 .. 1."""
        images = super().prepare(observations)
        if images.ndim == 3:
            return images[:, None]
        return images if self._channels_first else images.movedim(-1, 1)

    @property
    def _channels_first(self) -> bool:
        shape = self.env_spec.observation_shape
        return len(shape) == 3 and shape[0] < shape[2]

    def build_body(self, rng: torch.Generator) -> tuple[nn.Sequential, int]:
        inputs, *sides = self.prepare(torch.zeros(1, *self.env_spec.observation_shape)).shape[1:]
        layers: list[nn.Module] = []
        for k, outputs in enumerate(self.channels):
            small = (3, 2 if min(sides) >= 8 else 1, 1)
            kernel, stride, padding = NATURE[min(k, 2)] if self._large else small
            convolution = torch.nn.utils.skip_init(nn.Conv2d, inputs, outputs, kernel, stride, padding)
            layers += [orthogonal(convolution, math.sqrt(2), rng), nn.ReLU()]
            inputs, sides = outputs, [(side + 2 * padding - kernel) // stride + 1 for side in sides]
        flat = inputs * math.prod(sides)
        layers += [nn.Flatten(), linear(flat, self.hidden_size, math.sqrt(2), rng), nn.ReLU()]
        return nn.Sequential(*layers), self.hidden_size

    @property
    def _large(self) -> bool:
        shape = self.env_spec.observation_shape
        return min(shape[1:] if self._channels_first else shape[:2]) >= NATURE_SIDE

    def numpy_outputs(self) -> Callable[[np.ndarray], np.ndarray]:
        network = copy.deepcopy(nn.Sequential(self.body, self.output))

        def outputs(observations: np.ndarray) -> np.ndarray:
            with torch.inference_mode():
                found: np.ndarray = network(self.prepare(torch.from_numpy(observations))).numpy()
            return found

        return outputs

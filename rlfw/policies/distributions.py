"""Distributions over the actions of a gymnasium space.

    ... any leading shape   W numbers that the network gives a step   A action dimensions

All of them are perturbed modes: with the right noise, ``mode(outputs + noise)`` is a sample. So acting needs numpy and
one stream of noise, drawn for many steps at once; log-probs and entropies (nats) exist in torch alone.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from rlfw.errors import UserError
from rlfw.rollout import ABSENT

HALF_LOG_2PI = 0.5 * math.log(2 * math.pi)


class Distribution(nn.Module, ABC):
    """What turns the network's outputs [..., W] into actions: [...] for Categorical, [..., A] for the others."""

    width: int  # W

    @abstractmethod
    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        """[*shape, W] float32."""

    @abstractmethod
    def mode(self, outputs: np.ndarray) -> np.ndarray:
        """The most likely actions; the actions sampled, for outputs with noise."""

    @abstractmethod
    def score(self, outputs: Tensor, actions: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        """Log-probs of ``actions`` [...], and the entropy [...] or ABSENT."""


class Categorical(Distribution):
    """One of ``n`` actions; the noise is Gumbel's (the Gumbel-max trick)."""

    def __init__(self, n: int) -> None:
        super().__init__()
        self.width = n

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.gumbel(size=(*shape, self.width)).astype(np.float32)

    def mode(self, outputs: np.ndarray) -> np.ndarray:
        actions: np.ndarray = outputs.argmax(-1)
        return actions

    def score(self, outputs: Tensor, actions: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        logits = outputs.log_softmax(-1)
        logprobs = logits.gather(-1, actions[..., None]).squeeze(-1)
        return logprobs, -(logits.exp() * logits).sum(-1) if entropy else ABSENT


class MultiCategorical(Distribution):
    """A independent categoricals, of ``sizes[a]`` actions each; log-probs and entropies add up."""

    def __init__(self, sizes: list[int]) -> None:
        super().__init__()
        self.sizes, self.width = sizes, sum(sizes)
        self._cuts = np.cumsum(sizes)[:-1].tolist()
        self._parts = [Categorical(n) for n in sizes]

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.gumbel(size=(*shape, self.width)).astype(np.float32)

    def mode(self, outputs: np.ndarray) -> np.ndarray:
        return np.stack([part.argmax(-1) for part in np.split(outputs, self._cuts, -1)], -1)

    def score(self, outputs: Tensor, actions: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        parts = zip(self._parts, outputs.split(self.sizes, -1), actions.unbind(-1), strict=True)
        scored = [part.score(output, action, entropy) for part, output, action in parts]
        logprobs = torch.stack([logprobs for logprobs, _ in scored], -1).sum(-1)
        return logprobs, torch.stack([h for _, h in scored], -1).sum(-1) if entropy else ABSENT


class Bernoulli(Distribution):
    """A independent bits, 1 with probability sigmoid(output); the noise is logistic."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        return rng.logistic(size=(*shape, self.width)).astype(np.float32)

    def mode(self, outputs: np.ndarray) -> np.ndarray:
        return (outputs > 0).astype(np.int64)

    def score(self, outputs: Tensor, actions: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        on, off = nn.functional.logsigmoid(outputs), nn.functional.logsigmoid(-outputs)
        logprobs = torch.where(actions > 0, on, off).sum(-1)
        return logprobs, -(on.exp() * on + off.exp() * off).sum(-1) if entropy else ABSENT


class DiagGaussian(Distribution):
    """A independent normals about the outputs; log_std is a parameter that does not depend on the state."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.width = size
        self.log_std = nn.Parameter(torch.zeros(size))  # [A]

    def noise(self, rng: np.random.Generator, shape: tuple[int, ...]) -> np.ndarray:
        std = self.log_std.detach().exp().numpy()
        return std * rng.standard_normal((*shape, self.width), np.float32)

    def mode(self, outputs: np.ndarray) -> np.ndarray:
        return outputs.copy()

    def score(self, outputs: Tensor, actions: Tensor, entropy: bool = False) -> tuple[Tensor, Tensor]:
        z = (actions - outputs) * (-self.log_std).exp()
        total = (self.log_std + HALF_LOG_2PI).sum()
        logprobs = -0.5 * z.square().sum(-1) - total
        return logprobs, (total + 0.5 * self.width).expand_as(logprobs) if entropy else ABSENT


def distribution(space: spaces.Space, where: str) -> Distribution:
    """The distribution over ``space``; UserError that starts with ``where`` if there is none."""
    match space:
        case spaces.Discrete():
            return Categorical(int(space.n))
        case spaces.MultiDiscrete():
            return MultiCategorical(space.nvec.ravel().tolist())
        case spaces.MultiBinary():
            return Bernoulli(int(np.prod(space.shape)))
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            return DiagGaussian(int(np.prod(space.shape)))
        case _:
            raise UserError(
                f"{where}: actions in {space} are not supported; Discrete, MultiDiscrete, MultiBinary and Box of "
                "floats are"
            )

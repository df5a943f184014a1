"""What crosses the border between gymnasium's spaces and the policy's arrays.

N sub-envs   D entries of a flat observation   A action dimensions
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable


@dataclass(frozen=True)
class Encoding:
    """How a batch of observations becomes one array.

    A Box keeps its shape: uint8 of two or three dimensions is an image and stays uint8, everything else becomes
    float32. Discrete is one-hot, MultiDiscrete one-hot by entry; Dict and Tuple are laid end to end, in their order.
    """

    shape: tuple[int, ...]  # of one observation
    dtype: str  # "float32" or "uint8"
    scaled: np.ndarray  # [*shape] bool: the entries that come from a Box and may be normalised
    encode: Callable[[Any], np.ndarray]  # a batch of the space -> a fresh array [N, *shape]


def encoding(space: spaces.Space, where: str) -> Encoding:
    """The encoding of ``space``; UserError that starts with ``where`` if there is none."""
    match space:
        case spaces.Box(dtype=np.dtype(name="uint8"), shape=(_, _) | (_, _, _)):
            return Encoding(space.shape, "uint8", np.zeros(space.shape, np.bool_), lambda batch: batch.copy())
        case spaces.Box():
            return Encoding(
                space.shape, "float32", np.ones(space.shape, np.bool_), lambda batch: batch.astype(np.float32)
            )
        case spaces.Discrete():
            return _flags(int(space.n), _one_hot(np.array([space.n]), np.array([space.start])))
        case spaces.MultiDiscrete():
            return _flags(int(space.nvec.sum()), _one_hot(space.nvec.ravel(), space.start.ravel()))
        case spaces.MultiBinary():
            width = int(np.prod(space.shape))
            return _flags(width, lambda batch: batch.reshape(-1, width).astype(np.float32))
        case spaces.Dict() | spaces.Tuple():
            keys: list[Any] = list(space.spaces) if isinstance(space, spaces.Dict) else list(range(len(space)))
            return _joined(keys, [encoding(space[key], f"{where}: entry {key!r}") for key in keys], where)
        case _:
            raise UserError(
                f"{where}: observations in {space} are not supported; Box, Discrete, MultiDiscrete, MultiBinary, and "
                "Dict or Tuple of these are"
            )


def _flags(width: int, encode: Callable[[Any], np.ndarray]) -> Encoding:
    return Encoding((width,), "float32", np.zeros(width, np.bool_), encode)


def _one_hot(sizes: np.ndarray, start: np.ndarray) -> Callable[[Any], np.ndarray]:
    """Integers [N(, ...)] -> [N, sum(sizes)]; entry j takes ``sizes[j]`` places and counts from ``start[j]``."""
    offset = np.cumsum(sizes) - sizes - start
    width = int(sizes.sum())

    def encode(batch: np.ndarray) -> np.ndarray:
        place = batch.reshape(len(batch), -1) + offset
        out = np.zeros((len(batch), width), np.float32)
        np.put_along_axis(out, place, 1.0, 1)
        return out

    return encode


def _joined(keys: list[Any], parts: list[Encoding], where: str) -> Encoding:
    for key, part in zip(keys, parts, strict=True):
        if part.dtype == "uint8":
            raise UserError(f"{where}: entry {key!r} is an image; images inside a Dict or Tuple are not supported")
    scaled = np.concatenate([part.scaled.ravel() for part in parts])

    def encode(batch: Any) -> np.ndarray:
        flat = [part.encode(batch[key]) for key, part in zip(keys, parts, strict=True)]
        return np.concatenate([x.reshape(len(x), -1) for x in flat], 1)

    return Encoding(scaled.shape, "float32", scaled, encode)


def action_border(space: spaces.Space, where: str) -> Callable[[np.ndarray], np.ndarray]:
    """The function from a policy's actions, [N] for Discrete and [N, A] elsewhere, to a batch of ``space``.

    A policy counts from 0 and knows no bounds: ``start`` is added, a Box clips.
    """
    match space:
        case spaces.Discrete():
            start = int(space.start)
            return (lambda actions: actions + start) if start else (lambda actions: actions)
        case spaces.MultiDiscrete():
            return lambda actions: (actions.reshape(-1, *space.shape) + space.start).astype(space.dtype)
        case spaces.MultiBinary():
            return lambda actions: actions.reshape(-1, *space.shape).astype(space.dtype)
        case spaces.Box() if np.issubdtype(space.dtype, np.floating):
            low, high = space.low, space.high
            return lambda actions: np.clip(actions.reshape(-1, *space.shape).astype(space.dtype), low, high)
        case _:
            raise UserError(
                f"{where}: actions in {space} are not supported; Discrete, MultiDiscrete, MultiBinary and Box of "
                "floats are"
            )

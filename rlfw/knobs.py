"""What a controller may turn: named numbers, and the reference policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omegaconf import DictConfig

    from rlfw.composition import Composition
    from rlfw.optim import FlatOptimizer
    from rlfw.reference import Reference


class Knobs:
    """``knobs["lr"]``, ``knobs["regularizer.clip.low"]``, ...: read and set by name."""

    @classmethod
    def of(cls, composition: Composition, cfg: DictConfig, optimizer: FlatOptimizer) -> Knobs:
        """lr, and every number of every part by its key."""
        knobs, critic = cls(), composition.critic
        for name, part in composition.parts.items():
            axis, instance = name.split(".")
            for key, value in cfg[axis][instance].items():
                if isinstance(value, float):
                    knobs.add_attribute(f"{name}.{key}", part, str(key))
            if part is critic:  # its optimizer settings are read once, when the parameter group is made
                knobs.discard(f"{name}.max_grad_norm")
                if critic.lr is not None:
                    knobs.add(f"{name}.lr", *optimizer.lr_knob("critic"))
        knobs.add("lr", *optimizer.lr_knob("policy"))
        return knobs

    def __init__(self) -> None:
        self._knobs: dict[str, tuple[Callable[[], float], Callable[[float], None]]] = {}

    def add(self, name: str, get: Callable[[], float], set: Callable[[float], None]) -> None:
        self._knobs[name] = (get, set)

    def add_attribute(self, name: str, owner: object, key: str) -> None:
        self.add(name, lambda: getattr(owner, key), lambda value: setattr(owner, key, value))

    def discard(self, name: str) -> None:
        self._knobs.pop(name, None)

    def __contains__(self, name: str) -> bool:
        return name in self._knobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __getitem__(self, name: str) -> float:
        return self._knobs[name][0]()

    def __setitem__(self, name: str, value: float) -> None:
        self._knobs[name][1](value)


@dataclass(frozen=True)
class Controls:
    """All that a controller may turn."""

    knobs: Knobs
    reference: Reference | None  # None: no part reads ref_logprobs

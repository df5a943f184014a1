"""What a controller may turn: named numbers, and the reference policy."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlfw.errors import UserError
from rlfw.registry import suggest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from omegaconf import DictConfig

    from rlfw.composition import Composition
    from rlfw.optim import FlatOptimizer
    from rlfw.reference import Reference


class Knobs:
    """``knobs["lr"]``, ``knobs["regularizer.clip.low"]``, ...: read and set by name.

    One controller sets a knob's course, any others scale it by factors of their own, in whatever order they are listed.
    """

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
        self._knobs: dict[str, _Knob] = {}

    def add(self, name: str, get: Callable[[], float], set: Callable[[float], None]) -> None:
        self._knobs[name] = _Knob(set, get())

    def add_attribute(self, name: str, owner: object, key: str) -> None:
        self.add(name, lambda: getattr(owner, key), lambda value: setattr(owner, key, value))

    def discard(self, name: str) -> None:
        self._knobs.pop(name, None)

    def claim(self, name: str, controller: str) -> None:
        """``controller`` alone sets the course of ``name`` from here on; UserError if there is no such knob."""
        knob = self._find(name, controller)
        if knob.claimed_by is not None:
            raise UserError(f"{knob.claimed_by} and {controller} both set {name}: choose one of them")
        knob.claimed_by = controller

    def factor(self, name: str, controller: str) -> Callable[[float], None]:
        """A factor on top of the course of ``name``, 1 until the function that comes back sets it."""
        knob = self._find(name, controller)
        knob.factors.append(1.0)
        place = len(knob.factors) - 1

        def turn(factor: float) -> None:
            knob.factors[place] = factor
            knob.turn()

        return turn

    def _find(self, name: str, controller: str) -> _Knob:
        if name not in self:
            raise UserError(f"{controller}.knob={name}: no such knob{suggest(name, self)}")
        return self._knobs[name]

    def in_force(self, name: str) -> float:
        """The course of ``name`` times all its factors: what the part reads."""
        return self._knobs[name].in_force

    def state_dict(self) -> dict[str, float]:
        """The course of every knob; the factors belong to the controllers that set them."""
        return {name: self[name] for name in self}

    def load_state_dict(self, state: dict[str, float]) -> None:
        for name, value in state.items():
            self[name] = value

    def __contains__(self, name: str) -> bool:
        return name in self._knobs

    def __iter__(self) -> Iterator[str]:
        return iter(self._knobs)

    def __getitem__(self, name: str) -> float:
        return self._knobs[name].course

    def __setitem__(self, name: str, course: float) -> None:
        self._knobs[name].course = course
        self._knobs[name].turn()


@dataclass
class _Knob:
    set: Callable[[float], None]
    course: float
    factors: list[float] = field(default_factory=list)
    claimed_by: str | None = None

    @property
    def in_force(self) -> float:
        return math.prod(self.factors, start=self.course)

    def turn(self) -> None:
        self.set(self.in_force)


@dataclass(frozen=True)
class Controls:
    """All that a controller may turn."""

    knobs: Knobs
    reference: Reference | None  # None: no part reads ref_logprobs
    single_step: bool = False  # one optimizer step a rollout: the policy is the old one, their KL is 0

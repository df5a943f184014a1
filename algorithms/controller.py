"""What turns knobs while training."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

from rlfw.checks import above, at_least, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Controller
from rlfw.registry import register, suggest

if TYPE_CHECKING:
    from rlfw.knobs import Controls


@register("controller", "anneal")
@dataclass
class Anneal(Controller):
    """Moves a knob from its set value to ``final`` times it over the run; iteration i of n still sees (i - 1) / n.

    ``knob``: lr, or any number of a part by its key, e.g. regularizer.clip.low. A further one:
    +controller@controller.anneal_clip=anneal controller.anneal_clip.knob=regularizer.clip.low
    """

    _: KW_ONLY
    knob: str = "lr"
    shape: str = "linear"
    final: float = 0.0

    def __post_init__(self) -> None:
        one_of("controller.anneal.shape", self.shape, ("linear", "cosine"))
        at_least("controller.anneal.final", self.final, 0)

    def start(self, controls: Controls) -> None:
        knobs = controls.knobs
        if self.knob not in knobs:
            raise UserError(f"controller.anneal.knob={self.knob}: no such knob{suggest(self.knob, knobs)}")
        self.knobs, self.initial = knobs, knobs[self.knob]

    def before_iteration(self, progress: float) -> None:
        progress = min(progress, 1.0)
        left = 1 - progress if self.shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        self.knobs[self.knob] = self.initial * (self.final + (1 - self.final) * left)


@register("controller", "target_kl")
@dataclass
class TargetKL(Controller):
    """Ends an update's epochs before a step whose KL to the old policy exceeds factor * target.

    ``target``: k3, nats per step, over the coming minibatch.
    """

    _: KW_ONLY
    target: float = 0.01
    factor: float = 1.5
    watches_kl = True

    def __post_init__(self) -> None:
        above("controller.target_kl.target", self.target, 0)
        above("controller.target_kl.factor", self.factor, 0)

    def stops(self, approx_kl: float) -> bool:
        return approx_kl > self.factor * self.target

"""What turns knobs while training. Those that go by a KL divergence are in kl_controller.py."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from rlfw.checks import above, at_least, between, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Controller
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    formula = "{knob} goes over the run from its value to {final} times it, {shape}"

    def __post_init__(self) -> None:
        one_of("controller.anneal.shape", self.shape, ("linear", "cosine"))
        at_least("controller.anneal.final", self.final, 0)

    def start(self, controls: Controls) -> None:
        controls.knobs.claim(self.knob, "controller.anneal")
        self.knobs, self.initial = controls.knobs, controls.knobs[self.knob]

    def before_iteration(self, progress: float) -> None:
        progress = min(progress, 1.0)
        left = 1 - progress if self.shape == "linear" else 0.5 * (1 + math.cos(math.pi * progress))
        self.knobs[self.knob] = self.initial * (self.final + (1 - self.final) * left)


@register("controller", "critic_warmup")
@dataclass
class CriticWarmup(Controller):
    """Holds the policy still for the first iterations, so that only the critic learns (VC-PPO, arXiv:2503.01491).

    The paper pretrains on Monte-Carlo returns; here the critic's targets are those of the run (value_lambda=1.0 gives
    the paper's). The policy's gradients still enter its optimizer's moments.
    """

    _: KW_ONLY
    iterations: int
    formula = "lr of the policy = 0 up to iteration {iterations}"

    def __post_init__(self) -> None:
        at_least("controller.critic_warmup.iterations", self.iterations, 1)
        self.holds_policy = self.iterations
        self.done = 0  # iterations so far

    def start(self, controls: Controls) -> None:
        if not any(knob.startswith("baseline.") and knob.endswith(".lr") for knob in controls.knobs):
            raise UserError(
                "controller.critic_warmup sets the policy's learning rate to 0, and no critic has one of its own: "
                "set baseline=critic and baseline.critic.lr=VALUE"
            )
        self.scale = controls.knobs.factor("lr", "controller.critic_warmup")

    def before_iteration(self, progress: float) -> None:
        self.scale(0.0 if self.done < self.iterations else 1.0)

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        self.done += 1

    def state_dict(self) -> dict[str, Any]:
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


@register("controller", "ref_sync")
@dataclass
class RefSync(Controller):
    """Moves the reference towards the policy every so often (TR-DPO, arXiv:2404.09656); ``rate`` 1 copies it.

    ``every`` counts iterations, where the paper's 512 counts optimizer steps: a short run needs a smaller one.
    """

    _: KW_ONLY
    rate: float = 0.6
    every: int = 512
    formula = "reference ← {rate} policy + (1 - {rate}) reference, by weight, after each {every} iterations"

    def __post_init__(self) -> None:
        above("controller.ref_sync.rate", self.rate, 0)
        between("controller.ref_sync.rate", self.rate, 0, 1)
        at_least("controller.ref_sync.every", self.every, 1)
        self.done = 0  # iterations so far

    def start(self, controls: Controls) -> None:
        if controls.reference is None:
            raise UserError(
                "controller.ref_sync moves the reference, and no part reads one: add regularizer=[kl] or reward=[kl]"
            )
        self.reference = controls.reference

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        self.done += 1
        if self.done % self.every == 0:
            self.reference.follow(self.rate)

    def report(self) -> Mapping[str, float]:
        """How often the reference of this iteration had moved."""
        return {"ref_sync/syncs": self.done // self.every}

    def state_dict(self) -> dict[str, Any]:
        """The reference's weights are saved beside the policy's."""
        return {"done": self.done}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.done = state["done"]


@register("controller", "adaptive_entropy")
@dataclass
class AdaptiveEntropy(Controller):
    """Steps an entropy bonus up where entropy is below ``target`` and down where it is above (arXiv:2505.22312).

    The bonus acts only while entropy is at most ``target``, nats per step. The paper starts it at 0 and judges an
    iteration by its own entropy; here it starts at the knob's value and is judged by the iteration before.
    """

    _: KW_ONLY
    knob: str = "regularizer.entropy.coef"
    target: float
    delta: float = 0.005
    formula = "{knob} = c where H ≤ {target}, else 0; c ← c + {delta} below {target}, max(c - {delta}, 0) above it"

    def __post_init__(self) -> None:
        above("controller.adaptive_entropy.target", self.target, 0)
        above("controller.adaptive_entropy.delta", self.delta, 0)
        self.acts = True

    def start(self, controls: Controls) -> None:
        controls.knobs.claim(self.knob, "controller.adaptive_entropy")
        self.knobs, self.scale = controls.knobs, controls.knobs.factor(self.knob, "controller.adaptive_entropy")

    def before_iteration(self, progress: float) -> None:
        self.scale(1.0 if self.acts else 0.0)

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        if (entropy := metrics.get("objective/entropy")) is None:  # nothing was learnt from
            return
        step = self.delta if entropy < self.target else -self.delta if entropy > self.target else 0.0
        self.knobs[self.knob] = max(self.knobs[self.knob] + step, 0.0)
        self.acts = entropy <= self.target

    def report(self) -> Mapping[str, float]:
        return {"objective/entropy_coef": self.knobs.in_force(self.knob)}

    def state_dict(self) -> dict[str, Any]:
        return {"acts": self.acts}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.acts = state["acts"]

"""Controllers that go by a KL divergence, to the reference or to the old policy, in nats."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlfw.checks import above, at_least, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Controller
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlfw.knobs import Controls, Knobs

TO_REFERENCE = {"per_token": "objective/kl_per_token", "per_sequence": "objective/kl"}  # unit -> metric
TO_OLD = "policy/approxkl_avg"
MEMORY = 0.9  # of kl_guard's running mean: a KL counts so much less with every iteration that follows


def needs_reference(controller: str, controls: Controls, remedy: str = "") -> None:
    if controls.reference is None:
        raise UserError(
            f"{controller} reads the KL to the reference, and no part keeps one: "
            f"add regularizer=[kl] or reward=[kl]{remedy}"
        )


def needs_old(controller: str, controls: Controls) -> None:
    if controls.single_step:
        raise UserError(
            f"{controller} reads the KL to the old policy, which one optimizer step a rollout leaves at 0: "
            "set epochs or num_minibatches >= 2"
        )


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
    acts_off_policy = True
    formula = "the update ends before a step with KL to the old policy > {factor} · {target}"

    def __post_init__(self) -> None:
        above("controller.target_kl.target", self.target, 0)
        above("controller.target_kl.factor", self.factor, 0)

    def stops(self, approx_kl: float) -> bool:
        return approx_kl > self.factor * self.target


class KLCoefficient(Controller):
    """Base of those that multiply a penalty's coefficient. The knob itself is their memory."""

    name: ClassVar[str]
    knob: str
    knobs: Knobs

    def start(self, controls: Controls) -> None:
        self.knobs = controls.knobs
        self.knobs.claim(self.knob, self.name)
        if self.knobs[self.knob] <= 0:
            raise UserError(f"{self.name} multiplies {self.knob}, which would stay 0: set it above 0")

    def report(self) -> Mapping[str, float]:
        return {"objective/kl_coef": self.knobs.in_force(self.knob)}


@register("controller", "adaptive_kl")
@dataclass
class AdaptiveKL(KLCoefficient):
    """Holds the KL to the reference near ``target`` by a proportional controller in log space (arXiv:1909.08593).

    ``target``: nats per ``unit``, k3 per_token or k1 per_sequence (the paper's: 6 nats per sequence). A sequence
    is a row, under sampler=steps a stretch of an episode. ``horizon``: rows that it takes to follow an error.
    """

    _: KW_ONLY
    knob: str = "reward.kl.coef"
    target: float
    unit: str = "per_token"
    horizon: int = 10_000
    name = "controller.adaptive_kl"
    formula = "{knob} ← {knob} (1 + clip(KL {unit} / {target} - 1, -0.2, 0.2) · rows / {horizon})"

    def __post_init__(self) -> None:
        above("controller.adaptive_kl.target", self.target, 0)
        one_of("controller.adaptive_kl.unit", self.unit, list(TO_REFERENCE))
        at_least("controller.adaptive_kl.horizon", self.horizon, 1)
        if self.unit == "per_sequence":  # the sums of whole rows are taken where the rollout is scored
            self.needs = frozenset({"old_logprobs"})

    def start(self, controls: Controls) -> None:
        super().start(controls)
        needs_reference(self.name, controls)

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        if (kl := metrics.get(TO_REFERENCE[self.unit])) is None:  # nothing was learnt from
            return
        error = min(max(kl / self.target - 1, -0.2), 0.2)
        self.knobs[self.knob] *= 1 + error * metrics["group/n_used"] / self.horizon


@register("controller", "doubling_kl")
@dataclass
class DoublingKL(KLCoefficient):
    """Halves or doubles the coefficient where the KL to the old policy leaves a band (arXiv:1707.06347, section 4).

    ``target``: k3, nats per step, averaged over the update; the paper measures it once, after the update.
    """

    _: KW_ONLY
    knob: str = "regularizer.kl_old.coef"
    target: float = 0.01
    name = "controller.doubling_kl"
    formula = "{knob} ← {knob} / 2 where KL to the old policy < {target} / 1.5, 2 · {knob} where it is > 1.5 · {target}"

    def __post_init__(self) -> None:
        above("controller.doubling_kl.target", self.target, 0)

    def start(self, controls: Controls) -> None:
        super().start(controls)
        needs_old(self.name, controls)

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        if (kl := metrics.get(TO_OLD)) is None:  # nothing was learnt from
            return
        if kl < self.target / 1.5:
            self.knobs[self.knob] /= 2
        elif kl > self.target * 1.5:
            self.knobs[self.knob] *= 2


@register("controller", "kl_guard")
@dataclass
class KLGuard(Controller):
    """Scales a knob when the KL leaps, and lets go of it again: ours, without a paper.

    A spike is an iteration whose KL (k3, nats per step, to the reference or the old policy) exceeds ``floor`` and
    ``spike`` times its running mean, in which spikes count: where the KL settles higher, the guard gets used to it.
    ``backoff``: below 1 for a learning rate, above 1 for a penalty. ``recover``: the factor by which every other
    iteration moves the knob back to its own course, annealed or not.
    """

    _: KW_ONLY
    spike: float = 3.0
    floor: float = 0.01
    knob: str = "lr"
    backoff: float = 0.5
    recover: float = 1.1
    to: str = "reference"
    formula = (
        "{knob} ← κ {knob}; κ ← {backoff} κ where KL > max({spike} · its mean, {floor}), else towards 1 by {recover}"
    )

    def __post_init__(self) -> None:
        above("controller.kl_guard.spike", self.spike, 1)
        at_least("controller.kl_guard.floor", self.floor, 0)
        above("controller.kl_guard.backoff", self.backoff, 0)
        above("controller.kl_guard.recover", self.recover, 1)
        one_of("controller.kl_guard.to", self.to, ("reference", "old"))
        if self.backoff == 1:
            raise UserError("controller.kl_guard.backoff=1 has no effect: below 1 for lr, above 1 for a penalty")
        self.scale, self.spikes = 1.0, 0
        self.total, self.weight = 0.0, 0.0  # the running mean is their quotient

    def start(self, controls: Controls) -> None:
        if self.to == "reference":
            needs_reference("controller.kl_guard", controls, ", or set controller.kl_guard.to=old")
        else:
            needs_old("controller.kl_guard.to=old", controls)
        self.turn = controls.knobs.factor(self.knob, "controller.kl_guard")

    def before_iteration(self, progress: float) -> None:
        self.turn(self.scale)

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        kl = metrics.get(TO_REFERENCE["per_token"] if self.to == "reference" else TO_OLD)
        if kl is None:  # nothing was learnt from
            return
        if self.weight and kl > max(self.spike * self.total / self.weight, self.floor):
            self.scale *= self.backoff
            self.spikes += 1
        elif self.backoff < 1:
            self.scale = min(self.scale * self.recover, 1.0)
        else:
            self.scale = max(self.scale / self.recover, 1.0)
        self.total, self.weight = MEMORY * self.total + kl, MEMORY * self.weight + 1

    def report(self) -> Mapping[str, float]:
        """The scale in force, and the spikes of the iterations before."""
        return {"kl_guard/scale": self.scale, "kl_guard/spikes": self.spikes}

    def state_dict(self) -> dict[str, Any]:
        return {"scale": self.scale, "spikes": self.spikes, "total": self.total, "weight": self.weight}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.scale, self.spikes = state["scale"], state["spikes"]
        self.total, self.weight = state["total"], state["weight"]

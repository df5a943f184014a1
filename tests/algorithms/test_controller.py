"""Controllers on knobs of their own: what iteration i of n sees, and when an update ends."""

import math

import pytest

import rlfw
from rlfw.knobs import Controls, Knobs


class Turned:
    """Something with numbers to turn."""

    lr, low = 0.5, 0.2


def seen(num_iterations: int, **keys: object) -> list[float]:
    """The knob in iterations 1..n, with (i - 1) / n of the budget spent before the i-th."""
    owner, knobs = Turned(), Knobs()
    for key in ("lr", "low"):
        knobs.add_attribute(key, owner, key)
    controller = rlfw.build("controller", {"part": "anneal", **keys})
    controller.start(Controls(knobs, None))
    found = []
    for i in range(1, num_iterations + 1):
        controller.before_iteration((i - 1) / num_iterations)
        found.append(knobs[str(keys.get("knob", "lr"))])
    return found


def test_linear_starts_at_the_full_value_and_never_reaches_zero():
    assert seen(5) == pytest.approx([0.5, 0.4, 0.3, 0.2, 0.1])


def test_linear_to_a_share_of_the_value():
    assert seen(4, final=0.2) == pytest.approx([0.5 * (1 - 0.8 * k / 4) for k in range(4)])


def test_cosine():
    assert seen(4, shape="cosine") == pytest.approx([0.25 * (1 + math.cos(math.pi * k / 4)) for k in range(4)])
    assert seen(2, shape="cosine", final=1.0) == pytest.approx([0.5, 0.5])


def test_any_knob_by_its_name():
    assert seen(2, knob="low") == pytest.approx([0.2, 0.1])
    with pytest.raises(rlfw.UserError, match=r"knob=lo: no such knob; did you mean low\?"):
        seen(2, knob="lo")


def test_value_stays_final_when_the_budget_is_overrun():
    owner, knobs = Turned(), Knobs()
    knobs.add_attribute("lr", owner, "lr")
    controller = rlfw.build("controller", {"part": "anneal", "final": 0.5})
    controller.start(Controls(knobs, None))
    controller.before_iteration(1.3)
    assert owner.lr == pytest.approx(0.25)


def test_annealing_starts_from_the_value_that_was_set():
    """Not from the value of the step before: iterations may come in any order after a resume."""
    owner, knobs = Turned(), Knobs()
    knobs.add_attribute("lr", owner, "lr")
    controller = rlfw.build("controller", {"part": "anneal"})
    controller.start(Controls(knobs, None))
    for progress in (0.5, 0.75, 0.5):
        controller.before_iteration(progress)
    assert owner.lr == pytest.approx(0.25)


def test_unknown_shape_is_refused():
    with pytest.raises(rlfw.UserError, match=r"controller\.anneal\.shape=step: choose one of linear, cosine"):
        rlfw.build("controller", {"part": "anneal", "shape": "step"})


# ---------------------------------------------------------------------------------------------------- entropy


def knobs_of(**numbers: float) -> tuple[Knobs, dict[str, float]]:
    """Knobs, and the numbers that they turn: what a part would read."""
    knobs, read = Knobs(), dict(numbers)
    for name in numbers:
        knobs.add(name, lambda name=name: read[name], lambda value, name=name: read.update({name: value}))
    return knobs, read


def test_entropy_bonus_follows_the_target_and_rests_above_it():
    """Target .2, delta .005: it grows below the target, shrinks above it, never below 0, and acts below it alone."""
    entropies = [0.5, 0.1, 0.1, 0.15, 0.3, 0.2, 0.1]
    kept = [0.005, 0.0, 0.005, 0.01, 0.015, 0.01, 0.01, 0.015]  # before each iteration, and after the last
    acts = [True, False, True, True, True, False, True, True]
    knobs, read = knobs_of(coef=0.005)
    controller = rlfw.build("controller", {"part": "adaptive_entropy", "knob": "coef", "target": 0.2})
    controller.start(Controls(knobs, None))
    for i in range(len(kept)):
        controller.before_iteration(i / 10)
        assert read["coef"] == pytest.approx(kept[i] if acts[i] else 0.0), i
        assert controller.report() == {"objective/entropy_coef": read["coef"]}
        if i < len(entropies):
            controller.after_iteration({"objective/entropy": entropies[i]})


def test_entropy_bonus_goes_on_from_its_state():
    knobs, read = knobs_of(coef=0.01)
    controllers = [rlfw.build("controller", {"part": "adaptive_entropy", "knob": "coef", "target": 0.2}) for _ in "ab"]
    controllers[0].start(Controls(knobs, None))
    controllers[0].after_iteration({"objective/entropy": 0.5})
    state, courses = controllers[0].state_dict(), knobs.state_dict()
    knobs, read = knobs_of(coef=0.01)
    controllers[1].start(Controls(knobs, None))
    controllers[1].load_state_dict(state)
    knobs.load_state_dict(courses)
    controllers[1].before_iteration(0.5)
    assert read["coef"] == 0.0
    controllers[1].after_iteration({"objective/entropy": 0.1})
    controllers[1].before_iteration(0.6)
    assert read["coef"] == pytest.approx(0.01 - 0.005 + 0.005)


# ---------------------------------------------------------------------------------------------------- warm-up


@pytest.mark.parametrize("order", [1, -1])
def test_critic_warmup_holds_the_policy_still_and_leaves_the_course_alone(order: int):
    knobs, read = knobs_of(**{"lr": 0.8, "baseline.critic.lr": 0.1})
    controllers = [rlfw.build("controller", {"part": "critic_warmup", "iterations": 2})]
    controllers += [rlfw.build("controller", {"part": "anneal"})]
    found = []
    for controller in controllers:
        controller.start(Controls(knobs, None))
    for i in range(4):
        for controller in controllers[::order]:
            controller.before_iteration(i / 4)
        found.append(read["lr"])
        for controller in controllers[::order]:
            controller.after_iteration({})
    assert found == pytest.approx([0, 0, 0.4, 0.2])
    assert read["baseline.critic.lr"] == 0.1


def test_critic_warmup_goes_on_from_its_state():
    first, second = (rlfw.build("controller", {"part": "critic_warmup", "iterations": 2}) for _ in "ab")
    knobs, read = knobs_of(**{"lr": 0.8, "baseline.critic.lr": 0.1})
    first.start(Controls(knobs, None))
    first.after_iteration({})
    second.load_state_dict(first.state_dict())
    second.start(Controls(knobs, None))
    second.before_iteration(0.1)
    assert read["lr"] == 0
    second.after_iteration({})
    second.before_iteration(0.2)
    assert read["lr"] == 0.8


# ---------------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("adaptive_entropy", {"target": 0}, r"controller\.adaptive_entropy\.target=0: it must be greater than 0"),
        ("adaptive_entropy", {"target": 1.0, "delta": 0}, r"adaptive_entropy\.delta=0: it must be greater than 0"),
        ("critic_warmup", {"iterations": 0}, r"controller\.critic_warmup\.iterations=0: it must be at least 1"),
        ("ref_sync", {"rate": 0}, r"controller\.ref_sync\.rate=0: it must be greater than 0"),
        ("ref_sync", {"rate": 1.5}, r"controller\.ref_sync\.rate=1\.5: it must lie in \[0, 1\]"),
        ("ref_sync", {"every": 0}, r"controller\.ref_sync\.every=0: it must be at least 1"),
    ],
)
def test_wrong_values_are_refused(part: str, keys: dict[str, object], message: str):
    with pytest.raises(rlfw.UserError, match=message):
        rlfw.build("controller", {"part": part, **keys})


@pytest.mark.parametrize(
    ("part", "keys", "message"),
    [
        ("critic_warmup", {"iterations": 2}, r"no critic has one of its own: set baseline=critic and baseline\.critic"),
        ("ref_sync", {}, r"moves the reference, and no part reads one: add regularizer=\[kl\] or reward=\[kl\]"),
        ("adaptive_entropy", {"target": 1.0}, r"knob=regularizer\.entropy\.coef: no such knob; there are lr"),
    ],
)
def test_what_there_is_nothing_to_turn_for_is_refused(part: str, keys: dict[str, object], message: str):
    controller = rlfw.build("controller", {"part": part, **keys})
    with pytest.raises(rlfw.UserError, match=message):
        controller.start(Controls(knobs_of(lr=1.0)[0], None))

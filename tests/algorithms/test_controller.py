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


def test_target_kl_stops_beyond_its_factor():
    """k3 of log-ratios 0.5 and -0.3 is 0.0948 > 1.5 * 0.05; their signed mean would not have stopped it."""
    controller = rlfw.build("controller", {"part": "target_kl", "target": 0.05})
    assert controller.watches_kl
    assert controller.stops(0.094770)
    assert not controller.stops(0.075)
    assert not controller.stops(-0.1)


@pytest.mark.parametrize("key", ["target", "factor"])
def test_target_must_be_positive(key: str):
    with pytest.raises(rlfw.UserError, match=rf"controller\.target_kl\.{key}=0: it must be greater than 0"):
        rlfw.build("controller", {"part": "target_kl", key: 0})

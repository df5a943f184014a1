"""my_part keeps its axis's promises, and turns a knob as was worked out by hand."""

from pathlib import Path

import pytest
from rlfw import build, config
from rlfw.knobs import Controls, Knobs
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("controller/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """From 2 to a hundredth of it: a tenth at half the budget."""
    config.prepare_for([PLUGIN])
    numbers, knobs = {"lr": 2.0}, Knobs()
    knobs.add("lr", lambda: numbers["lr"], lambda value: numbers.update(lr=value))
    controller = build("controller", {"part": "my_part", "final": 0.01})
    controller.start(Controls(knobs, None))
    controller.before_iteration(0.5)
    assert numbers["lr"] == pytest.approx(0.2)

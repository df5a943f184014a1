"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

import math
from pathlib import Path

import pytest
import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("ratio/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """The log-ratio 2 is held at 1: the objective is e A, and no gradient passes."""
    found = rlfw.probe(
        [PLUGIN, "ratio=my_part", "baseline=none", "normalize=none", "regularizer=none"],
        rewards=[1.0],
        mask=[[1]],
        group=[0],
        logprobs=[[-1.0]],
        old_logprobs=[[-3.0]],
    )
    assert found.loss.item() == pytest.approx(-math.e)
    assert found.gradient.item() == 0

"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

import math
from pathlib import Path

import pytest
import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"
PLAIN = ["baseline=none", "normalize=none", "ratio=token", "aggregation=token_mean"]


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("regularizer/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """r = 2 with A = 1 is held at 1.3, with A = -1 it is not: the mean objective is (1.3 - 2) / 2."""
    found = rlfw.probe(
        [PLUGIN, *PLAIN, "regularizer=my_part", "regularizer.my_part.high=0.3"],
        rewards=[1.0, -1.0],
        mask=[[1], [1]],
        group=[0, 0],
        logprobs=[[math.log(0.5)], [math.log(0.5)]],
        old_logprobs=[[math.log(0.25)], [math.log(0.25)]],
    )
    assert found.loss.item() == pytest.approx(0.35)
    assert found.gradient[0].item() == 0  # the clip cut it

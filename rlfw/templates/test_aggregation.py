"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

from pathlib import Path

import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("aggregation/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Two rows of four steps and of one, each step's objective 1: (4 / 4^0.5 + 1) / 2."""
    found = rlfw.probe(
        [PLUGIN, "aggregation=my_part", "baseline=none", "normalize=none", "regularizer=none"],
        rewards=[[0.0, 0.0, 0.0, 1.0], [1.0, 0.0, 0.0, 0.0]],
        mask=[[1, 1, 1, 1], [1, 0, 0, 0]],
        group=[0, 0],
        logprobs=[[0.0] * 4, [0.0] * 4],
        old_logprobs=[[0.0] * 4, [0.0] * 4],
    )
    assert found.loss.item() == -1.5

"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

from pathlib import Path

import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("baseline/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Totals 0, 1, 5 of one group have the median 1; 4, 6 of another 5."""
    rows = [[0.0], [0.0], [0.0], [0.0], [0.0]]
    found = rlfw.probe(
        [PLUGIN, "baseline=my_part", "normalize=none", "regularizer=none"],
        rewards=[0.0, 1.0, 5.0, 4.0, 6.0],
        mask=[[1], [1], [1], [1], [1]],
        group=[0, 0, 0, 1, 1],
        logprobs=rows,
        old_logprobs=rows,
    )
    assert found.advantages[:, 0].tolist() == [-1, 0, 4, -1, 1]

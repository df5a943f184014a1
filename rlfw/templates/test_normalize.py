"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

from pathlib import Path

import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("normalize/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Returns -2 and 6 have the mean size 4."""
    found = rlfw.probe(
        [
            PLUGIN,
            *["normalize=my_part", "normalize.my_part.eps=0", "baseline=none", "regularizer=none"],
        ],
        rewards=[-2.0, 6.0],
        mask=[[1], [1]],
        group=[0, 0],
        logprobs=[[0.0], [0.0]],
        old_logprobs=[[0.0], [0.0]],
    )
    assert found.advantages.tolist() == [[-0.5], [1.5]]

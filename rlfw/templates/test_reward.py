"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

from pathlib import Path

import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("reward/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Rows of two steps and of one: 1 - 2 * 0.25 and 1 - 0.25, and batch_mean takes off their mean."""
    found = rlfw.probe(
        [
            PLUGIN,
            *["reward=my_part", "reward.my_part.coef=0.25"],
            *["baseline=batch_mean", "normalize=none", "regularizer=none"],
        ],
        rewards=[1.0, 1.0],
        mask=[[1, 1], [1, 0]],
        group=[0, 0],
        logprobs=[[0.0, 0.0], [0.0, 0.0]],
        old_logprobs=[[0.0, 0.0], [0.0, 0.0]],
    )
    assert found.advantages.tolist() == [[-0.125, -0.125], [0.125, 0.0]]

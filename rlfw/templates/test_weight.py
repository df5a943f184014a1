"""my_part keeps its axis's promises, and gives a value that was worked out by hand."""

from pathlib import Path

import rlfw
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("weight/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Advantages 1 and -1 at ratio 1: the mean objective is (1 - 0.25) / 2."""
    found = rlfw.probe(
        [
            PLUGIN,
            *["weight=my_part", "weight.my_part.negative=0.25"],
            *["baseline=none", "normalize=none", "regularizer=none", "aggregation=token_mean"],
        ],
        rewards=[1.0, -1.0],
        mask=[[1], [1]],
        group=[0, 0],
        logprobs=[[0.0], [0.0]],
        old_logprobs=[[0.0], [0.0]],
    )
    assert found.loss.item() == -0.375

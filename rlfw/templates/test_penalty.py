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
    """ℓ - ℓ_ref = log 2 on the one step, reward 0: coef (1/2 - 1 + log 2)."""
    found = rlfw.probe(
        [PLUGIN, *PLAIN, "regularizer=my_part", "regularizer.my_part.coef=2"],
        rewards=[0.0],
        mask=[[1]],
        group=[0],
        logprobs=[[math.log(0.5)]],
        old_logprobs=[[math.log(0.5)]],
        ref_logprobs=[[math.log(0.25)]],
    )
    assert found.loss.item() == pytest.approx(2 * (math.log(2) - 0.5))

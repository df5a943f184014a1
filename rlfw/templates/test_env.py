"""my_part keeps its axis's promises, and pays what was worked out by hand."""

from pathlib import Path

from rlfw import build, config
from rlfw.seeding import Streams
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("env/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """All, half and none of the characters are right."""
    config.prepare_for([PLUGIN])
    env = build("env", {"part": "my_part"}, streams=Streams(0), gamma=1.0)
    reward = env.task.rewards
    assert reward(prompts=["ab", "ab", "ab"], completions=["ab", "aa", ""]) == [1.0, 0.5, 0.0]

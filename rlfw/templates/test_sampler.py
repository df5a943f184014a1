"""my_part keeps its axis's promises, and asks an env for what was worked out by hand."""

from pathlib import Path
from typing import Any

from rlfw import build, config
from rlfw.interfaces import EpisodeGroups
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


class Asked:
    """An env that hands back what it was asked for."""

    def collect(self, request: Any, actor: Any) -> Any:
        return request


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("sampler/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """Three starts, four episodes from each."""
    config.prepare_for([PLUGIN])
    sampler = build("sampler", {"part": "my_part", "num_groups": 3, "group_size": 4})
    assert sampler.collect(Asked(), None) == EpisodeGroups(num_episodes=12, group_size=4)

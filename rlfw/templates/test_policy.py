"""my_part keeps its axis's promises, and has the parameters that were counted by hand."""

from pathlib import Path

from rlfw import build, config
from rlfw.seeding import Streams
from rlfw.testing import check_part

PLUGIN = f"plugins=['{Path(__file__).with_name('my_part.py')}']"


def test_my_part_keeps_the_promises_of_its_axis() -> None:
    check_part("policy/my_part", [PLUGIN])


def test_my_part_by_hand() -> None:
    """CartPole has 4 observations and 2 actions: (4 + 1) 8 weights, 2 * 8 of the normalisation, (8 + 1) 2 weights."""
    config.prepare_for([PLUGIN])
    streams = Streams(0)
    env = build("env", {"part": "gym", "id": "CartPole-v1"}, streams=streams, gamma=1.0)
    policy = build("policy", {"part": "my_part", "width": 8}, env_spec=env.spec, streams=streams)
    assert sum(p.numel() for p in policy.parameters()) == 40 + 16 + 18

"""Samplers: the request that an env receives."""

import pytest

import rlfw
from rlfw.interfaces import EpisodeGroups, Steps


class Asked:
    """An env that hands back what it was asked for."""

    def collect(self, request: object, actor: object) -> object:
        return request


def request(part: str, **keys: int) -> object:
    return rlfw.build("sampler", {"part": part, **keys}).collect(Asked(), actor=None)


def test_steps_ask_for_steps():
    assert request("steps", num_envs=3, num_steps=5) == Steps(num_envs=3, num_steps=5)


def test_episodes_ask_for_whole_groups():
    assert request("episodes", num_episodes=12, group_size=4) == EpisodeGroups(num_episodes=12, group_size=4)
    with pytest.raises(rlfw.UserError, match=r"num_episodes=10 is not a multiple of sampler\.episodes\.group_size=4"):
        request("episodes", num_episodes=10, group_size=4)


@pytest.mark.parametrize(
    ("part", "key"),
    [("steps", "num_envs"), ("steps", "num_steps"), ("episodes", "num_episodes"), ("episodes", "group_size")],
)
def test_nothing_is_no_request(part: str, key: str):
    with pytest.raises(rlfw.UserError, match=rf"sampler\.{part}\.{key}=0: it must be at least 1"):
        request(part, **{key: 0})

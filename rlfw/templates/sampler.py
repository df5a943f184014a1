"""A sampler of your own: sampler=my_part."""

from dataclasses import KW_ONLY, dataclass
from typing import Any

from rlfw import register
from rlfw.checks import at_least
from rlfw.interfaces import Env, EpisodeGroups, Sampler
from rlfw.rollout import Rollout


@register("sampler", "my_part")
@dataclass
class MyPart(Sampler):
    """``num_groups`` starts, ``group_size`` whole episodes from each (fill in: what yours is, its paper)."""

    _: KW_ONLY  # what follows are the keys: sampler.my_part.group_size=4
    num_groups: int = 8
    group_size: int = 8
    whole_episodes = True
    formula = "{num_groups} groups of {group_size} whole episodes a rollout"

    def __post_init__(self) -> None:
        at_least("sampler.my_part.num_groups", self.num_groups, 1)
        at_least("sampler.my_part.group_size", self.group_size, 1)

    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        """One rollout; ``greedy``: with a greedy episode from each group's start beside it."""
        return env.collect(EpisodeGroups(self.num_groups * self.group_size, self.group_size, greedy), actor)

"""How much is collected before an update, and in which groups."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.interfaces import Env, EpisodeGroups, Sampler, Steps
from rlfw.registry import register

if TYPE_CHECKING:
    from rlfw.rollout import Rollout


@register("sampler", "steps")
@dataclass
class StepSampler(Sampler):
    """``num_steps`` steps from each of ``num_envs`` environments; episodes go on over rollouts (PPO, A2C)."""

    _: KW_ONLY
    num_envs: int = 8
    num_steps: int = 128

    def __post_init__(self) -> None:
        at_least("sampler.steps.num_envs", self.num_envs, 1)
        at_least("sampler.steps.num_steps", self.num_steps, 1)

    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        return env.collect(Steps(self.num_envs, self.num_steps), actor)


@register("sampler", "episodes")
@dataclass
class EpisodeSampler(Sampler):
    """``num_episodes`` whole episodes, in groups of ``group_size`` that start from the same reset or prompt."""

    _: KW_ONLY
    num_episodes: int = 64
    group_size: int = 1
    whole_episodes = True

    def __post_init__(self) -> None:
        at_least("sampler.episodes.num_episodes", self.num_episodes, 1)
        at_least("sampler.episodes.group_size", self.group_size, 1)
        if self.num_episodes % self.group_size:
            raise UserError(
                f"sampler.episodes.num_episodes={self.num_episodes} is not a multiple of "
                f"sampler.episodes.group_size={self.group_size}"
            )

    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        return env.collect(EpisodeGroups(self.num_episodes, self.group_size, greedy), actor)

"""How much is collected before an update, and in which groups."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlfw import functional as F
from rlfw.checks import at_least, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Env, EpisodeGroups, Sampler, Steps
from rlfw.registry import register
from rlfw.rollout import Rollout

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor


@register("sampler", "steps")
@dataclass
class StepSampler(Sampler):
    """``num_steps`` steps from each of ``num_envs`` environments; episodes go on over rollouts (PPO, A2C)."""

    _: KW_ONLY
    num_envs: int = 8
    num_steps: int = 128
    formula = "{num_steps} steps from each of {num_envs} envs"

    def __post_init__(self) -> None:
        at_least("sampler.steps.num_envs", self.num_envs, 1)
        at_least("sampler.steps.num_steps", self.num_steps, 1)

    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        return env.collect(Steps(self.num_envs, self.num_steps), actor)


@register("sampler", "episodes")
@dataclass
class EpisodeSampler(Sampler):
    """``num_episodes`` whole episodes, in groups of ``group_size`` that start from the same reset or prompt.

    ``no_signal``: what becomes of a group whose rows all have the same total of the env's rewards. keep; drop; or
    resample (DAPO's dynamic sampling, arXiv:2503.14476): collect again, at most ``max_rounds`` times in all. Where the
    paper draws as many groups again and leaves a surplus out, here each round asks for no more groups than are missing,
    so that nothing with a signal is thrown away.
    """

    _: KW_ONLY
    num_episodes: int = 64
    group_size: int = 1
    no_signal: str = "keep"
    max_rounds: int = 10
    whole_episodes = True
    only_with: ClassVar[dict[str, tuple[str, Any]]] = {"max_rounds": ("no_signal", "resample")}

    def __post_init__(self) -> None:
        at_least("sampler.episodes.num_episodes", self.num_episodes, 1)
        at_least("sampler.episodes.group_size", self.group_size, 1)
        one_of("sampler.episodes.no_signal", self.no_signal, ("keep", "drop", "resample"))
        at_least("sampler.episodes.max_rounds", self.max_rounds, 1)
        if self.num_episodes % self.group_size:
            raise UserError(
                f"sampler.episodes.num_episodes={self.num_episodes} is not a multiple of "
                f"sampler.episodes.group_size={self.group_size}"
            )
        if self.no_signal != "keep" and self.group_size < 2:
            raise UserError(
                f"sampler.episodes.no_signal={self.no_signal} compares the rows of a group: "
                "set sampler.episodes.group_size >= 2"
            )
        self.formula = (
            "{num_episodes} whole episodes in groups of {group_size}"
            + {
                "keep": "",
                "drop": ", those of equal total reward left out",
                "resample": ", those of equal total reward drawn again in at most {max_rounds} rounds",
            }[self.no_signal]
        )
        self.rounds = 0

    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        if self.no_signal == "keep":
            return env.collect(EpisodeGroups(self.num_episodes, self.group_size, greedy), actor)
        found: list[Rollout] = []
        missing, self.rounds = self.num_episodes // self.group_size, 0  # groups
        while missing and self.rounds < (self.max_rounds if self.no_signal == "resample" else 1):
            rollout = env.collect(EpisodeGroups(missing * self.group_size, self.group_size, greedy), actor)
            found.append(rollout.rows(rows_with_signal(rollout)))
            missing -= len(found[-1].group.unique())
            self.rounds += 1
        return Rollout.cat(found)

    def report(self) -> Mapping[str, float]:
        return {"group/rounds": self.rounds} if self.no_signal == "resample" else {}


def rows_with_signal(rollout: Rollout) -> Tensor:
    """The rows [b] of the groups in which the totals of the env's rewards are not all equal."""
    totals = F.row_sum(rollout.rewards, rollout.mask)
    index, num_groups = F.group_index(rollout.group)
    high, low = (
        totals.new_zeros(num_groups).scatter_reduce(0, index, totals, to, include_self=False) for to in ("amax", "amin")
    )
    return (high > low)[index].nonzero()[:, 0]

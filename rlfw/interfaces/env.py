"""What an environment promises."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from rlfw.errors import UserError

from .part import Part

if TYPE_CHECKING:
    import numpy as np
    from gymnasium import spaces

    from rlfw.rollout import Rollout
    from rlfw.seeding import Streams


@dataclass(frozen=True)
class ControlSpec:
    """An environment with observations as arrays and actions in a gymnasium space."""

    observation_shape: tuple[int, ...]  # of one observation, as the policy receives it
    observation_dtype: str  # "float32" or "uint8"
    action_space: spaces.Space[Any]  # Discrete, MultiDiscrete, MultiBinary or Box
    max_steps: int | None  # the longest possible episode, where it is known


@dataclass(frozen=True)
class TextSpec:
    """A text task: prompts in, completions of at most max_steps tokens out.

    A policy that is made for the task has a token a character, or a token a word where the task has a vocabulary.
    """

    alphabet: str  # every character that prompts and answers use
    max_prompt_chars: int
    max_steps: int  # new tokens
    prompts: tuple[str, ...] = ()  # a fixed list, so that one too long for the model is refused before the run
    vocabulary: tuple[str, ...] | None = None  # every word of prompts and answers, with a space between any two


EnvSpec = ControlSpec | TextSpec


@dataclass(frozen=True)
class Steps:
    """A request for ``num_steps`` steps from each of ``num_envs`` environments, episodes continuing over rollouts."""

    num_envs: int
    num_steps: int


@dataclass(frozen=True)
class EpisodeGroups:
    """A request for ``num_episodes`` whole episodes, in groups of ``group_size`` that share their start."""

    num_episodes: int
    group_size: int
    greedy: bool = False  # beside each group one greedy episode from its start: Rollout.greedy_returns


Request = Steps | EpisodeGroups


class Env(Part, ABC):
    """Yields rollouts for a sampler's request."""

    name: str = "env"
    spec: EnvSpec
    unit: ClassVar[str]  # what total_steps counts: "env steps" or "completions"
    whole_episodes_only: ClassVar[bool] = False  # True: it answers EpisodeGroups alone
    score_names: tuple[str, ...] = ()  # its reward functions, the keys of Rollout.scores

    @abstractmethod
    def collect(self, request: Request, actor: Any) -> Rollout:
        """Act until the request is met. The trainer checks what comes back (Rollout.check).

        Group and episode ids are new with every call; ``spent`` counts all that was played, in ``unit``.
        """

    @abstractmethod
    def evaluate(
        self, actor: Any, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        """Play fresh episodes with own seeds: metric name -> one value an episode. Nothing of training changes.

        The first name is the one that a reader wants: the return, or the score.
        """

    def check_training(self) -> None:
        """UserError, asked before the run, where ``collect`` could reward nothing."""

    def check_greedy(self) -> None:
        """UserError, asked before the run, where EpisodeGroups.greedy cannot be met."""

    def check_evaluation(self, num_episodes: int) -> None:
        """UserError, asked before the run, where ``evaluate`` could not play so many greedy episodes."""

    def close(self) -> None:
        """Release what the env holds."""

    def warmup_pairs(self, num_pairs: int, rng: np.random.Generator) -> list[tuple[str, str]] | None:
        """Prompts with their right answers for a supervised warm start; None where there are none."""
        return None

    def fixed_pairs(self) -> list[tuple[str, str]]:
        """All that ``warmup_pairs`` draws from, where it is a fixed list; else none."""
        return []

    def samples(
        self,
        actor: Any,
        num_prompts: int,
        streams: Streams,
        *,
        group_size: int = 1,
        max_new_tokens: int | None = None,
        greedy: bool = False,
    ) -> list[dict[str, Any]]:
        """``group_size`` completions of each of the prompts that ``evaluate`` asks, as records of Rollout.samples.

        Of a fixed list each prompt is asked once at most. ``max_new_tokens``: None for the env's own. Nothing of
        training changes.
        """
        raise UserError(f"env={self.name} has no prompts: rlfw eval plays it")

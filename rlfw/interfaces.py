"""The promises: Env and Policy, and one base class an axis.

    B rows   T steps   A action dimensions   N parallel environments

A part is a class registered under a name on an axis. It declares in ``needs`` what it reads beyond the rollout;
the trainer computes exactly that, and refuses a composition that cannot give it:

    values          the critic's V; only a LearnedBaseline brings a critic
    old_logprobs    log-probs at the start of the update
    ref_logprobs    log-probs under the frozen reference policy
    entropy         the policy's entropy
    groups          rows in groups of at least two that share a start
    whole_episodes  every row is a whole episode
    whole_rows      rows stay whole in the minibatches (no layout of single steps)
    whole_batch     the optimizer's batch is not split into micro-batches
    ratio           a ratio between the current and the old policy (ratio=none has none)
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from torch import Tensor, nn

from rlfw.rollout import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np
    from gymnasium import spaces

    from rlfw.context import Prompts
    from rlfw.knobs import Knobs
    from rlfw.rollout import Batch, Context, Current, Rollout
    from rlfw.seeding import Streams

NEEDS = frozenset(
    {
        "values",
        "old_logprobs",
        "ref_logprobs",
        "entropy",
        "groups",
        "whole_episodes",
        "whole_rows",
        "whole_batch",
        "ratio",
    }
)


class Part:
    """What every part has. Its keyword-only parameters are its configuration, stored under the same names."""

    needs: frozenset[str] = frozenset()

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        """Per-step metrics [B, T] of a whole update (all minibatches of all epochs), averaged over the mask."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """What a checkpoint must hold, JSON or tensors; empty for a part without memory."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """The inverse of state_dict."""


# ------------------------------------------------------------------------------------------------ environments


@dataclass(frozen=True)
class ControlSpec:
    """An environment with observations as arrays and actions in a gymnasium space."""

    observation_shape: tuple[int, ...]  # of one observation, as the policy receives it
    observation_dtype: str  # "float32" or "uint8"
    action_space: spaces.Space[Any]  # Discrete, MultiDiscrete, MultiBinary or Box
    max_steps: int | None  # the longest possible episode, where it is known


@dataclass(frozen=True)
class TextSpec:
    """A text task: prompts in, completions of at most max_steps tokens out."""

    alphabet: str  # every character that prompts and answers use
    max_prompt_chars: int
    max_steps: int  # new tokens
    prompts: tuple[str, ...] = ()  # a fixed list, so that one too long for the model is refused before the run


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
        """Act until the request is met. The trainer checks what comes back (Rollout.check)."""

    @abstractmethod
    def count(self, rollout: Rollout) -> int:
        """What the rollout adds to the budget, in ``unit``."""

    @abstractmethod
    def evaluate(
        self, actor: Any, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        """Play fresh episodes with own seeds: metric name -> one value an episode. Nothing of training changes.

        The first name is the one that a reader wants: the return, or the score.
        """

    def close(self) -> None:
        """Release what the env holds."""

    def warmup_pairs(self, num_pairs: int, rng: np.random.Generator) -> list[tuple[str, str]] | None:
        """Prompts with their right answers for a supervised warm start; None where there are none."""
        return None


# ------------------------------------------------------------------------------------------------ policies


@dataclass(frozen=True)
class Scored:
    """What a policy says of given actions, off-mask entries zero."""

    logprobs: Tensor  # [B, T] nats
    entropy: Tensor = ABSENT  # [B, T] nats
    values: Tensor = ABSENT  # [B, T]


class Policy(nn.Module, ABC):
    """A network that acts and scores, and carries the critic's network where one is asked for."""

    memoryless: ClassVar[bool]  # a step is scored from its own observation alone

    @abstractmethod
    def actor(self, streams: Streams) -> Any:
        """What acts with the present weights: StepActor for a ControlSpec, TextActor for a TextSpec."""

    @abstractmethod
    def score(
        self, context: Context, actions: Tensor, mask: Tensor, *, entropy: bool = False, values: bool = False
    ) -> Scored:
        """Log-probs of ``actions`` [B, T(, A)], shaped by the same temperature and filter as acting."""

    @abstractmethod
    def values(self, context: Context, actions: Tensor, mask: Tensor) -> Tensor:
        """[B, T+1]: V before each step, and in column T after the row's last one."""

    @abstractmethod
    def add_critic(self, network: str) -> None:
        """Build the critic: "own" is a network as large as the policy, "head" a head on its last hidden state."""

    @abstractmethod
    def critic_parameters(self) -> Iterator[nn.Parameter]:
        """The parameters of the critic alone: the whole network, or the head."""

    @abstractmethod
    def reference(self) -> Policy:
        """A frozen policy with the present weights and no critic, for ref_logprobs."""

    @abstractmethod
    def save(self, folder: Path) -> None:
        """Write weights (safetensors) and what is needed to use them elsewhere."""

    @abstractmethod
    def load(self, folder: Path) -> None:
        """Read what ``save`` wrote."""


class StepActor(ABC):
    """Acts in N parallel environments on numpy arrays, one step at a time."""

    @abstractmethod
    def act(self, observations: np.ndarray, *, greedy: bool = False) -> np.ndarray:
        """[N, ...] -> actions [N] or [N, A], sampled from the actor's own stream, or the mode."""

    @abstractmethod
    def logprobs(self) -> np.ndarray:
        """[K, N] float32: the log-probs of the K calls of ``act`` since the last call of this, in one pass."""


@dataclass(frozen=True)
class Completions:
    """What a TextActor wrote: B = len(prompts) * group_size rows, row b answering prompt b // group_size."""

    context: Prompts
    ids: Tensor  # [B, T] int64, right-padded; the end-of-sequence token, where it was sampled, is the last step
    logprobs: Tensor  # [B, T] nats, under the shaped distribution that was sampled from
    mask: Tensor  # [B, T] bool, from lengths, never from token ids; every row has at least one step
    ended: Tensor  # [B] bool: the model ended by itself; False: cut at max_new_tokens
    texts: list[str]  # [B] the completion alone, without special tokens


class TextActor(ABC):
    """Writes completions."""

    @abstractmethod
    def complete(
        self, prompts: list[str], *, group_size: int, max_new_tokens: int, greedy: bool = False
    ) -> Completions:
        """``group_size`` completions of each prompt. UserError for a prompt that leaves no room in the context."""


class TextPolicy(Policy):
    """A policy over tokens."""

    @abstractmethod
    def encode(self, pairs: list[tuple[str, str]]) -> tuple[Prompts, Tensor, Tensor]:
        """(prompt, answer) pairs -> context, actions [B, T] ending in the end-of-sequence token, mask [B, T]."""


# ------------------------------------------------------------------------------------------------ algorithm axes


class Sampler(Part, ABC):
    """How much is collected, and in which groups."""

    group_size: int = 1
    whole_episodes: bool = False

    @abstractmethod
    def collect(self, env: Env, actor: Any) -> Rollout:
        """One rollout."""


class Reward(Part, ABC):
    """A stage of the reward pipeline."""

    replaces: ClassVar[bool] = False  # True: it does not start from batch.rewards, so it stands first
    scores: frozenset[str] = frozenset()  # the env's reward functions that it reads by name

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """The new rewards [B, T], from batch.rewards."""


class Baseline(Part, ABC):
    """What the return is compared with."""

    @abstractmethod
    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """advantages [B, T] and returns [B, T]."""


class LearnedBaseline(Baseline):
    """A baseline with a network of its own: the critic. Its loss joins the policy's, with the same coefficients."""

    needs = frozenset({"values"})
    network: str  # "own" or "head"
    lr: float | None  # None: the policy's
    max_grad_norm: float

    @abstractmethod
    def loss(self, new: Current, batch: Batch) -> Tensor:
        """[B, T], unreduced, the part's coefficient included."""


class Normalize(Part, ABC):
    """A rescaling of advantages, once a rollout or once an optimizer batch."""

    scope: str  # "rollout" or "minibatch"

    @abstractmethod
    def __call__(self, advantages: Tensor, batch: Batch) -> Tensor:
        """advantages [B, T] -> advantages [B, T]."""


class Ratio(Part, ABC):
    """The level at which the current policy is compared with the old one."""

    absent: ClassVar[bool] = False  # True: there is no ratio, the objective is A log pi

    @abstractmethod
    def __call__(self, logprobs: Tensor, batch: Batch) -> Tensor | None:
        """The log-ratio [B, T], or None for no ratio at all."""


class Surrogate(Part, ABC):
    """A regularizer that replaces the plain objective ratio * A. At most one in a composition."""

    @abstractmethod
    def __call__(self, new: Current, batch: Batch) -> Tensor:
        """The objective [B, T], to be maximised, unreduced."""


class Penalty(Part, ABC):
    """A regularizer that adds to the loss. Any number of them."""

    @abstractmethod
    def __call__(self, new: Current, batch: Batch) -> Tensor:
        """The loss term [B, T], to be minimised, its coefficient included, unreduced."""


class Weight(Part, ABC):
    """A weight without gradient. Floats multiply the surrogate; bools take steps out of the loss altogether."""

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """[B, T], float or bool."""


class Aggregation(Part, ABC):
    """How per-step losses become one number."""

    @abstractmethod
    def __call__(self, mask: Tensor, group: Tensor, dtype: torch.dtype) -> Tensor:
        """Coefficients [B, T] for an optimizer batch, zero off the mask; the loss is their sum of products."""


class Controller(Part):
    """Turns named knobs while training: ``knobs["lr"]``, ``knobs["regularizer.clip.low"]``, ..."""

    watches_kl: bool = False  # True: ``stops`` is asked before every optimizer step

    def start(self, knobs: Knobs) -> None:
        """Called once, before the first iteration: keep what you need, refuse a knob that is not there."""

    def stops(self, approx_kl: float) -> bool:
        """Whether this update ends before the coming step. ``approx_kl``: k3 to the old policy, nats per step."""
        return False

    def before_iteration(self, progress: float) -> None:
        """``progress``: the share of the budget that is spent, 0 at the first iteration."""

    def after_iteration(self, metrics: Mapping[str, float]) -> None:
        """``metrics``: those of the iteration that ended."""


class Optimizer(Part, ABC):
    """The rule of an optimizer step."""

    @abstractmethod
    def build(self, groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
        """``groups``: torch's parameter groups, each with its own lr."""

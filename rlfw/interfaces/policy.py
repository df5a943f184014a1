"""What a policy promises: it acts and it scores.

B rows   T steps   A action dimensions   N parallel environments
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn

from rlfw.rollout import ABSENT

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    import numpy as np

    from rlfw.context import Prompts
    from rlfw.rollout import Context
    from rlfw.seeding import Streams


@dataclass(frozen=True)
class Scored:
    """What a policy says of given actions, off-mask entries zero."""

    logprobs: Tensor  # [B, T] nats
    entropy: Tensor = ABSENT  # [B, T] nats
    values: Tensor = ABSENT  # [B, T]


class Policy(nn.Module, ABC):
    """A network that acts and scores, and carries the critic's network where one is asked for."""

    memoryless: ClassVar[bool]  # a step is scored from its own observation alone
    notes: tuple[str, ...] = ()  # what a user should know of how it is run
    only_with: ClassVar[Mapping[str, tuple[str, Any]]] = {}  # as in Part: key -> the key and its value that it needs

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

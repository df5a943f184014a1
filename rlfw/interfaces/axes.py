"""One promise an axis of the algorithm.

B rows   T steps
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

from .part import Part

if TYPE_CHECKING:
    from collections.abc import Mapping

    import torch
    from torch import Tensor

    from rlfw.knobs import Controls
    from rlfw.rollout import Batch, Current, Rollout

    from .env import Env


class Sampler(Part, ABC):
    """How much is collected, and in which groups."""

    group_size: int = 1
    whole_episodes: bool = False

    @abstractmethod
    def collect(self, env: Env, actor: Any, *, greedy: bool = False) -> Rollout:
        """One rollout. ``greedy``: with one greedy episode from each group's start, for Rollout.greedy_returns."""


class Reward(Part, ABC):
    """A stage of the reward pipeline."""

    replaces: ClassVar[bool] = False  # True: it does not start from batch.rewards, so it stands first
    scores: frozenset[str] = frozenset()  # the env's reward functions that it reads by name
    reads_scores: ClassVar[bool] = False  # True: it reads those that there are, so the env must have some

    @abstractmethod
    def __call__(self, batch: Batch) -> Tensor:
        """The new rewards [B, T], from batch.rewards."""


class Baseline(Part, ABC):
    """What the return is compared with."""

    unbiased: ClassVar[bool] = False  # True: the expected gradient is that of the return, and `rlfw check` tests it

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
    of_steps: ClassVar[bool] = True  # False: one ratio a row, spread over its steps

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
    """Turns named knobs while training: ``controls.knobs["lr"]``, ``controls.knobs["regularizer.clip.low"]``, ..."""

    watches_kl: bool = False  # True: ``stops`` is asked before every optimizer step
    holds_policy: int = 0  # iterations at the start of a run in which the policy does not move

    def start(self, controls: Controls) -> None:
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

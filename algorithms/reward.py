"""The reward pipeline: batch -> new rewards [B, T], stage by stage in the order listed."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING

import torch

from rlfw import functional as F
from rlfw.checks import above, at_least, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Reward
from rlfw.registry import register

if TYPE_CHECKING:
    from torch import Tensor

    from rlfw.rollout import Batch


@register("reward", "kl")
@dataclass
class KLReward(Reward):
    """``coef`` times the per-step KL to the reference is taken off the reward (arXiv:1909.08593)."""

    _: KW_ONLY
    coef: float = 0.05
    estimator: str = "k1"
    needs = frozenset({"old_logprobs", "ref_logprobs"})

    def __post_init__(self) -> None:
        one_of("reward.kl.estimator", self.estimator, F.KL_ESTIMATORS)
        at_least("reward.kl.coef", self.coef, 0)

    def __call__(self, batch: Batch) -> Tensor:
        kl = F.kl_estimate(F.masked(batch.old_logprobs - batch.ref_logprobs, batch.mask), self.estimator)
        return F.masked(batch.rewards - self.coef * kl, batch.mask)


@register("reward", "clip")
@dataclass
class ClipReward(Reward):
    """Every step's reward is held within +-limit."""

    _: KW_ONLY
    limit: float = 10.0

    def __post_init__(self) -> None:
        above("reward.clip.limit", self.limit, 0)

    def __call__(self, batch: Batch) -> Tensor:
        return batch.rewards.clamp(-self.limit, self.limit)


@register("reward", "weighted")
@dataclass
class Weighted(Reward):
    """Re-weighs an env's named reward functions: each row's last step gets sum_k weights[k] scores[k].

    ``weights``: one number for each reward function by name; a name left out keeps weight 0, and so does
    a function that had no opinion on a row. It replaces the env's
    own sum, so it stands first in the list.
    """

    _: KW_ONLY
    weights: dict[str, float] = field(default_factory=dict)
    replaces = True

    def __post_init__(self) -> None:
        if not self.weights:
            raise UserError("reward.weighted.weights is empty: write reward.weighted.weights={NAME: 1.0}")
        self.scores = frozenset(self.weights)

    def __call__(self, batch: Batch) -> Tensor:
        total = sum(weight * batch.scores[name].nan_to_num(nan=0.0) for name, weight in self.weights.items())
        rewards = torch.zeros_like(batch.rewards)
        last = batch.mask.shape[1] - 1 - batch.mask.flip(1).to(torch.int8).argmax(1)  # [B] each row's last step
        return rewards.scatter(1, last[:, None], torch.as_tensor(total, dtype=rewards.dtype)[:, None])

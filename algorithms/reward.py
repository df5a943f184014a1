"""The reward pipeline: batch -> new rewards [B, T], stage by stage in the order listed."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from rlfw import functional as F
from rlfw.checks import above, at_least, coefficient, one_of
from rlfw.errors import UserError
from rlfw.interfaces import Reward
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch


# ------------------------------------------------------------------------------------------------ on every step


@register("reward", "kl")
@dataclass
class KLReward(Reward):
    """``coef`` times the per-step KL to the reference is taken off the reward (arXiv:1909.08593)."""

    _: KW_ONLY
    coef: float = 0.05
    estimator: str = "k1"
    needs = frozenset({"old_logprobs", "ref_logprobs"})
    formula = "ρ_t ← ρ_t - {coef} {estimator}(ℓ_old - ℓ_ref)"

    def __post_init__(self) -> None:
        one_of("reward.kl.estimator", self.estimator, F.KL_ESTIMATORS)
        coefficient("reward.kl.coef", self.coef)

    def __call__(self, batch: Batch) -> Tensor:
        kl = F.kl_estimate(F.masked(batch.old_logprobs - batch.ref_logprobs, batch.mask), self.estimator)
        return F.masked(batch.rewards - self.coef * kl, batch.mask)


@register("reward", "clip")
@dataclass
class ClipReward(Reward):
    """Every step's reward is held within +-limit."""

    _: KW_ONLY
    limit: float = 10.0
    formula = "ρ_t ← clip(ρ_t, -{limit}, {limit})"

    def __post_init__(self) -> None:
        above("reward.clip.limit", self.limit, 0)

    def __call__(self, batch: Batch) -> Tensor:
        return batch.rewards.clamp(-self.limit, self.limit)


@register("reward", "running_scale")
@dataclass
class RunningScale(Reward):
    """Divided by the standard deviation (ddof 0) of all rows' totals so far, this rollout's included.

    No mean is taken off. Until two totals differ, rewards stay as they are. The reward scaling of arXiv:2005.12729
    takes a rolling discounted sum, step by step, in place of the totals.
    """

    _: KW_ONLY
    eps: float = 1e-8
    needs = frozenset({"whole_episodes"})
    formula = "ρ_t ← ρ_t / (std(R; ddof 0) + {eps}), over all rows so far"

    def __post_init__(self) -> None:
        at_least("reward.running_scale.eps", self.eps, 0)
        self.count, self.mean, self.m2 = 0, 0.0, 0.0

    @property
    def scale(self) -> float:
        return math.sqrt(self.m2 / self.count) + self.eps if self.m2 > 0 else 1.0

    def __call__(self, batch: Batch) -> Tensor:
        totals = F.row_sum(batch.rewards, batch.mask)[batch.mask.any(1)]
        self.count, self.mean, self.m2 = F.merge_moments(self.count, self.mean, self.m2, totals)
        return batch.rewards / self.scale

    def report(self) -> Mapping[str, float]:
        """What the rewards of the rollout were divided by."""
        return {"reward/scale": self.scale}

    def state_dict(self) -> dict[str, Any]:
        return {"count": self.count, "mean": self.mean, "m2": self.m2}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count, self.mean, self.m2 = state["count"], state["mean"], state["m2"]


# ------------------------------------------------------------------------------------------------ on the last step


@register("reward", "overlong")
@dataclass
class Overlong(Reward):
    """A penalty that grows from 0 to ``coef`` over the last ``cache`` steps of a ``length`` (DAPO, arXiv:2503.14476).

    ``length``: null takes the longest row that the env allows. ``cache``: null takes a fifth of it, the paper's 4096
    of 20480. A row beyond the length loses ``coef``, no more.
    """

    max_steps: int | None
    _: KW_ONLY
    cache: int | None = None
    length: int | None = None
    coef: float = 1.0
    needs = frozenset({"whole_episodes"})

    def __post_init__(self) -> None:
        at_least("reward.overlong.length", self.length, 1)
        at_least("reward.overlong.cache", self.cache, 1)
        coefficient("reward.overlong.coef", self.coef)
        longest = self.max_steps if self.length is None else self.length
        if longest is None:
            raise UserError("reward=overlong: this env has no longest episode; set reward.overlong.length=N")
        self.window = longest / 5 if self.cache is None else self.cache
        if self.window > longest:
            raise UserError(f"reward.overlong.cache={self.cache}: it must be at most the length, {longest}")
        self.start = longest - self.window
        self.formula = f"ρ_T ← ρ_T - {{coef}} clip((n - {self.start:g}) / {self.window:g}, 0, 1)"

    def __call__(self, batch: Batch) -> Tensor:
        length = batch.mask.sum(1).to(batch.rewards.dtype)  # [B]
        excess = ((length - self.start) / self.window).clamp(0, 1)
        return batch.rewards - self.coef * F.on_last_step(excess, batch.mask)


@register("reward", "missing_eos")
@dataclass
class MissingEOS(Reward):
    """A row cut by a limit, a completion that does not end by itself, loses ``penalty`` on its last step.

    From the EOS trick of RLHF, which replaces the score by a fixed one (arXiv:2403.17031); here it is taken off.
    """

    _: KW_ONLY
    penalty: float = 1.0
    formula = "ρ_T ← ρ_T - {penalty} on rows cut by a limit"

    def __post_init__(self) -> None:
        at_least("reward.missing_eos.penalty", self.penalty, 0)

    def __call__(self, batch: Batch) -> Tensor:
        cut = batch.truncated.to(batch.rewards.dtype)  # [B]
        return batch.rewards - self.penalty * F.on_last_step(cut, batch.mask)


# ------------------------------------------------------------------------------------------------ from named functions


@register("reward", "weighted")
@dataclass
class Weighted(Reward):
    """Re-weighs an env's named reward functions: each row's last step gets sum_k weights[k] scores[k].

    ``weights``: one number for each reward function by name; a name left out keeps weight 0, and so does a function
    that had no opinion on a row. It replaces the env's own sum, so it stands first in the list.
    """

    _: KW_ONLY
    weights: dict[str, float] = field(default_factory=dict)
    replaces = True
    formula = "ρ_T ← Σ_k {weights}[k] score_k"

    def __post_init__(self) -> None:
        if not self.weights:
            raise UserError("reward.weighted.weights is empty: write reward.weighted.weights={NAME: 1.0}")
        self.scores = frozenset(self.weights)

    def __call__(self, batch: Batch) -> Tensor:
        total = torch.zeros_like(batch.rewards[:, 0])  # [B]
        for name, weight in self.weights.items():
            total += weight * batch.scores[name].nan_to_num(nan=0.0)
        return F.on_last_step(total, batch.mask)


@register("reward", "decoupled")
@dataclass
class Decoupled(Reward):
    """Each reward function standardised within the group, then weighted and summed (GDPO, arXiv:2601.05242).

    ``weights``: as in weighted; empty takes all functions of the env with weight 1. A function without an opinion on
    a row leaves it out of its statistics and adds 0. The paper then divides by the batch's standard deviation:
    normalize=batch_std of advantages. It replaces the env's own sum, so it stands first in the list.
    """

    _: KW_ONLY
    weights: dict[str, float] = field(default_factory=dict)
    ddof: int = 1
    eps: float = 1e-6
    replaces = True
    reads_scores = True
    needs = frozenset({"whole_episodes", "groups"})

    def __post_init__(self) -> None:
        one_of("reward.decoupled.ddof", str(self.ddof), ("0", "1"))
        at_least("reward.decoupled.eps", self.eps, 0)
        self.scores = frozenset(self.weights)
        weight = "{weights}[k] " if self.weights else ""
        standardised = "(score_k - mean_g(score_k)) / (std_g(score_k; ddof {ddof}) + {eps})"
        self.formula = f"ρ_T ← Σ_k {weight}{standardised}"

    def __call__(self, batch: Batch) -> Tensor:
        weights = self.weights or dict.fromkeys(batch.scores, 1.0)
        total = torch.zeros_like(batch.rewards[:, 0])  # [B]
        for name, weight in weights.items():
            score = batch.scores[name].to(total.dtype)
            rows = batch.mask.any(1) & ~score.isnan()
            total[rows] += weight * F.group_zscore(score[rows], batch.group[rows], self.ddof, self.eps)
        return F.on_last_step(total, batch.mask)

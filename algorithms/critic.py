"""Baselines with a network of their own: a critic, and generalised advantage estimation over its values."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, ClassVar

from rlfw import functional as F
from rlfw.checks import above, between, coefficient, one_of
from rlfw.interfaces import LearnedBaseline
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current


@dataclass
class GAE(LearnedBaseline):
    """Base of the critics: all but the policy's lambda."""

    gamma: float
    _: KW_ONLY
    value_lambda: float | None = None
    coef: float = 0.5
    clip: float | None = None
    network: str = "own"
    bootstrap_truncated: bool = True
    lr: float | None = None
    max_grad_norm: float = 0.5

    name: ClassVar[str]
    advantages_formula: ClassVar[str]

    def __post_init__(self) -> None:
        between(f"baseline.{self.name}.value_lambda", self.value_lambda, 0, 1)
        coefficient(f"baseline.{self.name}.coef", self.coef)
        above(f"baseline.{self.name}.clip", self.clip, 0)
        one_of(f"baseline.{self.name}.network", self.network, ("own", "head"))
        coefficient(f"baseline.{self.name}.lr", self.lr)
        above(f"baseline.{self.name}.max_grad_norm", self.max_grad_norm, 0)
        returns = "R = V + A" if self.value_lambda is None else "R = V + A of λ = {value_lambda}"
        loss = "(V - R)²"
        if self.clip is not None:
            loss = f"max({loss}, (clip(V, V_old - {{clip}}, V_old + {{clip}}) - R)²)"
        self.formula = f"{self.advantages_formula}; {returns}; loss + {{coef}} {loss}/2"

    @abstractmethod
    def policy_lambda(self, batch: Batch) -> float | Tensor:
        """GAE's lambda for the policy's advantages: one number, or one a row [B]."""

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        advantages = self.advantages(batch, self.policy_lambda(batch))
        learned = advantages if self.value_lambda is None else self.advantages(batch, self.value_lambda)
        return advantages, F.masked(learned + batch.values[:, :-1], batch.mask)

    def advantages(self, batch: Batch, gae_lambda: float | Tensor) -> Tensor:
        cut = batch.terminated if self.bootstrap_truncated else batch.terminated | batch.truncated
        return F.gae(batch.rewards, batch.values, batch.mask, ~cut, self.gamma, gae_lambda)

    def loss(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * F.value_loss(batch.on_mask(new.values), batch.returns, batch.old_values, self.clip)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        found = {"loss/value_avg": F.value_loss(new.values, batch.returns, batch.old_values, self.clip)}
        if self.clip is not None and batch.old_values is not None:
            found["value/clipfrac"] = ((new.values - batch.old_values).abs() > self.clip).to(new.values.dtype)
        return found


@register("baseline", "critic")
@dataclass
class Critic(GAE):
    """A learned value function with generalised advantage estimation (arXiv:1506.02438).

    ``value_lambda``: lambda of the returns that the critic learns from; null takes the policy's. With 1 they are the
    plain returns, without the bias of bootstrapping, whatever the policy's (VC-PPO, arXiv:2503.01491).
    ``coef`` times (v - R)^2 / 2 joins the loss: 0.5 here is CleanRL's vf_coef 0.5 and stable-baselines3's 0.25.
    ``clip`` (off by default: arXiv:2006.05990 finds no gain) is the range of values about the old ones.
    ``bootstrap_truncated``: V of the final observation follows the last step of an episode cut by a limit.
    A row that ends because the rollout ended is always bootstrapped.
    """

    _: KW_ONLY
    gae_lambda: float = 0.95

    name = "critic"
    advantages_formula = "A = δ_t + γ {gae_lambda} A_{{t+1}}"

    def __post_init__(self) -> None:
        between("baseline.critic.gae_lambda", self.gae_lambda, 0, 1)
        super().__post_init__()

    def policy_lambda(self, batch: Batch) -> float:
        return self.gae_lambda


@register("baseline", "adaptive_critic")
@dataclass
class AdaptiveCritic(GAE):
    """A critic whose lambda grows with the row's length n: max(0, 1 - 1 / (alpha n)) (VAPO, arXiv:2504.05118).

    ``alpha``: the sum over k of lambda^k is alpha n. Rows of n <= 1 / alpha steps get lambda 0 (the paper has no max,
    its rows are long), so short tasks need a larger one. The other keys are those of critic.
    """

    _: KW_ONLY
    value_lambda: float | None = 1.0
    alpha: float = 0.05

    needs = frozenset({"values", "whole_episodes"})
    name = "adaptive_critic"
    advantages_formula = "A = δ_t + γ λ A_{{t+1}}, λ = max(0, 1 - 1/({alpha} n))"

    def __post_init__(self) -> None:
        above("baseline.adaptive_critic.alpha", self.alpha, 0)
        super().__post_init__()

    def policy_lambda(self, batch: Batch) -> Tensor:
        length = batch.mask.sum(1).to(batch.values.dtype)  # [B]
        return F.adaptive_lambda(length, self.alpha)

"""What the return is compared with: batch -> advantages [B, T], returns [B, T].

Row baselines compare whole rows by their totals, the undiscounted sums of their rewards, and spread the result over
the row's steps.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING

import torch

from rlfw import functional as F
from rlfw.checks import above, at_least, between, one_of
from rlfw.interfaces import Baseline, LearnedBaseline
from rlfw.registry import register

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.rollout import Batch, Current


@register("baseline", "none")
@dataclass
class NoBaseline(Baseline):
    """No baseline: the discounted return-to-go of each step (REINFORCE, Williams 1992)."""

    gamma: float
    needs = frozenset({"whole_episodes"})

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        returns = F.returns_to_go(batch.rewards, batch.mask, self.gamma)
        return returns, returns


class RowBaseline(Baseline):
    """Base of the baselines that compare whole rows."""

    needs = frozenset({"whole_episodes"})

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        """Totals of the rows [B] -> their advantages [B]."""
        raise NotImplementedError

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        totals = F.row_sum(batch.rewards, batch.mask)
        rows = batch.mask.any(1)  # a row without steps belongs to no group
        advantages = torch.zeros_like(totals)
        advantages[rows] = self.compare(totals[rows], batch.group[rows])
        return F.spread(advantages, batch.mask), F.spread(totals, batch.mask)


@register("baseline", "group_mean")
@dataclass
class GroupMean(RowBaseline):
    """The mean total of the rows that share a start (GRPO, arXiv:2402.03300)."""

    needs = frozenset({"whole_episodes", "groups"})

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, group)


@register("baseline", "leave_one_out")
@dataclass
class LeaveOneOut(RowBaseline):
    """The mean total of the OTHER rows that share a start: unbiased (RLOO, arXiv:2402.14740)."""

    needs = frozenset({"whole_episodes", "groups"})

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, group, include_self=False)


@register("baseline", "batch_mean")
@dataclass
class BatchMean(RowBaseline):
    """The mean total of all rows of the rollout."""

    def compare(self, totals: Tensor, group: Tensor) -> Tensor:
        return F.group_center(totals, torch.zeros_like(group))


@register("baseline", "critic")
@dataclass
class Critic(LearnedBaseline):
    """A learned value function with generalised advantage estimation (arXiv:1506.02438).

    ``coef`` times (v - R)^2 / 2 joins the loss: 0.5 here is CleanRL's vf_coef 0.5 and stable-baselines3's 0.25.
    ``clip`` (off by default: arXiv:2006.05990 finds no gain) is the range of values about the old ones.
    ``bootstrap_truncated``: V of the final observation follows the last step of an episode cut by a limit.
    A row that ends because the rollout ended is always bootstrapped.
    """

    gamma: float
    _: KW_ONLY
    gae_lambda: float = 0.95
    coef: float = 0.5
    clip: float | None = None
    network: str = "own"
    bootstrap_truncated: bool = True
    lr: float | None = None
    max_grad_norm: float = 0.5

    def __post_init__(self) -> None:
        between("baseline.critic.gae_lambda", self.gae_lambda, 0, 1)
        at_least("baseline.critic.coef", self.coef, 0)
        above("baseline.critic.clip", self.clip, 0)
        one_of("baseline.critic.network", self.network, ("own", "head"))
        at_least("baseline.critic.lr", self.lr, 0)
        above("baseline.critic.max_grad_norm", self.max_grad_norm, 0)

    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        cut = batch.terminated if self.bootstrap_truncated else batch.terminated | batch.truncated
        advantages = F.gae(batch.rewards, batch.values, batch.mask, ~cut, self.gamma, self.gae_lambda)
        return advantages, F.masked(advantages + batch.values[:, :-1], batch.mask)

    def loss(self, new: Current, batch: Batch) -> Tensor:
        return self.coef * F.value_loss(batch.on_mask(new.values), batch.returns, batch.old_values, self.clip)

    def metrics(self, new: Current, batch: Batch) -> Mapping[str, Tensor]:
        found = {"loss/value_avg": F.value_loss(new.values, batch.returns, batch.old_values, self.clip)}
        if self.clip is not None and batch.old_values is not None:
            found["value/clipfrac"] = ((new.values - batch.old_values).abs() > self.clip).to(new.values.dtype)
        return found

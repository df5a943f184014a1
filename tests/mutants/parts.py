"""Faults that real code had, each planted into a small part of its own. `rlfw check plugins=[...]` must catch them all.

The first word of each docstring is the check that catches it.
"""

from dataclasses import KW_ONLY, dataclass, replace

import numpy as np
import torch

from rlfw import functional as F
from rlfw import register
from rlfw.algorithms.baseline import RowBaseline
from rlfw.algorithms.critic import Critic
from rlfw.algorithms.kl_controller import KLGuard
from rlfw.algorithms.sampler import EpisodeSampler
from rlfw.algorithms.surrogate import Clip
from rlfw.envs.gym import GymEnv
from rlfw.interfaces import (
    Aggregation,
    Baseline,
    Controller,
    EpisodeGroups,
    Normalize,
    Optimizer,
    Penalty,
    Ratio,
    Reward,
    Surrogate,
    Weight,
)
from rlfw.policies.mlp import MLPPolicy

# ------------------------------------------------------------------------------------------------ surrogates


@register("regularizer", "min_and_max_swapped")
@dataclass
class MinAndMaxSwapped(Surrogate):
    """push: max(r A, clip(r) A) lets right steps run on and never undoes wrong ones."""

    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        ratio, A = new.log_ratio.exp(), batch.advantages
        return torch.max(ratio * A, ratio.clamp(0.8, 1.2) * A)


@register("regularizer", "minimised")
@dataclass
class Minimised(Surrogate):
    """push: the loss in place of the objective."""

    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        return -F.exp_ratio(new.log_ratio) * batch.advantages


@register("regularizer", "advantage_attached")
@dataclass
class AdvantageAttached(Surrogate):
    """push: a KL is taken off the advantage, and the gradient runs into it."""

    needs = frozenset({"ratio", "ref_logprobs"})

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio) * (batch.advantages - 0.1 * (new.logprobs - batch.ref_logprobs))


@register("regularizer", "into_the_critic")
@dataclass
class IntoTheCritic(Surrogate):
    """where_it_goes: the advantage is taken from the current values, which the policy's loss then pulls at."""

    needs = frozenset({"ratio", "values"})

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio) * (batch.advantages + batch.old_values - new.values)


@register("regularizer", "detached_by_mistake")
@dataclass
class DetachedByMistake(Surrogate):
    """finite_differences: the formula promises r A, the code holds the ratio."""

    needs = frozenset({"ratio"})
    formula = "S = r A ℓ"

    def __call__(self, new, batch):
        return F.exp_ratio(new.log_ratio).detach() * batch.advantages * new.logprobs


@register("regularizer", "centred_per_piece")
@dataclass
class CentredPerPiece(Surrogate):
    """micro_batches: advantages are centred over the micro-batch in hand."""

    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        mean = batch.on_mask(batch.advantages).sum() / batch.mask.sum().clamp(min=1)
        return F.exp_ratio(new.log_ratio) * (batch.advantages - mean)


@register("regularizer", "mean_of_means")
@dataclass
class MeanOfMeans(Penalty):
    """micro_batches: every micro-batch divides by its own number of steps."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        return 0.5 * (new.logprobs - batch.ref_logprobs) ** 2 / batch.mask.sum()


@register("regularizer", "edits_the_batch")
@dataclass
class EditsTheBatch(Clip):
    """untouched: advantages are clipped in place."""

    def __call__(self, new, batch):
        batch.advantages.clamp_(-0.5, 0.5)
        return super().__call__(new, batch)


@register("regularizer", "overflows")
@dataclass
class Overflows(Surrogate):
    """degenerate: min(r A, ...) of a ratio that is infinite."""

    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        ratio, A = new.log_ratio.exp(), batch.advantages
        return torch.min(ratio * A, ratio.clamp(0.8, 1.2) * A)


@register("regularizer", "column")
@dataclass
class Column(Surrogate):
    """shapes: [B, 1], which broadcasts."""

    needs = frozenset({"ratio", "whole_rows"})

    def __call__(self, new, batch):
        return (F.exp_ratio(new.log_ratio) * batch.advantages).sum(1, keepdim=True)


# ------------------------------------------------------------------------------------------------ penalties


@register("regularizer", "kl_sign")
@dataclass
class KLSign(Penalty):
    """pull: the KL is maximised."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        return -0.1 * F.kl_estimate(batch.on_mask(new.logprobs - batch.ref_logprobs), "k3")


@register("regularizer", "k1_in_the_loss")
@dataclass
class K1InTheLoss(Penalty):
    """pull: its expected gradient is zero."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        return 0.1 * (new.logprobs - batch.ref_logprobs)


@register("regularizer", "kl_without_gradient")
@dataclass
class KLWithoutGradient(Penalty):
    """pull: computed under no_grad."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        with torch.no_grad():
            return 0.1 * F.kl_estimate(batch.on_mask(new.logprobs - batch.ref_logprobs), "k3")


@register("regularizer", "coef_unread")
@dataclass
class CoefUnread(Penalty):
    """coefficient: it is a key, and nothing reads it."""

    _: KW_ONLY
    coef: float = 0.1
    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        return 0.5 * (new.logprobs - batch.ref_logprobs) ** 2


@register("regularizer", "undeclared")
@dataclass
class Undeclared(Penalty):
    """needs: the reference is read and not asked for."""

    def __call__(self, new, batch):
        return 0.5 * (new.logprobs - batch.ref_logprobs) ** 2


@register("regularizer", "mask_ignored")
@dataclass
class MaskIgnored(Penalty):
    """padding: the row's mean counts its padding."""

    needs = frozenset({"ref_logprobs", "whole_rows"})

    def __call__(self, new, batch):
        return (0.5 * (new.logprobs - batch.ref_logprobs) ** 2).mean(1, keepdim=True).expand_as(batch.mask)


@register("regularizer", "looks_along_the_row")
@dataclass
class LooksAlongTheRow(Penalty):
    """single_steps: it sums over the row and does not declare whole_rows."""

    needs = frozenset({"ref_logprobs"})

    def __call__(self, new, batch):
        total = F.row_sum(0.5 * (new.logprobs - batch.ref_logprobs) ** 2, batch.mask)
        return F.spread(total, batch.mask)


# ------------------------------------------------------------------------------------------------ credit


@register("reward", "global_noise")
@dataclass
class GlobalNoise(Reward):
    """determinism: noise from torch's global generator."""

    def __call__(self, batch):
        return batch.rewards + 0.01 * torch.randn_like(batch.rewards)


@register("reward", "forgetful")
@dataclass
class Forgetful(Reward):
    """memory: a running mean that no checkpoint holds."""

    def __post_init__(self):
        self.mean = 1.0

    def __call__(self, batch):
        self.mean = 0.9 * self.mean + 0.1 * float(F.row_sum(batch.rewards, batch.mask).abs().mean())
        return batch.rewards / self.mean


@register("baseline", "whole_batch")
@dataclass
class WholeBatch(RowBaseline):
    """groups: a group baseline that takes the mean of all rows."""

    needs = frozenset({"whole_episodes", "groups"})

    def compare(self, totals, group):
        return totals - totals.mean()


@register("baseline", "self_included")
@dataclass
class SelfIncluded(RowBaseline):
    """bandit: leave-one-out without its factor G / (G - 1)."""

    needs = frozenset({"whole_episodes", "groups"})
    unbiased = True

    def compare(self, totals, group):
        return F.group_center(totals, group)


@register("baseline", "positional")
@dataclass
class Positional(RowBaseline):
    """order: neighbours are taken for a group."""

    needs = frozenset({"whole_episodes", "groups"})

    def compare(self, totals, group):
        size = len(totals) // len(group.unique())
        blocks = totals.reshape(-1, size) if size * len(group.unique()) == len(totals) else totals[None]
        return (blocks - blocks.mean(1, keepdim=True)).reshape(-1)


@register("baseline", "outer_difference")
@dataclass
class OuterDifference(Baseline):
    """shapes: [B] - [B, 1] is [B, B]."""

    needs = frozenset({"whole_episodes"})

    def __call__(self, batch):
        totals = F.row_sum(batch.rewards, batch.mask)
        return totals - totals.mean().expand(len(totals), 1), F.spread(totals, batch.mask)


@register("baseline", "sign")
@dataclass
class Sign(RowBaseline):
    """bandit: baseline minus return."""

    def compare(self, totals, group):
        return totals.mean() - totals


@register("baseline", "last_step_alone")
@dataclass
class LastStepAlone(Baseline):
    """chain: credit goes to the step that was paid."""

    def __call__(self, batch):
        return batch.rewards, batch.rewards


@register("baseline", "critic_uphill")
@dataclass
class CriticUphill(Critic):
    """critic: its loss drives V away from the return."""

    def loss(self, new, batch):
        return -super().loss(new, batch)


@register("normalize", "divides_by_zero")
@dataclass
class DividesByZero(Normalize):
    """degenerate: nothing is added to the standard deviation."""

    scope = "rollout"

    def __call__(self, advantages, batch):
        return batch.scatter(F.center(batch.gather(advantages)) / F.std(batch.gather(advantages), 1))


@register("normalize", "rounding_error")
@dataclass
class RoundingError(Normalize):
    """no_spread: the mean of equal numbers is off by an ulp, which their std makes an advantage of order 1."""

    scope = "rollout"

    def __call__(self, advantages, batch):
        steps = batch.gather(advantages)
        return batch.scatter((steps - steps.mean()) / (steps.std() + 1e-8))


@register("normalize", "counts_padding")
@dataclass
class CountsPadding(Normalize):
    """padding: the standard deviation is that of the whole rectangle."""

    scope = "rollout"

    def __call__(self, advantages, batch):
        return advantages / (advantages.std() + 1e-8)


@register("normalize", "turns_ranks")
@dataclass
class TurnsRanks(Normalize):
    """ranks: a large advantage becomes a small one."""

    scope = "rollout"

    def __call__(self, advantages, batch):
        return advantages / (0.1 + advantages**2)


# ------------------------------------------------------------------------------------------------ ratio, weight, sum


@register("ratio", "temperature_on_one_side")
@dataclass
class TemperatureOnOneSide(Ratio):
    """first_minibatch: the policy has not moved, and its ratio is not 1."""

    needs = frozenset({"old_logprobs"})

    def __call__(self, logprobs, batch):
        return batch.on_mask(logprobs / 0.7 - batch.old_logprobs)


@register("ratio", "current_for_old")
@dataclass
class CurrentForOld(Ratio):
    """levels: the old log-probs are the current ones, so that the ratio is 1 for ever."""

    def __call__(self, logprobs, batch):
        return batch.on_mask(logprobs - logprobs.detach())


@register("ratio", "not_of_steps")
@dataclass
class NotOfSteps(Ratio):
    """own_step: one ratio a row, under the flag of one a step."""

    needs = frozenset({"old_logprobs", "whole_rows"})

    def __call__(self, logprobs, batch):
        gap = batch.on_mask(logprobs - batch.old_logprobs)
        return F.row_mean(gap, batch.mask)[:, None].expand_as(logprobs)


@register("weight", "never_one")
@dataclass
class NeverOne(Weight):
    """weighs: it corrects where there is nothing to correct."""

    needs = frozenset({"old_logprobs"})

    def __call__(self, batch):
        return batch.on_mask((batch.old_logprobs - batch.logprobs).clamp(max=1).exp() + 0.5)


@register("aggregation", "padded_width")
@dataclass
class PaddedWidth(Aggregation):
    """padding: the sum is divided by the width of the rectangle."""

    needs = frozenset({"whole_rows"})

    def __call__(self, mask, group, dtype):
        return F.sequence_sum(mask, dtype) / mask.shape[1]


@register("aggregation", "over_all_cells")
@dataclass
class OverAllCells(Aggregation):
    """coefficients: a mean over the rectangle."""

    def __call__(self, mask, group, dtype):
        return torch.full(mask.shape, 1 / mask.numel(), dtype=dtype)


# ------------------------------------------------------------------------------------------------ beside the loss


@register("sampler", "loses_a_row")
@dataclass
class LosesARow(EpisodeSampler):
    """collected: a group of four comes with three."""

    def collect(self, env, actor, *, greedy=False):
        rollout = super().collect(env, actor, greedy=greedy)
        return rollout.rows(torch.arange(1, len(rollout.mask)))


@register("sampler", "counts_what_is_left")
@dataclass
class CountsWhatIsLeft(EpisodeSampler):
    """collected: what was played for nothing is not counted."""

    def collect(self, env, actor, *, greedy=False):
        rollout = super().collect(env, actor, greedy=greedy)
        kept = rollout.rows(torch.arange(self.group_size, len(rollout.mask)))
        return replace(kept, spent=int(kept.mask.sum()))


@register("controller", "forgets_its_spikes")
@dataclass
class ForgetsItsSpikes(KLGuard):
    """remembers: the running mean is not saved."""

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@register("controller", "below_zero")
@dataclass
class BelowZero(Controller):
    """turns: it subtracts, without a floor."""

    def start(self, controls):
        self.knobs = controls.knobs

    def after_iteration(self, metrics):
        self.knobs["lr"] -= 1e-4 * metrics.get("policy/approxkl_avg", 0.0)


@register("controller", "never_asked")
@dataclass
class NeverAsked(Controller):
    """stopping: it would end updates, and does not say so."""

    def stops(self, approx_kl):
        return approx_kl > 0.1


class _Decays(torch.optim.SGD):
    def step(self, closure=None):
        super().step(closure)
        for group in self.param_groups:
            for weight in group["params"]:
                weight.data.mul_(0.999)


@register("optimizer", "decays_by_itself")
@dataclass
class DecaysByItself(Optimizer):
    """descends: weight decay without the learning rate."""

    def build(self, groups):
        return _Decays(groups)


@register("policy", "hot_actor")
class HotActor(MLPPolicy):
    """acts_and_scores: temperature .7 in acting alone."""

    def numpy_outputs(self):
        outputs = super().numpy_outputs()
        return lambda observations: outputs(observations) / 0.7


@register("policy", "normalises_the_batch")
class NormalisesTheBatch(MLPPolicy):
    """rows_alone: observations are centred over the batch."""

    def prepare(self, observations):
        observations = super().prepare(observations)
        return observations - observations.mean(0)


@register("policy", "no_copy")
class NoCopy(MLPPolicy):
    """reference_stays: the reference is the policy itself."""

    def reference(self):
        return self


@register("env", "forgets_its_episodes")
@dataclass
class ForgetsItsEpisodes(GymEnv):
    """goes_on: nothing of the running episodes is saved."""

    _: KW_ONLY
    id: str = "CartPole-v1"

    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


@register("env", "own_dice")
@dataclass
class OwnDice(GymEnv):
    """seeded: it draws from numpy's global generator."""

    _: KW_ONLY
    id: str = "CartPole-v1"

    def collect(self, request, actor):
        rollout = super().collect(request, actor)
        return replace(rollout, rewards=rollout.rewards + rollout.mask * float(np.random.rand()))


@register("env", "stores_too_late")
@dataclass
class StoresTooLate(GymEnv):
    """scored: observations are stored after a scaling that the policy did not see."""

    _: KW_ONLY
    id: str = "CartPole-v1"

    def collect(self, request, actor):
        rollout = super().collect(request, actor)
        return replace(rollout, context=replace(rollout.context, flat=2 * rollout.context.flat))


@register("sampler", "counts_unsaved")
@dataclass
class CountsUnsaved(EpisodeSampler):
    """collects_again: it grows by a group with every rollout, and no checkpoint knows."""

    def __post_init__(self):
        super().__post_init__()
        self.calls = 0

    def collect(self, env, actor, *, greedy=False):
        self.calls += 1
        return env.collect(
            EpisodeGroups(self.num_episodes + self.calls * self.group_size, self.group_size, greedy), actor
        )


class _HiddenMomentum(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            for weight in group["params"]:
                self.hidden = 0.9 * getattr(self, "hidden", 0) + weight.grad
                weight.data.sub_(group["lr"] * self.hidden)


@register("optimizer", "hidden_momentum")
@dataclass
class HiddenMomentum(Optimizer):
    """moments: its momentum is no state of torch's."""

    def build(self, groups):
        return _HiddenMomentum(groups)


@register("policy", "saves_elsewhere")
class SavesElsewhere(MLPPolicy):
    """scores_again: load reads nothing."""

    def load(self, folder):
        pass


@register("policy", "shaken_by_the_critic")
class ShakenByTheCritic(MLPPolicy):
    """critic_apart: building the critic draws the policy anew."""

    def add_critic(self, network):
        super().add_critic(network)
        torch.nn.init.normal_(self.output.weight, generator=torch.Generator().manual_seed(0))


@register("env", "pays_the_padding")
@dataclass
class PaysThePadding(GymEnv):
    """keeps_its_word: rewards off the mask."""

    _: KW_ONLY
    id: str = "CartPole-v1"

    def collect(self, request, actor):
        rollout = super().collect(request, actor)
        return replace(rollout, rewards=rollout.rewards + 1)


@register("env", "evaluates_in_training")
@dataclass
class EvaluatesInTraining(GymEnv):
    """evaluates_aside: evaluation takes the next episodes of the training."""

    _: KW_ONLY
    id: str = "CartPole-v1"

    def evaluate(self, actor, num_episodes, streams, *, greedy=True):
        self._num_episodes += num_episodes
        return super().evaluate(actor, num_episodes, streams, greedy=greedy)

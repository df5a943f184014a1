"""What a run reports, by the field's names. Every formula of the README's table of metrics stands here.

Averages over steps are sums over the mask divided by its count, over the whole update: never a mean of means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from scipy.special import comb

from rlfw import functional as F
from rlfw.rollout import ABSENT, Current

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from typing import Any

    from torch import Tensor

    from rlfw.composition import Composition
    from rlfw.rollout import Batch, Rollout

Numbers = dict[str, float]


def _mean(x: Tensor, mask: Tensor) -> Tensor:
    return F.masked(x, mask).sum() / mask.sum().clamp(min=1)


def _floats(found: Mapping[str, Tensor]) -> Numbers:
    """One transfer for all of them."""
    values = torch.stack([value.double() for value in found.values()]).tolist() if found else []
    return dict(zip(found, values, strict=True))


def rollout_metrics(rollout: Rollout) -> Numbers:
    """The episodes that ended, in the env's own units, and the groups."""
    found: dict[str, Tensor] = {}
    if len(rollout.episodes.returns):
        returns, lengths = rollout.episodes.returns.double(), rollout.episodes.lengths.double()
        found["objective/scores"] = returns.mean()
        found["objective/scores_std"] = returns.std(correction=0)
        found["response_length/mean"] = lengths.mean()
        found["response_length/min"] = lengths.min()
        found["response_length/max"] = lengths.max()
    ended = rollout.terminated | rollout.truncated
    if bool(ended.any()):
        found["response_length/clip_ratio"] = (rollout.truncated.sum() / ended.sum()).double()
    found["group/n_used"] = torch.tensor(float(len(rollout.mask)))
    found["group/n_generated"] = torch.tensor(float(rollout.num_generated))
    for name, score in rollout.scores.items():
        score = score[score.isfinite()].double()
        if len(score):
            found[f"rewards/{name}/mean"] = score.mean()
            found[f"rewards/{name}/std"] = score.std(correction=0)
    return {**_floats(found), **pass_metrics(rollout)}


def pass_metrics(rollout: Rollout) -> Numbers:
    """pass@k for k = 1, 2, 4, ..., where a row's total is 0 or 1 and no row of a group was left out (arXiv:2107.03374).

    1 - C(n - c, k) / C(n, k) of a group of n rows, c of them right, without bias; the mean over groups.
    """
    totals = F.row_sum(rollout.rewards, rollout.mask)
    if rollout.num_generated != len(totals) or not bool(((totals == 0) | (totals == 1)).all()):
        return {}
    index, N = F.group_index(rollout.group)
    size = torch.bincount(index, minlength=N).numpy()
    right = F.group_sum(totals.double(), index, N).numpy()
    smallest = int(size.min()) if N else 0
    ks = [2**i for i in range(smallest.bit_length())] if smallest > 1 else []
    return {f"group/pass@{k}": float((1 - comb(size - right, k) / comb(size, k)).mean()) for k in ks}


def group_metrics(batch: Batch) -> Numbers:
    """Groups of at least two rows, by the rewards that the learner sees: those without signal, and their spread."""
    rows = batch.mask.any(1)
    group = batch.group[rows]
    index, N = F.group_index(group)
    size = torch.bincount(index, minlength=N)
    if not bool((size > 1).any()):
        return {}
    spread = F.group_std(F.row_sum(batch.rewards, batch.mask)[rows].double(), group, 0)
    first = torch.full((N,), len(index)).scatter_reduce(0, index, torch.arange(len(index)), "amin")
    spread = spread[first][size > 1]
    zero = (spread == 0).double().mean()
    return _floats({"group/frac_reward_zero_std": zero, "group/reward_std": spread.mean()})


def _reference_metrics(batch: Batch) -> dict[str, Tensor]:
    """The distance of the policy, at the start of the update, to the reference."""
    if batch.ref_logprobs is None or batch.old_logprobs is None:
        return {}
    d = F.masked(batch.old_logprobs - batch.ref_logprobs, batch.mask)
    found = {"objective/kl_per_token": _mean(F.kl_estimate(d, "k3"), batch.mask)}
    if not batch.full:  # rows of the layout of single steps are no sequences
        found["objective/kl"] = _mean(F.row_sum(d, batch.mask), batch.mask.any(1))
    return found


def batch_metrics(batch: Batch, raw_rewards: Tensor) -> Numbers:
    """A batch after credit: rewards, distances between the policies, values and advantages."""
    mask, rows = batch.mask, batch.mask.any(1)
    total = F.row_sum(batch.rewards, mask)
    found = {
        "objective/rlhf_reward": _mean(total, rows),
        "objective/non_score_reward": _mean(total - F.row_sum(raw_rewards, mask), rows),
    }
    if batch.entropy is not None:
        found["objective/entropy"] = _mean(batch.entropy, mask)
    if batch.old_logprobs is not None:
        gap = F.masked(batch.old_logprobs - batch.logprobs, mask).abs()
        found["sampling/logp_difference_mean"] = _mean(gap, mask)
        found["sampling/logp_difference_max"] = gap.max()
    found.update(_reference_metrics(batch))
    if batch.values is not None and batch.returns is not None and bool(mask.any()):
        values, returns = batch.values[:, :-1][mask], batch.returns[mask]
        spread = F.std(returns, 0).double()  # the square of a small one is 0 in float32
        found["value/mean"] = values.mean()
        if float(spread) > 0:
            found["value/explained_variance"] = 1 - (F.std(returns - values, 0) / spread) ** 2
    if batch.advantages is not None and bool(mask.any()):
        advantages = batch.advantages[mask].double()  # a square may overflow in float32
        found["advantage/mean"] = advantages.mean()
        found["advantage/std"] = F.std(advantages, 0)
        found["advantage/min"] = advantages.min()
        found["advantage/max"] = advantages.max()
        found["advantage/frac_positive"] = (advantages > 0).double().mean()
    return {**_floats(found), **group_metrics(batch)}


def approx_kl(logprobs: Tensor, batch: Batch) -> Tensor:
    """KL(old || new), k3: the mean over steps of r - 1 - log r. Nats per step, never negative."""
    if batch.old_logprobs is None:
        return logprobs.new_zeros(())
    return _mean(F.kl_estimate(F.masked(batch.old_logprobs - logprobs, batch.mask), "k3"), batch.mask)


def update_metrics(composition: Composition, new: Current, batch: Batch) -> Numbers:
    """All minibatches of all epochs of an update, side by side. ``new`` is detached."""
    mask = batch.mask
    found = _reference_metrics(batch)
    if batch.old_logprobs is not None:
        log_r = F.masked(new.logprobs - batch.old_logprobs, mask)
        found["policy/approxkl_avg"] = approx_kl(new.logprobs, batch)
        found["policy/approxkl_k1"] = -_mean(log_r, mask)
    if new.log_ratio is not None:
        ratio = F.exp_ratio(new.log_ratio)[mask]
        if len(ratio):
            found["val/ratio"] = ratio.mean()
            found["val/ratio_var"] = F.std(ratio, 0) ** 2
            found["val/ratio_min"] = ratio.min()
            found["val/ratio_max"] = ratio.max()
    if new.entropy is not None:
        found["objective/entropy"] = _mean(new.entropy, mask)
    for name, per_step in composition.metrics(new, batch).items():
        found[name] = _mean(per_step, mask)
    return _floats(found)


def first_step_metrics(new: Current, batch: Batch) -> Numbers:
    """The first optimizer step of an update, before which the policy is the old one: its ratio, step by step, is 1.

    Where the old log-probs were taken in this very step, there is no scoring pass to hold the sampler's against; here
    are both.
    """
    log_r = F.masked(new.logprobs - batch.old_logprobs, batch.mask)
    gap = F.masked(batch.old_logprobs - batch.logprobs, batch.mask).abs()
    return _floats(
        {
            "val/ratio_first_gap": _mean((F.exp_ratio(log_r) - 1).abs(), batch.mask),
            "sampling/logp_difference_mean": _mean(gap, batch.mask),
            "sampling/logp_difference_max": gap.max(),
        }
    )


def side_by_side(news: list[Current]) -> Current:
    """What the policy said in several forward passes, detached, row under row."""

    def cat(name: str) -> Tensor:
        parts = [getattr(new, name) for new in news]
        return ABSENT if parts[0] is None else torch.cat([part.detach() for part in parts])

    return Current(cat("logprobs"), cat("log_ratio"), cat("entropy"), cat("values"))


def with_advantages(samples: list[dict[str, Any]], batch: Batch) -> Iterator[dict[str, Any]]:
    """Each row's record with the mean advantage of its steps."""
    rows = F.row_mean(batch.advantages, batch.mask).tolist()
    for sample, advantage in zip(samples, rows, strict=True):
        yield {**sample, "advantage": advantage}

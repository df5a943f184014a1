"""A composition on numbers that a person wrote down: no env, no model, the trainer's own credit and loss."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from rlfw import config, metrics
from rlfw.checks import at_least
from rlfw.composition import Composition
from rlfw.errors import UserError
from rlfw.interfaces import Scored
from rlfw.rollout import ABSENT, Batch
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlfw.composition import Loss


@dataclass(frozen=True)
class Probed:
    """What a composition makes of the numbers. Shapes as given: B rows, T steps."""

    advantages: Tensor  # [B, T] after normalisation
    returns: Tensor | None  # [B, T]
    loss: Tensor  # scalar
    policy_loss: Tensor  # scalar: the surrogate's and the penalties' share
    critic_loss: Tensor | None  # scalar, where there is a critic
    gradient: Tensor  # [B, T] d loss / d logprobs
    value_gradient: Tensor | None  # [B, T] d loss / d new_values, where there is a critic
    metrics: dict[str, float]


def probe(
    composition: Sequence[str] | Composition,
    *,
    rewards: Any,
    mask: Any,
    logprobs: Any,
    old_logprobs: Any,
    group: Any,
    ref_logprobs: Any = None,
    values: Any = None,
    new_values: Any = None,
    entropy: Any = None,
    terminated: Any = None,
    truncated: Any = None,
    behaviour_logprobs: Any = None,
    greedy_returns: Any = None,
    advantages: Any = None,
    returns: Any = None,
    weights: Any = None,
    max_steps: Any = None,
) -> Probed:
    """Run a composition, given as overrides on the command line are, or built already, on one optimizer batch.

    rewards             [B, T] per step; [B] per row, on its last step; {name: [B]} per row and reward function, summed
    mask                [B, T] bool
    logprobs            [B, T] of the current policy; old_logprobs, ref_logprobs, behaviour_logprobs alike, in nats
    group               [B] integers
    values              [B, T+1], or [B, T] where every row terminated; new_values [B, T] (default: the old ones)
    entropy             [B, T] of the current policy
    terminated          [B] (default: True unless truncated); truncated [B] (default: False)
    behaviour_logprobs  [B, T] (default: old_logprobs)
    advantages          [B, T]: taken as credit's result, with ``returns`` and ``weights``; reward parts, the baseline
                        and weight parts do not act, a normalisation per minibatch still does
    weights             [B, T] product of the float weights, beside ``advantages`` alone (default: 1)

    max_steps           integer: steps of the env's longest row, for parts that read it and are not given a length

    float64 stays float64. gamma is 1 unless the overrides name it, an env or an experiment. UserError names a field
    that the composition needs and that is not given.
    """
    longest = None if max_steps is None else int(max_steps)
    at_least("probe: max_steps", longest, 1)
    if not isinstance(composition, Composition):
        composition = _composed(composition, longest)
    elif longest is not None and longest != composition.max_steps:
        raise UserError(f"probe: max_steps={longest}; the composition was built for {composition.max_steps}")
    mask = torch.as_tensor(mask).bool()
    B, T = mask.shape
    new = torch.as_tensor(logprobs)
    new = (new if new.is_floating_point() else new.double()).detach().clone().requires_grad_()

    def numbers(name: str, value: Any, *shape: int) -> Tensor:
        tensor = torch.as_tensor(value, dtype=new.dtype).detach()
        if tuple(tensor.shape) != shape:
            raise UserError(f"probe: {name} has shape {tuple(tensor.shape)}, expected {shape}")
        return tensor

    def optional(name: str, value: Any, *shape: int) -> Tensor:
        return ABSENT if value is None else numbers(name, value, *shape)

    last = T - 1 - mask.flip(1).to(torch.int8).argmax(1)  # [B]
    scores = {}
    if isinstance(rewards, dict):
        scores = {name: numbers(f"rewards[{name}]", value, B) for name, value in rewards.items()}
        rewards = torch.stack(list(scores.values())).sum(0)
    rewards = torch.as_tensor(rewards, dtype=new.dtype)
    if rewards.dim() == 1:
        rewards = torch.zeros(B, T, dtype=new.dtype).scatter(1, last[:, None], numbers("rewards", rewards, B)[:, None])
    cut = torch.zeros(B, dtype=torch.bool) if truncated is None else torch.as_tensor(truncated).bool()
    ended = ~cut if terminated is None else torch.as_tensor(terminated).bool()
    if values is not None:
        values = torch.as_tensor(values, dtype=new.dtype)
        if values.shape == (B, T):
            if advantages is None and not bool(ended.all()):
                raise UserError("probe: values [B, T+1] are needed where a row did not terminate: add V of its end")
            values = torch.cat([values, torch.zeros(B, 1, dtype=new.dtype)], 1)
        values = numbers("values", values, B, T + 1)
    old = numbers("old_logprobs", old_logprobs, B, T)
    current_values: Tensor = ABSENT
    if composition.critic is not None:
        given = new_values if new_values is not None else values[:, :-1] if values is not None else None
        if given is None:
            raise UserError(f"probe: {composition.needing('values')} needs values")
        current_values = numbers("new_values", given, B, T).clone().requires_grad_()
    if advantages is None:
        composition.check_scores("probe", list(scores))
        if weights is not None:
            raise UserError("probe: weights come with advantages; without them the weight parts give their own")
    current_entropy = optional("entropy", entropy, B, T)
    batch = Batch(
        context=ABSENT,
        actions=ABSENT,
        logprobs=old if behaviour_logprobs is None else numbers("behaviour_logprobs", behaviour_logprobs, B, T),
        rewards=numbers("rewards", rewards, B, T),
        mask=mask,
        terminated=ended,
        truncated=cut & ~ended,
        group=torch.as_tensor(group).long(),
        episode=torch.arange(B),
        scores=scores,
        values=values,
        old_values=ABSENT if values is None else values[:, :-1],
        old_logprobs=old,
        ref_logprobs=optional("ref_logprobs", ref_logprobs, B, T),
        entropy=current_entropy,
        greedy_returns=optional("greedy_returns", greedy_returns, B),
        advantages=optional("advantages", advantages, B, T),
        returns=optional("returns", returns, B, T),
        weights=optional("weights", weights, B, T),
    )
    for need in ("values", "ref_logprobs", "entropy", "greedy_returns"):
        if need in composition.needs and getattr(batch, need) is None:
            raise UserError(f"probe: {composition.needing(need)} needs {need}")
    with torch.no_grad():
        credited = composition.credit(batch)
        minibatch, coefficients = composition.prepare(credited)
    loss = composition.loss(Scored(new, current_entropy, current_values), minibatch, coefficients)
    loss.total.backward()
    found = metrics.update_metrics(composition, metrics.side_by_side([loss.new]), loss.batch)
    found.update(metrics.batch_metrics(credited, batch.rewards))
    return Probed(
        advantages=minibatch.advantages,
        returns=minibatch.returns,
        loss=loss.total.detach(),
        policy_loss=loss.policy.detach(),
        critic_loss=None if loss.critic is None else loss.critic.detach(),
        gradient=torch.zeros_like(new) if new.grad is None else new.grad,
        value_gradient=None if current_values is None else current_values.grad,
        metrics={**found, "loss/total": loss.total.item(), "loss/policy_avg": loss.policy.item()},
    )


def _composed(overrides: Sequence[str], max_steps: int | None) -> Composition:
    named = {key for key, _ in config.typed_overrides(overrides)}
    cfg = config.compose(overrides if named & {"gamma", "env", "experiment"} else ["gamma=1.0", *overrides])
    return Composition(cfg, gamma=cfg.gamma, max_steps=max_steps, streams=Streams(cfg.seed))


def dump(folder: Path, composition: Composition, minibatch: Batch, losses: list[Loss], name: str) -> None:
    """Write an optimizer batch as ``probe``'s arguments (NAME.safetensors) and its loss (NAME.json)."""
    rows = Batch.cat([loss.batch for loss in losses])
    new = metrics.side_by_side([loss.new for loss in losses])
    found = {
        "rewards": rows.rewards,
        "mask": rows.mask,
        "logprobs": new.logprobs,
        "old_logprobs": rows.old_logprobs,
        "behaviour_logprobs": rows.logprobs,
        "ref_logprobs": rows.ref_logprobs,
        "group": rows.group,
        "values": rows.old_values,
        "new_values": new.values,
        "entropy": new.entropy,
        "terminated": rows.terminated,
        "truncated": rows.truncated,
        "advantages": minibatch.advantages,
        "returns": rows.returns,
        "weights": rows.weights,
        "greedy_returns": rows.greedy_returns,
        "max_steps": None if composition.max_steps is None else torch.tensor(composition.max_steps),
    }
    tensors = {name: tensor.contiguous().clone() for name, tensor in found.items() if tensor is not None}
    save_file(tensors, folder / f"{name}.safetensors")
    total = sum(float(loss.total.detach()) for loss in losses)
    (folder / f"{name}.json").write_text(json.dumps({"loss": total}) + "\n")

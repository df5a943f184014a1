"""A supervised warm start of a language model on a task's own answers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import torch

from rlfw.errors import UserError
from rlfw.interfaces import Env, Policy, TextPolicy

if TYPE_CHECKING:
    from rlfw.seeding import Streams

RISE = 30  # steps over which the learning rate rises
MAX_GRAD_NORM = 1.0


class Settings(Protocol):
    """The ``warmup`` node of a configuration."""

    steps: int
    batch_size: int
    lr: float


def warm_up(policy: Policy, env: Env, settings: Settings, streams: Streams) -> list[float]:
    """``steps`` steps of AdamW on the mean negative log-likelihood of answer tokens; the losses, in nats a token."""
    rng = streams.numpy("warm start")
    if not isinstance(policy, TextPolicy) or env.warmup_pairs(1, rng) is None:
        raise UserError(
            f"warmup.steps={settings.steps}: env={env.name} has no answers to learn from; set warmup.steps=0"
        )
    parameters = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, settings.lr, betas=(0.9, 0.98), weight_decay=0.0)
    losses = []
    for step in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.lr * min(1.0, (step + 1) / RISE)
        pairs = env.warmup_pairs(settings.batch_size, rng)
        assert pairs is not None
        context, actions, mask = policy.encode(pairs)
        loss = -policy.score(context, actions, mask).logprobs.sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        losses.append(loss.item())
    optimizer.zero_grad()  # no gradients stay behind
    return losses

"""Supervised training of a language model on a task's own answers: the warm start of a run, and rlfw warmup.

B pairs of a prompt and its right answer   T tokens of the longest answer
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch

from rlfw.errors import RunError, UserError
from rlfw.interfaces import Env, Policy, TextPolicy

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rlfw.seeding import Streams

RISE = 30  # steps over which the learning rate rises
MAX_GRAD_NORM = 1.0
CHECKED = 512  # pairs that are encoded at once to be checked


class Settings(Protocol):
    """The ``warmup`` node of a configuration."""

    steps: int
    batch_size: int
    lr: float


def check(policy: Policy, env: Env, settings: Settings) -> list[str]:
    """Before any time is spent: UserError where there is nothing to learn from, or a pair that the model cannot take.

    What is returned is worth saying, a sentence each. Where prompts are made as they go, one batch stands for them.
    """
    pairs = env.fixed_pairs() or env.warmup_pairs(settings.batch_size, np.random.default_rng(0))
    if not isinstance(policy, TextPolicy) or not pairs:
        raise UserError(
            f"env={env.name} has no answers to learn from: choose a text task that has (a file of prompts has them in "
            "the column answer)"
        )
    long = 0
    for first in range(0, len(pairs), CHECKED):
        mask = policy.encode(pairs[first : first + CHECKED])[2]
        long += int((mask.sum(1) > (env.spec.max_steps or math.inf)).sum())
    if not long:
        return []
    return [
        f"{long} of {len(pairs)} answers have, with their end, more tokens than the env's max_new_tokens="
        f"{env.spec.max_steps}: completions of a run are cut there"
    ]


def warm_up(policy: Policy, env: Env, settings: Settings, streams: Streams, rows: int | None = None) -> list[float]:
    """All ``steps``; their losses."""
    return list(steps(policy, env, settings, streams, rows))


def steps(policy: Policy, env: Env, settings: Settings, streams: Streams, rows: int | None = None) -> Iterator[float]:
    """``settings.steps`` steps of AdamW, each as its loss is asked for: the mean negative log-likelihood of the
    answers' tokens, their end among them, in nats a token. ``rows``: pairs a forward pass, which is memory only."""
    rng = streams.numpy("warm start")
    if not isinstance(policy, TextPolicy) or env.warmup_pairs(1, rng) is None:
        raise UserError(
            f"warmup.steps={settings.steps}: env={env.name} has no answers to learn from; set warmup.steps=0"
        )
    parameters = [p for p in policy.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, settings.lr, betas=(0.9, 0.98), weight_decay=0.0)
    for step in range(settings.steps):
        optimizer.param_groups[0]["lr"] = rate(settings, step)
        pairs = env.warmup_pairs(settings.batch_size, rng)
        if pairs is None:
            raise RunError(f"env={env.name} gave prompts without an answer: a warm start needs one for each")
        loss = _backward(policy, pairs, rows or len(pairs))
        if not math.isfinite(loss):
            raise RunError(f"the loss of step {step + 1} of the warm start is {loss}: lower warmup.lr")
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()  # no gradients stay behind
        yield loss


def rate(settings: Settings, step: int) -> float:
    """The learning rate of step 0, 1, ..."""
    return settings.lr * min(1.0, (step + 1) / RISE)


def _backward(policy: TextPolicy, pairs: list[tuple[str, str]], rows: int) -> float:
    """Add the gradient of a batch's loss; the loss."""
    context, actions, mask = policy.encode(pairs)  # actions, mask [B, T]
    total, num_tokens = 0.0, mask.sum()
    for index in torch.arange(len(pairs)).split(rows):
        part = policy.score(context.rows(index), actions[index], mask[index])
        loss = -part.logprobs.sum() / num_tokens
        loss.backward()
        total += loss.item()
    return total

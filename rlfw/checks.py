"""Checks of configuration values, each with a message that names the key and the remedy."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

MAX_THREADS = 1024  # the runtime beneath torch gives up beyond some thousands, and takes the process with it


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key}={value}: choose one of {', '.join(allowed)}")


def at_least(key: str, value: float | None, low: float) -> None:
    """None passes: it stands for a default taken elsewhere."""
    if value is not None and not value >= low:
        raise UserError(f"{key}={value}: it must be at least {low}")


def above(key: str, value: float | None, low: float) -> None:
    if value is not None and not value > low:
        raise UserError(f"{key}={value}: it must be greater than {low}")


def below(key: str, value: float | None, high: float) -> None:
    if value is not None and not value < high:
        raise UserError(f"{key}={value}: it must be less than {high}")


def between(key: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise UserError(f"{key}={value}: it must lie in [{low}, {high}]")


def at_most(key: str, value: float | None, high: float) -> None:
    if value is not None and not value <= high:
        raise UserError(f"{key}={value}: it must be at most {high}")


def finite(key: str, value: float | None) -> None:
    if value is not None and not math.isfinite(value):
        raise UserError(f"{key}={value}: it must be finite")


def coefficient(key: str, value: float | None) -> None:
    at_least(key, value, 0)
    finite(key, value)


def root(cfg: DictConfig) -> None:
    """The root keys."""
    if cfg.total_steps is None and cfg.iterations is None:
        raise UserError("there is no budget: give total_steps=N or iterations=N")
    if cfg.total_steps is not None and cfg.iterations is not None:
        raise UserError("the budget is total_steps=N or iterations=N, not both")
    for key in ("total_steps", "iterations", "epochs", "num_minibatches", "dump"):
        at_least(key, cfg[key], 1)
    warmup(cfg)
    coefficient("lr", cfg.lr)
    above("max_grad_norm", cfg.max_grad_norm, 0)
    between("gamma", cfg.gamma, 0, 1)
    at_least("evaluation.every", cfg.evaluation.every, 0)
    at_least("evaluation.episodes", cfg.evaluation.episodes, 1)
    at_least("checkpoint.every", cfg.checkpoint.every, 0)
    at_least("checkpoint.milestones", cfg.checkpoint.milestones, 0)
    if cfg.checkpoint.best and not cfg.evaluation.every:
        raise UserError("checkpoint.best=true goes by the evaluations and there are none: set evaluation.every=N")
    if cfg.checkpoint.keep != -1:
        at_least("checkpoint.keep", cfg.checkpoint.keep, 1)
    one_of("update", cfg["update"], ("eager", "compile"))


def warmup(cfg: DictConfig) -> None:
    """Of the root keys those that a warm start reads."""
    at_least("seed", cfg.seed, 0)
    at_least("threads", cfg.threads, 1)
    at_most("threads", cfg.threads, MAX_THREADS)
    at_least("micro_batch_rows", cfg.micro_batch_rows, 1)
    at_least("warmup.steps", cfg.warmup.steps, 0)
    at_least("warmup.batch_size", cfg.warmup.batch_size, 1)
    above("warmup.lr", cfg.warmup.lr, 0)
    finite("warmup.lr", cfg.warmup.lr)

"""The root keys of a configuration. What belongs to a part lives under axis.part.key instead."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any


def key(default: Any, text: str, *, open: bool = False) -> Any:
    """A field with its line of help. ``open``: it may be given anew when a run goes on."""
    metadata = {"help": text, "open": open}
    if isinstance(default, list | dict):
        return field(default_factory=lambda: type(default)(default), metadata=metadata)
    return field(default=default, metadata=metadata)


def parts() -> Any:
    """The field of an axis: name -> part and its keys."""
    return field(default_factory=dict)


@dataclass
class Warmup:
    """A supervised warm start on the task's own answers; the model after it is the reference."""

    steps: int = key(0, "optimizer steps of a supervised warm start on the task's answers; 0: none")
    batch_size: int = key(64, "pairs a step")
    lr: float = key(2e-3, "Adam's, after a linear rise over the first 30 steps")


@dataclass
class Evaluation:
    """Evaluation while training: own environments, own random streams, frozen normalisers."""

    every: int = key(0, "iterations between evaluations; 0: never", open=True)
    episodes: int = key(20, "greedy episodes (or completions) an evaluation", open=True)


@dataclass
class Checkpoint:
    """When the run is saved."""

    every: int = key(0, "iterations between checkpoints; 0: ten in a run", open=True)
    keep: int = key(2, "the newest ones that are kept; -1: all", open=True)
    best: bool = key(False, "keep the one with the best evaluation too", open=True)
    milestones: int = key(0, "iterations between checkpoints that are kept for good; 0: none", open=True)


@dataclass
class Config:
    """The root."""

    seed: int = key(0, "of every random stream")
    out: str | None = key(None, "the run's folder; null: a fresh one under runs/")
    resume: str | None = key(None, "the folder of a run to go on with, in place of everything but its budget")
    total_steps: int | None = key(None, "the budget: env steps on gymnasium, completions on text", open=True)
    iterations: int | None = key(None, "the budget in rollouts with their updates, instead of total_steps", open=True)
    gamma: float = key(0.99, "discount factor a step")
    lr: float = key(3e-4, "learning rate of the policy")
    max_grad_norm: float = key(0.5, "the policy's gradient is scaled down to this norm; inf: never")
    epochs: int = key(1, "passes over each rollout")
    num_minibatches: int = key(1, "optimizer steps an epoch, as far as there are rows or steps to share out")
    micro_batch_rows: int | None = key(
        None, "rows (or single steps, where the update takes those) a forward pass: memory only"
    )
    update: str = key("eager", "eager, or compile (torch.compile of the minibatch step)")
    threads: int = key(1, "torch's threads; parallel work goes to runs")
    tensorboard: bool = key(True, "write TensorBoard events", open=True)
    progress: bool = key(True, "show the progress bar", open=True)
    dump: int | None = key(
        None, "the iteration whose first minibatch is written down as rlfw.probe's arguments", open=True
    )
    plugins: list[str] = key([], "Python files with parts; from the command line alone")
    warmup: Warmup = field(default_factory=Warmup)
    evaluation: Evaluation = field(default_factory=Evaluation)
    checkpoint: Checkpoint = field(default_factory=Checkpoint)
    env: dict[str, Any] = parts()
    policy: dict[str, Any] = parts()
    sampler: dict[str, Any] = parts()
    reward: dict[str, Any] = parts()
    baseline: dict[str, Any] = parts()
    normalize: dict[str, Any] = parts()
    ratio: dict[str, Any] = parts()
    regularizer: dict[str, Any] = parts()
    weight: dict[str, Any] = parts()
    aggregation: dict[str, Any] = parts()
    controller: dict[str, Any] = parts()
    optimizer: dict[str, Any] = parts()


def root_keys(schema: Any = None, prefix: str = "") -> list[tuple[str, Any, str]]:
    """(key, default, help) of every root key, nested ones with their path."""
    found = []
    schema = Config() if schema is None else schema
    for f in fields(schema):
        value = getattr(schema, f.name)
        if is_dataclass(value):
            found += root_keys(value, f"{prefix}{f.name}.")
        elif "help" in f.metadata:
            found.append((prefix + f.name, value, f.metadata["help"]))
    return found


def open_keys(schema: Any = Config, prefix: str = "") -> list[str]:
    """The root keys that may be given anew when a run goes on."""
    found = []
    for f in fields(schema):
        if is_dataclass(f.default_factory):
            found += open_keys(f.default_factory, f"{prefix}{f.name}.")
        elif f.metadata.get("open"):
            found.append(prefix + f.name)
    return found

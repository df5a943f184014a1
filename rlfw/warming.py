"""rlfw warmup: a language model trained on a task's own answers, as a folder that a run starts from."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import shutil
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch
from safetensors import SafetensorError
from tqdm import tqdm

from rlfw import checks, config, effects, registry, signals, supervised
from rlfw.errors import RunError, UserError
from rlfw.run import WARMUP, begin, check_free, write_status
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from omegaconf import DictConfig

    from rlfw.interfaces import Env, Policy

READ = ("seed", "out", "threads", "progress", "plugins", "micro_batch_rows", "warmup", "env", "policy", "experiment")
LAST = 10  # steps whose mean loss is told
SAVES = 10  # in all; what ends a warm start loses no more than the steps since the last of them


def warmup(overrides: Sequence[str] = ()) -> Path:
    """Train a language model on a task's own answers, as ``rlfw warmup`` does with these overrides; its folder.

    The folder is a model that transformers loads and ``policy.causal_lm.path`` takes. metrics.jsonl beside it has the
    loss of each step, in nats a token of the answers. UserError before anything is trained where a word is wrong, a
    task has no answers or a pair is too long for the model; RunError where the loss is no number.
    """
    cfg = config.compose(overrides)
    for key in (key.partition(".")[0] for key, _ in config.typed_overrides(overrides)):
        if key not in READ:
            raise UserError(f"{key} has no effect on a warm start, which reads {', '.join(READ)}: leave it away")
    checks.warmup(cfg)
    effects.check(cfg, overrides)
    if not cfg.warmup.steps:
        raise UserError("there is nothing to do: give warmup.steps=N")
    check_free(cfg)  # before a large model is loaded
    torch.set_num_threads(cfg.threads)
    streams = Streams(cfg.seed)
    (env_node,), (policy_node,) = cfg.env.values(), cfg.policy.values()
    env: Env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
    try:
        policy: Policy = registry.build("policy", policy_node, env_spec=env.spec, streams=streams)
        for note in supervised.check(policy, env, cfg.warmup):
            print(f"rlfw: note: {note}", file=sys.stderr)
        course = Course(cfg, env, policy, streams, begin(cfg, overrides, WARMUP))
        course.run()
    finally:
        env.close()
    for line in (course.closing(), following(overrides, cfg, course.folder)):
        print(f"rlfw: {line}", file=sys.stderr)
    return course.folder


@dataclass
class Course:
    """A warm start under way, and its folder."""

    cfg: DictConfig
    env: Env
    policy: Policy
    streams: Streams
    folder: Path
    losses: list[float] = field(default_factory=list)  # nats a token
    kept: int = 0  # the step whose model is in the folder
    stopping: int | None = None  # the first signal that ends it

    def run(self) -> None:
        """To the last step, or to the end of the one in which a signal comes; saved in either case."""
        self.started = time.time()
        self._status("running")
        try:
            with signals.ending(self):
                self._train()
                self._save()
        except BaseException as error:
            if isinstance(error, UserError) and not self.losses:  # nothing was trained: the folder is free again
                shutil.rmtree(self.folder, ignore_errors=True)
                raise
            with contextlib.suppress(OSError):
                reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
                self._status(reason, error=str(error) or type(error).__name__)
            if isinstance(error, OSError | SafetensorError):
                raise RunError(f"cannot write to {self.folder}: {error}; free space or change out=") from error
            if isinstance(error, RunError) and self.kept:
                raise RunError(f"{error}; {self.folder} holds the model of step {self.kept}") from error
            raise
        cut = self.stopping if len(self.losses) < self.cfg.warmup.steps else None
        self._status("done" if cut is None else "interrupted", **({} if cut is None else {"signal": cut}))

    def _train(self) -> None:
        settings = self.cfg.warmup
        interval = 0.1 if sys.stderr.isatty() else 30.0
        losses = supervised.steps(self.policy, self.env, settings, self.streams, self.cfg.micro_batch_rows)
        with (
            (self.folder / "metrics.jsonl").open("a") as rows,
            tqdm(
                total=settings.steps,
                unit=" steps",
                mininterval=interval,
                disable=not self.cfg.progress,
                dynamic_ncols=True,
            ) as bar,
        ):
            for step, loss in enumerate(losses):
                self.losses.append(loss)
                row = {"step": step + 1, "loss": loss, "lr": supervised.rate(settings, step), "time": time.time()}
                rows.write(json.dumps(row) + "\n")
                rows.flush()
                bar.set_postfix(loss=f"{self.last():.3g} nats a token", refresh=False)
                bar.update()
                if self.stopping is not None:
                    break
                if (step + 1) % max(1, settings.steps // SAVES) == 0 and step + 1 < settings.steps:
                    self._save()

    def last(self) -> float:
        """The mean of the last losses."""
        return sum(self.losses[-LAST:]) / len(self.losses[-LAST:])

    def _save(self) -> None:
        """In place of what is there, file by file, each of them whole at any time; config.json comes last."""
        aside = self.folder / ".partial"
        shutil.rmtree(aside, ignore_errors=True)
        self.policy.save(aside)
        for new in sorted(aside.iterdir(), key=lambda path: path.name == "config.json"):
            if new.is_dir():
                shutil.rmtree(self.folder / new.name, ignore_errors=True)
            os.replace(new, self.folder / new.name)
        aside.rmdir()
        self.kept = len(self.losses)

    def _status(self, state: str, **facts: str | int) -> None:
        write_status(self.folder, state, self.started, steps=len(self.losses), **facts)

    def closing(self) -> str:
        """What came of it."""
        done, steps = len(self.losses), self.cfg.warmup.steps
        state = "done" if done == steps else f"interrupted after {done} of {steps} steps and saved"
        return f"{state}: loss {self.last():.4g} nats a token over the last steps, {self.losses[0]:.4g} at the first"


def following(overrides: Sequence[str], cfg: DictConfig, folder: Path) -> str:
    """What a person does next: look at what it writes, and train from it."""
    ((name, node),) = cfg.policy.items()
    entry = registry.entry("policy", node.part)
    plugins = [word for word in overrides if word.startswith("plugins=")]
    sample = shlex.join(["rlfw", "sample", str(folder), *plugins])
    if "path" not in entry.keys:
        return f"next: {sample}"
    from_there = {**node, "path": str(folder)}
    words = ["rlfw", "train", "algorithm=grpo"]
    for word in overrides:
        ((key, _),) = config.typed_overrides([word])
        axis, _, rest = key.partition(".")
        kept = axis in ("env", "experiment", "plugins", "threads", "seed")
        own = key.removeprefix(f"policy.{name}.")
        if key == "policy" or (axis == "policy" and rest and own != "path" and entry.reads(own, from_there)):
            kept = True
        words += [word] * kept
    train = shlex.join([*words, f"policy.{name}.path={folder}", "warmup.steps=0"])
    return f"next: {sample}  |  {train}"

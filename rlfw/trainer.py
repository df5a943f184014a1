"""The loop. It knows no part by name.

B rows   T steps of a row
"""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING, Any

import torch

from rlfw import checks, metrics, registry, snapshot
from rlfw.composition import Composition
from rlfw.errors import RunError, UserError
from rlfw.evaluation import evaluate
from rlfw.gradient import GRADIENTS, Objective
from rlfw.guard import Guard
from rlfw.knobs import Controls, Knobs
from rlfw.optim import FlatOptimizer, ParameterGroup
from rlfw.probing import dump
from rlfw.progress import Progress
from rlfw.reference import Reference
from rlfw.retention import Retention
from rlfw.rollout import Batch
from rlfw.seeding import Streams
from rlfw.update import Trace
from rlfw.watch import Watch

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from omegaconf import DictConfig
    from torch import Tensor

    from rlfw.composition import Loss
    from rlfw.interfaces import Controller, Env, Policy
    from rlfw.rollout import Rollout
    from rlfw.run import RunFolder


class Trainer:
    """Trains one composition on one env."""

    def __init__(self, cfg: DictConfig) -> None:
        checks.root(cfg)
        self.cfg = cfg
        self.streams = Streams(cfg.seed)
        self.env: Env = self._build("env", gamma=cfg.gamma, streams=self.streams)
        self.composition = Composition(cfg, gamma=cfg.gamma, max_steps=self.env.spec.max_steps, streams=self.streams)
        self._check_composition()
        self.policy: Policy = self._build("policy", env_spec=self.env.spec, streams=self.streams)
        self.by_steps = self.policy.memoryless and "whole_rows" not in self.composition.needs
        self._check_update()
        self.controllers: dict[str, Controller] = {
            name: registry.build("controller", node, instance=name) for name, node in cfg.controller.items()
        }
        self.iteration, self.steps, self.episodes = 0, 0, 0
        self.retention = Retention(cfg.checkpoint.keep, cfg.checkpoint.every, cfg.checkpoint.milestones)
        self.bar = Progress(cfg, self.env.unit)
        self.stopping: int | None = None  # set from outside, to a signal: end after the iteration under way

    def _build(self, axis: str, **wires: Any) -> Any:
        (node,) = self.cfg[axis].values()
        return registry.build(axis, node, **wires)

    def _check_composition(self) -> None:
        """Refuse what cannot run, before any time is spent."""
        self.composition.check_env(self.env)
        if self.cfg.evaluation.every:
            self.env.check_evaluation(self.cfg.evaluation.episodes)
        if "whole_batch" in self.composition.needs and self.cfg.micro_batch_rows is not None:
            part = self.composition.needing("whole_batch")
            raise UserError(f"{part} needs the whole batch at once: set micro_batch_rows=null")

    def _check_update(self) -> None:
        if self.cfg["update"] == "compile" and not self.by_steps:
            whole = "whole_rows" in self.composition.needs
            part = self.composition.needing("whole_rows") if whole else "this policy"
            raise UserError(
                f"update=compile takes minibatches of single steps and {part} needs whole rows: set update=eager"
            )

    def prepare(self, folder: RunFolder, *, warm: bool = True) -> None:
        """The warm start, then what stands on it: reference, critic, optimizer, knobs. Not ``warm``: weights follow."""
        cfg, critic, self.folder = self.cfg, self.composition.critic, folder
        if warm and cfg.warmup.steps:
            from rlfw.supervised import warm_up

            warm_up(self.policy, self.env, cfg.warmup, self.streams, cfg.micro_batch_rows)
            self.policy.save(folder.path / "warmup")
        self.reference = Reference(self.policy) if "ref_logprobs" in self.composition.needs else None
        if warm and self.reference is not None:
            self.reference.save(folder.path / "reference")
        groups = [ParameterGroup("policy", list(self.policy.parameters()), cfg.lr, cfg.max_grad_norm)]
        if critic is not None:
            self.policy.add_critic(critic.network)
            own = list(self.policy.critic_parameters())
            groups.append(ParameterGroup("critic", own, critic.lr, critic.max_grad_norm))
        self.optimizer = FlatOptimizer(self._build("optimizer"), groups)
        self.gradient = GRADIENTS[cfg["update"]](Objective(self.policy, self.composition), self.optimizer)
        self.knobs = Knobs.of(self.composition, cfg, self.optimizer)
        self.single_step = cfg.epochs * cfg.num_minibatches == 1
        controls = Controls(self.knobs, self.reference, self.single_step)
        for controller in self.controllers.values():
            controller.start(controls)
        self.guard, self.watch = Guard(self.composition, folder), Watch(folder, self.bar.say)

    # ------------------------------------------------------------------------------------------------ the loop

    def fit(self, folder: RunFolder, checkpoint: Path | None = None) -> None:
        """Train until the budget is spent, from the start or from a ``checkpoint`` of the same run."""
        self.prepare(folder, warm=checkpoint is None)
        if checkpoint is not None:
            snapshot.read(self, checkpoint)
        self.save()
        for _ in self.iterations():
            rollout = self.collect()
            batch = self.credit(self.score(rollout))
            found = self.update(batch)
            self.report(found, batch, rollout)
            self.control(found)
            if self.retention.due(self.iteration, self.spent, self.progress()):
                self.save()
        self.save()

    def iterations(self) -> Iterator[int]:
        """Iterations until the budget is spent; the knobs are set before each."""
        while (spent := self.progress()) < 1 and self.stopping is None:
            self.spent = spent
            self.iteration += 1
            self.timing: dict[str, float] = {}
            self.clock = time.perf_counter()
            for controller in self.controllers.values():
                controller.before_iteration(spent)
            yield self.iteration

    def progress(self) -> float:
        """The share of the budget that is spent."""
        if self.cfg.iterations is not None:
            return float(self.iteration / self.cfg.iterations)
        return float(self.steps / self.cfg.total_steps)

    def collect(self) -> Rollout:
        """One rollout of the present policy, checked at the door."""
        greedy = "greedy_returns" in self.composition.needs
        rollout = self.composition.sampler.collect(self.env, self.policy.actor(self.streams), greedy=greedy)
        rollout.check(f"env={self.env.name}")
        self.steps += rollout.spent
        self.episodes += len(rollout.episodes.returns)
        self._clock("rollout")
        return rollout

    @torch.no_grad()
    def score(self, rollout: Rollout) -> Batch:
        """Fill what the parts asked for. The old log-probs are left to the update where it is a single step."""
        batch = Batch.of(rollout)
        if not len(batch.mask):  # nothing carried a signal: there is nothing to score, to credit or to learn from
            return batch.with_(advantages=batch.rewards, returns=batch.rewards)
        controllers = self.controllers.values()
        asked = self.composition.needs_before_update.union(*(controller.needs for controller in controllers))
        old = not self.single_step or not asked.isdisjoint({"old_logprobs", "entropy"})
        found: dict[str, list[Tensor]] = {}
        for rows in self._micro_batches(batch):
            seen = (rows.context, rows.actions, rows.mask)
            if old:
                scored = self.policy.score(*seen, entropy=True)
                found.setdefault("old_logprobs", []).append(scored.logprobs)
                found.setdefault("entropy", []).append(scored.entropy)
            if self.composition.critic is not None:
                found.setdefault("values", []).append(self.policy.values(*seen))
            if self.reference is not None:
                found.setdefault("ref_logprobs", []).append(self.reference.logprobs(rows))
        batch = batch.with_(**{name: torch.cat(parts) for name, parts in found.items()})
        self._clock("score")
        return batch

    def credit(self, batch: Batch) -> Batch:
        """Rewards, advantages, returns and weights, from the parts."""
        batch = self.composition.credit(batch)
        self._clock("credit")
        return batch

    def update(self, batch: Batch) -> dict[str, float]:
        """Epochs of minibatches, an optimizer step each, until a controller ends them."""
        trace = Trace()
        self.guard.start()
        for minibatch in self.minibatches(batch):
            losses = self.backward(minibatch)
            if self._stopped_by_kl(losses):
                break
            if self.cfg.dump == self.iteration and not trace.losses:
                dump(self.folder.path, self.composition, minibatch, losses, "minibatch")
            norms = self.optimizer.clip()
            if not self.guard.lets_pass(norms, self.iteration, minibatch, losses):
                continue
            self.optimizer.step()
            trace.add(losses, norms)
        found = {**trace.metrics(self.composition), "optim/skipped_steps": self.guard.skipped}
        self._clock("update")
        return found

    def minibatches(self, batch: Batch) -> Iterator[Batch]:
        """Shuffled anew each epoch: single steps, or rows where a part or the policy needs them whole."""
        layout = batch.steps() if self.by_steps else batch
        rows = len(layout.mask)
        if not bool(layout.mask.any()):
            return
        number = min(self.cfg.num_minibatches, rows)
        sizes = [rows * (k + 1) // number - rows * k // number for k in range(number)]
        for _ in range(self.cfg.epochs):
            order = torch.randperm(rows, generator=self.streams.torch("minibatches"))
            yield from layout.rows(order).split(sizes)

    def backward(self, minibatch: Batch) -> list[Loss]:
        """The gradient of one optimizer batch, micro-batch by micro-batch, under coefficients of the whole."""
        self.optimizer.zero_grad()
        minibatch, coefficients = self.composition.prepare(minibatch)
        losses = []
        for rows, share in zip(self._micro_batches(minibatch), self._split(coefficients), strict=True):
            losses.append(self.gradient.add(rows, share))
        return losses

    def _micro_batches(self, batch: Batch) -> list[Batch]:
        sizes = self._sizes(len(batch.mask))
        return [batch] if len(sizes) <= 1 else batch.split(sizes)

    def _split(self, coefficients: Tensor) -> list[Tensor]:
        return list(coefficients.split(self._sizes(len(coefficients))))

    def _sizes(self, rows: int) -> list[int]:
        width = self.cfg.micro_batch_rows or rows
        return [min(width, rows - start) for start in range(0, rows, width)] if rows else [0]

    def _stopped_by_kl(self, losses: list[Loss]) -> bool:
        watchers = [controller for controller in self.controllers.values() if controller.watches_kl]
        if not watchers:
            return False
        steps = sum(loss.batch.mask.sum() for loss in losses)
        total = sum(metrics.approx_kl(loss.new.logprobs, loss.batch) * loss.batch.mask.sum() for loss in losses)
        kl = float(total / steps)
        return any(controller.stops(kl) for controller in watchers)

    def control(self, found: dict[str, float]) -> None:
        """Let the controllers turn their knobs."""
        for controller in self.controllers.values():
            controller.after_iteration(found)

    # ------------------------------------------------------------------------------------------------ reports

    def _clock(self, stage: str) -> None:
        now = time.perf_counter()
        self.timing[stage] = now - self.clock
        self.clock = now

    def report(self, found: dict[str, float], batch: Batch, rollout: Rollout) -> None:
        """One line of metrics, the samples, and an evaluation where it is due."""
        found.update(metrics.rollout_metrics(rollout))
        if len(batch.mask):
            found.update(metrics.batch_metrics(batch, rollout.rewards))
        found["optim/lr"] = self.optimizer.lr("policy")
        for name, part in (*self.composition.parts.items(), *self.controllers.items()):
            for key, value in part.report().items():  # a further instance adds its name
                found[f"{key}/{name.rpartition('.')[2]}" if key in found else key] = value
        every = self.cfg.evaluation.every
        if every and self.iteration % every == 0:
            episodes = evaluate(self.env, self.policy, self.cfg.evaluation.episodes, self.streams)
            found.update({f"eval/{name}": interval.mean for name, interval in episodes.items()})
            if self.cfg.checkpoint.best:
                self.retention.evaluated(self.iteration, next(iter(episodes.values())).mean)
        found.update({f"timing_s/{stage}": seconds for stage, seconds in self.timing.items()})
        found["perf/steps_per_s"] = rollout.spent / sum(self.timing.values())
        counts = {"iteration": self.iteration, "global_step": self.steps, "episode": self.episodes}
        self.folder.log({**counts, **found})
        self.watch.see({**counts, **found})
        if rollout.samples is not None:
            records = metrics.with_advantages(rollout.samples, batch)
            self.folder.samples({"iteration": self.iteration, **record} for record in records)
        self.bar.show(self.progress(), found)

    def save(self) -> None:
        """A checkpoint of the present iteration."""
        if not self.optimizer.finite():
            raise RunError(f"iteration {self.iteration}: the weights are not finite and were not saved; lower lr")
        self.folder.save_checkpoint(self.iteration, partial(snapshot.write, self), self.retention)

    def close(self) -> None:
        self.bar.close()
        self.env.close()

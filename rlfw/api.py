"""A run from the first override to the last checkpoint, and an evaluation of one."""

from __future__ import annotations

import contextlib
import json
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlfw import checks, config, effects, notes, registry, signals, snapshot
from rlfw.errors import RunError, UserError
from rlfw.evaluation import evaluate
from rlfw.run import CONFIG, WARMUP, RunFolder, checkpoints, load_config, newest
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omegaconf import DictConfig

    from rlfw.evaluation import Interval
    from rlfw.interfaces import Env, Policy


def train(overrides: Sequence[str] = ()) -> Path:
    """Train as ``rlfw train`` does with these overrides; the run's folder.

    ``resume=DIR`` goes on with that run, in its folder, from its newest whole checkpoint. UserError before the run
    starts where a word is wrong; RunError where the run ends early.
    """
    source = dict(config.typed_overrides(overrides)).get("resume")
    if source is not None:
        return resume(Path(str(source)), overrides)
    return run(config.compose(overrides), overrides)


def interrupted(run: Path) -> int | None:
    """The number of the signal that ended a run, which was saved; None where none did."""
    status = json.loads((run / "status.json").read_text())
    return int(status["signal"]) if status["state"] == "interrupted" else None


def run(cfg: DictConfig, overrides: Sequence[str]) -> Path:
    """Train a settled configuration in a fresh folder."""
    if cfg.resume is not None:
        raise UserError("resume=DIR goes on with one run: write it without -m and outside of experiment files")
    effects.check(cfg, overrides)
    return _fit(cfg, lambda: RunFolder.create(cfg, overrides))


def resume(path: Path, overrides: Sequence[str] = ()) -> Path:
    """Go on with the run in ``path``. ``overrides``: its budget, what does not touch the training, and plugins."""
    cfg = load_config(path)
    words = [word for word in overrides if word.partition("=")[0] != "resume"]
    plugins = config.change(cfg, words)
    _load_plugins(cfg, plugins, path)
    config.check_saved(cfg, words)
    checks.root(cfg)
    effects.check(cfg, words)
    checkpoint = newest(path)
    iteration = -1 if checkpoint is None else int(checkpoint.name)
    if checkpoint is not None:
        _check_budget(cfg, *snapshot.counts(checkpoint), words)
    return _fit(cfg, lambda: RunFolder.resume(path, cfg, overrides, iteration), checkpoint)


def _check_budget(cfg: DictConfig, iterations: int, steps: int, words: Sequence[str]) -> None:
    """UserError where a budget that was typed is spent already; a note where the run's own is."""
    key, done = ("total_steps", steps) if cfg.iterations is None else ("iterations", iterations)
    if done < cfg[key]:
        return
    if any(word.startswith(f"{key}=") for word in words):
        raise UserError(f"{key}={cfg[key]}: {done} are done already; give a larger one")
    print(f"rlfw: note: the budget is spent ({key}={cfg[key]}): nothing is left to do", file=sys.stderr)


def _load_plugins(cfg: DictConfig, plugins: Sequence[str], root: Path) -> None:
    """Load the plugins that are named; UserError where one that the run used is not, or is not what it was."""
    given = {Path(plugin).name: Path(plugin) for plugin in plugins}
    kept = {Path(name).name: root / "plugins" / Path(name).name for name in cfg.plugins}
    if missing := [str(copy) for name, copy in kept.items() if name not in given]:
        raise UserError(f"the run used parts of its own: add plugins=[{','.join(missing)}]")
    for name, copy in kept.items():
        if not copy.is_file():
            raise UserError(f"{root} lacks {copy.relative_to(root)}, the copy of the run's plugin: bring it back")
        if given[name].is_file() and given[name].read_bytes() != copy.read_bytes():
            raise UserError(f"{given[name]} is not what the run began with: its own copy is plugins=[{copy}]")
    config.prepare(plugins)


def _fit(cfg: DictConfig, open_folder: Callable[[], RunFolder], checkpoint: Path | None = None) -> Path:
    from rlfw.trainer import Trainer

    checks.root(cfg)
    torch.set_num_threads(cfg.threads)
    trainer = Trainer(cfg)
    for note in (*notes.idle(cfg, trainer.composition, trainer.controllers.values()), *trainer.policy.notes):
        print(f"rlfw: note: {note}", file=sys.stderr)
    try:
        folder = open_folder()
    except BaseException:
        trainer.close()
        raise
    try:
        with signals.ending(trainer):  # the iteration under way is finished, and saved
            trainer.fit(folder, checkpoint)
    except BaseException as error:
        fresh = checkpoint is None and not checkpoints(folder.path)
        if isinstance(error, UserError) and fresh:  # nothing was trained: the folder is free again
            shutil.rmtree(folder.path, ignore_errors=True)
            raise
        reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed"
        with contextlib.suppress(OSError):
            folder.status(
                reason, error=str(error) or type(error).__name__, iteration=trainer.iteration, steps=trainer.steps
            )
        raise
    finally:
        folder.close()
        trainer.close()
    cut = trainer.stopping if trainer.progress() < 1 else None
    facts = {"iteration": trainer.iteration, "steps": trainer.steps}
    folder.status("done" if cut is None else "interrupted", **facts, **({} if cut is None else {"signal": cut}))
    found = effects.unmet(cfg, trainer.iteration)
    if cut is None and cfg.iterations is None:  # else it was said before the run
        found += notes.still(cfg, trainer.controllers.values(), trainer.iteration)
    for sentence in found:
        print(f"rlfw: {sentence}", file=sys.stderr)
    return folder.path


def evaluate_run(
    path: Path, episodes: int, *, greedy: bool = True, seed: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, Interval]:
    """Play ``episodes`` fresh episodes with the newest checkpoint of a run (or the checkpoint ``path`` itself).

    ``overrides``: keys of the env (env.gym.max_episode_steps=500), and plugins=[FILE] where the run used any.
    """
    with restored(path, seed=seed, overrides=overrides) as run:
        return evaluate(run.env, run.policy, episodes, run.streams, greedy=greedy)


@dataclass(frozen=True)
class Restored:
    """What was trained, as it was saved."""

    env: Env
    policy: Policy
    streams: Streams
    saved: Path  # the checkpoint, or the folder of rlfw warmup


@contextlib.contextmanager
def restored(
    path: Path, *, seed: int | None = None, overrides: Sequence[str] = (), policy_keys: Sequence[str] = ()
) -> Iterator[Restored]:
    """A run at its newest checkpoint, or at the checkpoint ``path`` itself, or what rlfw warmup left in ``path``.

    ``overrides``: keys of the env, those of the policy that are in ``policy_keys``, and plugins. Nothing is written.
    """
    from rlfw.checkpoint import BROKEN, load_state

    path = Path(path)
    warm = (path / WARMUP).is_file()
    root = path.parent.parent if path.parent.name == "checkpoints" else path
    cfg = load_config(root, WARMUP if warm else CONFIG)
    _load_plugins(cfg, _changed(cfg, overrides, policy_keys), root)
    config.check_saved(cfg, overrides)
    saved = newest(root) if path is root and not warm else path
    if saved is None:
        raise UserError(f"{root} holds no checkpoint yet")
    torch.set_num_threads(cfg.threads)
    streams = Streams(cfg.seed if seed is None else seed)
    try:
        (env_node,), (policy_node,) = cfg.env.values(), cfg.policy.values()
        env: Env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
        policy: Policy = registry.build("policy", policy_node, env_spec=env.spec, streams=streams)
        policy.load(saved if warm else saved / "policy")
        if not warm:
            env.load_state_dict(load_state(saved, "state")["env"])
    except BROKEN as error:
        raise UserError(f"{saved} cannot be read as a checkpoint: {error!r:.300}") from error
    try:
        yield Restored(env, policy, streams, saved)
    finally:
        env.close()


def _changed(cfg: DictConfig, overrides: Sequence[str], policy_keys: Sequence[str]) -> list[str]:
    """Set keys of the env and some of the policy in ``cfg``; the plugins."""
    (policy,) = cfg.policy
    known = [*_env_keys(cfg), *(f"policy.{policy}.{key}" for key in policy_keys if key in cfg.policy[policy])]
    plugins: list[str] = []
    for key, value in config.typed_overrides(overrides):
        axis, _, rest = key.partition(".")
        if key == "plugins":
            plugins = list(value)
        elif OmegaConf.select(cfg, key, throw_on_missing=False, default=...) is ... or not any(
            f"{key}.".startswith(f"{one}.") for one in known
        ):
            raise UserError(f"{key} cannot change here; what can: {', '.join(known)} and plugins")
        else:
            OmegaConf.update(cfg, key, value)
            name = rest.split(".")[0]
            schema = registry.entry(axis, cfg[axis][name].part).schema
            try:
                cfg[axis][name] = OmegaConf.merge(OmegaConf.structured(schema), cfg[axis][name])
            except OmegaConfBaseException as error:
                raise UserError(config.explain(error)) from error
    return plugins


def _env_keys(cfg: DictConfig) -> list[str]:
    return [f"env.{name}.{key}" for name, node in cfg.env.items() for key in node if key != "part"]


__all__ = ["RunError", "UserError", "evaluate_run", "resume", "run", "train"]

"""A run from the first override to the last checkpoint, and an evaluation of one."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlfw import checks, config, effects, notes, registry, snapshot
from rlfw.errors import RunError, UserError
from rlfw.evaluation import evaluate
from rlfw.run import RunFolder, checkpoints, load_config, newest
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from omegaconf import DictConfig

    from rlfw.evaluation import Interval
    from rlfw.interfaces import Env, Policy
    from rlfw.trainer import Trainer


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
        with _interruptible(trainer):
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


@contextlib.contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """The first SIGINT (Ctrl-C) or SIGTERM ends the run after the iteration under way, saved; the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        if trainer.stopping is not None:
            raise KeyboardInterrupt
        trainer.stopping = signum

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def evaluate_run(
    path: Path, episodes: int, *, greedy: bool = True, seed: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, Interval]:
    """Play ``episodes`` fresh episodes with the newest checkpoint of a run (or the checkpoint ``path`` itself).

    ``overrides``: keys of the env (env.gym.max_episode_steps=500), and plugins=[FILE] where the run used any.
    """
    from rlfw.checkpoint import BROKEN, load_state

    path = Path(path)
    root = path.parent.parent if path.parent.name == "checkpoints" else path
    cfg = load_config(root)
    _load_plugins(cfg, _evaluation_overrides(cfg, overrides), root)
    config.check_saved(cfg, overrides)
    saved = newest(root) if path is root else path
    if saved is None:
        raise UserError(f"{root} holds no checkpoint yet")
    torch.set_num_threads(cfg.threads)
    streams = Streams(cfg.seed if seed is None else seed)
    try:
        (env_node,), (policy_node,) = cfg.env.values(), cfg.policy.values()
        env: Env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
        policy: Policy = registry.build("policy", policy_node, env_spec=env.spec, streams=streams)
        policy.load(saved / "policy")
        env.load_state_dict(load_state(saved, "state")["env"])
    except BROKEN as error:
        raise UserError(f"{saved} cannot be read as a checkpoint: {error!r:.300}") from error
    try:
        return evaluate(env, policy, episodes, streams, greedy=greedy)
    finally:
        env.close()


def _evaluation_overrides(cfg: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Set the env's keys in ``cfg``; the plugins."""
    plugins: list[str] = []
    for key, value in config.typed_overrides(overrides):
        if key == "plugins":
            plugins = list(value)
        elif not key.startswith("env.") or OmegaConf.select(cfg, key, throw_on_missing=False, default=...) is ...:
            raise UserError(
                f"{key}: an evaluation takes keys of the run's env ({', '.join(_env_keys(cfg))}) and plugins"
            )
        else:
            OmegaConf.update(cfg, key, value)
            name = key.split(".")[1]
            schema = registry.entry("env", cfg.env[name].part).schema
            try:
                cfg.env[name] = OmegaConf.merge(OmegaConf.structured(schema), cfg.env[name])
            except OmegaConfBaseException as error:
                raise UserError(config.explain(error)) from error
    return plugins


def _env_keys(cfg: DictConfig) -> list[str]:
    return [f"env.{name}.{key}" for name, node in cfg.env.items() for key in node if key != "part"]


__all__ = ["RunError", "UserError", "evaluate_run", "resume", "run", "train"]

"""A run from the first override to the last checkpoint, and an evaluation of one."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from safetensors import SafetensorError

from rlfw import config, registry
from rlfw.errors import RunError, UserError
from rlfw.evaluation import evaluate
from rlfw.run import RunFolder, checkpoints, load_config
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omegaconf import DictConfig

    from rlfw.evaluation import Interval
    from rlfw.interfaces import Env, Policy
    from rlfw.trainer import Trainer


def train(overrides: Sequence[str] = ()) -> Path:
    """Train as ``rlfw train`` does with these overrides; the run's folder.

    UserError before the run starts where a word is wrong; RunError where the run ends early.
    """
    return run(config.compose(overrides), overrides)


def interrupted(run: Path) -> bool:
    """Whether a run was ended from outside, and saved."""
    return bool(json.loads((run / "status.json").read_text())["state"] == "interrupted")


def run(cfg: DictConfig, overrides: Sequence[str]) -> Path:
    """Train a settled configuration."""
    from rlfw.trainer import Trainer

    torch.set_num_threads(cfg.threads)
    trainer = Trainer(cfg)
    folder = RunFolder.create(cfg, overrides)
    try:
        with _interruptible(trainer):
            trainer.fit(folder)
    except BaseException as error:
        if isinstance(error, UserError) and trainer.iteration == 0:  # nothing was trained: the folder is free again
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
    state = "interrupted" if trainer.stopping else "done"
    folder.status(state, iteration=trainer.iteration, steps=trainer.steps)
    return folder.path


@contextlib.contextmanager
def _interruptible(trainer: Trainer) -> Iterator[None]:
    """The first Ctrl-C ends the run after the iteration under way, saved; the second at once."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(signum: int, frame: Any) -> None:
        if trainer.stopping:
            raise KeyboardInterrupt
        trainer.stopping = True

    before = signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def evaluate_run(
    path: Path, episodes: int, *, greedy: bool = True, seed: int | None = None, overrides: Sequence[str] = ()
) -> dict[str, Interval]:
    """Play ``episodes`` fresh episodes with the newest checkpoint of a run (or the checkpoint ``path`` itself).

    ``overrides``: keys of the env (env.gym.max_episode_steps=500), and plugins=[FILE] where the run used any.
    """
    from rlfw.checkpoint import load_state

    path = Path(path)
    root = path.parent.parent if path.parent.name == "checkpoints" else path
    cfg = load_config(root)
    plugins = _evaluation_overrides(cfg, overrides)
    missing = [name for name in cfg.plugins if Path(name).name not in {Path(p).name for p in plugins}]
    if missing:
        kept = [str(root / "plugins" / Path(name).name) for name in missing]
        raise UserError(f"the run used parts of its own: add plugins=[{','.join(kept)}]")
    config.prepare(plugins)
    saved = [path] if path is not root else checkpoints(root)
    if not saved:
        raise UserError(f"{root} holds no checkpoint yet")
    torch.set_num_threads(cfg.threads)
    streams = Streams(cfg.seed if seed is None else seed)
    try:
        (env_node,), (policy_node,) = cfg.env.values(), cfg.policy.values()
        env: Env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
        policy: Policy = registry.build("policy", policy_node, env_spec=env.spec, streams=streams)
        policy.load(saved[-1] / "policy")
        env.load_state_dict(load_state(saved[-1], "state")["env"])
    except (OSError, KeyError, ValueError, SafetensorError) as error:
        raise UserError(f"{saved[-1]} cannot be read as a checkpoint: {error}") from error
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


__all__ = ["RunError", "UserError", "evaluate_run", "run", "train"]

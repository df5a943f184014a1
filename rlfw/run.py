"""A run's folder: what was asked, what ran, what came out."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import shutil
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rlfw.errors import RunError, UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence


class RunFolder:
    """config.yaml, provenance.json, status.json, metrics.jsonl, TensorBoard events, samples.jsonl, checkpoints/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._metrics = (path / "metrics.jsonl").open("a")
        self._events: Any = None
        self._started = time.time()

    @classmethod
    def create(cls, cfg: DictConfig, overrides: Sequence[str]) -> RunFolder:
        """A fresh folder; UserError where it is taken or cannot be written."""
        try:
            path = _fresh(cfg)
            saved = OmegaConf.to_container(cfg, resolve=True)
            assert isinstance(saved, dict)
            OmegaConf.save(
                OmegaConf.create({**saved, "out": str(path), "overrides": list(overrides)}), path / "config.yaml"
            )
            for plugin in cfg.plugins:
                (path / "plugins").mkdir(exist_ok=True)
                shutil.copy(plugin, path / "plugins")
            _write_json(path / "provenance.json", provenance(overrides))
            folder = cls(path)
        except OSError as error:
            raise UserError(f"out={cfg.out or 'runs/'}: cannot write there: {error.strerror or error}") from error
        if cfg.tensorboard:
            folder.open_events()
        folder.status("running")
        return folder

    def open_events(self) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events = EventFileWriter(str(self.path))

    def status(self, state: str, **facts: Any) -> None:
        """state: running, done, failed or interrupted."""
        _write_json(
            self.path / "status.json", {"state": state, "started": self._started, "updated": time.time(), **facts}
        )

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        """One line of metrics.jsonl, one TensorBoard event."""
        with _writing(self.path):
            self._metrics.write(json.dumps(dict(metrics)) + "\n")
            self._metrics.flush()
        if self._events is not None:
            from tensorboard.compat.proto.event_pb2 import Event
            from tensorboard.compat.proto.summary_pb2 import Summary

            values = [Summary.Value(tag=name, simple_value=value) for name, value in metrics.items()]
            self._events.add_event(Event(wall_time=time.time(), step=step, summary=Summary(value=values)))

    def samples(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Lines of samples.jsonl."""
        with _writing(self.path), (self.path / "samples.jsonl").open("a") as file:
            for record in records:
                file.write(json.dumps(dict(record)) + "\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a disk that was full has been reported where it was met
            self._metrics.close()
        if self._events is not None:
            self._events.close()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, iteration: int, write: Callable[[Path], None], keep: int) -> Path:
        """``write`` fills a folder beside its place, which it takes when it is whole. Older ones beyond ``keep`` go."""
        root = self.path / "checkpoints"
        final = root / f"{iteration:08d}"
        aside = root / f".{iteration:08d}.partial"
        if final.exists():
            return final
        with _writing(self.path):
            shutil.rmtree(aside, ignore_errors=True)
            aside.mkdir(parents=True)
            try:
                write(aside)
            except Exception:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            os.replace(aside, final)
        if keep >= 0:
            for old in checkpoints(self.path)[: -max(keep, 1)]:
                shutil.rmtree(old)
        return final


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, by number."""
    root = run / "checkpoints"
    found = [path for path in root.iterdir() if path.name.isdigit()] if root.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def load_config(run: Path) -> DictConfig:
    """The resolved configuration of a run."""
    file = run / "config.yaml"
    if not file.is_file():
        raise UserError(f"{run} is not a run's folder: it has no config.yaml")
    cfg = OmegaConf.load(file)
    assert isinstance(cfg, DictConfig)
    del cfg["overrides"]
    return cfg


@contextlib.contextmanager
def _writing(run: Path) -> Any:
    """OSError while a run is under way: it ends with what to do; what was saved before stays."""
    try:
        yield
    except OSError as error:
        saved = checkpoints(run)
        kept = f"the checkpoint {saved[-1]} is whole" if saved else "no checkpoint was saved yet"
        raise RunError(
            f"cannot write to {run}: {error.strerror or error}; free space or change out=; {kept}"
        ) from error


def _fresh(cfg: DictConfig) -> Path:
    if cfg.out is not None:
        path = Path(cfg.out)
        if path.exists() and (not path.is_dir() or any(path.iterdir())):
            raise UserError(f"out={path} is not empty: name another folder, or leave out= away for a fresh one")
        path.mkdir(parents=True, exist_ok=True)
        return path
    stem = time.strftime("%Y%m%d-%H%M%S") + f"-seed{cfg.seed}"
    for attempt in range(1000):
        path = Path("runs") / (stem if attempt == 0 else f"{stem}-{attempt}")
        with contextlib.suppress(FileExistsError):
            path.mkdir(parents=True)
            return path
    raise UserError("runs/ holds a thousand runs of this second; name a folder with out=")


def provenance(overrides: Sequence[str]) -> dict[str, Any]:
    """What is needed to run it again: command, versions, git state, machine."""

    def git(*words: str) -> str | None:
        try:
            where = Path(__file__).parent
            return subprocess.run(["git", *words], cwd=where, capture_output=True, text=True, check=True).stdout.strip()
        except (OSError, subprocess.CalledProcessError):
            return None

    versions = {"python": platform.python_version()}
    for package in ("rlfw", "torch", "numpy", "gymnasium", "transformers", "hydra-core"):
        with contextlib.suppress(PackageNotFoundError):
            versions[package] = version(package)
    status = git("status", "--porcelain")
    return {
        "command": sys.argv,
        "overrides": list(overrides),
        "versions": versions,
        "git": {"commit": git("rev-parse", "HEAD"), "dirty": None if status is None else bool(status)},
        "platform": platform.platform(),
        "cpus": os.cpu_count(),
        "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(aside, path)

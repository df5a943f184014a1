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

from filelock import FileLock, Timeout
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import YAMLError

from rlfw.checkpoint import seal, sync, whole
from rlfw.errors import RunError, UserError
from rlfw.schema import Config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from rlfw.retention import Retention


CONFIG = "config.yaml"  # a folder that has one is a run, which can go on
WARMUP = "warmup.yaml"  # the same of a model that rlfw warmup has trained


class RunFolder:
    """config.yaml, provenance.json, status.json, {metrics,samples,warnings}.jsonl, TensorBoard events, checkpoints/."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = _locked(path)
        self._metrics = (path / "metrics.jsonl").open("a")
        self._events: Any = None
        self._started = time.time()

    @classmethod
    def create(cls, cfg: DictConfig, overrides: Sequence[str]) -> RunFolder:
        """A fresh folder; UserError where it is taken or cannot be written."""
        try:
            path = _fresh(cfg)
            folder = cls(path)
            _begin(path, CONFIG, cfg, overrides)
        except (OSError, ValueError) as error:
            raise _refused(cfg, error) from error
        if cfg.tensorboard:
            folder.open_events()
        folder.status("running")
        return folder

    @classmethod
    def resume(cls, path: Path, cfg: DictConfig, overrides: Sequence[str], iteration: int) -> RunFolder:
        """The folder of a run that goes on after ``iteration``: what it wrote beyond that is taken back."""
        folder = cls(path)
        with _writing(path):
            _save_config(path, CONFIG, cfg, typed_words(path))
            _write_json(path / "provenance.json", _resumed(path, overrides, iteration))
            folder._metrics.close()
            for name in ("metrics.jsonl", "samples.jsonl", "warnings.jsonl"):
                _cut_lines(path / name, iteration)
            folder._metrics = (path / "metrics.jsonl").open("a")
            for checkpoint in checkpoints(path):
                if int(checkpoint.name) > iteration:
                    _remove(checkpoint)
            if cfg.tensorboard:
                folder._replay_events()
        folder.status("running")
        return folder

    def open_events(self) -> None:
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._events = EventFileWriter(str(self.path))

    def status(self, state: str, **facts: Any) -> None:
        """state: running, done, failed or interrupted."""
        write_status(self.path, state, self._started, **facts)

    def log(self, metrics: Mapping[str, float]) -> None:
        """One line of metrics.jsonl, one TensorBoard event at ``global_step``."""
        row = {**metrics, "time": time.time()}
        with _writing(self.path):
            self._metrics.write(json.dumps(row) + "\n")
            self._metrics.flush()
        self._event(row)

    def _event(self, row: Mapping[str, float]) -> None:
        if self._events is None:
            return
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary

        values = [Summary.Value(tag=name, simple_value=value) for name, value in row.items() if name != "time"]
        step = int(row["global_step"])
        self._events.add_event(Event(wall_time=row["time"], step=step, summary=Summary(value=values)))

    def _replay_events(self) -> None:
        """One event file with what metrics.jsonl holds, in place of those that there were."""
        old = list(self.path.glob("events.out.tfevents.*"))
        self.open_events()
        with (self.path / "metrics.jsonl").open() as rows:
            for line in rows:
                self._event(json.loads(line))
        self._events.flush()
        for file in old:
            file.unlink()

    def samples(self, records: Iterable[Mapping[str, Any]]) -> None:
        """Lines of samples.jsonl."""
        self._append("samples.jsonl", records)

    def warn(self, record: Mapping[str, Any]) -> None:
        """A line of warnings.jsonl, which is there from the first warning on."""
        self._append("warnings.jsonl", [record])

    def _append(self, name: str, records: Iterable[Mapping[str, Any]]) -> None:
        with _writing(self.path), (self.path / name).open("a") as file:
            for record in records:
                file.write(json.dumps(dict(record)) + "\n")

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a disk that was full has been reported where it was met
            self._metrics.close()
        self._lock.release()
        if self._events is not None:
            self._events.close()

    # ------------------------------------------------------------------------------------------------ checkpoints

    def save_checkpoint(self, iteration: int, write: Callable[[Path], None], retention: Retention) -> Path:
        """``write`` fills a folder beside its place, which it takes when it is whole. Then go those that may go."""
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
                seal(aside)
            except Exception:
                shutil.rmtree(aside, ignore_errors=True)
                raise
            os.replace(aside, final)
            sync(root)
        saved = {int(path.name): path for path in checkpoints(self.path)}
        for old in saved.keys() - retention.stays(saved):
            _remove(saved[old])
        return final


def checkpoints(run: Path) -> list[Path]:
    """The checkpoints of a run, oldest first, by number."""
    root = run / "checkpoints"
    found = [path for path in root.iterdir() if path.name.isdigit()] if root.is_dir() else []
    return sorted(found, key=lambda path: int(path.name))


def _remove(checkpoint: Path) -> None:
    """Out of sight first, so that a checkpoint is never met half deleted."""
    aside = checkpoint.with_name(f".{checkpoint.name}.deleted")
    os.replace(checkpoint, aside)
    shutil.rmtree(aside)


def newest(run: Path) -> Path | None:
    """The newest checkpoint that is whole, None where none was saved; one that is damaged is passed over, and said."""
    saved = checkpoints(run)
    for path in reversed(saved):
        if whole(path):
            return path
        print(f"rlfw: note: {path} is damaged and is passed over", file=sys.stderr)
    if saved:
        raise UserError(
            f"{run}: not one of its {len(saved)} checkpoints is whole: bring one back from a copy, or train anew with "
            f"the words under overrides in {run}/config.yaml"
        )
    return None


def load_config(run: Path, name: str = CONFIG) -> DictConfig:
    """The resolved configuration of a run, or of a warm start (WARMUP)."""
    file = run / name
    if not file.is_file():
        raise UserError(f"{run} is not a run's folder: it has no {name}")
    try:
        cfg = OmegaConf.load(file)
    except (OSError, ValueError, YAMLError, OmegaConfBaseException) as error:
        raise UserError(f"{file} cannot be read: {error}") from error
    known = {*Config.__dataclass_fields__, "overrides"}
    if not isinstance(cfg, DictConfig) or (differing := sorted(map(str, known ^ cfg.keys()))):
        what = f": {differing[0]} is unknown or missing" if isinstance(cfg, DictConfig) else ""
        raise UserError(f"{file} is not the configuration of a run of this version{what}")
    del cfg["overrides"]
    return cfg


def typed_words(run: Path) -> list[str]:
    """The words that began a run."""
    saved: Any = OmegaConf.to_container(OmegaConf.load(run / "config.yaml"))
    return list(saved["overrides"])


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


def _locked(path: Path) -> FileLock:
    """The lock of a run's folder; it falls with the process that holds it."""
    lock = FileLock(path / ".lock")
    try:
        lock.acquire(timeout=0)
    except Timeout as error:
        raise UserError(f"{path} is being written by another process: wait for it, or name another folder") from error
    return lock


def _cut_lines(file: Path, iteration: int) -> None:
    """Drop the rows of later iterations, and a last line that was cut short."""
    if not file.is_file():
        return
    aside = file.with_suffix(".partial")
    with file.open() as rows, aside.open("w") as kept:
        for line in rows:
            if not line.endswith("\n") or json.loads(line)["iteration"] > iteration:
                break
            kept.write(line)
    os.replace(aside, file)


def _resumed(path: Path, overrides: Sequence[str], iteration: int) -> dict[str, Any]:
    """The run's provenance, with one more line of where it went on."""
    found: dict[str, Any] = json.loads((path / "provenance.json").read_text())
    now = {"iteration": iteration, **provenance(overrides)}
    return {**found, "resumed": [*found.get("resumed", []), now]}


def check_free(cfg: DictConfig) -> None:
    """UserError where ``out`` is taken."""
    if cfg.out is None:
        return
    if not cfg.out.strip():
        raise UserError("out= names no folder: leave it away for a fresh one")
    path = Path(cfg.out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise UserError(f"out={path} is not empty: name another folder, or leave out= away for a fresh one")


def _fresh(cfg: DictConfig) -> Path:
    check_free(cfg)
    if cfg.out is not None:
        path = Path(cfg.out)
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


def begin(cfg: DictConfig, overrides: Sequence[str], name: str) -> Path:
    """A fresh folder with plugins/, provenance.json and ``name``; UserError where it is taken or cannot be written."""
    try:
        path = _fresh(cfg)
        _begin(path, name, cfg, overrides)
    except (OSError, ValueError) as error:
        raise _refused(cfg, error) from error
    return path


def _begin(path: Path, name: str, cfg: DictConfig, overrides: Sequence[str]) -> None:
    for plugin in cfg.plugins:
        (path / "plugins").mkdir(exist_ok=True)
        shutil.copy(plugin, path / "plugins")
    _write_json(path / "provenance.json", provenance(overrides))
    _save_config(path, name, cfg, overrides)  # the last of them: now the folder is what it is


def _refused(cfg: DictConfig, error: Exception) -> UserError:
    reason = (error.strerror if isinstance(error, OSError) else None) or error
    return UserError(f"out={cfg.out or 'runs/'}: cannot write there: {reason}")


def write_status(path: Path, state: str, started: float, **facts: Any) -> None:
    """status.json."""
    _write_json(path / "status.json", {"state": state, "started": started, "updated": time.time(), **facts})


def _save_config(run: Path, name: str, cfg: DictConfig, overrides: Sequence[str]) -> None:
    """``name``: the settled configuration, and the words that made it."""
    saved: Any = OmegaConf.to_container(cfg, resolve=True)
    aside = run / "config.partial"
    OmegaConf.save(OmegaConf.create({**saved, "out": str(run), "overrides": list(overrides)}), aside)
    os.replace(aside, run / name)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    aside = path.with_suffix(".partial")
    aside.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(aside, path)

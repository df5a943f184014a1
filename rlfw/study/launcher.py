"""What runs the runs of a study: processes of this machine, a Ray cluster, Slurm. The runner does not know which."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from filelock import FileLock

    from rlfw.study.plan import Run


@dataclass
class Job(ABC):
    """A run under way."""

    run: Run
    lock: FileLock
    log: Path
    start: int  # where this attempt's lines begin in the log

    @property
    @abstractmethod
    def seconds(self) -> float:
        """Since it began."""

    @property
    @abstractmethod
    def code(self) -> int | None:
        """The exit code, -N of a process that signal N ended; None while it runs."""

    @abstractmethod
    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""

    def last_line(self) -> str:
        """What the run said last: its own message, else whatever stands at the end of the log."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line.removeprefix("rlfw: ") for line in lines if line.startswith("rlfw: ")]
        return (said or lines or ["it said nothing"])[-1].strip()


class Launcher(Protocol):
    """Starts runs. It is made without cost; what takes time waits for ``open``."""

    workers: int  # runs at once

    def open(self, folder: Path) -> None:
        """Start the engine, or join it, for the study in ``folder``."""

    def start(self, run: Run, words: Sequence[str], lock: FileLock, log: Path) -> Job:
        """Train these words; what they print goes to the end of ``log``."""

    def close(self) -> None:
        """Let go of the engine."""


def head(log: Path, words: Sequence[str]) -> int:
    """Write an attempt's first line to the end of ``log``; where its own lines begin."""
    with log.open("a") as file:
        file.write(f"\n$ rlfw train {' '.join(words)}\n")
    return log.stat().st_size


def _local(threads: int, workers: int | None, options: Sequence[str]) -> Launcher:
    from rlfw.study.process import Local

    return Local(threads, workers)


def _ray(threads: int, workers: int | None, options: Sequence[str]) -> Launcher:
    from rlfw.study.ray import Ray

    return Ray(threads, workers)


def _slurm(threads: int, workers: int | None, options: Sequence[str]) -> Launcher:
    from rlfw.study.slurm import Slurm

    return Slurm(threads, workers, options)


# --launcher -> from --threads, --workers and what --slurm holds
LAUNCHERS: dict[str, Callable[[int, int | None, Sequence[str]], Launcher]] = {
    "local": _local,
    "ray": _ray,
    "slurm": _slurm,
}

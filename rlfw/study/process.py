"""A run as a process, forked from a server that holds the imports: a run starts in no time, and shares nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from filelock import FileLock

    from rlfw.study.plan import Run

POOLS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")  # each reads NAME_NUM_THREADS as it is loaded
CONTEXT = multiprocessing.get_context("forkserver")


def serve(threads: int) -> None:
    """Start the server, whose imports take seconds. Its processes have ``threads`` threads each."""
    os.environ.update({f"{pool}_NUM_THREADS": str(threads) for pool in POOLS})
    language = [name for name in sys.modules if name.startswith("transformers.")]  # the arms' check had to import it
    CONTEXT.set_forkserver_preload(["rlfw.study.child", *language])
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the runner
    forkserver.ensure_running()
    signal.pthread_sigmask(signal.SIG_SETMASK, before)


@dataclass(frozen=True)
class Process:
    """A run under way."""

    run: Run
    process: ForkServerProcess
    lock: FileLock
    log: Path
    start: int  # where this attempt's lines begin in the log
    began: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def code(self) -> int | None:
        """The exit code, -N of a process that signal N ended; None while it runs."""
        return self.process.exitcode

    def signal(self, number: int) -> None:
        """Send it a signal, unless it has ended."""
        if self.process.pid is not None and self.code is None:
            os.kill(self.process.pid, number)

    def last_line(self) -> str:
        """What the run said last: its own message, else whatever stands at the end of the log."""
        with self.log.open("rb") as file:
            file.seek(self.start)
            lines = [line for line in file.read().decode(errors="replace").splitlines() if line.strip()]
        said = [line.removeprefix("rlfw: ") for line in lines if line.startswith("rlfw: ")]
        return (said or lines or ["it said nothing"])[-1].strip()


def start(run: Run, words: Sequence[str], lock: FileLock, log: Path) -> Process:
    """Train these words; what they print goes to the end of ``log``."""
    with log.open("a") as file:
        file.write(f"\n$ rlfw train {' '.join(words)}\n")
    at = log.stat().st_size
    from rlfw.study import child

    process = CONTEXT.Process(target=child.train, args=(list(words), str(log)))
    process.start()
    return Process(run, process, lock, log, at, time.monotonic())

"""Runs as processes forked from a server that holds the imports: a run starts in no time, and shares nothing else."""

from __future__ import annotations

import multiprocessing
import os
import signal
import sys
import time
from dataclasses import dataclass
from multiprocessing import forkserver
from typing import TYPE_CHECKING

from rlfw.study.launcher import Job, head
from rlfw.study.order import POOLS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from multiprocessing.context import ForkServerProcess
    from pathlib import Path

    from filelock import FileLock

    from rlfw.study.plan import Run

CONTEXT = multiprocessing.get_context("forkserver")


@dataclass
class Process(Job):
    """A forked process."""

    process: ForkServerProcess
    began: float

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def code(self) -> int | None:
        return self.process.exitcode

    def signal(self, number: int) -> None:
        if self.process.pid is not None and self.code is None:
            os.kill(self.process.pid, number)


class Local:
    """Processes of this machine."""

    def __init__(self, threads: int, workers: int | None = None) -> None:
        self.threads = threads
        self.workers = workers or 2

    def open(self, folder: Path) -> None:
        """Start the server, whose imports take seconds."""
        os.environ.update({f"{pool}_NUM_THREADS": str(self.threads) for pool in POOLS})
        language = [
            name for name in sys.modules if name.startswith("transformers.")
        ]  # the arms' check had to import it
        CONTEXT.set_forkserver_preload(["rlfw.study.child", *language])
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the runner
        forkserver.ensure_running()
        signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def start(self, run: Run, words: Sequence[str], lock: FileLock, log: Path) -> Process:
        at = head(log, words)
        from rlfw.study import child

        process = CONTEXT.Process(target=child.train, args=(list(words), str(log)))
        process.start()
        return Process(run, lock, log, at, process, time.monotonic())

    def close(self) -> None:
        """The server ends with the runner."""

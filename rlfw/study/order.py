"""What an engine carries to a node: a run, to be trained there in a process of its own.

It is pickled by value and uses the standard library alone, so that the engine's own process imports nothing of rlfw.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

POOLS = ("OMP", "MKL", "OPENBLAS", "NUMEXPR", "VECLIB_MAXIMUM")  # each reads NAME_NUM_THREADS as it is loaded
LOOK = 0.5  # seconds between two looks at what the runner has sent


@dataclass(frozen=True)
class Order:
    """A run to train, and how its runner is heard: through files in the study's folder, which every node sees."""

    mark: str  # another attempt has another
    file: str  # the mark, then the signals that the runner sends, a line each
    claim: str  # the run's lock, which the runner holds
    words: list[str]  # as for rlfw train
    again: list[str]  # in their place once the run has begun
    run: str  # the run's folder
    log: str
    threads: int
    folder: str  # where the words' relative paths begin
    path: list[str]  # where the runner's modules come from

    def give(self) -> None:
        """Write its file: from here on no earlier order of the run counts."""
        file = Path(self.file)
        for earlier in file.parent.glob(f"{file.name}.*.json"):
            earlier.unlink()
        aside = Path(f"{self.file}.partial")
        aside.write_text(f"{self.mark}\n")
        os.replace(aside, file)

    def send(self, number: int) -> None:
        """A signal, for the process that trains."""
        with Path(self.file).open("a") as file:
            file.write(f"{number}\n")

    def signals(self) -> list[int] | None:
        """Those that were sent; None where another order has taken this one's place."""
        mark, *sent = Path(self.file).read_text().split("\n")[:-1]
        return [int(line) for line in sent] if mark == self.mark else None

    @property
    def outcome(self) -> Path:
        """Where the node writes exit code and seconds."""
        return Path(f"{self.file}.{self.mark}.json")


class Training:
    """Trains an order on the node where it is called. (exit code, seconds), also in the order's outcome file."""

    def __init__(self, order: Order) -> None:
        self.order = order
        self.process: subprocess.Popen | None = None

    def __call__(self) -> tuple[int, float]:
        began = time.monotonic()
        self.process = self._start()
        told = 0
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return self._over(self.process.wait(LOOK), time.monotonic() - began)
                sent = self.order.signals() or []
                for number in sent[told:]:
                    self.process.send_signal(number)
                told = max(told, len(sent))
        except BaseException:
            self._end()
            raise

    def checkpoint(self) -> Any:
        """As submitit asks before the job's time is up: save, and go on in the job that takes this one's place."""
        from submitit.helpers import DelayedSubmission

        self._end()
        return DelayedSubmission(Training(self.order))

    def _over(self, code: int, seconds: float) -> tuple[int, float]:
        aside = self.order.outcome.with_suffix(".partial")
        aside.write_text(json.dumps([code, seconds]))
        os.replace(aside, self.order.outcome)
        return code, seconds

    def _start(self) -> subprocess.Popen:
        order = self.order
        threads = {f"{pool}_NUM_THREADS": str(order.threads) for pool in POOLS}
        command = [sys.executable, "-P", "-m", "rlfw.study.child", json.dumps(asdict(order)), str(os.getpid())]
        # What comes while it starts reaches it later, and no engine's signal to the whole job ends it.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGUSR2})
        try:
            with open(order.log, "a") as log:
                log.write(f"on {socket.gethostname()}\n")
                log.flush()
                return subprocess.Popen(
                    command,
                    cwd=order.folder,
                    env={**os.environ, **threads, "PYTHONPATH": os.pathsep.join(order.path)},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def _end(self) -> None:
        """Let it save itself, and wait for that. In a signal's handler too: Popen's own wait may be under way."""
        if self.process is not None:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(self.process.pid, signal.SIGTERM)
                os.waitid(os.P_PID, self.process.pid, os.WEXITED | os.WNOWAIT)


def train(order: Order) -> tuple[int, float]:
    """Exit code and seconds of a run that is trained here."""
    return Training(order)()

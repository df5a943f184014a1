"""The runner: some runs at once; what is done is skipped, what was cut goes on, what failed is retried."""

from __future__ import annotations

import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from rlfw.signals import handed
from rlfw.study.claims import claim
from rlfw.study.estimate import Estimate

if TYPE_CHECKING:
    from collections.abc import Sequence

    from filelock import FileLock

    from rlfw.study.folder import Folder
    from rlfw.study.launcher import Job, Launcher
    from rlfw.study.plan import Run
    from rlfw.study.table import Table

POLL = 0.05  # seconds between two looks at the jobs
ELSEWHERE = 1.0  # seconds between two looks at runs that another runner has


@dataclass
class Runner:
    """Trains the runs of a study that are not done."""

    folder: Folder
    runs: Sequence[Run]
    workers: int
    threads: int
    table: Table
    launcher: Launcher  # open, if anything is left to do
    stopping: int | None = None  # the first signal that ends it
    signals: int = 0  # how many came
    ended: dict[str, str] = field(default_factory=dict)  # run -> done, failed or interrupted
    errors: dict[str, str] = field(default_factory=dict)  # run -> the last line of its error
    active: list[Job] = field(default_factory=list)
    told: Counter[str] = field(default_factory=Counter)  # run -> how many signals were passed on to it

    def run(self) -> None:
        """Until every run has ended, here or with another runner, or until a signal."""
        self.before = self.folder.attempts()
        states = self.folder.states()
        self.ended |= {run.name: "done" for run in self.runs if states[run.name] == "done"}
        self.pending = [run for run in self.runs if run.name not in self.ended]
        self.estimate = Estimate(self.folder.path)
        looked = 0.0
        try:
            with handed(self._stop):
                while self.active or (self.pending and self.stopping is None):
                    if time.monotonic() - looked > ELSEWHERE:
                        looked = 0.0 if self._fill() else time.monotonic()
                    self._pass_on()
                    if self._reap():
                        looked = 0.0
                    self.table.show(self)
                    time.sleep(POLL)
        finally:
            self.table.show(self, last=True)

    def counts(self) -> dict[str, Counter[str]]:
        """arm -> how many of its runs are done, running, failed, interrupted and left."""
        running = {job.run.name for job in self.active}
        found: dict[str, Counter[str]] = {run.arm: Counter() for run in self.runs}
        for run in self.runs:
            found[run.arm][self.ended.get(run.name, "running" if run.name in running else "left")] += 1
        return found

    def left(self) -> float | None:
        """Seconds until the end, None while nothing is known."""
        under_way = [(job.run, job.seconds) for job in self.active]
        return self.estimate.left([*((run, 0.0) for run in self.pending), *under_way], self.workers)

    # ------------------------------------------------------------------------------------------------ one by one

    def _fill(self) -> bool:
        """Start what can be started; whether anything more could be, once a worker is free."""
        for run in list(self.pending):
            if len(self.active) >= self.workers or self.stopping is not None:
                return True
            lock = claim(self.folder.path, run.name)
            if lock is not None:
                self.pending.remove(run)
                self._start(run, lock)
        if self.pending and not self.active:
            self.table.waiting(len(self.pending))
        return False

    def _start(self, run: Run, lock: FileLock) -> None:
        state, attempts = self.folder.state(run)
        if state == "done" or (state == "failed" and attempts > self.before[run.name]):
            lock.release()  # another runner ended it meanwhile
            self._end(run, state, "another runner's attempt failed")
            return
        words = self.folder.begin(run, self.threads)
        log = self.folder.path / "logs" / f"{run.name}.txt"
        self.active.append(self.launcher.start(run, words, lock, log))
        self.table.started(run, go_on=words[0].startswith("resume="))

    def _reap(self) -> bool:
        """Take what has ended; whether anything has."""
        over = [job for job in self.active if job.code is not None]
        for job in over:
            self.active.remove(job)
            code, run = job.code or 0, job.run
            cut = self.stopping is not None or code < 0 or code > 128  # by a signal, from here or from elsewhere
            error = None if code == 0 or cut else job.last_line()
            state = self.folder.end(run, job.seconds, error)
            job.lock.release()
            if state == "done":
                self.estimate.add(run, job.seconds)
            said = error or (signal.strsignal(-code) if code < 0 else None) or job.last_line()
            self._end(run, state if state in ("done", "failed") else "interrupted", said, job.seconds)
        return bool(over)

    def _end(self, run: Run, state: str, error: str, seconds: float = 0.0) -> None:
        self.ended[run.name] = state
        if state != "done":
            self.errors[run.name] = error
        self.table.ended(run, state, error, seconds, f"{len(self.ended)}/{len(self.runs)}")

    # ------------------------------------------------------------------------------------------------ signals

    def _pass_on(self) -> None:
        for job in self.active:
            if self.told[job.run.name] < min(self.signals, 2):
                self.told[job.run.name] = min(self.signals, 2)
                job.signal(signal.SIGINT if self.signals == 1 else signal.SIGKILL)

    def _stop(self, signum: int) -> None:
        """The first SIGINT (Ctrl-C) or SIGTERM lets the runs save and end; a second one ends them at once."""
        self.stopping = self.stopping or signum
        self.signals += 1

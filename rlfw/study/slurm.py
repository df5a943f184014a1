"""Runs as jobs of Slurm, through submitit."""

from __future__ import annotations

import importlib.util
import json
import shutil
import signal
import subprocess
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError
from rlfw.study import order as carried
from rlfw.study.launcher import head
from rlfw.study.remote import Outcome, Remote, give_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from filelock import FileLock

    from rlfw.study.plan import Run

MINUTES = 60  # of a job; before they are over it saves itself and queues again
WORKERS = 50
ASK = 10.0  # seconds between two looks at Slurm's queue
GRACE = 5.0  # seconds in which the result of a job that is gone may still come into sight
# What submitit's executors share; every other key is of Slurm's alone.
SHARED = ("timeout_min", "mem_gb", "cpus_per_task", "gpus_per_node", "stderr_to_stdout")
ONE = "a run is one process on one node; --workers says how many run at once"
SETTLED = {
    **dict.fromkeys(("nodes", "tasks_per_node", "ntasks_per_node", "array_parallelism"), ONE),
    **dict.fromkeys(("name", "job_name"), "a job is named after its run's folder"),
}


@dataclass
class Queued(Remote):
    """A job of Slurm."""

    job: Any = None
    launcher: Any = None  # that has it
    withdrawn: bool = False
    gone: float | None = None  # since when Slurm no longer has it

    def ask(self) -> Outcome | None:
        if self.order.outcome.exists():
            return Outcome(*json.loads(self.order.outcome.read_text()))
        if self.job.paths.result_pickle.exists():  # submitit's word that the job is over: training never ended
            return Outcome(1, said=f"its job {self.job.job_id} failed: see {self.job.paths.stdout}")
        if self.launcher.has(self.job):
            return None
        self.gone = self.gone or time.monotonic()
        if self.began is None and self.withdrawn:
            return Outcome(-signal.SIGINT)
        if time.monotonic() - self.gone < GRACE:
            return None
        if self.began is None:
            return Outcome(1, said=f"its job {self.job.job_id} ended before it began: see {self.job.paths.stdout}")
        return Outcome(-signal.SIGKILL)

    def withdraw(self) -> None:
        self.withdrawn = True
        self.launcher.withdraw(self.job)


@dataclass
class Refused(Remote):
    """A job that Slurm did not take."""

    def ask(self) -> Outcome | None:
        return self.over

    def withdraw(self) -> None:
        pass


class Slurm:
    """Jobs in Slurm's queue. ``options``: KEY=VALUE, each for submitit's update_parameters."""

    def __init__(self, threads: int, workers: int | None, options: Sequence[str]) -> None:
        if importlib.util.find_spec("submitit") is None:
            raise UserError("--launcher slurm needs submitit: pip install 'rlfw[slurm]'")
        self.threads = threads
        self.workers = workers or WORKERS
        self.options = dict(_option(word) for word in options)
        self.cluster = self.options.pop("cluster", "slurm")
        if self.cluster not in ("slurm", "local"):
            raise UserError(f"--slurm cluster={self.cluster}: slurm, or local to try it on this machine")
        self._queue: set[str] = set()  # the ids of this user's jobs
        self._asked = 0.0

    def open(self, folder: Path) -> None:
        import cloudpickle
        import submitit

        if self.cluster == "slurm" and shutil.which("sbatch") is None:
            raise UserError("--launcher slurm: there is no sbatch here: call it where jobs are submitted")
        often = {f"{self.cluster}_max_num_timeout": 10**6}
        self._executor = submitit.AutoExecutor(folder / "jobs", cluster=self.cluster, **often)
        given = {key if key in SHARED else f"slurm_{key}": value for key, value in self.options.items()}
        first = {"timeout_min": MINUTES, "cpus_per_task": self.threads, "stderr_to_stdout": True}
        try:
            self._executor.update_parameters(**(first | given))
        except (NameError, AssertionError, ValueError) as error:
            raise UserError(f"--slurm: {str(error).splitlines()[0]}") from error
        cloudpickle.register_pickle_by_value(carried)

    def start(self, run: Run, words: Sequence[str], lock: FileLock, log: Path) -> Remote:
        import submitit

        at = head(log, words)
        order = give_order(run, words, lock, log, self.threads)
        self._executor.update_parameters(name=run.name)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the runner
        try:
            job = self._executor.submit(carried.Training(order))
        except (submitit.core.utils.FailedSubmissionError, submitit.core.utils.FailedJobError, OSError) as error:
            said = str(error).strip().splitlines()[-1]
            return Refused(run, lock, log, at, order, over=Outcome(1, said=said))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        self._queue.add(job.job_id)
        return Queued(run, lock, log, at, order, job=job, launcher=self)

    def has(self, job: Any) -> bool:
        """Whether a job waits or runs."""
        if self.cluster == "local":
            return not job.done()
        if time.monotonic() - self._asked > ASK:
            self._asked = time.monotonic()
            asked = subprocess.run(["squeue", "--me", "--noheader", "--format=%i"], capture_output=True, text=True)
            if asked.returncode == 0:  # else Slurm is busy: another time
                self._queue = set(asked.stdout.split())
        return job.job_id in self._queue

    def withdraw(self, job: Any) -> None:
        """Take a job that waits out of the queue; one that runs stays."""
        if self.cluster == "slurm":
            subprocess.run(["scancel", "--state=PENDING", job.job_id], check=False)
            self._asked = 0.0

    def close(self) -> None:
        """The jobs are Slurm's."""


def _option(word: str) -> tuple[str, Any]:
    key, sign, value = word.partition("=")
    if not sign or not key:
        raise UserError(f"--slurm {word}: it reads KEY=VALUE, as in --slurm partition=gpu")
    if key in SETTLED:
        raise UserError(f"--slurm {word}: {SETTLED[key]}")
    if key in ("time", "timeout_min") and not value.isdecimal():
        raise UserError(f"--slurm {word}: {key} is a whole number of minutes")
    try:
        return key, json.loads(value)
    except json.JSONDecodeError:
        return key, value

"""Runs as tasks of Ray: on this machine, or on the cluster that RAY_ADDRESS names."""

from __future__ import annotations

import importlib.util
import logging
import os
import signal
import socket
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import RunError, UserError
from rlfw.study import order as carried
from rlfw.study.launcher import head
from rlfw.study.remote import Outcome, Remote, give_order

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from filelock import FileLock

    from rlfw.study.plan import Run

STORE = 100 * 2**20  # bytes for objects; a task returns two numbers
# As this machine's Ray begins: no report of its use; a run outlives its worker, by the time in which it saves itself.
OWN = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_kill_child_processes_on_worker_exit": "0"}


@dataclass
class Task(Remote):
    """A task of Ray."""

    result: Any = None  # its ObjectRef

    def ask(self) -> Outcome | None:
        import ray
        from ray.exceptions import RayError, RayTaskError, TaskCancelledError

        if not ray.wait([self.result], timeout=0)[0]:
            return None
        try:
            return Outcome(*ray.get(self.result))
        except TaskCancelledError:
            return Outcome(-signal.SIGINT)
        except RayTaskError as error:
            return Outcome(1, said=f"{type(error.cause).__name__}: {error.cause}")
        except RayError as error:  # its worker was killed, or its node is gone
            return Outcome(-signal.SIGKILL, said=f"Ray: {str(error).splitlines()[0]}")

    def withdraw(self) -> None:
        import ray

        if self.began is None:
            ray.cancel(self.result)


class Ray:
    """A Ray of this machine alone, or with RAY_ADDRESS a cluster that is up."""

    def __init__(self, threads: int, workers: int | None) -> None:
        if importlib.util.find_spec("ray") is None:
            raise UserError("--launcher ray needs Ray: pip install 'rlfw[ray]'")
        self.threads = threads
        self.given = workers
        self.workers = workers or max(1, (os.cpu_count() or 1) // threads)
        self._train: Any = None

    def open(self, folder: Path) -> None:
        for name, value in OWN.items():
            os.environ.setdefault(name, value)
        import ray

        address = os.environ.get("RAY_ADDRESS", "")
        options: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
        if address:
            try:
                _answers(address)
                ray.init(address, **options)
            except (OSError, RuntimeError) as error:
                raise UserError(
                    f"RAY_ADDRESS={address}: {error}: start it, set RAY_AUTH_MODE=token where it wants a token, "
                    "or unset RAY_ADDRESS to use this machine alone"
                ) from error
            self.workers = self.given or max(1, int(ray.cluster_resources().get("CPU", 0)) // self.threads)
        else:
            sizes = {"num_cpus": self.workers * self.threads, "object_store_memory": STORE}
            try:
                ray.init("local", include_dashboard=False, **sizes, **options)
            except Exception as error:  # it raises nothing narrower
                raise RunError(f"Ray does not start: {error} Try again when the machine is less busy") from error
        ray.cloudpickle.register_pickle_by_value(carried)
        self._train = ray.remote(num_cpus=self.threads, max_retries=0)(carried.train)

    def start(self, run: Run, words: Sequence[str], lock: FileLock, log: Path) -> Task:
        at = head(log, words)
        order = give_order(run, words, lock, log, self.threads)
        return Task(run, lock, log, at, order, result=self._train.options(name=run.name).remote(order))

    def close(self) -> None:
        if self._train is not None:
            import ray

            ray.shutdown()


def _answers(address: str) -> None:
    """OSError where nothing listens: Ray itself would try for minutes."""
    host, sign, port = address.removeprefix("ray://").rpartition(":")
    if sign and port.isdecimal():
        socket.create_connection((host, int(port)), timeout=10).close()

"""What a run's process does. Its imports are those of every run: a server makes them once and forks a process a run.

On a node of an engine the module itself is run: python -m rlfw.study.child ORDER PARENT.
"""

from __future__ import annotations

import ctypes
import json
import multiprocessing
import os
import signal
import sys
import warnings
from pathlib import Path

import torch._dynamo
import torch._refs  # noqa: F401  a network that is made without being initialised does
from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
from tensorboard.summary.writer import event_file_writer  # noqa: F401

import rlfw.api
import rlfw.run
import rlfw.trainer  # noqa: F401
from rlfw import cli, registry
from rlfw.study.claims import held
from rlfw.study.order import Order

registry.load_components()
# A forked process imports the runner's main module once more; as `python -m rlfw.cli` it is there already.
warnings.filterwarnings("ignore", message=".*found in sys.modules after import of package 'rlfw'")

PR_SET_PDEATHSIG = 1


def train(words: list[str], log: str) -> None:
    """``rlfw train`` with these words, forked; what it prints goes to the end of ``log``."""
    runner = multiprocessing.parent_process()
    _apart()
    if runner is None or not runner.is_alive():
        os._exit(1)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    sys.exit(_train(words))


def obey(order: Order, parent: int) -> int:
    """``rlfw train`` as an engine's process ``parent`` has started it; an exit code."""
    _apart()
    signal.signal(signal.SIGUSR2, signal.SIG_IGN)  # Slurm's warning, to every process of a job: the parent acts on it
    if os.getppid() != parent:
        return 1
    if order.signals() is None or not held(Path(order.claim)):
        print(f"rlfw: the runner of this job is gone, or its lock {order.claim} is not seen on this node")
        return 1
    begun = (Path(order.run) / "config.yaml").is_file()
    return _train(order.again if begun else order.words)


def _train(words: list[str]) -> int:
    sys.argv = ["rlfw", "train", *words]
    try:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # one that came early is here now
        return cli.main(sys.argv[1:])
    except KeyboardInterrupt:
        print("rlfw: interrupted", file=sys.stderr)
        return 130


def _apart() -> None:
    """A session of its own, which the terminal's Ctrl-C does not reach: the runner passes it on, once.

    SIGTERM once the parent is gone, however it went: the run saves itself and ends (Linux).
    """
    os.setsid()
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)


if __name__ == "__main__":
    sys.exit(obey(Order(**json.loads(sys.argv[1])), int(sys.argv[2])))

"""What a run's process does. Its imports are those of every run: a server makes them once and forks a process a run."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import warnings

import torch._dynamo
import torch._refs  # noqa: F401  a network that is made without being initialised does
from tensorboard.compat.proto import event_pb2, summary_pb2  # noqa: F401
from tensorboard.summary.writer import event_file_writer  # noqa: F401

import rlfw.api
import rlfw.run
import rlfw.trainer  # noqa: F401
from rlfw import cli, registry

registry.load_components()
# A forked process imports the runner's main module once more; as `python -m rlfw.cli` it is there already.
warnings.filterwarnings("ignore", message=".*found in sys.modules after import of package 'rlfw'")

PR_SET_PDEATHSIG = 1


def train(words: list[str], log: str) -> None:
    """``rlfw train`` with these words, in a session of its own; what it prints goes to the end of ``log``."""
    os.setsid()  # the terminal's Ctrl-C reaches the runner alone, which passes it on once
    _end_with_runner()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(file, sys.stdout.fileno())
    os.dup2(file, sys.stderr.fileno())
    sys.argv = ["rlfw", "train", *words]
    sys.exit(cli.main(sys.argv[1:]))


def _end_with_runner() -> None:
    """SIGTERM once the runner is gone, however it went: the run saves itself and ends (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    runner = multiprocessing.parent_process()
    if runner is None or not runner.is_alive():
        os._exit(1)

"""A study that is killed at random moments ends as one that nobody touched: byte for byte the same results.csv."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from rlfw import cli

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="the processes of a study are found in /proc"),
]

KILLS = 10
STARTS = 3  # of them, at any moment from the call to a little after its first run; the others hit runs under way
STUDY = {
    "question": "Does a kill leave a trace?",
    "base": [
        "algorithm=grpo",
        "env=cartpole",
        "sampler.episodes.num_episodes=8",
        "epochs=4",
        "num_minibatches=4",
        "iterations=75",
        "evaluation.every=15",
        "evaluation.episodes=5",
        "checkpoint.every=2",
        "tensorboard=false",
    ],
    "mode": "arms",
    "arms": {"group": [], "ema": ["baseline=ema", "controller=anneal"]},
    "seeds": 2,
    "metric": {"name": "objective/scores", "summary": "auc"},
}


def runner(file: Path, out: Path) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "rlfw.cli", "study", str(file), "--out", str(out)]
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env, start_new_session=True)


def children(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except FileNotFoundError:  # it has ended
        return []


def runs_of(process: subprocess.Popen[bytes]) -> list[int]:
    """The processes of its runs: a server, the runner's child, forks them."""
    return [run for server in children(process.pid) for run in children(server)]


def kill(pid: int) -> bool:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return False
    return True


def until_runs(process: subprocess.Popen[bytes]) -> None:
    """A run of this call is under way."""
    end = time.monotonic() + 600
    while not runs_of(process):
        assert process.poll() is None, "the study ended before the last kill"
        assert time.monotonic() < end, "no run began"
        time.sleep(0.01)


def iterations(out: Path) -> int:
    """How many the runs have logged."""
    return sum(file.read_bytes().count(b"\n") for file in out.glob("runs/*/metrics.jsonl"))


def results(out: Path) -> bytes:
    assert cli.main(["report", str(out)]) == 0
    return (out / "results.csv").read_bytes()


def test_ten_kills_at_random_moments_leave_no_trace(tmp_path: Path) -> None:
    """The runner is killed each time, alone or with its group, and some runs: the others save themselves as it goes.

    How far a moment lies is drawn in iterations, not in seconds, so that a fast machine does not end the study sooner.
    """
    file = tmp_path / "study.yaml"
    file.write_text(yaml.safe_dump({"study": STUDY}, sort_keys=False))
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    rng = np.random.default_rng(5)
    at_start = [False, *rng.permutation([True] * STARTS + [False] * (KILLS - STARTS - 1))]
    killed, left, start = 0, 0, 0.0
    for early in at_start:
        began = time.monotonic()
        process = runner(file, cut)
        if early:
            time.sleep(rng.uniform(0.0, 1.2 * start))
        else:
            until_runs(process)
            start = start or time.monotonic() - began
            target = iterations(cut) + rng.integers(0, 15)
            while iterations(cut) < target:
                assert process.poll() is None, "the study ended before the last kill"
                time.sleep(0.005)
            time.sleep(rng.uniform(0.0, 0.1))
        assert process.poll() is None, "the study ended before the last kill"
        for run in runs_of(process):
            if rng.random() < 0.5:
                killed += kill(run)
            else:
                left += 1
        if rng.random() < 0.5:
            process.kill()
        else:
            os.killpg(process.pid, signal.SIGKILL)  # with the server of its runs, each of which has a group of its own
        process.wait()
    assert killed >= 3
    assert left >= 3

    assert runner(file, cut).wait() == 0
    assert runner(file, whole).wait() == 0
    went_on = [again["iteration"] for file in cut.glob("runs/*/provenance.json") for again in resumed(file)]
    assert sum(iteration > 0 for iteration in went_on) >= 4  # from checkpoints, not from the start
    assert not [again for file in whole.glob("runs/*/provenance.json") for again in resumed(file)]
    found = results(cut)
    assert found.count(b"finished") == 4
    assert found == results(whole)


def resumed(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads(file.read_text()).get("resumed", [])
    return found

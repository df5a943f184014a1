"""Studies on Ray and on Slurm: the numbers of this machine's processes, cut and gone on with anywhere."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import rlfw
from rlfw import cli
from rlfw.study import records
from rlfw.study.order import Order

SMALL = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=8", "tensorboard=false"]
CLOCKS = ("time", "timing_s", "perf")
WORDS = {"slurm": ["--launcher", "slurm", "--slurm", "cluster=local"], "ray": ["--launcher", "ray"], "local": []}
NO_RAY = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is missing: pip install 'rlfw[ray]'")
ENGINES = [pytest.param("ray", marks=NO_RAY), "slurm"]


def declared(folder: Path, arms: dict[str, list[str]], *words: str, seeds: int = 1) -> Path:
    study = {"question": "Where?", "base": [*SMALL, *words], "mode": "arms", "arms": arms, "seeds": seeds}
    file = folder / "declared.yaml"
    file.write_text(yaml.safe_dump({"study": {**study, "metric": {"name": "objective/scores"}}}))
    return file


def study(file: Path, out: Path, *words: str) -> int:
    return cli.main(["study", str(file), "--out", str(out), *words])


def process(file: Path, out: Path, *words: str, **variables: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlfw.cli", "study", str(file), "--out", str(out), *words]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **variables}
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: x for key, x in json.loads(line).items() if not key.startswith(CLOCKS)} for line in lines]


def metrics(out: Path) -> dict[tuple[str, int], list[dict[str, float]]]:
    return {(run.arm, run.seed): rows(run.path) for run in records.load(out).runs}


def states(out: Path) -> set[str]:
    return {run.state for run in records.load(out).runs}


def saved(out: Path) -> set[Path]:
    return {path for path in out.glob("runs/*/checkpoints/*") if path.name.isdigit() and int(path.name) > 0}


def wait_for(found: object, seconds: float = 600.0) -> None:
    """Until ``found()`` is true."""
    end = time.monotonic() + seconds
    while not found():  # type: ignore[operator]
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def processes(module: str, of: Path) -> list[int]:
    """Those that run ``module`` for the study in ``of`` (Linux)."""
    lines = {path.parent.name: path.read_bytes().decode() for path in Path("/proc").glob("[0-9]*/cmdline")}
    return [int(pid) for pid, line in lines.items() if f"\0{module}\0" in line and str(of) in line]


# ------------------------------------------------------------------------------------------------ what is refused

WRONG = [
    (["--launcher", "rya"], "--launcher: invalid choice: 'rya'"),
    (["--slurm", "partition=gpu"], "--slurm partition=gpu belongs to --launcher slurm"),
    (["--launcher", "slurm", "--slurm", "partition"], "--slurm partition: it reads KEY=VALUE"),
    (["--launcher", "slurm", "--slurm", "time=2:00:00"], "--slurm time=2:00:00: time is a whole number of minutes"),
    (["--launcher", "slurm", "--slurm", "nodes=2"], "--slurm nodes=2: a run is one process on one node"),
    (["--launcher", "slurm", "--slurm", "cluster=debug"], "--slurm cluster=debug: slurm, or local"),
    (["--launcher", "slurm", "--workers", "0"], "--workers: 0: it must be a whole number, at least 1"),
]


@pytest.mark.parametrize(("words", "said"), WRONG)
def test_wrong_flags_are_refused(words: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert study(tmp_path / "no.yaml", tmp_path / "out", *words) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize(("launcher", "module"), [("ray", "ray"), ("slurm", "submitit")])
def test_an_engine_that_is_not_installed_is_named(
    launcher: str, module: str, tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, module, None)  # as if it were not there
    assert study(tmp_path / "no.yaml", tmp_path / "out", "--launcher", launcher) == 2
    assert f"pip install 'rlfw[{launcher}]'" in capsys.readouterr().err


@pytest.mark.medium
def test_a_key_that_submitit_does_not_know_and_a_machine_without_slurm_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = declared(tmp_path, {"plain": []}, "iterations=2")
    assert study(file, tmp_path / "out", *WORDS["slurm"], "--slurm", "partitoin=gpu") == 2
    assert "partitoin" in capsys.readouterr().err
    monkeypatch.setenv("PATH", str(tmp_path))
    assert study(file, tmp_path / "out", "--launcher", "slurm") == 2
    assert "there is no sbatch here" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ orders


def test_an_order_hears_its_runner_until_another_takes_its_place(tmp_path: Path) -> None:
    order = Order("a", str(tmp_path / "order"), "", [], [], "", "", 1, "", [])
    order.give()
    assert order.signals() == []
    order.send(signal.SIGINT)
    order.send(signal.SIGKILL)
    assert order.signals() == [2, 9]
    other = dataclasses.replace(order, mark="b")
    other.give()
    assert order.signals() is None
    assert other.signals() == []


# ------------------------------------------------------------------------------------------------ Slurm's commands

SLURM = {  # a queue in which nothing ever begins: the ids in a file
    "sbatch": 'echo 7 >> "$QUEUE"; echo Submitted batch job 7',
    "squeue": 'cat "$QUEUE"',
    "scancel": 'test "$*" = "--state=PENDING 7" && : > "$QUEUE"',
    "srun": "exit 1",
}


def commands(folder: Path, texts: dict[str, str]) -> dict[str, str]:
    """The variables with which a process finds these commands."""
    (folder / "bin").mkdir()
    for name, text in texts.items():
        (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
        (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "QUEUE": str(folder / "queue")}


@pytest.mark.medium
def test_ctrl_c_takes_jobs_that_wait_out_of_the_queue(tmp_path: Path) -> None:
    queue, out = tmp_path / "queue", tmp_path / "out"
    file = declared(tmp_path, {"plain": []}, "iterations=2")
    words = ["--launcher", "slurm", "--slurm", "partition=long", "--slurm", "time=90", "--threads", "3"]
    runner = process(file, out, *words, **commands(tmp_path, SLURM))
    wait_for(lambda: queue.exists() and list(out.glob("jobs/7_submitted.pkl")))
    (script,) = out.glob("jobs/7_submission.sh")
    asked = set(script.read_text().splitlines())
    assert {"#SBATCH --partition=long", "#SBATCH --time=90", "#SBATCH --cpus-per-task=3"} <= asked
    runner.send_signal(signal.SIGINT)
    said = runner.communicate(timeout=600)[0]
    assert runner.returncode == 130
    assert queue.read_text() == ""
    assert "--launcher slurm --slurm partition=long --slurm time=90" in said  # how to go on
    assert states(out) == {"missing"}


@pytest.mark.medium
def test_a_job_that_slurm_refuses_fails_with_its_words(
    tmp_path: Path, capsys: pytest.CaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    refusal = "sbatch: error: invalid partition specified: long"
    for name, value in commands(tmp_path, {**SLURM, "sbatch": f"echo '{refusal}' >&2; exit 1"}).items():
        monkeypatch.setenv(name, value)
    file = declared(tmp_path, {"plain": []}, "iterations=2")
    assert study(file, tmp_path / "out", "--launcher", "slurm") == 1
    assert refusal in capsys.readouterr().out
    assert [run.error for run in records.load(tmp_path / "out").runs] == [refusal]


# ------------------------------------------------------------------------------------------------ runs


@pytest.mark.medium
def test_a_job_trains_as_rlfw_train_does(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    out = tmp_path / "out"
    file = declared(tmp_path, {"plain": []}, "iterations=2")
    assert study(file, out, *WORDS["slurm"]) == 0
    assert "1 done, 0 failed, 0 left of 1" in capsys.readouterr().out
    rlfw.train([*SMALL, "iterations=2", "seed=0", "progress=false", f"out={tmp_path / 'alone'}"])
    assert metrics(out) == {("plain", 0): rows(tmp_path / "alone")}
    assert study(file, out) == 0  # to the processes of this machine it is done
    assert "start" not in capsys.readouterr().out


LONG = ["iterations=60", "epochs=4", "num_minibatches=4", "checkpoint.every=2"]
ARMS = {"plain": [], "ema": ["baseline=ema"]}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a study are found in /proc")
@pytest.mark.parametrize("engine", ENGINES)
def test_cut_in_every_way_and_gone_on_with_elsewhere_it_ends_as_the_uncut_one(engine: str, tmp_path: Path) -> None:
    file = declared(tmp_path, ARMS, *LONG)
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    words = [*WORDS[engine], "--workers", "2"]

    first = process(file, cut, *words)
    wait_for(lambda: saved(cut))
    os.kill(processes("rlfw.study.child", cut)[0], signal.SIGKILL)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=600)[0]
    assert first.returncode == 130
    assert f"go on with: rlfw study {file} --out {cut} --workers 2 --threads 1 --launcher {engine}" in said
    assert states(cut) <= {"interrupted", "done", "missing"}  # missing: not begun
    assert "interrupted" in states(cut)
    assert processes("rlfw.study.child", cut) == []

    known = saved(cut)
    second = process(file, cut, *words)
    wait_for(lambda: saved(cut) - known)
    second.kill()
    second.communicate()

    assert study(file, cut) == 0  # waits for jobs that outlive their runner
    assert study(file, whole) == 0
    assert states(cut) == {"done"}
    assert metrics(cut) == metrics(whole)
    assert processes("rlfw.study.child", cut) == []


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the processes of a study are found in /proc")
def test_a_job_that_slurm_warns_saves_and_goes_on_in_the_next(tmp_path: Path) -> None:
    file, out = declared(tmp_path, {"plain": []}, *LONG), tmp_path / "out"
    runner = process(file, out, *WORDS["slurm"])
    wait_for(lambda: saved(out))
    (job,) = processes("submitit.core._submit", out)
    for pid in [*processes("rlfw.study.child", out), job]:  # Slurm warns every process of a job
        os.kill(pid, signal.SIGUSR2)
    assert "1 done, 0 failed, 0 left of 1" in runner.communicate(timeout=600)[0]
    (entry,) = records.read_index(out)
    run = out / "runs" / entry["run"]
    assert entry["attempts"] == 1
    assert len(json.loads((run / "provenance.json").read_text())["resumed"]) == 1
    rlfw.train([*SMALL, *LONG, "seed=0", "progress=false", f"out={tmp_path / 'alone'}"])
    assert rows(run) == rows(tmp_path / "alone")

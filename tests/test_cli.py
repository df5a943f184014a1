"""The commands as a user types them: exit codes, messages, and what a run leaves behind."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from omegaconf import OmegaConf
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from rlfw import registry
from rlfw.cli import main
from rlfw.listing import GROUPS

pytestmark = pytest.mark.medium

SMALL = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_envs=2", "sampler.steps.num_steps=16", "progress=false"]


def rlfw(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "rlfw.cli", *words], capture_output=True, text=True, cwd=cwd, check=False, timeout=120
    )


def test_a_run_leaves_all_that_is_promised(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", *SMALL, "seed=3", "total_steps=96", f"out={out}"]) == 0
    assert capsys.readouterr().out.strip() == str(out)
    cfg = OmegaConf.load(out / "config.yaml")
    assert cfg.seed == 3
    assert "seed=3" in cfg.overrides
    assert cfg.baseline.critic.gae_lambda == 0.95
    provenance = json.loads((out / "provenance.json").read_text())
    assert {"command", "versions", "git"} <= provenance.keys()
    assert json.loads((out / "status.json").read_text())["state"] == "done"
    rows = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    assert [row["global_step"] for row in rows] == [32, 64, 96]
    events = EventAccumulator(str(out)).Reload()
    scalars = events.Scalars("loss/total")
    assert [scalar.step for scalar in scalars] == [32, 64, 96]
    assert [scalar.value for scalar in scalars] == pytest.approx([row["loss/total"] for row in rows], rel=1e-6)
    assert list((out / "checkpoints").iterdir())


def test_samples_of_a_text_run(tmp_path: Path) -> None:
    out = tmp_path / "run"
    sizes = ["policy.causal_lm.hidden_size=16", "policy.causal_lm.num_layers=1", "policy.causal_lm.num_heads=2"]
    words = ["algorithm=grpo", "env=reverse", "sampler.episodes.num_episodes=8", *sizes, "warmup.steps=2"]
    assert main(["train", *words, "iterations=2", f"out={out}", "progress=false"]) == 0
    rows = [json.loads(line) for line in (out / "samples.jsonl").read_text().splitlines()]
    assert len(rows) == 16
    assert {"iteration", "prompt", "completion", "finish", "scores", "reward", "advantage"} <= rows[0].keys()
    assert (out / "warmup" / "config.json").is_file()


def test_evaluation_of_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "run"
    assert main(["train", *SMALL, "iterations=2", f"out={out}"]) == 0
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    capsys.readouterr()
    found = []
    for _ in range(2):
        assert main(["eval", str(out), "--episodes", "6", "--json"]) == 0
        found.append(json.loads(capsys.readouterr().out))
    assert found[0] == found[1]
    assert found[0].keys() >= {"mean", "low", "high", "n"}
    assert found[0]["n"] == 6
    assert found[0]["low"] <= found[0]["mean"] <= found[0]["high"]
    assert main(["eval", str(out), "--episodes", "6", "--json", "--sampled"]) == 0
    assert json.loads(capsys.readouterr().out) != found[0]
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


def test_two_runs_never_share_a_folder(tmp_path: Path) -> None:
    processes = [
        subprocess.Popen([sys.executable, "-m", "rlfw.cli", "train", *SMALL, "iterations=1"], cwd=tmp_path)
        for _ in range(2)
    ]
    assert [process.wait(120) for process in processes] == [0, 0]
    runs = list((tmp_path / "runs").iterdir())
    assert len(runs) == 2
    assert all(len(list(run.glob("events.*"))) == 1 for run in runs)


def test_a_folder_that_is_taken_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.txt").write_text("precious")
    assert main(["train", *SMALL, "iterations=1", f"out={tmp_path}"]) == 2
    assert "is not empty" in capsys.readouterr().err
    assert (tmp_path / "mine.txt").read_text() == "precious"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["baseline=crtic"], "did you mean critic?"),
        (["algorithm=gppo"], "did you mean ppo?"),
        (["env=cartpol"], "did you mean cartpole?"),
        (["seeed=1"], "did you mean seed?"),
        (["+trainer.leraning_rate=1"], "trainer: no such key"),
        (["baseline.critic.gae_lamda=1"], "did you mean gae_lambda?"),
        (["baseline.critic.gae_lambda=abc"], "baseline.critic.gae_lambda"),
        (["baseline.critic.gae_lambda=2"], "baseline.critic.gae_lambda=2.0: it must lie in [0, 1]"),
        (["lr=fast"], "lr"),
        (["lr=-1"], "lr=-1.0: it must be at least 0"),
        (["regularizer.kl.coef=.2"], "regularizer.kl.coef has no effect"),
        (["regularizer=[kl]", "regularizer.kl.estimator=k1"], "its expected gradient in a loss is zero"),
        (["baseline=group_mean"], "set sampler=episodes and sampler.episodes.group_size >= 2"),
        (["baseline=none"], "baseline=none needs whole episodes: set sampler=episodes"),
        (["ratio=none"], "regularizer=clip bounds a ratio and ratio=none has none: set ratio=token"),
        (["sampler=episodes", "sampler.episodes.num_episodes=6", "sampler.episodes.group_size=4"], "not a multiple"),
        (["total_steps=10", "iterations=1"], "total_steps=N or iterations=N, not both"),
        (["env=gym", "env.gym.id=Cartpole-v1", "iterations=1"], "CartPole-v1"),
        (["env=gym", "env.gym.id=CartPole-v1"], "there is no budget: give total_steps=N or iterations=N"),
        (["env=reverse", "policy=mlp"], "policy"),
        (["policy=causal_lm"], "policy"),
        (["env=reverse", "sampler=steps"], "set sampler=episodes"),
        (["plugins=[nowhere.py]"], "there is no file nowhere.py"),
        (["experiment=nowhere"], "experiment=nowhere"),
        (["out=/proc/nowhere"], "cannot write there"),
        (["env=reverse", "policy.causal_lm.path=/nowhere"], "/nowhere"),
        (["algorithm=grpo", "update=compile"], "aggregation=sequence_mean needs whole rows: set update=eager"),
        (["seed=1,2"], "a sweep needs -m"),
        (["nonsense"], "key=value"),
    ],
)
def test_wrong_input_exits_with_2_and_one_sentence(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["train", "algorithm=ppo", "progress=false", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.strip().splitlines()) == 1
    assert not list(tmp_path.rglob("metrics.jsonl"))


def test_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["trian"]) == 2
    assert "did you mean train?" in capsys.readouterr().err


def test_help_and_list(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--help"]) == 0
    assert "total_steps=N (env steps on gymnasium, completions on text)" in capsys.readouterr().out
    assert main(["train", "--help"]) == 0
    assert "micro_batch_rows" in capsys.readouterr().out
    assert main(["list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row["summary"] for row in rows)
    assert {"critic", "group_mean"} <= {row["name"] for row in rows if row["axis"] == "baseline"}
    assert {"ppo", "grpo"} <= {row["name"] for row in rows if row["axis"] == "algorithm"}
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) < len(rows) + 2 * len(GROUPS) + 4  # a line a part, under a heading an axis
    assert max(map(len, lines)) <= 120
    assert [line.partition("=")[0] for line in lines if "=  " in line] == list(GROUPS)
    assert sum(line.startswith("  ") for line in lines) == len(rows)
    assert main(["list", "baseline"]) == 0
    assert "baseline.critic.gae_lambda = 0.95" in capsys.readouterr().out
    assert main(["list", "baselin"]) == 2


def test_help_waits_for_nothing() -> None:
    code = "import sys, rlfw.cli as cli; cli.main(['--help']); cli.main(['--version']); print(*sys.modules, sep='\\n')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.splitlines()
    assert "rlfw.errors" in loaded
    assert not {"torch", "numpy", "hydra", "scipy"} & set(loaded)


def test_the_list_knows_every_axis() -> None:
    assert set(GROUPS) == {*registry.PRESETS, *registry.AXES}


def test_multirun_makes_a_folder_a_job(tmp_path: Path) -> None:
    done = rlfw("train", "-m", *SMALL, "iterations=1", "seed=0,1", "regularizer=clip,none", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    runs = [path.parent for path in (tmp_path / "runs").rglob("metrics.jsonl")]
    (sweep,) = (tmp_path / "runs" / "multirun").iterdir()
    assert sorted(runs) == [sweep / str(job) for job in range(4)]
    assert f"rlfw report {sweep}" in done.stdout
    configs = [OmegaConf.load(run / "config.yaml") for run in runs]
    assert {(cfg.seed, len(cfg.regularizer)) for cfg in configs} == {(0, 0), (0, 1), (1, 0), (1, 1)}


def test_evaluating_what_is_no_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", str(tmp_path)]) == 2
    assert "is not a run's folder" in capsys.readouterr().err


@pytest.mark.skipif(os.geteuid() == 0, reason="root writes everywhere")
def test_a_folder_without_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path.chmod(0o500)
    assert main(["train", *SMALL, "iterations=1", f"out={tmp_path / 'run'}"]) == 2
    assert "cannot write there" in capsys.readouterr().err


def test_a_multirun_goes_on_after_a_job_that_is_refused(tmp_path: Path) -> None:
    words = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_steps=16", "iterations=1", "progress=false"]
    done = rlfw("train", "-m", *words, "baseline=group_mean,critic", cwd=tmp_path)
    assert done.returncode == 2
    assert "baseline=group_mean compares samples within a group" in done.stderr
    assert "Traceback" not in done.stderr
    assert len(list((tmp_path / "runs").rglob("metrics.jsonl"))) == 1


def test_a_multirun_with_a_typo_and_hydras_own_flags(tmp_path: Path) -> None:
    done = rlfw("train", "-m", "baseline=crtic,none", cwd=tmp_path)
    assert done.returncode == 2
    assert "did you mean critic?" in done.stderr
    assert "Traceback" not in done.stderr
    shown = rlfw("train", "--cfg", "job", "algorithm=grpo", cwd=tmp_path)
    assert shown.returncode == 0
    assert "group_size: 8" in shown.stdout

"""What a run says at its end: the last score by its name, and commands that work as they stand."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from rlfw.cli import main
from rlfw.closing import commands, last_scores

ROWS = [
    {"iteration": 1, "objective/scores": 10.0},
    {"iteration": 2, "objective/scores": 20.0, "eval/return": 33.5, "eval/length": 7.0},
    {"iteration": 3, "objective/scores": 487.333},
    {"iteration": 4},  # no episode ended
]


def said(rows: list[dict[str, float]]) -> str:
    return last_scores(json.dumps(row) for row in rows)


def test_the_last_evaluation_comes_before_the_last_score() -> None:
    assert said(ROWS) == (
        "eval/return 33.5 in the last evaluation, at iteration 2; objective/scores 487.3 at iteration 3 of 4"
    )
    assert said([ROWS[0], ROWS[2]]) == "objective/scores 487.3 over the last iteration"
    assert said(ROWS[3:]) == "no objective/scores: not one episode ended"


@pytest.mark.medium
def test_a_run_ends_with_its_score_and_commands_that_work(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text("")
    sizes = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=64", "iterations=2", "progress=false"]
    words = ["algorithm=ppo", "env=cartpole", "plugins=[mine.py]", *sizes]
    assert main(["train", *words, "out=a run", "tensorboard=false"]) == 0
    printed = capsys.readouterr()
    assert printed.out == "a run\n"
    row = json.loads((tmp_path / "a run" / "metrics.jsonl").read_text().splitlines()[-1])
    done, following = printed.err.splitlines()
    assert done == f"rlfw: done: objective/scores {row['objective/scores']:.4g} over the last iteration"
    first, *others = following.removeprefix("rlfw: next: ").split("  |  ")
    assert others == ["rlfw compare 'a run' OTHER"]
    assert main(shlex.split(first)[1:]) == 0  # a folder with a space, and a plugin that must be named again
    assert capsys.readouterr().out.startswith("return")


@pytest.mark.medium
def test_the_commands_name_the_board_where_there_is_one(tmp_path: Path) -> None:
    sizes = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=16", "iterations=1", "progress=false"]
    out = tmp_path / "run"
    assert main(["train", "algorithm=ppo", "env=cartpole", *sizes, f"out={out}"]) == 0
    assert f"tensorboard --logdir {out}" in commands(out)

"""A run's folder: which checkpoints stay, which one is the newest, what a state survives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from rlfw.checkpoint import load_state, save_state
from rlfw.errors import RunError, UserError
from rlfw.retention import Retention
from rlfw.run import RunFolder, checkpoints


def saved(folder: RunFolder, iterations: list[int], keep: int) -> list[int]:
    for iteration in iterations:
        folder.save_checkpoint(iteration, lambda path: (path / "x.txt").write_text("x"), Retention(keep))
    return [int(path.name) for path in checkpoints(folder.path)]


def test_the_newest_checkpoint_is_the_one_of_the_highest_number(tmp_path: Path) -> None:
    assert saved(RunFolder(tmp_path), [900, 9000, 10000, 123456789], keep=-1) == [900, 9000, 10000, 123456789]


@pytest.mark.parametrize(("keep", "left"), [(-1, [1, 2, 9, 10, 11]), (2, [10, 11]), (1, [11]), (0, [11])])
def test_retention_never_deletes_the_newest(keep: int, left: list[int], tmp_path: Path) -> None:
    assert saved(RunFolder(tmp_path), [1, 2, 9, 10, 11], keep) == left


def test_the_best_and_the_milestones_stay_beside_the_newest(tmp_path: Path) -> None:
    folder, retention = RunFolder(tmp_path), Retention(keep=2, milestones=4)
    for iteration, score in enumerate([1.0, 3.0, 7.0, 5.0, 7.0, 2.0, 6.0, 6.5, 4.0, 0.0], 1):
        retention.evaluated(iteration, score)
        folder.save_checkpoint(iteration, lambda path: (path / "x.txt").write_text("x"), retention)
    assert [int(path.name) for path in checkpoints(tmp_path)] == [3, 4, 8, 9, 10]  # the first best one, two milestones


@pytest.mark.parametrize(
    ("retention", "saved"),
    [
        (Retention(-1), [2, 4, 6, 8, 10, 12, 14, 16, 18, 20]),  # twenty iterations: every tenth of the budget
        (Retention(-1, every=6), [6, 12, 18]),
        (Retention(-1, every=6, milestones=9), [6, 9, 12, 18]),
        (Retention(-1, every=15, best=(7, 0.0)), [7, 15]),
    ],
)
def test_when_a_run_is_saved(retention: Retention, saved: list[int]) -> None:
    assert [i for i in range(1, 21) if retention.due(i, (i - 1) / 20, i / 20)] == saved


def test_a_checkpoint_that_fails_half_way_leaves_the_old_one_and_no_trace(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    saved(folder, [1], keep=1)

    def fail(path: Path) -> None:
        (path / "half.txt").write_text("half")
        raise OSError(28, "No space left on device")

    with pytest.raises(RunError, match=r"No space left on device.*00000001 is whole"):
        folder.save_checkpoint(2, fail, Retention(keep=1))
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["00000001"]


def test_a_row_can_be_read_as_soon_as_it_is_logged(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path)
    for i in range(3):
        folder.log(
            {"iteration": i, "global_step": i, **{f"metric/{k}": k / 3 for k in range(500)}}
        )  # beyond any buffer
        rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
        assert [row["iteration"] for row in rows] == list(range(i + 1))


def test_a_state_comes_back_as_it_was(tmp_path: Path) -> None:
    state = {
        "a": 1,
        "b": [1.5, None, "x"],
        "c": {"tensor": torch.arange(3), "n": np.float64(2.5)},
        "d": np.ones((2, 2)),
    }
    save_state(tmp_path, "state", state)
    back = load_state(tmp_path, "state")
    assert back["a"] == 1
    assert back["b"] == [1.5, None, "x"]
    assert back["c"]["tensor"].tolist() == [0, 1, 2]
    assert back["c"]["n"] == 2.5
    assert back["d"].tolist() == [[1, 1], [1, 1]]
    assert not any(path.suffix in (".pkl", ".pt", ".bin") for path in tmp_path.iterdir())


def test_an_unreadable_checkpoint_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import rlfw
    from rlfw.api import evaluate_run

    words = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_steps=8", "iterations=1", "progress=false"]
    run = rlfw.train([*words, f"out={tmp_path / 'run'}"])
    newest = checkpoints(run)[-1] / "policy" / "policy.safetensors"
    newest.write_bytes(newest.read_bytes()[:50])
    with pytest.raises(UserError, match="cannot be read as a checkpoint"):
        evaluate_run(checkpoints(run)[-1], 1)
    assert evaluate_run(run, 1)["return"].n == 1  # the one before it
    assert f"rlfw: note: {checkpoints(run)[-1]} is damaged and is passed over\n" in capsys.readouterr().err

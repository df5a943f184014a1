"""A loss or gradient that is not finite: the step is skipped and its batch kept; a run that stays so ends with why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import rlfw
from rlfw import registry
from rlfw.errors import RunError
from rlfw.interfaces import Penalty
from rlfw.registry import register
from rlfw.run import checkpoints

pytestmark = pytest.mark.medium

WORDS = [
    *["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=8", "sampler.episodes.group_size=4"],
    *["iterations=4", "epochs=2", "num_minibatches=2", "checkpoint.every=1", "progress=false", "tensorboard=false"],
    *["regularizer=[clip,breaks_at]", "aggregation=sequence_mean"],
]


class BreaksAt(Penalty):
    """NaN, or a square root whose slope is infinite, on one row of chosen calls."""

    def __init__(self, *, calls: list[int] = [2], slope: bool = False) -> None:  # noqa: B006
        self.calls, self.slope, self.count = calls, slope, 0

    def __call__(self, new, batch):
        found = torch.zeros_like(new.logprobs)
        if self.count in self.calls:
            row = torch.arange(len(found))[:, None] == 1
            bad = (
                (new.logprobs - new.logprobs.detach()).abs().sqrt() if self.slope else torch.full_like(found, torch.nan)
            )
            found = torch.where(row, bad, found)
        self.count += 1
        return found


def train(folder: Path, *words: str) -> Path:
    if "breaks_at" not in registry.names("regularizer"):
        register("regularizer", "breaks_at")(BreaksAt)
    return rlfw.train([*WORDS, *words, f"out={folder}"])


def rows(run: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.mark.parametrize("slope", ["false", "true"])
def test_one_bad_step_is_skipped_and_counted(slope: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", "regularizer.breaks_at.calls=[2]", f"regularizer.breaks_at.slope={slope}")
    assert [row["optim/skipped_steps"] for row in rows(run)] == [1, 0, 0, 0]
    assert [row["optim/num_steps"] for row in rows(run)] == [3, 4, 4, 4]
    for tensor in load_file(checkpoints(run)[-1] / "policy" / "policy.safetensors").values():
        assert bool(tensor.isfinite().all())


def test_the_batch_of_a_skipped_step_is_kept_for_probe(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "regularizer.breaks_at.calls=[2]")
    kept = load_file(run / "nonfinite-1.safetensors")
    found = rlfw.probe(["algorithm=grpo", "regularizer=[clip]", "aggregation=sequence_mean"], **kept)
    assert bool(found.gradient.isfinite().all())  # without the part that broke it is an ordinary batch
    assert len(kept["mask"]) == 4


@pytest.mark.parametrize(
    ("words", "cause"),
    [
        (["regularizer.breaks_at.calls=[5,6,7,8]"], "regularizer=breaks_at is not finite in row 1 of the minibatch"),
        (
            ["regularizer.breaks_at.calls=[5,6,7,8]", "regularizer.breaks_at.slope=true"],
            "every number of the loss is finite and its derivative is not",
        ),
    ],
)
def test_three_in_a_row_end_the_run_with_the_cause(words: list[str], cause: str, tmp_path: Path) -> None:
    with pytest.raises(
        RunError, match=r"iteration 2: the (loss|gradient of the policy) was not finite 3 times in a row"
    ) as error:
        train(tmp_path / "run", *words)
    assert cause in str(error.value)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status["state"] == "failed"
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["00000000", "00000001"]


def test_bad_steps_that_do_not_follow_each_other_go_on(tmp_path: Path) -> None:
    run = train(tmp_path / "run", "regularizer.breaks_at.calls=[1,2,4,5,7,8]")
    assert sum(row["optim/skipped_steps"] for row in rows(run)) == 6

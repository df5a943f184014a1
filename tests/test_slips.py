"""Slips that a user of the parts makes, each with its answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import rlfw
from rlfw import functional as F
from rlfw.cli import main

SMALL = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_steps=16", "progress=false", "tensorboard=false"]


def test_build_takes_the_defaults_of_the_registration() -> None:
    part = rlfw.build("regularizer", {"part": "kl_old"})
    assert (part.to, part.coef) == ("old", 1.0)


def test_a_positional_key_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / "slip.py"
    plugin.write_text(
        "from dataclasses import dataclass\n"
        "from rlfw import register\nfrom rlfw.interfaces import Surrogate\n"
        '@register("regularizer", "slip")\n@dataclass\nclass Slip(Surrogate):\n'
        '    """A key that is not keyword-only."""\n    sharpness: float = 1.0\n'
        "    def __call__(self, new, batch):\n        return batch.advantages\n"
    )
    words = [*SMALL, f"plugins=[{plugin}]", "regularizer=slip", "iterations=1", f"out={tmp_path / 'run'}"]
    assert main(["train", *words]) == 2
    assert "nothing gives its positional parameter sharpness" in capsys.readouterr().err


def test_a_plugin_that_changed_under_a_running_python_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / "changing.py"
    plugin.write_text("x = 1\n")
    words = [*SMALL, f"plugins=[{plugin}]", "iterations=1"]
    assert main(["train", *words, f"out={tmp_path / 'a'}"]) == 0
    plugin.write_text("x = 2\n")
    assert main(["train", *words, f"out={tmp_path / 'b'}"]) == 2
    assert "has changed since it was loaded" in capsys.readouterr().err


def test_an_error_before_the_first_iteration_leaves_the_folder_free(tmp_path: Path) -> None:
    words = [*SMALL, "iterations=1", f"out={tmp_path / 'run'}", "controller=[anneal]"]
    assert main(["train", *words, "controller.anneal.knob=regularizer.clip.lo"]) == 2
    assert main(["train", *words, "controller.anneal.knob=regularizer.clip.low"]) == 0


def test_no_opinion_is_no_reward_under_other_weights() -> None:
    """Row 0 has no b: its reward is a alone, as in the env's own sum."""
    nan = float("nan")
    rows = {"mask": [[1], [1]], "group": [0, 0], "logprobs": [[0.0], [0.0]], "old_logprobs": [[0.0], [0.0]]}
    words = [
        "algorithm=grpo",
        "regularizer=clip",
        "normalize=none",
        "reward=[weighted]",
        "reward.weighted.weights={a: 1, b: 1}",
    ]
    found = rlfw.probe(words, rewards={"a": [1.0, 2.0], "b": [nan, 1.0]}, **rows)
    assert found.advantages[:, 0].tolist() == [-1.0, 1.0]  # totals 1 and 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["optimizer.adam.beta1=1.0"], "optimizer.adam.beta1=1.0: it must be less than 1"),
        (["controller.anneal.final=-1"], "controller.anneal.final=-1.0: it must be at least 0"),
        (["checkpoint.keep=0"], "checkpoint.keep=0: it must be at least 1"),
        (["warmup.steps=5"], "has no answers to learn from"),
    ],
)
def test_wrong_values(words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *SMALL, "iterations=1", f"out={tmp_path / 'run'}", *words]) == 2
    assert message in capsys.readouterr().err


def test_evaluation_checks_its_overrides_and_prints_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = tmp_path / "run"
    assert main(["train", *SMALL, "iterations=1", f"out={run}"]) == 0
    assert main(["eval", str(run), "env.gym.max_episode_steps=abc"]) == 2
    assert main(["eval", str(run), "lr=1"]) == 2
    assert "cannot change here; what can: env." in capsys.readouterr().err
    assert main(["eval", str(run), "--episodes", "1", "--json"]) == 0
    found = json.loads(capsys.readouterr().out, parse_constant=lambda word: pytest.fail(word))
    assert found["low"] is None
    assert main(["eval", str(run), "--episodes", "2", "env.gym.max_episode_steps=3", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["mean"] == 3


def test_long_rows_are_summed_block_by_block() -> None:
    """y_t = x_t + gamma y_{t+1}, by the recursion itself."""
    torch.manual_seed(0)
    T, gamma = 2 * F.BLOCK + 37, 0.97
    x = torch.randn(2, T, dtype=torch.float64)
    mask = torch.ones(2, T, dtype=torch.bool)
    mask[1, T - 100 :] = False
    expected, carry = torch.zeros_like(x), torch.zeros(2, dtype=torch.float64)
    for t in reversed(range(T)):
        carry = torch.where(mask[:, t], x[:, t] + gamma * carry, carry)
        expected[:, t] = torch.where(mask[:, t], carry, 0.0)
    torch.testing.assert_close(F.discounted_sum(x, mask, gamma), expected)


@pytest.mark.medium
def test_an_experiment_in_a_sweep(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "small.yaml").write_text(
        "sampler: {steps: {num_envs: 2, num_steps: 8}}\niterations: 1\ntotal_steps: null\n"
    )
    assert main(["train", "-m", "env=cartpole", "experiment=small.yaml", "seed=0,1", "progress=false"]) == 0
    assert len(list((tmp_path / "runs").rglob("metrics.jsonl"))) == 2

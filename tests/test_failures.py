"""What goes wrong while a run is under way ends it with one sentence, and leaves the last checkpoint whole."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from safetensors.torch import load_file

from rlfw.cli import main

pytestmark = pytest.mark.medium

ENV = """
import gymnasium, numpy as np
from gymnasium import spaces

class Bad(gymnasium.Env):
    observation_space = spaces.Box(-1, 1, (2,))
    action_space = spaces.Discrete(2)
    steps = 0

    def __init__(self, fault):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = 0
        return np.zeros(2, np.float32), {{}}

    def step(self, action):
        Bad.steps += 1
        self.at += 1
        late = Bad.steps > 150
        observation, reward = np.zeros(2, np.float32), 1.0
        if late and self.fault == "raises":
            raise ValueError("the simulator is on fire")
        if late and self.fault == "observation":
            observation[1] = np.nan
        if late and self.fault == "reward":
            reward = float("inf")
        return observation, reward, self.at >= 5, False, {{}}

gymnasium.register("Bad-v0", lambda **kw: Bad({fault!r}))
"""

REWARD = """
from rlfw import register
from rlfw.envs.text import TextEnv, TextTask

calls = 0

def judge(completions):
    global calls
    calls += 1
    good = [0.5] * len(completions)
    return good if calls < 4 else {value}

@register("env", "judged_{name}")
def judged(streams) -> TextEnv:
    \"\"\"A judge that fails at its fourth call.\"\"\"
    return TextEnv(streams, TextTask(prompts=["ab", "ba"], rewards=judge, max_new_tokens=4), name="judged_{name}")
"""
TINY = [
    "policy=causal_lm",
    "policy.causal_lm.hidden_size=8",
    "policy.causal_lm.num_layers=1",
    "policy.causal_lm.num_heads=1",
]


def assert_failed_with_a_good_checkpoint(run: Path) -> None:
    assert json.loads((run / "status.json").read_text())["state"] == "failed"
    saved = sorted((run / "checkpoints").iterdir())
    assert saved
    for file in saved[-1].rglob("*.safetensors"):
        for name, tensor in load_file(file).items():
            assert tensor.double().isfinite().all(), name


@pytest.mark.parametrize(
    ("fault", "message"),
    [("raises", "the simulator is on fire"), ("observation", "observation"), ("reward", "reward")],
)
def test_an_env_that_breaks(fault: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plugin = tmp_path / f"bad_{fault}.py"
    plugin.write_text(ENV.format(fault=fault))
    sizes = ["sampler.steps.num_envs=2", "sampler.steps.num_steps=16", "iterations=20", "checkpoint.every=1"]
    words = [f"plugins=[{plugin}]", "algorithm=ppo", "env=gym", "env.gym.id=Bad-v0", *sizes, "progress=false"]
    assert main(["train", *words, f"out={tmp_path / 'run'}"]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "Bad-v0" in err
    assert_failed_with_a_good_checkpoint(tmp_path / "run")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("none", "None", "returned None"),
        ("word", "'good'", "returned str"),
        ("short", "good[1:]", "returned 7 values for 8 completions"),
        ("text", "['1'] * len(good)", "must be a number"),
        ("inf", "[float('inf')] * len(good)", "must be finite"),
        ("raises", "1 / 0", "division by zero"),
    ],
)
def test_a_reward_function_that_breaks(
    name: str, value: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plugin = tmp_path / f"judge_{name}.py"
    plugin.write_text(REWARD.format(name=name, value=value))
    words = ["algorithm=grpo", f"env=judged_{name}", *TINY, "sampler.episodes.num_episodes=8", "iterations=9"]
    out = f"out={tmp_path / 'run'}"
    assert main(["train", f"plugins=[{plugin}]", *words, "checkpoint.every=1", "progress=false", out]) == 1
    err = capsys.readouterr().err
    assert message in err
    assert "judge" in err
    assert_failed_with_a_good_checkpoint(tmp_path / "run")


def test_samples_that_nothing_scored_leave_their_group(tmp_path: Path) -> None:
    """None for every second completion: half the rows are used, and the group's mean is that of the scored ones."""
    plugin = tmp_path / "judge_half.py"
    plugin.write_text(
        REWARD.format(name="half", value="good").replace(
            "[0.5] * len(completions)", "[1.0, None] * (len(completions) // 2)"
        )
    )
    words = ["algorithm=grpo", "env=judged_half", *TINY, "sampler.episodes.num_episodes=16", "iterations=2"]
    assert main(["train", f"plugins=[{plugin}]", *words, "progress=false", f"out={tmp_path / 'run'}"]) == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[0]["group/n_generated"] == 16
    assert rows[0]["group/n_used"] == 8
    assert rows[0]["group/frac_reward_zero_std"] == 1
    assert rows[0]["advantage/max"] == 0


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    """A limit on the size of files stands in for the disk: the same OSError at the same places."""
    words = [
        "algorithm=ppo",
        "env=cartpole",
        "sampler.steps.num_envs=2",
        "sampler.steps.num_steps=16",
        "tensorboard=false",
    ]
    out = tmp_path / "run"
    done = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlfw.cli",
            "train",
            *words,
            "iterations=200",
            "checkpoint.every=5",
            "progress=false",
            f"out={out}",
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000)),
    )
    assert done.returncode == 1, done.stderr
    assert "cannot write to" in done.stderr
    assert "is whole" in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    saved = [path for path in (out / "checkpoints").iterdir() if path.name.isdigit()]
    for file in max(saved).rglob("*.safetensors"):
        load_file(file)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_saves_and_says_how_to_go_on(number: signal.Signals, code: int, tmp_path: Path) -> None:
    words = ["algorithm=ppo", "env=cartpole", "total_steps=100000000", "progress=false"]
    out = tmp_path / "run"
    process = subprocess.Popen(
        [sys.executable, "-m", "rlfw.cli", "train", *words, f"out={out}"], stderr=subprocess.PIPE, text=True
    )
    deadline = time.time() + 60
    while time.time() < deadline and not (out / "metrics.jsonl").exists():
        time.sleep(0.1)
    time.sleep(1)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert err.strip() == f"rlfw: interrupted and saved; go on with: rlfw train resume={out}"
    status = json.loads((out / "status.json").read_text())
    assert status["state"] == "interrupted"
    assert status["signal"] == number
    assert int(max(path.name for path in (out / "checkpoints").iterdir())) == status["iteration"]
    assert main(["train", f"resume={out}", f"total_steps={status['steps'] + 1000}"]) == 0
    assert json.loads((out / "status.json").read_text())["iteration"] > status["iteration"]

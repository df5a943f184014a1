"""A run that was cut and goes on ends as the run that was not: weights, state, metrics and events, bit for bit."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import time
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_file_loader import EventFileLoader

import rlfw
from rlfw.errors import UserError
from rlfw.run import checkpoints, newest

EVERY = ["checkpoint.every=1", "checkpoint.keep=-1", "progress=false"]
STEPS = ["sampler.steps.num_envs=3", "sampler.steps.num_steps=24"]
GROUPS = ["sampler.episodes.num_episodes=16", "epochs=2", "num_minibatches=2"]
TEXT = [
    *["policy.causal_lm.hidden_size=16", "policy.causal_lm.num_layers=1", "policy.causal_lm.num_heads=2"],
    *["sampler.episodes.num_episodes=16", "warmup.steps=3"],
]
RUNS = {
    "ppo": ["algorithm=ppo", "env=cartpole", *STEPS],
    "a2c": ["algorithm=a2c", "env=acrobot", *STEPS],
    "grpo": ["algorithm=grpo", "env=cartpole", *GROUPS],
    "normalised": ["algorithm=ppo", "env=mountain_car_continuous", "env.gym.normalize_rewards=true", *STEPS],
    "discrete": ["algorithm=ppo", "env=taxi", "controller=[anneal,target_kl]", *STEPS],
    "episodes": ["algorithm=reinforce", "env=frozen_lake", "sampler.episodes.num_episodes=8"],
    "compiled": ["algorithm=ppo", "env=cartpole", "update=compile", *STEPS],
    "text": ["algorithm=grpo", "env=reverse", *TEXT],
    "text_critic": ["algorithm=ppo", "env=copy", "reward=kl", "sampler=episodes", *TEXT],
    "text_leave_one_out": ["algorithm=rloo", "env=sort_letters", *TEXT],
}
CLOCKS = ("time", "timing_s", "perf")


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: x for key, x in json.loads(line).items() if not key.startswith(CLOCKS)} for line in lines]


def files(run: Path) -> dict[str, bytes]:
    """The newest checkpoint, byte by byte."""
    last = checkpoints(run)[-1]
    return {path.relative_to(last).as_posix(): path.read_bytes() for path in last.rglob("*") if path.is_file()}


def events(run: Path) -> list[tuple[int, str]]:
    """(step, tag) of every scalar in every event file, in the order written."""
    found = []
    for file in sorted(run.glob("events.out.tfevents.*")):
        for event in EventFileLoader(str(file)).Load():
            found += [(event.step, value.tag) for value in event.summary.value]
    return found


def cut(run: Path, after: int, to: Path) -> Path:
    """The folder as a kill left it: no checkpoint beyond ``after``, later lines written, one of them half."""
    shutil.copytree(run, to)
    for path in checkpoints(to):
        if int(path.name) > after:
            shutil.rmtree(path)
    with (to / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 99, "loss/to')
    return to


def assert_same(a: Path, b: Path) -> None:
    assert rows(a) == rows(b)
    assert files(a) == files(b)


@pytest.mark.medium
@pytest.mark.parametrize("name", RUNS)
def test_cut_and_resumed_equals_uncut(name: str, tmp_path: Path) -> None:
    whole = rlfw.train([*RUNS[name], *EVERY, "iterations=4", f"out={tmp_path / 'whole'}"])
    for after in (0, 1, 3):
        part = cut(whole, after, tmp_path / f"cut{after}")
        assert rlfw.train([f"resume={part}"]) == part
        assert_same(whole, part)
        assert sorted(events(part)) == sorted(events(whole))
        assert len(set(events(part))) == len(events(part))
        assert json.loads((part / "status.json").read_text())["state"] == "done"


def test_a_longer_budget_goes_on_where_the_shorter_one_ended(tmp_path: Path) -> None:
    words = ["algorithm=grpo", "env=cartpole", *GROUPS, *EVERY]  # nothing in it looks at the budget
    whole = rlfw.train([*words, "iterations=4", f"out={tmp_path / 'whole'}"])
    part = rlfw.train([*words, "iterations=2", f"out={tmp_path / 'part'}"])
    rlfw.train([f"resume={part}", "iterations=4", "evaluation.every=1", "tensorboard=false"])
    assert files(whole) == files(part)
    assert "eval/return" in rows(part)[-1]
    first, second = (json.loads((run / "provenance.json").read_text()) for run in (whole, part))
    assert "resumed" not in first
    assert [(entry["iteration"], entry["overrides"][1]) for entry in second["resumed"]] == [(2, "iterations=4")]


def test_a_run_that_never_saved_starts_anew(tmp_path: Path) -> None:
    words = [*RUNS["ppo"], *EVERY, "iterations=2"]
    whole = rlfw.train([*words, f"out={tmp_path / 'whole'}"])
    part = cut(whole, -1, tmp_path / "cut")
    rlfw.train([f"resume={part}"])
    assert_same(whole, part)


def test_a_damaged_checkpoint_is_passed_over(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rlfw.train([*RUNS["ppo"], *EVERY, "iterations=3", f"out={tmp_path / 'run'}"])
    before = files(run)
    weights = checkpoints(run)[-1] / "policy" / "policy.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1  # one bit
    weights.write_bytes(content)
    capsys.readouterr()
    found = newest(run)
    assert capsys.readouterr().err == f"rlfw: note: {checkpoints(run)[-1]} is damaged and is passed over\n"
    assert found is not None
    assert found.name == "00000002"
    rlfw.train([f"resume={run}"])
    assert files(run) == before


def test_a_run_without_any_whole_checkpoint_is_refused(tmp_path: Path) -> None:
    run = rlfw.train([*RUNS["ppo"], *EVERY, "iterations=1", f"out={tmp_path / 'run'}"])
    for path in checkpoints(run):
        (path / "manifest.json").write_text("{")
    with pytest.raises(UserError, match="not one of its 2 checkpoints is whole: bring one back from a copy"):
        rlfw.train([f"resume={run}"])


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["seed=3"], "seed cannot change while a run goes on"),
        (["lr=1"], "lr cannot change"),
        (["env=acrobot"], "env cannot change"),
        (["regularizer.clip.low=0.1"], "regularizer.clip.low cannot change"),
        (["out=elsewhere"], "out cannot change"),
        (["evaluation.evry=1"], "did you mean evaluation.every"),
        (["iterations=many"], "iterations"),
        (["iterations=0"], "iterations=0: it must be at least 1"),
        (["total_steps=100", "iterations=3"], "not both"),
        (["iterations=1"], "iterations=1: 1 are done already; give a larger one"),
        (["total_steps=72"], "total_steps=72: 72 are done already"),
    ],
)
def test_what_cannot_change_is_refused_by_name(words: list[str], message: str, tmp_path: Path) -> None:
    run = rlfw.train([*RUNS["ppo"], *EVERY, "iterations=1", f"out={tmp_path / 'run'}"])
    before = rows(run)
    with pytest.raises(UserError, match=message):
        rlfw.train([f"resume={run}", *words])
    assert rows(run) == before


def test_a_run_with_nothing_left_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rlfw.train([*RUNS["ppo"], *EVERY, "iterations=1", f"out={tmp_path / 'run'}"])
    before = files(run)
    rlfw.train([f"resume={run}"])
    assert "the budget is spent (iterations=1): nothing is left to do" in capsys.readouterr().err
    assert files(run) == before


def test_no_run_to_resume(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a run's folder"):
        rlfw.train([f"resume={tmp_path / 'nothing'}"])


PLUGIN = """
from rlfw.interfaces import Reward
from rlfw.registry import register


@register("reward", "{name}")
class Mine(Reward):
    def __init__(self, *, by: float = {by}) -> None:
        self.by = by

    def __call__(self, batch):
        return batch.rewards * self.by
"""


def test_plugins_are_named_again_and_are_what_they_were(tmp_path: Path) -> None:
    plugin = tmp_path / "resumed_reward.py"
    plugin.write_text(PLUGIN.format(name="resumed_reward", by=2.0))
    words = [f"plugins=[{plugin}]", "reward=[resumed_reward]", *RUNS["ppo"], *EVERY]
    run = rlfw.train([*words, "iterations=1", f"out={tmp_path / 'run'}"])
    with pytest.raises(UserError, match=r"the run used parts of its own: add plugins=\["):
        rlfw.train([f"resume={run}", "iterations=2"])
    other = tmp_path / "elsewhere" / plugin.name
    other.parent.mkdir()
    other.write_text(PLUGIN.format(name="resumed_reward", by=3.0))
    with pytest.raises(UserError, match="is not what the run began with"):
        rlfw.train([f"resume={run}", "iterations=2", f"plugins=[{other}]"])
    rlfw.train([f"resume={run}", "iterations=2", f"plugins=[{plugin}]"])
    assert len(rows(run)) == 2


def test_a_folder_that_is_being_written_is_left_alone(tmp_path: Path) -> None:
    run = rlfw.train([*RUNS["ppo"], *EVERY, "iterations=1", f"out={tmp_path / 'run'}"])
    child = os.fork()
    if child == 0:
        from rlfw.run import RunFolder

        holder = RunFolder(run)
        time.sleep(60)
        os._exit(holder is None)
    try:
        time.sleep(0.5)
        with pytest.raises(UserError, match="is being written by another process"):
            rlfw.train([f"resume={run}", "iterations=2"])
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    rlfw.train([f"resume={run}", "iterations=2"])  # the lock fell with its holder
    assert len(rows(run)) == 2


def killed(words: list[str], seconds: float) -> None:
    """Train in a process of its own and kill it after so long."""
    child = os.fork()
    if child == 0:
        rlfw.train(words)
        os._exit(0)
    time.sleep(seconds)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def killed_until_done(words: list[str], run: Path, rng: random.Random, longest: float, kills: int) -> int:
    """Kill a run at random points, each time going on from there, then let it end; how often a checkpoint was there."""
    resumed = 0
    for _ in range(kills):
        again = (run / "config.yaml").is_file()
        if not again:
            shutil.rmtree(run, ignore_errors=True)
        resumed += bool(checkpoints(run))
        killed([f"resume={run}"] if again else [*words, f"out={run}"], rng.uniform(0, longest))
    if (run / "config.yaml").is_file():
        rlfw.train([f"resume={run}"])
    else:
        shutil.rmtree(run, ignore_errors=True)
        rlfw.train([*words, f"out={run}"])
    return resumed


def check_kills(tmp_path: Path, kills: int, seed: int) -> None:
    words = ["algorithm=ppo", "env=cartpole", *STEPS, "iterations=12", "checkpoint.every=1", "progress=false"]
    started = time.perf_counter()
    whole = rlfw.train([*words, f"out={tmp_path / 'whole'}"])
    takes = time.perf_counter() - started
    rng, resumed, done, index = random.Random(seed), 0, 0, 0
    while done < kills:
        run = tmp_path / f"run{index}"
        resumed += killed_until_done(words, run, rng, takes, kills=min(5, kills - done))
        done, index = done + 5, index + 1
        assert_same(whole, run)
        assert sorted(events(run)) == sorted(events(whole))
        shutil.rmtree(run)
    assert resumed > kills / 4  # else the kills came too early to test anything


@pytest.mark.medium
def test_killed_at_random_points(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=10, seed=0)


@pytest.mark.slow
def test_killed_at_a_hundred_random_points(tmp_path: Path) -> None:
    check_kills(tmp_path, kills=100, seed=1)

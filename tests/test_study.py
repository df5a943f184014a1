"""Studies: which arms a declaration has, what a run's hash sees, and a runner that can be cut at any moment."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml

import rlfw
from rlfw import cli, config
from rlfw.errors import UserError
from rlfw.study import declaration, records
from rlfw.study.arms import drafts
from rlfw.study.plan import plan
from rlfw.study.settings import differences, identity

ROOT = Path(__file__).parents[1]
CLOCKS = ("time", "timing_s", "perf")
SMALL = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=8", "tensorboard=false"]
METRIC = {"name": "objective/scores"}


def declared(folder: Path, **keys: object) -> Path:
    """A declaration's file; ``keys`` of the study in place of those here."""
    study = {"question": "Why?", "base": SMALL, "mode": "arms", "seeds": 2, "metric": METRIC, **keys}
    file = folder / "declared.yaml"
    file.write_text(yaml.safe_dump({"study": study}, sort_keys=False))
    return file


def arms(folder: Path, **keys: object) -> dict[str, tuple[list[str], str | None]]:
    return {arm.name: (arm.words, arm.skipped) for arm in drafts(declaration.read(declared(folder, **keys)))}


# ------------------------------------------------------------------------------------------------ arms


def test_a_grid_has_every_combination_but_those_it_skips(tmp_path: Path) -> None:
    found = arms(
        tmp_path,
        mode="grid",
        factors={"baseline": ["critic", "none"], "regularizer": ["none", ["clip", "kl"]], "epochs": [1]},
        **{"with": {"baseline=none": ["normalize=none"], "baseline=critic epochs=1": ["lr=1e-3"]}},
        skip=[["baseline=none", "regularizer=none"]],
    )
    assert found == {
        "baseline=critic regularizer=none epochs=1": (
            ["lr=1e-3", "baseline=critic", "regularizer=none", "epochs=1"],
            None,
        ),
        "baseline=critic regularizer=[clip,kl] epochs=1": (
            ["lr=1e-3", "baseline=critic", "regularizer=[clip,kl]", "epochs=1"],
            None,
        ),
        "baseline=none regularizer=none epochs=1": (
            ["normalize=none", "baseline=none", "regularizer=none", "epochs=1"],
            "the declaration skips baseline=none regularizer=none",
        ),
        "baseline=none regularizer=[clip,kl] epochs=1": (
            ["normalize=none", "baseline=none", "regularizer=[clip,kl]", "epochs=1"],
            None,
        ),
    }


def test_one_at_a_time_has_the_base_and_each_level_alone(tmp_path: Path) -> None:
    found = arms(tmp_path, mode="one_at_a_time", factors={"lr": [0.1, 0.01], "baseline.critic.clip": [None]})
    assert found == {
        "base": ([], None),
        "lr=0.1": (["lr=0.1"], None),
        "lr=0.01": (["lr=0.01"], None),
        "baseline.critic.clip=null": (["baseline.critic.clip=null"], None),
    }


def test_leave_one_out_has_all_and_all_but_each(tmp_path: Path) -> None:
    found = arms(tmp_path, mode="leave_one_out", factors={"reward": "kl", "normalize": ["whiten"], "epochs": [4]})
    assert found == {
        "all": (["reward=kl", "normalize=whiten", "epochs=4"], None),
        "without reward=kl": (["normalize=whiten", "epochs=4"], None),
        "without normalize=whiten": (["reward=kl", "epochs=4"], None),
        "without epochs=4": (["reward=kl", "normalize=whiten"], None),
    }


def test_named_arms_are_as_they_are_named(tmp_path: Path) -> None:
    found = arms(tmp_path, arms={"plain": [], "long": ["epochs=4", "lr=0.1"]})
    assert found == {"plain": ([], None), "long": (["epochs=4", "lr=0.1"], None)}


GRID = {"mode": "grid", "factors": {"epochs": [1, 2]}}
WRONG = [
    ({"modes": "grid"}, "study.modes: no such key; did you mean mode?"),
    ({"mode": "gird"}, "study.mode: gird: no such mode; did you mean grid?"),
    ({"mode": "grid"}, "study.factors is empty"),
    ({"mode": "grid", "factors": {"lr": []}}, "study.factors.lr is empty"),
    ({"mode": "grid", "factors": {"lr": [1, 1]}}, "study.factors.lr lists 1 twice"),
    ({"mode": "grid", "factors": {"seed": [1, 2]}}, "study.factors.seed: seed is not set here: seeds: N"),
    ({"mode": "leave_one_out", "factors": {"lr": [1, 2]}}, "study.factors.lr: leave_one_out takes one level"),
    ({**GRID, "arms": {"a": []}}, "study.arms has no effect with mode: grid"),
    ({**GRID, "with": {"epochs=3": ["lr=1"]}}, "study.with.epochs=3 meets no arm"),
    ({**GRID, "skip": [["epochs=3"]]}, "study.skip: epochs=3 meets no arm"),
    ({}, "study.arms is empty"),
    ({"arms": {"a": ["epochs"]}}, "study.arms.a: epochs: a word reads key=value"),
    ({"arms": {"a": ["out=x"]}}, "study.arms.a: out is not set here: --out says where"),
    ({"arms": {"a": ["plugins=[x.py]"]}}, "study.arms.a: plugins is not set here: no file names code to run"),
    ({"arms": {"a": ["plugins@x=[x.py]"]}}, "study.arms.a: plugins is not set here: no file names code to run"),
    ({"arms": {"a": ["+plugins@_global_=[x.py]"]}}, "study.arms.a: plugins is not set here: no file names code"),
    ({"arms": {"a": [" plugins=[x.py]"]}}, "study.arms.a: an override reads key=value and ' plugins=[x.py]' does not"),
    ({**GRID, "seeds": 0}, "study.seeds: 0: it must be a whole number, at least 1"),
    ({**GRID, "seeds": True}, "study.seeds: True: it must be a whole number"),
    ({**GRID, "envs": []}, "study.envs is empty"),
    ({**GRID, "envs": [["env=cartpole"], ["env=cartpole"]]}, "study.envs lists one env twice"),
    ({**GRID, "metric": {}}, "study.metric.name is missing"),
    ({**GRID, "metric": {**METRIC, "summary": "best"}}, "study.metric.summary: best: no such summary"),
    ({**GRID, "metric": {**METRIC, "summary": "steps_to"}}, "study.metric.threshold is missing"),
    ({**GRID, "metric": {**METRIC, "threshold": 4}}, "study.metric.threshold belongs to summary: steps_to"),
    ({**GRID, "metric": {**METRIC, "last": 0}}, "study.metric.last: 0: it must be a whole number"),
    ({**GRID, "metric": {**METRIC, "lst": 2}}, "study.metric.lst: no such key; did you mean last?"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_a_wrong_declaration_is_refused_with_its_key(keys: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        arms(tmp_path, **keys)


def test_a_declaration_without_its_question_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x.yaml"
    file.write_text("study: {mode: grid}")
    with pytest.raises(UserError, match=re.escape("study.question is missing")):
        declaration.read(file)
    file.write_text("lr: 3")
    with pytest.raises(UserError, match="declares no study"):
        declaration.read(file)


# ------------------------------------------------------------------------------------------------ code

EVIL = """
import gymnasium
print("IMPORTED")
gymnasium.register("Mine-v0", "gymnasium.envs.classic_control:CartPoleEnv")
"""
NAMED = "env.gym.id=named_in_a_study:Mine-v0"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a module that can be imported, prompts, and a file of reward functions."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "named_in_a_study", raising=False)
    (tmp_path / "named_in_a_study.py").write_text(EVIL)
    (tmp_path / "data.jsonl").write_text('{"prompt": "ab", "answer": "ba"}\n{"prompt": "ba", "answer": "ab"}\n')
    return tmp_path


GYM = ["algorithm=reinforce", "env=gym", "total_steps=100", "tensorboard=false"]
TEXT = ["algorithm=grpo", "env=prompts", "policy=causal_lm", "env.prompts.file=data.jsonl", "tensorboard=false"]
TEXT += [f"policy.causal_lm.{key}" for key in ("hidden_size=8", "num_heads=1", "num_layers=1")]
TEXT += [
    "iterations=1",
    "env.prompts.rewards=[exact]",
    "sampler.episodes.num_episodes=4",
    "sampler.episodes.group_size=2",
]


def dry(folder: Path, capsys: pytest.CaptureFixture, *typed: str, **keys: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr of a dry run."""
    code = cli.main(["study", str(declared(folder, seeds=1, **keys)), "--dry-run", *typed])
    said = capsys.readouterr()
    return code, said.out, said.err


@pytest.mark.parametrize(
    "words",
    [
        [NAMED],
        [f"+{NAMED}"],
        [f"++{NAMED}"],
        ["env.gym.id= named_in_a_study:Mine-v0"],
        ["env.gym.id='named_in_a_study:Mine-v0'"],
        ["env.gym={id: named_in_a_study:Mine-v0}"],
        ["env.gym.id=${env.gym.kwargs.of}", "env.gym.kwargs={of: named_in_a_study:Mine-v0}"],
    ],
)
def test_a_module_that_a_study_names_alone_is_never_imported(
    words: list[str], here: Path, capsys: pytest.CaptureFixture
) -> None:
    code, out, err = dry(here, capsys, base=GYM, arms={"a": words, "b": ["env.gym.id=CartPole-v1"]})
    assert code == 2
    assert f"{NAMED} imports the module named_in_a_study, which no file may name: rlfw study FILE {NAMED}" in err
    assert "IMPORTED" not in out + err


def test_the_command_line_of_a_study_may_name_a_module(here: Path, capsys: pytest.CaptureFixture) -> None:
    arms = {"a": [], "b": ["lr=0.1"]}
    code, out, err = dry(here, capsys, NAMED, base=GYM, arms=arms)
    assert (code, out.count("IMPORTED"), "2 arms x 1 envs" in out) == (0, 1, True), err
    code, out, err = dry(here, capsys, NAMED, base=GYM, arms={**arms, "c": ["env.gym.id=other:Env-v0"]})
    assert code == 2
    assert "env.gym.id=other:Env-v0 imports the module other, which no file may name" in err


@pytest.mark.parametrize(
    ("base", "words"),
    [
        (TEXT, ["env.prompts.weights={exact: 2}"]),
        (TEXT, ["env.prompts.weights.exact=2"]),
        (TEXT, ["env.prompts.alphabet=':a'"]),
        (TEXT, ["policy.causal_lm.config={initializer_range: 0.5}"]),
        ([*GYM, "env.gym.id=CartPole-v1"], ["env.gym.kwargs={sutton_barto_reward: true}"]),
    ],
)
def test_a_value_with_a_colon_that_names_no_module_is_a_value(
    base: list[str], words: list[str], here: Path, capsys: pytest.CaptureFixture
) -> None:
    code, out, err = dry(here, capsys, base=base, arms={"plain": [], "a": words})
    assert (code, "2 arms x 1 envs" in out) == (0, True), out + err


# ------------------------------------------------------------------------------------------------ compositions


def test_evaluations_that_no_run_could_make_are_refused_before_any(here: Path, capsys: pytest.CaptureFixture) -> None:
    code, _, err = dry(here, capsys, base=TEXT, arms={"a": ["evaluation.every=1"]})
    assert (code, "set env.prompts.eval_file=FILE" in err) == (2, True), err


@pytest.mark.medium
def test_a_hash_sees_what_trains_and_nothing_else() -> None:
    base = identity(config.compose([*SMALL, "iterations=2"]))
    for word in ("out=x", "progress=false", "checkpoint.every=3", "checkpoint.keep=9", "threads=2"):
        assert identity(config.compose([*SMALL, "iterations=2", word])) == base
    other = [["seed=1"], ["lr=0.5"], ["regularizer=[kl,clip]"], ["evaluation.every=1"], ["regularizer.kl.coef=0.3"]]
    assert len({base, *(identity(config.compose([*SMALL, "iterations=2", *words])) for words in other)}) == 6
    assert identity(config.compose([*SMALL, "iterations=3"])) != base


@pytest.mark.medium
def test_differences_name_parts_and_the_keys_that_are_not_at_their_defaults() -> None:
    base = config.compose(SMALL)
    arm = config.compose(
        [*SMALL, "baseline=none", "regularizer=[clip,kl_old]", "regularizer.clip.high=0.3", "epochs=2"]
    )
    assert differences(base, arm) == {
        "epochs": (1, 2),
        "baseline": ("group_mean", "none"),
        "regularizer": (["clip", "kl"], ["clip", "kl_old"]),
        "regularizer.clip.high": (0.2, 0.3),
    }
    assert differences(base, config.compose([*SMALL, "baseline=ema", "baseline.ema.decay=0.5"])) == {
        "baseline": ("group_mean", "ema"),
        "baseline.ema.decay": (None, 0.5),
    }


@pytest.mark.medium
def test_impossible_arms_are_refused_with_their_reason_and_equal_ones_run_once(tmp_path: Path) -> None:
    named = {
        "plain": [],
        "again": ["baseline=group_mean"],
        "alone": ["sampler.episodes.group_size=1"],
        "typo": ["lrr=3"],
        "none": ["baseline=none", "normalize=none"],
    }
    made = plan(declaration.read(declared(tmp_path, arms=named, base=[*SMALL, "iterations=2"])), None)
    refused = {arm.name: arm.refused for arm in made.arms}
    assert refused["again"] == "the same composition as plain"
    assert refused["alone"] == (
        "baseline=group_mean compares samples within a group: set sampler=episodes and sampler.episodes.group_size >= 2"
    )
    assert refused["typo"] is not None
    assert "lrr" in refused["typo"]
    runs = [(run.arm, run.env, run.seed) for run in made.runs(2)]
    assert runs == [
        ("plain", "cartpole", 0),
        ("none", "cartpole", 0),
        ("plain", "cartpole", 1),
        ("none", "cartpole", 1),
    ]


@pytest.mark.medium
def test_a_metric_of_evaluations_needs_evaluations(tmp_path: Path) -> None:
    file = declared(tmp_path, arms={"plain": []}, metric={"name": "eval/return"})
    with pytest.raises(UserError, match=re.escape("add evaluation.every=N")):
        plan(declaration.read(file), None)


@pytest.mark.medium
@pytest.mark.parametrize(
    ("name", "arms", "runs"), [("baseline_x_regularizer", 16, 320), ("ppo_details", 13, 260), ("grpo_variants", 9, 90)]
)
def test_the_shipped_studies_are_possible(name: str, arms: int, runs: int, capsys: pytest.CaptureFixture) -> None:
    assert cli.main(["study", str(ROOT / "experiments" / f"{name}.yaml"), "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert f"{arms} arms, as differences from" in said
    assert f"= {runs} runs" in said
    assert "skipped" not in said


# ------------------------------------------------------------------------------------------------ the runner

BAD = """
from dataclasses import dataclass
from rlfw import register
from rlfw.interfaces import Reward

@register("reward", "bad")
@dataclass
class Bad(Reward):
    "It raises."

    def __call__(self, batch):
        raise ValueError("the sky falls")
"""


def study(file: Path, out: Path, *words: str) -> int:
    return cli.main(["study", str(file), "--out", str(out), *words])


def process(file: Path, out: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rlfw.cli", "study", str(file), "--out", str(out), *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})


def rows(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{key: x for key, x in json.loads(line).items() if not key.startswith(CLOCKS)} for line in lines]


def metrics(out: Path) -> dict[tuple[str, int], list[dict[str, float]]]:
    return {(run.arm, run.seed): rows(run.path) for run in records.load(out).runs}


def states(out: Path) -> dict[tuple[str, int], str]:
    return {(run.arm, run.seed): run.state for run in records.load(out).runs}


def wait_for(found: object, seconds: float = 300.0) -> None:
    """Until ``found()`` is true."""
    end = time.monotonic() + seconds
    while not found():  # type: ignore[operator]
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.02)


def test_a_folder_of_something_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = declared(tmp_path, arms={"plain": []})
    assert study(file, tmp_path) == 2
    assert "holds something that is no study" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["declared.yaml"]
    with pytest.raises(UserError, match="is not a study's folder"):
        records.load(tmp_path)


@pytest.mark.medium
def test_a_study_goes_on_where_it_is_not_done(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    (tmp_path / "bad.py").write_text(BAD)
    base, plugin = [*SMALL, "iterations=3"], f"plugins=[{tmp_path / 'bad.py'}]"
    named = {"plain": [], "bad": ["reward=bad"], "no_kl": ["regularizer=clip"]}
    file, out = declared(tmp_path, arms=named, base=base), tmp_path / "out"

    assert study(file, out, plugin) == 1  # one arm fails, and the others are done
    done = {("plain", 0): "done", ("plain", 1): "done", ("no_kl", 0): "done", ("no_kl", 1): "done"}
    assert states(out) == {**done, ("bad", 0): "failed", ("bad", 1): "failed"}
    said = capsys.readouterr().out
    assert "4 done, 2 failed, 0 left of 6" in said
    found = {(run.arm, run.seed): run for run in records.load(out).runs}
    assert "the sky falls" in str(found["bad", 0].error)
    assert "the sky falls" in (out / "logs" / f"{found['bad', 0].path.name}.txt").read_text()
    assert records.load(out).base == "plain"

    before = metrics_of_done = {key: rows(found[key].path) for key in done}
    assert rlfw.train([*base, plugin, "regularizer=clip", "seed=1", "progress=false", f"out={tmp_path / 'alone'}"])
    assert rows(tmp_path / "alone") == metrics_of_done["no_kl", 1]  # as by hand

    file = declared(tmp_path, arms={"plain": [], "no_kl": ["regularizer=clip"]}, base=base)
    assert study(file, out, plugin) == 0  # the failing arm is gone, nothing is left to do
    assert "start" not in (said := capsys.readouterr().out)
    assert "4 done, 0 failed, 0 left of 4" in said
    assert states(out) == done

    assert study(file, out, plugin, "--seeds", "3") == 0  # only the new ones run
    assert capsys.readouterr().out.count("\nstart") == 2
    attempts = {(entry["arm"], entry["seed"]): entry["attempts"] for entry in records.read_index(out)}
    assert attempts == {(arm, seed): 1 for arm in ("plain", "no_kl") for seed in (0, 1, 2)}
    assert {key: found for key, found in metrics(out).items() if key[1] < 2} == before
    assert study(file, out, plugin) == 0  # the seed that was added stays
    assert len(records.load(out).runs) == 6

    other = declared(tmp_path, arms={"plain": [], "no_kl": ["regularizer=clip"]}, base=[*base, "lr=0.01"], seeds=1)
    assert study(other, out) == 0  # another base mixes with nothing
    assert "8 run(s) of an earlier declaration are left" in capsys.readouterr().out  # 6, and the failed arm's 2
    assert len(records.load(out).runs) == 2


@pytest.mark.medium
def test_cut_by_ctrl_c_and_by_kill_it_ends_as_the_uncut_one(tmp_path: Path) -> None:
    base = [*SMALL, "iterations=24", "epochs=4", "num_minibatches=4", "checkpoint.every=2"]
    file = declared(tmp_path, arms={"plain": [], "none": ["baseline=none"]}, base=base)
    whole, cut = tmp_path / "whole", tmp_path / "cut"

    def saved() -> set[Path]:
        return {path for path in cut.glob("runs/*/checkpoints/*") if path.name.isdigit() and int(path.name) > 0}

    first = process(file, cut)
    wait_for(saved)
    first.send_signal(signal.SIGINT)
    said = first.communicate(timeout=300)[0]
    assert first.returncode == 130
    assert "go on with: rlfw study" in said
    assert "interrupted" in states(cut).values()
    assert "running" not in states(cut).values()

    known = saved()
    second = process(file, cut)
    wait_for(lambda: saved() - known)
    second.kill()
    second.communicate()
    assert "done" not in {states(cut)[key] for key in (("plain", 1), ("none", 1))}

    assert study(file, cut) == 0
    assert study(file, whole) == 0
    assert set(states(cut).values()) == {"done"}
    assert metrics(cut) == metrics(whole)


@pytest.mark.medium
def test_two_runners_share_the_runs_of_one_folder(tmp_path: Path) -> None:
    file = declared(tmp_path, arms={"plain": [], "none": ["baseline=none"]}, base=[*SMALL, "iterations=20"], seeds=3)
    out = tmp_path / "out"
    other = process(file, out, "--workers", "1")
    wait_for(lambda: list(out.glob("runs/*/status.json")))
    assert study(file, out, "--workers", "1") == 0
    said = other.communicate(timeout=300)[0]
    assert other.returncode == 0
    assert said.count("\nstart") < 6  # the other one had some of them
    assert [entry["attempts"] for entry in records.read_index(out)] == [1] * 6
    assert set(states(out).values()) == {"done"}

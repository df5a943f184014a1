"""Searches: the points that are drawn, what a trial is worth, and a search that can be cut at any moment."""

from __future__ import annotations

import json
import math
import re
import shutil
import signal
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from rlfw import cli
from rlfw.errors import UserError
from rlfw.report import content
from rlfw.report.folders import Choice
from rlfw.report.objective import objectives
from rlfw.report.results import read as results_of
from rlfw.study import declaration, records, sampler, space
from rlfw.study.records import Trial
from rlfw.study.sampler import Tried, propose
from rlfw.study.space import Range
from rlfw.study.trials import Trials

PLUGIN = """
import torch
from dataclasses import KW_ONLY, dataclass, replace
from rlfw import register
from rlfw.interfaces import Reward

@register("reward", "hill")
@dataclass
class Hill(Reward):
    "Each row is paid -(x - 3)^2 a row, whatever it did."

    _: KW_ONLY
    x: float = 0.0

    def __call__(self, batch):
        if self.x > 9:
            raise ValueError("too far")
        rewards = torch.zeros_like(batch.rewards)
        rewards[:, 0] = -((self.x - 3) ** 2)
        return rewards
"""
SMALL = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=8", "iterations=1", "tensorboard=false"]
METRIC = {"name": "objective/rlhf_reward"}
HILL = {"low": -6, "high": 6}


def declared(folder: Path, **keys: Any) -> Path:
    """A declaration's file; ``keys`` of the study in place of those here."""
    study = {"question": "Where?", "base": SMALL, "mode": "search", "space": {"lr": {"low": 0.1, "high": 1.0}}}
    file = folder / "declared.yaml"
    file.write_text(yaml.safe_dump({"study": study | {"trials": 3, "seeds": 1, "metric": METRIC} | keys}))
    return file


# ------------------------------------------------------------------------------------------------ declarations

WRONG = [
    ({"space": {}}, "study.space takes keys"),
    ({"space": {"lr": {"low": 1.0, "high": 1.0}}}, "study.space.lr: low: 1.0 is not below high: 1.0"),
    ({"space": {"lr": {"low": 0, "high": 1, "log": True}}}, "study.space.lr: low: 0 has no logarithm"),
    ({"space": {"lr": {"low": 1, "high": 2, "log": True, "step": 1}}}, "study.space.lr.step has no effect with log"),
    ({"space": {"lr": {"low": 0.0, "high": 1.0, "step": 0.3}}}, "no number of steps of 0.3 leads from low: 0.0"),
    ({"space": {"lr": {"low": 0.0, "high": 1.0, "step": -0.5}}}, "no number of steps of -0.5"),
    ({"space": {"lr": {"low": "a", "high": 1.0}}}, "study.space.lr.low: a: it must be a number"),
    ({"space": {"lr": {"low": 0.0, "high": math.inf}}}, "study.space.lr.high: inf: it must be a number"),
    ({"space": {"lr": {"low": 0.1}}}, "study.space.lr.high is missing"),
    ({"space": {"lr": {"low": 0.1, "hgh": 1.0}}}, "study.space.lr.hgh: no such key; did you mean high?"),
    ({"space": {"lr": [0.1]}}, "study.space.lr takes {low: A, high: B} or a list of at least two choices"),
    ({"space": {"lr": [0.1, 0.1]}}, "study.space.lr lists 0.1 twice"),
    ({"space": {"seed": [1, 2]}}, "study.space.seed: seed is not set here"),
    ({"space": {"plugins": ["a", "b"]}}, "study.space.plugins: plugins is not set here: no file names code"),
    ({"space": {"checkpoint.every": {"low": 1, "high": 2}}}, "study.space.checkpoint.every: nothing that is learned"),
    ({"space": {"env": ["cartpole", "acrobot"]}}, "study.space.env: trials are compared on the same envs"),
    ({"trials": 0}, "study.trials: 0: it must be a whole number, at least 1"),
    ({"batch": 0}, "study.batch: 0: it must be a whole number"),
    ({"sampler": "grid"}, "study.sampler: grid: no such sampler"),
    ({"factors": {"lr": [1, 2]}}, "study.factors has no effect with mode: search"),
    ({"mode": "arms", "arms": {"a": []}}, "study.space has no effect with mode: arms; it belongs to mode: search"),
]


@pytest.mark.parametrize(("keys", "said"), WRONG)
def test_a_wrong_search_is_refused_with_its_key(keys: dict, said: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=re.escape(said)):
        declaration.read(declared(tmp_path, **keys))


def test_a_search_without_space_or_trials_is_refused(tmp_path: Path) -> None:
    file = declared(tmp_path)
    for name in ("space", "trials"):
        body = yaml.safe_load(file.read_text())
        del body["study"][name]
        (tmp_path / "less.yaml").write_text(yaml.safe_dump(body))
        with pytest.raises(UserError, match=re.escape(f"study.{name} is missing")):
            declaration.read(tmp_path / "less.yaml")


COMPOSED = [
    ({"lrr": [1, 2]}, "study.space.lrr: lrr: no such key; did you mean lr?"),
    ({"lr": [0.1, "fast"]}, "study.space.lr: lr: Value 'fast'"),
    ({"baseline": ["group_mean", "medium"]}, "study.space.baseline: baseline=medium: no such choice"),
    ({"baseline.ema.decay": [0.5, 0.9]}, "study.space.baseline.ema.decay: baseline.ema.decay has no effect"),
    ({"sampler.episodes.group_size": [0, 1]}, "no point of it can run"),
    ({"epochs": [1, 2]}, "study.trials: 3: the space has 2 points; mode: grid runs each"),
]


@pytest.mark.medium
@pytest.mark.parametrize(("space", "said"), COMPOSED)
def test_a_space_that_no_composition_takes_is_refused(
    space: dict, said: str, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    trials = ["--trials", "2"] if "has 2 points" not in said else []
    assert cli.main(["study", str(declared(tmp_path, space=space)), "--dry-run", *trials]) == 2
    assert said in capsys.readouterr().err


def test_trials_belong_to_a_search(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    file = tmp_path / "arms.yaml"
    file.write_text(yaml.safe_dump({"study": {"question": "?", "mode": "arms", "arms": {"a": []}, "seeds": 1,
                                              "metric": METRIC}}))  # fmt: skip
    assert cli.main(["study", str(file), "--dry-run", "--trials", "3"]) == 2
    assert "--trials belongs to mode: search" in capsys.readouterr().err


def test_without_optuna_the_extra_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=re.escape("pip install 'rlfw[search]'")):
        sampler.require()


# ------------------------------------------------------------------------------------------------ points

SPACE: space.Space = {
    "lr": Range(1e-4, 1e-2, log=True),
    "epochs": Range(1, 9, 2),
    "gamma": Range(0.9, 1.0),
    "baseline": ["critic", "none"],
    "baseline.critic.gae_lambda": Range(0.0, 1.0, 0.25),
}


@given(st.floats(min_value=-1.0, max_value=1.0), st.floats(min_value=1e-3, max_value=5.0), st.floats(0.0, 1.0))
@settings(max_examples=200, deadline=None)
def test_a_rounded_value_stays_in_its_range_and_near_what_was_drawn(low: float, span: float, share: float) -> None:
    high = low + span
    drawn = min(low + share * span, high)
    rounded = Range(low, high).rounded(drawn)
    assert low <= rounded <= high
    assert abs(rounded - drawn) <= 1e-3 * span
    logarithmic = Range(span, 10 * span, log=True)
    assert math.isclose(logarithmic.rounded(span * 10**share), span * 10**share, rel_tol=0.01)


@pytest.mark.parametrize("how", ["tpe", "random"])
def test_points_lie_in_the_space_and_none_comes_twice(how: str) -> None:
    tried: list[Tried] = []
    for number in range(24):
        point = propose(SPACE, how, tried, higher_is_better=True)
        assert point == propose(SPACE, how, tried, higher_is_better=True)  # a function of what was tried
        assert point is not None
        assert 1e-4 <= point["lr"] <= 1e-2
        assert point["epochs"] in (1, 3, 5, 7, 9)
        assert 0.9 <= point["gamma"] <= 1.0
        assert point["baseline.critic.gae_lambda"] in (0.0, 0.25, 0.5, 0.75, 1.0)
        state = ("told", "refused", "pending")[number % 3]
        tried.append(Tried(point, state, float(number) if state == "told" else None))
    assert len({tuple(space.words(point.params)) for point in tried}) == 24


def test_a_small_space_is_tried_whole_and_then_has_no_point_left() -> None:
    small: space.Space = {"epochs": Range(1, 4), "normalize": ["none", "whiten"]}
    assert space.size(small) == 8
    tried: list[Tried] = []
    while (point := propose(small, "tpe", tried, higher_is_better=True)) is not None:
        tried.append(Tried(point, "told", 0.0))
    found = {(point.params["epochs"], point.params["normalize"]) for point in tried}
    assert found == {(epochs, norm) for epochs in (1, 2, 3, 4) for norm in ("none", "whiten")}
    assert len(tried) == 8


@pytest.mark.parametrize("higher", [True, False])
def test_what_was_told_draws_the_search_to_the_better_end(higher: bool) -> None:
    tried: list[Tried] = []
    for _ in range(40):
        point = propose({"x": Range(0.0, 1.0)}, "tpe", tried, higher_is_better=higher)
        assert point is not None
        tried.append(Tried(point, "told", point["x"]))
    first, last = (statistics.mean(point.params["x"] for point in part) for part in (tried[:10], tried[-10:]))
    assert abs(first - 0.5) < 0.25
    assert (last if higher else 1 - last) > 0.75


def test_a_key_whose_part_is_not_chosen_is_left_out() -> None:
    point = {"baseline": "critic", "baseline.critic.gae_lambda": 0.5, "regularizer": "both", "regularizer.kl.coef": 0.1}
    assert space.words(point) == [f"{key}={value}" for key, value in point.items()]
    assert space.words(point | {"baseline": "none", "regularizer": "[clip,kl_old]"}) == [
        "baseline=none",
        "regularizer=[clip,kl_old]",
    ]


def test_whole_bounds_of_a_key_that_takes_any_number_are_no_whole_numbers(tmp_path: Path) -> None:
    found = declaration.read(
        declared(tmp_path, space={"gamma": {"low": 0, "high": 1}, "epochs": {"low": 1, "high": 3}})
    )
    assert found.search is not None
    typed = space.typed(found.search.space)
    assert (space.size({"gamma": typed["gamma"]}), space.size({"epochs": typed["epochs"]})) == (math.inf, 3)


def test_a_number_without_a_dot_before_its_exponent_is_a_number(tmp_path: Path) -> None:
    file = declared(tmp_path)
    file.write_text(file.read_text().replace("low: 0.1", "low: 1e-4"))
    found = declaration.read(file)
    assert found.search is not None
    assert found.search.space["lr"] == Range(1e-4, 1.0)


# ------------------------------------------------------------------------------------------------ trials


@pytest.mark.medium
def test_a_batch_knows_the_batches_before_it_alone_and_refused_points_cost_no_trial(tmp_path: Path) -> None:
    keys = {
        "space": {"epochs": {"low": 1, "high": 3}, "sampler.episodes.group_size": [1, 2, 4]},
        "batch": 2,
        "trials": 6,
    }
    study = declaration.read(declared(tmp_path, **keys))
    one, other = (Trials(study, [], []) for _ in range(2))
    assert one.extend(6)
    assert len(one.running) == 2  # a batch
    assert one.extend(3)
    assert len(one.running) == 3  # as many as were asked for
    assert one.extend(6)
    assert len(one.running) == 4  # the end of the batch that was begun
    for _ in range(2):
        other.extend(6)
    assert [trial.params for trial in one.found] == [trial.params for trial in other.found]
    alone = [trial for trial in one.found[1:] if "sampler.episodes.group_size=1" in trial.words]
    assert all("compares samples within a group" in str(trial.refused) for trial in alone)
    assert [trial.number for trial in one.found] == list(range(len(one.found)))


# ------------------------------------------------------------------------------------------------ runs


def hill(folder: Path, **keys: Any) -> Path:
    """A search whose objective is -(x - 3)^2."""
    return declared(folder, **{"space": {"reward.hill.x": HILL}, "base": [*SMALL, "reward=hill"], **keys})


def plugin(folder: Path) -> str:
    """The word that brings the search's part."""
    return f"plugins=[{folder / 'hill.py'}]"


def trials_of(out: Path) -> list[Trial]:
    return records.read_search(out).trials


def told(out: Path) -> list[tuple]:
    """All that a search found, but for the clock."""
    return [(t.number, t.arm, t.params, t.refused, t.configurations, t.objective, t.steps) for t in trials_of(out)]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A search that was not cut: 4 trials in batches of 2, 2 seeds."""
    folder = tmp_path_factory.mktemp("search")
    (folder / "hill.py").write_text(PLUGIN)
    file = hill(folder, trials=4, batch=2, seeds=2)
    assert cli.main(["study", str(file), plugin(folder), "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.mark.medium
def test_a_trial_is_worth_the_mean_of_its_runs_on_seeds_that_no_other_study_has(whole: Path) -> None:
    base, *trials = trials_of(whole)
    assert (base.arm, base.params, base.objective) == ("base", {}, -9.0)
    assert len(trials) == 4
    runs = records.load(whole).runs
    for trial in [base, *trials]:
        mine = [run for run in runs if run.arm == trial.arm]
        assert [run.seed for run in mine] == [1000, 1001]
        x = trial.params.get("reward.hill.x", 0.0)
        assert trial.objective == pytest.approx(-((x - 3) ** 2), rel=1e-5)
        rows = [json.loads((run.path / "metrics.jsonl").read_text().splitlines()[-1]) for run in mine]
        assert trial.objective == pytest.approx(statistics.mean(row["objective/rlhf_reward"] for row in rows))
        assert trial.steps == sum(row["global_step"] for row in rows)
        assert (trial.runs, trial.failed) == (2, 0)
        assert trial.seconds > 0
    assert len({trial.arm for trial in trials}) == 4


@pytest.mark.slow
def test_called_again_it_runs_nothing_and_more_trials_go_on_as_one_search(
    whole: Path, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = tmp_path / "out"
    shutil.copytree(whole, out)
    file, words = whole.parent / "declared.yaml", [plugin(whole.parent), "--out", str(out)]
    capsys.readouterr()
    assert cli.main(["study", str(file), *words]) == 0
    said = capsys.readouterr().out
    assert "start" not in said
    best = max(trials_of(out)[1:], key=lambda trial: trial.objective or -math.inf)
    assert f"best        {best.arm}" in said
    assert re.search(f"rlfw train algorithm=grpo .*reward=hill .*reward.hill.x={best.params['reward.hill.x']}\n", said)
    assert "go on with" not in said
    assert told(out) == told(whole)
    assert cli.main(["study", str(file), *words, "--trials", "5"]) == 0
    assert told(out)[:5] == told(whole)
    assert len(trials_of(out)) == 6
    assert {entry["attempts"] for entry in records.read_index(out)} == {1}
    body = yaml.safe_load(file.read_text())
    body["study"]["space"]["reward.hill.x"]["high"] = 7
    (tmp_path / "wider.yaml").write_text(yaml.safe_dump(body))
    assert cli.main(["study", str(tmp_path / "wider.yaml"), *words]) == 2
    assert "holds a search with another space" in capsys.readouterr().err
    assert cli.main(["study", str(file), "lr=0.5", *words]) == 2
    assert "holds trials of another configuration" in capsys.readouterr().err
    assert len(trials_of(out)) == 6


@pytest.mark.medium
def test_the_report_ranks_the_trials_and_says_that_the_best_is_biased(whole: Path) -> None:
    made = content.make(whole, Choice())
    assert made.search is not None
    xs = [trial.params["reward.hill.x"] for trial in made.search.trials]
    assert [abs(x - 3) for x in xs] == sorted(abs(x - 3) for x in xs)
    assert [arm.name for arm in made.records.arms] == ["base", *(trial.arm for trial in made.search.trials)]
    assert "the best of 4 trials was picked by the runs that it is scored on" in made.caveats[0]
    assert "best.yaml" in made.caveats[0]
    assert "Tuning has cost 8 runs" in made.caveats[1]
    assert {"search", "space"} <= {figure.name for figure in made.figures}
    confirming = declaration.read(whole / "best.yaml")
    assert confirming.arms == {"base": [], "best": made.search.trials[0].words}
    assert confirming.seeds < 1000  # 0 to 9: the search used others
    assert confirming.metric == made.records.metric


@pytest.mark.slow
def test_a_failed_run_counts_as_the_worst_and_the_search_goes_on(whole: Path, tmp_path: Path) -> None:
    file, out = hill(tmp_path, space={"reward.hill.x": [2, 20, -4]}, batch=3), tmp_path / "out"
    assert cli.main(["study", str(file), plugin(whole.parent), "--out", str(out)]) == 1
    found = {trial.arm: trial for trial in trials_of(out)}
    assert {arm: trial.objective for arm, trial in found.items()} == {
        "base": -9.0,
        "reward.hill.x=2": -1.0,
        "reward.hill.x=-4": -49.0,
        "reward.hill.x=20": -49.0,
    }
    assert found["reward.hill.x=20"].failed == 1
    runs = results_of(records.load(out))
    assert objectives(runs, records.load(out).metric) == {arm: trial.objective for arm, trial in found.items()}


@pytest.mark.slow
def test_killed_at_two_moments_it_ends_as_the_one_that_was_not(whole: Path, tmp_path: Path) -> None:
    file, out = whole.parent / "declared.yaml", tmp_path / "out"
    words = [str(file), plugin(whole.parent), "--out", str(out)]
    for ended in ("(2/6)", "(8/10)"):
        process = subprocess.Popen(
            [sys.executable, "-u", "-m", "rlfw.cli", "study", *words], stdout=subprocess.PIPE, text=True
        )
        assert process.stdout is not None
        for line in process.stdout:
            if ended in line:
                break
        process.send_signal(signal.SIGKILL)
        process.communicate()
    assert cli.main(["study", *words, "--workers", "1"]) == 0
    assert told(out) == told(whole)
    assert len(records.read_index(out)) == 10

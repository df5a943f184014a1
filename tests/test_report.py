"""The report: its numbers against independent computations, its intervals by simulation, and what it must not hide."""

from __future__ import annotations

import csv
import gc
import html
import itertools
import json
import math
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from scipy import stats

import rlfw
from rlfw import cli
from rlfw.errors import UserError
from rlfw.report import command, configs, content, folders, page, results, series, statistics
from rlfw.report.content import Content
from rlfw.report.folders import Choice

BASE = "plain"
METRIC = {"name": "eval/return", "summary": "final", "last": 2}


class Made:
    """A study's folder, written by hand."""

    def __init__(self, folder: Path, **study: Any) -> None:
        self.folder, self.arms, self.index = folder, [], []
        (folder / "runs").mkdir(parents=True)
        declared = {"question": "Why?", "mode": "arms", "arms": {BASE: []}, "seeds": 2, "metric": METRIC, **study}
        (folder / "study.yaml").write_text(yaml.safe_dump({"study": declared}))

    def arm(self, name: str, *words: str, refused: str | None = None, **differences: Any) -> Made:
        self.arms.append({"name": name, "words": words, "differences": differences, "refused": refused})
        (self.folder / "arms.json").write_text(json.dumps(self.arms))
        return self

    def run(
        self, arm: str, seed: int, values: Any, *, env: str = "cartpole", state: str = "done", error: str | None = None
    ) -> Path:
        """``values``: what eval/return is at steps 100, 200, ...; None: the row has none."""
        run = f"{len(self.index):016x}"
        path = self.folder / "runs" / run
        entry = {"run": run, "arm": arm, "env": env, "seed": seed, "attempts": 1, "seconds": 5.0, "error": error}
        self.index.append(entry)
        (self.folder / "index.json").write_text(json.dumps(self.index))
        if state == "missing":
            return path
        path.mkdir()
        (path / "config.yaml").write_text(f"seed: {seed}\nenv: {{gym: {{part: gym, id: {env}}}}}\n")
        (path / "status.json").write_text(json.dumps({"state": state}))
        with (path / "metrics.jsonl").open("w") as file:
            for number, value in enumerate(values, start=1):
                row = {"iteration": number, "global_step": 100 * number, "loss/total": 0.5, "timing_s/update": 1.0}
                file.write(json.dumps(row | ({} if value is None else {"eval/return": value})) + "\n")
        return path

    def scores(self, arm: str, scores: Any, **more: Any) -> Made:
        """A run a score, flat curves."""
        for seed, score in enumerate(scores):
            self.run(arm, seed, [float(score)] * 4, **more)
        return self

    def report(self, **choice: Any) -> Content:
        return content.make(self.folder, Choice(**choice))


def two_arms(folder: Path, base: Any, other: Any, **study: Any) -> Made:
    made = Made(folder, **study).arm(BASE).arm("other", regularizer=[["clip"], []])
    return made.scores(BASE, base).scores("other", other)


def said(found: Content, pattern: str) -> str:
    """The sentence under "What to know before reading" that has ``pattern``; it stands in every form of the page."""
    sentence = next((sentence for sentence in found.caveats if re.search(pattern, sentence)), None)
    assert sentence is not None, found.caveats
    assert html.escape(sentence, quote=False) in html.unescape(page.html(found)).replace("&", "&amp;").replace(
        "<", "&lt;"
    ).replace(">", "&gt;")
    return sentence


# ------------------------------------------------------------------------------------------------ statistics


@pytest.mark.medium
@pytest.mark.parametrize("n", [3, 5, 10])
def test_an_interval_of_the_mean_covers_what_it_says(n: int) -> None:
    """Standard error of the share at 3000 draws: 0.4 %."""
    draws = np.random.default_rng(n).normal(7.0, 3.0, (3000, n))
    found = [statistics.mean(sample) for sample in draws]
    assert 0.93 <= np.mean([e.low <= 7.0 <= e.high for e in found]) <= 0.97


@pytest.mark.medium
@pytest.mark.parametrize("n", [3, 5, 10])
def test_an_interval_of_a_difference_covers_what_it_says_with_unequal_spreads(n: int) -> None:
    rng = np.random.default_rng(n)
    found = [
        statistics.difference(a, b).by
        for a, b in zip(rng.normal(5, 1, (800, n)), rng.normal(3, 3, (800, n)), strict=True)
    ]
    assert 0.925 <= np.mean([e.low <= 2.0 <= e.high for e in found]) <= 0.98


@pytest.mark.medium
def test_eight_identical_arms_give_at_most_five_percent_false_discoveries() -> None:
    """Seven comparisons with one base: raw p-values find something in about a quarter of the studies."""
    rng = np.random.default_rng(0)
    raw, corrected = [], []
    gc.freeze()  # statsmodels collects garbage at every call, which takes long in a process as large as this
    for arms in rng.normal(size=(600, 8, 5)):
        p = [statistics.difference(arm, arms[0]).p for arm in arms[1:]]
        raw.append(min(p) < 0.05)
        corrected.append(min(statistics.holm(p)) < 0.05)
    gc.unfreeze()
    assert np.mean(corrected) <= 0.05
    assert np.mean(raw) > 0.15


@pytest.mark.medium
def test_the_stratified_bootstrap_covers_the_iqm_over_envs() -> None:
    """Normal runs around 0 in each of 6 envs: the IQM of the mixture is 0."""
    draws = np.random.default_rng(1).normal(size=(150, 6, 10))
    found = [statistics.stratified_iqm(list(envs)) for envs in draws]
    assert np.mean([e.low <= 0 <= e.high for e in found]) >= 0.88


def test_holm_multiplies_by_what_is_left() -> None:
    """0.01 x 3, 0.03 x 2, 0.04 x 1, never falling; a test that could not be made still counts."""
    assert statistics.holm([0.04, 0.01, 0.03]) == pytest.approx([0.06, 0.03, 0.06])
    found = statistics.holm([0.01, math.nan])
    assert found[0] == pytest.approx(0.02)
    assert math.isnan(found[1])
    assert statistics.holm([]) == []


def test_what_a_study_can_see_is_the_textbook_power() -> None:
    """Two groups of 17 find one standard deviation with 80 % (Cohen 1988, table 2.4.1)."""
    assert statistics.visible(17, 17) == pytest.approx(1.0, abs=0.01)
    assert statistics.visible(1, 5) == math.inf


def test_the_probability_of_improvement_counts_pairs_and_ties_half() -> None:
    arm, base = np.array([1.0, 2.0, 3.0]), np.array([2.0, 0.0])
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a, b in itertools.product(arm, base)]
    assert statistics.difference(arm, base).improvement == pytest.approx(np.mean(pairs))
    assert statistics.difference(arm, base, higher_is_better=False).improvement == pytest.approx(1 - np.mean(pairs))


# ------------------------------------------------------------------------------------------------ the table


def test_the_table_has_the_numbers_of_paper_and_pencil(tmp_path: Path) -> None:
    base, other = [1.0, 2.0, 3.0, 4.0, 5.0], [4.0, 6.0, 8.0, 10.0, 12.0]
    first, second = two_arms(tmp_path / "s", base, other).report().rows["cartpole"]
    assert (first.n, first.mean.value, first.iqm) == (5, 3.0, 3.0)  # of five, one is cut at either end
    half = 2.7764451 * math.sqrt(2.5 / 5)
    assert (first.mean.low, first.mean.high) == pytest.approx((3 - half, 3 + half))
    error = math.sqrt(2.5 / 5 + 10 / 5)
    freedom = (2.5 / 5 + 10 / 5) ** 2 / ((2.5 / 5) ** 2 / 4 + (10 / 5) ** 2 / 4)  # Welch and Satterthwaite
    less = second.less_base
    assert less is not None
    assert less.by.value == 5.0
    assert less.by.low == pytest.approx(5 - stats.t.ppf(0.975, freedom) * error)
    assert less.p == pytest.approx(2 * stats.t.sf(5 / error, freedom))
    assert second.corrected == pytest.approx(less.p)
    assert less.improvement == pytest.approx((25 - 1.5) / 25)  # 4 < 5, 4 = 4
    assert (second.seconds, second.steps) == (5.0, 400.0)


def test_the_three_summaries_and_their_directions(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [], [])
    made.run(BASE, 0, [0.0, 10.0, None, 20.0, 40.0])
    made.run("other", 0, [0.0, 0.0, 0.0, 0.0, 0.0])

    def score(**choice: Any) -> float | None:
        return results.read(folders.load(made.folder, Choice(**choice)))[0].score

    assert score() == 30.0
    assert score(last=1) == 40.0
    # Trapezoids between steps 100, 200, 400, 500: (5 x 100 + 15 x 200 + 30 x 100) / 400
    assert score(summary="auc") == pytest.approx(16.25)
    assert score(threshold=15.0) == 400.0
    found = made.report(threshold=15.0)
    assert "1 run(s) never reached 15" in said(found, "never reached")
    less = found.rows["cartpole"][1].less_base
    assert less is not None
    assert (less.by.value, less.improvement) == (100.0, 0.0)  # 500 steps against 400: worse


@pytest.mark.medium
def test_effects_of_a_grid_are_differences_of_cell_means(tmp_path: Path) -> None:
    factors = {"baseline": ["none", "critic"], "regularizer": ["none", "clip"]}
    made = Made(tmp_path / "s", mode="grid", factors=factors, arms={})
    cells = {("none", "none"): 1.0, ("none", "clip"): 2.0, ("critic", "none"): 4.0, ("critic", "clip"): 9.0}
    noise = np.array([-1.0, 0.0, 1.0])
    for (b, r), mean in cells.items():
        words = (f"baseline={b}", f"regularizer={r}")
        made.arm(" ".join(words), *words, **({} if mean == 1 else {"lr": [1, mean]})).scores(
            " ".join(words), mean + noise
        )
    found = made.report().effects
    assert found is not None
    main, crossed = found.main, found.interactions
    assert [(e.name, e.by.value) for e in main] == [
        ("baseline=critic", pytest.approx((4 - 1 + 9 - 2) / 2)),
        ("regularizer=clip", pytest.approx((2 - 1 + 9 - 4) / 2)),
    ]
    assert crossed[0].by.value == pytest.approx(9 - 4 - 2 + 1)
    # Equal cells of variance 1 and 3 runs: the classical two-way analysis, 8 degrees of freedom
    assert main[0].by.high - main[0].by.value == pytest.approx(stats.t.ppf(0.975, 8) * math.sqrt(4 / 4 / 3))
    assert crossed[0].by.high - crossed[0].by.value == pytest.approx(stats.t.ppf(0.975, 8) * math.sqrt(4 / 3))
    assert "interactions" in page.html(made.report())


@pytest.mark.medium
def test_several_envs_are_put_on_one_scale(tmp_path: Path) -> None:
    made = Made(tmp_path / "s").arm(BASE).arm("other", lr=[1, 2])
    for env, scale in (("cartpole", 100.0), ("pendulum", -1.0)):
        made.scores(BASE, scale * np.array([0.0, 1.0, 2.0]), env=env)
        made.scores("other", scale * np.array([2.0, 3.0, 4.0]), env=env)
    found = made.report()
    base, other = found.overall
    # CartPole: 0 to 400, so 0, .25, .5 and .5, .75, 1; Pendulum the other way round
    every = [0, 0.25, 0.5, 0.5, 0.75, 1]
    assert base.iqm.value == pytest.approx(stats.trim_mean(every, 0.25))
    assert other.iqm.value == pytest.approx(base.iqm.value)
    assert other.less_base is not None
    assert other.less_base.low < 0 < other.less_base.high
    assert other.improvement == pytest.approx(0.5)
    assert "0 is the worst run of an env" in page.html(found)
    assert {figure.name for figure in found.figures} >= {"profile", "curves-cartpole", "points-pendulum"}


# ------------------------------------------------------------------------------------------------ said on the page


@pytest.mark.medium
def test_few_seeds_are_said_with_the_difference_that_they_could_have_seen(tmp_path: Path) -> None:
    spread = np.array([-1.0, 0.0, 1.0])
    sentence = said(two_arms(tmp_path / "s", 5 + spread, 5 + spread).report(), "fewer than 10")
    assert f"find a difference of {statistics.visible(3, 3):.3g} " in sentence
    ten = two_arms(tmp_path / "t", range(10), range(10)).report()
    assert not [sentence for sentence in ten.caveats if "fewer than" in sentence]


@pytest.mark.parametrize(
    ("values", "state", "error", "reason"),
    [
        ([1.0], "failed", "the loss is not finite", "the loss is not finite"),
        ([], "done", None, "never logged eval/return"),
        ([3.0, math.nan], "done", None, "not a finite number"),
        ([3.0, math.inf], "done", None, "not a finite number"),
    ],
)
def test_a_failed_run_counts_as_the_worst_and_is_said(
    tmp_path: Path, values: Any, state: str, error: str | None, reason: str
) -> None:
    made = two_arms(tmp_path / "s", [10.0, 12.0], [20.0, 30.0])
    made.run("other", 2, values, state=state, error=error)
    found = made.report()
    row = found.rows["cartpole"][1]
    assert sorted(row.scores) == [10.0, 20.0, 30.0]
    assert row.failed == 1
    sentence = said(found, re.escape(reason))
    assert "other on cartpole: 1 of 3 runs failed (seed 2" in sentence
    assert "worst score of any finished run on cartpole, 10; without them its mean would be 25" in sentence
    assert page.html(found).count('class="some"') == 1


@pytest.mark.medium
def test_where_lower_is_better_the_worst_is_the_highest(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [10.0, 12.0], [1.0, 2.0], metric={**METRIC, "higher_is_better": False})
    made.run("other", 2, [1.0], state="failed", error="gone")
    less = made.report().rows["cartpole"][1].less_base
    assert sorted(made.report().rows["cartpole"][1].scores) == [1.0, 2.0, 12.0]
    assert less is not None
    assert less.improvement > 0.5


def test_runs_that_are_not_finished_are_said_and_do_not_count(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0, 2.0], [3.0])
    made.run("other", 1, [9.0], state="interrupted")
    made.run("other", 2, [], state="missing")
    found = made.report()
    assert found.rows["cartpole"][1].n == 1
    assert "1 interrupted, 1 missing" in said(found, "do not count yet")
    said(found, "different numbers of runs .plain: 2, other: 1")


def test_an_arm_without_a_finished_run_is_said(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0, 2.0], [])
    made.run("other", 0, [], state="failed", error="no")
    said(made.report(), "other on cartpole has no finished run")
    empty = Made(tmp_path / "t").arm(BASE)
    empty.run(BASE, 0, [], state="failed", error="no")
    found = empty.report()
    said(found, "none finished")
    assert math.isnan(found.rows["cartpole"][0].mean.value)


def test_unequal_lengths_missing_evaluations_and_holes_are_said(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [], [])
    made.run(BASE, 0, [1.0] * 10)
    made.run("other", 0, [1.0, math.nan, 1.0, 1.0, 1.0])
    made.run("other", 1, [None] * 9 + [1.0])
    found = made.report()
    assert "between 500 and 1,000 steps (shorter: other)" in said(found, "finished runs end")
    said(found, "logged eval/return 1 to 10 times")
    said(found, "fewer than 2 times")
    said(found, "that is not finite")


@pytest.mark.medium
def test_a_refused_arm_stands_with_its_reason(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0, 2.0], [1.0, 2.0]).arm("odd", refused="it needs groups")
    assert "<b>not run:</b> it needs groups" in page.html(made.report())
    assert "not run: it needs groups" in page.markdown(made.report())


def test_arms_without_spread_are_said_and_not_tested(tmp_path: Path) -> None:
    found = two_arms(tmp_path / "s", [500.0] * 3, [500.0] * 3).report()
    said(found, "all runs of plain, other have one score")
    assert math.isnan(found.rows["cartpole"][1].corrected)


def test_a_metric_that_no_run_logged_is_refused_with_the_nearest_name(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0], [2.0])
    with pytest.raises(UserError, match="eval/retrun: no run logged it; did you mean eval/return"):
        made.report(metric="eval/retrun")
    with pytest.raises(UserError, match="--base othr: no such arm; did you mean other"):
        made.report(base="othr")
    said(made.report(metric="loss/total"), "chosen for this report")


def test_mixed_origins_and_changed_trees_are_said(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0], [2.0])
    for number, run in enumerate(sorted((made.folder / "runs").iterdir())):
        git = {"commit": f"{number}" * 40, "dirty": True}
        (run / "provenance.json").write_text(json.dumps({"git": git, "versions": {"torch": "2"}, "time": "now"}))
    found = made.report()
    said(found, "not all made with the same commit")
    said(found, "not committed")
    assert "000000000000 with changes" in page.html(found)
    assert "torch 2" in page.markdown(found)


def test_lines_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0], [2.0])
    with (made.folder / "runs" / f"{0:016x}" / "metrics.jsonl").open("a") as file:
        file.write('{"iteration": 5, "global_')
    said(made.report(), "1 run.s. have lines")


# ------------------------------------------------------------------------------------------------ the files


def test_text_from_a_model_is_never_markup_or_a_control_code(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0], [2.0], question="<i>Why</i> & how?")
    evil = "</script><img src=x onerror=alert(1)>\x1b[31m|`\u202e\n# no"
    rows = [{"iteration": 4, "prompt": evil, "completion": evil, "reward": 0.5}] * 9
    text = "\n".join(json.dumps(row) for row in rows) + "\n"
    (made.folder / "runs" / f"{0:016x}" / "samples.jsonl").write_text(text)
    made.run(BASE, 1, [1.0], state="failed", error=evil)
    made.arm("<b>\x1b[0m$x$ _y_", refused=evil)
    assert cli.main(["report", str(made.folder)]) == 0
    for name in ("report.html", "report.md"):
        told = (made.folder / name).read_text()
        assert "\x1b" not in told
        assert "\u202e" not in told
    shown = (made.folder / "report.html").read_text()
    assert "<img src=x" not in shown
    assert "<i>Why" not in shown
    assert shown.count("</script>") == 1
    assert "\\x1b[31m" in shown
    assert "<img src=x" not in re.sub(r"^    .*$", "", (made.folder / "report.md").read_text(), flags=re.M)


def test_results_csv_has_a_row_a_run_and_every_final_number(tmp_path: Path) -> None:
    made = two_arms(tmp_path / "s", [1.0, 2.0], [3.0])
    made.run("other", 1, [1.0], state="failed", error="gone, with a comma")
    out = tmp_path / "out"
    assert cli.main(["report", str(made.folder), "--out", str(out)]) == 0
    with (out / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"], row["outcome"], row["score"]) for row in rows] == [
        ("other", "0", "finished", "3.0"),
        ("other", "1", "failed", "1.0"),
        ("plain", "0", "finished", "1.0"),
        ("plain", "1", "finished", "2.0"),
    ]
    assert rows[1]["why"] == "gone, with a comma"
    assert (rows[0]["steps"], rows[0]["last:loss/total"]) == ("400.0", "0.5")
    assert not [name for name in rows[0] if "timing" in name or "seconds" in name]  # seeds alone determine it
    with (out / "timings.csv").open() as file:
        times = list(csv.DictReader(file))
    assert [row["run"] for row in times] == [row["run"] for row in rows]
    assert {row["seconds"] for row in times} == {"5.0"}
    assert {path.suffix for path in (out / "figures").iterdir()} == {".svg", ".png"}


def test_the_page_is_one_file_that_asks_for_nothing(tmp_path: Path) -> None:
    shown = page.html(two_arms(tmp_path / "s", [1.0, 2.0], [3.0, 4.0]).report())
    assert not re.findall(r"""(?:src|href|srcset)=["'](?!data:)""", shown)
    assert "default-src 'none'" in shown
    assert "url(http" not in shown


@pytest.mark.medium
def test_a_report_is_the_same_every_time(tmp_path: Path) -> None:
    made = Made(tmp_path / "s").arm(BASE).arm("other", lr=[1, 2])
    for env in ("a", "b"):
        made.scores(BASE, [1.0, 2.0, 4.0], env=env).scores("other", [2.0, 3.0, 9.0], env=env)
    assert page.html(made.report()) == page.html(made.report())


def test_a_column_is_read_as_json_would(tmp_path: Path) -> None:
    rows = [{"global_step": 1, "a/b": 1e-07, "a/b_c": -2.5}, {"global_step": 2, "x": math.inf, "a/b": math.nan}]
    rows += [{"global_step": 3, "a/b": None}, {"global_step": 4}]
    file = tmp_path / "metrics.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"global_step": 5, "a/')
    found = series.read(file, ["global_step", "a/b", "x"])
    assert found.columns["global_step"].tolist() == [1, 2, 3, 4]
    np.testing.assert_array_equal(found.columns["a/b"], [1e-07, math.nan, math.nan, math.nan])
    assert found.has["a/b"].tolist() == [True, True, True, False]
    np.testing.assert_array_equal(found.columns["x"], [math.nan, math.inf, math.nan, math.nan])
    assert found.broken == 1


# ------------------------------------------------------------------------------------------------ folders of runs


def trained(folder: Path, *words: str) -> Path:
    small = ["algorithm=grpo", "env=cartpole", "iterations=2", "sampler.episodes.num_episodes=8"]
    quiet = ["progress=false", "tensorboard=false", "evaluation.every=1", "evaluation.episodes=2"]
    return rlfw.train([*small, *quiet, *words, f"out={folder}"])


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs") / "sweep"
    for regularizer, seed in itertools.product(("clip", "none"), (0, 1)):
        trained(root / f"{regularizer}-{seed}", f"regularizer={regularizer}", f"seed={seed}")
    return root


@pytest.mark.medium
def test_arms_of_a_folder_are_told_from_how_configurations_differ(runs: Path) -> None:
    found = content.make(runs, Choice())
    assert [row.arm for row in found.rows["CartPole-v1"]] == ["regularizer=[clip]", "regularizer=none"]
    assert [row.n for row in found.rows["CartPole-v1"]] == [2, 2]
    assert found.records.arms[1].differences == {"regularizer": (["clip"], "none")}
    lines = (runs / "none-1" / "metrics.jsonl").read_text().splitlines()
    own = [json.loads(line)["eval/return"] for line in lines]
    mine = next(r for r in found.results if r.run.path.name == "none-1")
    assert mine.score == pytest.approx(np.mean(own))
    said(found, "No study named a metric")
    other = content.make(runs, Choice(base="regularizer=none"))
    assert other.records.arms[0].differences == {"regularizer": ("none", ["clip"])}


@pytest.mark.medium
def test_a_copy_of_a_run_is_no_further_evidence(runs: Path, tmp_path: Path) -> None:
    shutil.copytree(runs, tmp_path / "sweep")
    shutil.copytree(runs / "clip-0", tmp_path / "sweep" / "again")
    found = content.make(tmp_path / "sweep", Choice())
    assert [row.n for row in found.rows["CartPole-v1"]] == [2, 2]
    said(found, "repeat another's configuration and seed")


@pytest.mark.medium
def test_compare_shows_differences_first_then_numbers(runs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compare", str(runs / "clip-0"), str(runs / "none-0")]) == 0
    told = capsys.readouterr().out
    assert told.index("configurations: what differs") < told.index("eval/return, mean of the last")
    assert re.search(r"regularizer +\[clip\] +none", told)
    assert "one run has no interval" in told
    assert cli.main(["compare", str(runs)]) == 0
    told = capsys.readouterr().out
    assert f"1  {runs}: regularizer=[clip]" in told
    assert "one run has no interval" not in told
    assert cli.main(["compare", str(runs / "clip-0")]) == 2


def test_compare_refuses_studies_with_different_metrics(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a = two_arms(tmp_path / "a", [1.0], [2.0]).folder
    b = two_arms(tmp_path / "b", [1.0], [2.0], metric={"name": "loss/total"}).folder
    assert cli.main(["compare", str(a), str(b)]) == 2
    assert "different metrics" in capsys.readouterr().err
    assert cli.main(["compare", str(a), str(b), "--metric", "loss/total"]) == 0


def test_keys_of_a_part_that_an_arm_lacks_are_no_difference_of_their_own() -> None:
    critic = {"baseline": "critic", "baseline.critic.coef": 0.5, "lr": 1}
    mean = {"baseline": "group_mean", "baseline.group_mean.include_self": True, "lr": 1}
    assert configs.varying([critic, mean]) == ["baseline"]
    assert configs.varying([critic, mean, {**mean, "baseline.group_mean.include_self": False}]) == [
        "baseline",
        "baseline.group_mean.include_self",
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report", "nowhere"], "no such folder"),
        (["report", "."], "holds no runs"),
        (["report"], "required: DIR"),
        (["report", ".", "--last", "0"], "at least 1"),
        (["compare", "nowhere"], "no such folder"),
    ],
)
def test_wrong_words_are_told(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main(words) == 2
    assert message in capsys.readouterr().err


def test_a_missing_extra_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "EXTRA", ("json", "no_such_package"))
    assert cli.main(["report", str(tmp_path)]) == 2
    assert "a report needs no_such_package: pip install 'rlfw[report]'" in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ in a browser


CHROMIUM = shutil.which("chromium")


@pytest.mark.medium
@pytest.mark.skipif(CHROMIUM is None, reason="needs chromium (Debian's package)")
def test_in_a_browser_the_page_sorts_and_the_console_stays_empty(tmp_path: Path) -> None:
    shown = page.html(two_arms(tmp_path / "s", [5.0, 6.0], [1.0, 2.0]).report())
    click = '<script>document.querySelectorAll("table.sortable th button")[3].click()</script></body>'
    file = tmp_path / "report.html"
    file.write_text(shown.replace("</body>", click))
    flags = ["--headless=new", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", "--dump-dom"]
    done = subprocess.run(
        [str(CHROMIUM), *flags, f"--user-data-dir={tmp_path / 'profile'}", file.as_uri()],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert "CONSOLE" not in done.stderr
    body = done.stdout[done.stdout.index("<tbody>") : done.stdout.index("</tbody>")]
    means = [row.split("<td")[4].split(">")[1].split("<")[0] for row in body.split("<tr>")[1:]]
    assert means == ["1.5", "5.5"]  # ascending by the mean

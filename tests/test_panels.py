"""What a study asks its report to show beside the metric: further curves, paths, samples from start to end."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import yaml

from rlfw import cli
from rlfw.errors import UserError
from rlfw.report import content, page, panels, samples
from rlfw.report.curves import Curve
from rlfw.report.folders import Choice
from rlfw.report.style import axis, root, root_ticks
from rlfw.study import declaration
from rlfw.study.plan import plan

if TYPE_CHECKING:
    from pathlib import Path

METRIC = {"name": "quality"}
ROWS = 9


def study(folder: Path, columns: dict[str, dict[str, Any]], **keys: Any) -> Path:
    """A study's folder with two runs an arm. ``columns``: arm -> column -> its values, the metric's beside them."""
    (folder / "runs").mkdir(parents=True)
    declared = {"question": "Why?", "mode": "arms", "arms": {"a": []}, "seeds": 2, "metric": METRIC, **keys}
    (folder / "study.yaml").write_text(yaml.safe_dump({"study": declared}))
    arms = [
        {"name": arm, "words": [], "differences": {} if number == 0 else {"lr": [0, number]}, "refused": None}
        for number, arm in enumerate(columns)
    ]
    (folder / "arms.json").write_text(json.dumps(arms))
    index = []
    for arm, found in columns.items():
        for seed in range(2):
            run = f"{len(index):016x}"
            index.append(
                {"run": run, "arm": arm, "env": "talk", "seed": seed, "attempts": 1, "seconds": 1, "error": None}
            )
            path = folder / "runs" / run
            path.mkdir()
            (path / "config.yaml").write_text(f"seed: {seed}\nenv: {{talk: {{part: talk}}}}\n")
            (path / "status.json").write_text('{"state": "done"}')
            rows = [
                {"global_step": 10 * (t + 1), "quality": 0.5, **{name: values[t] for name, values in found.items()}}
                for t in range(ROWS)
            ]
            (path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "index.json").write_text(json.dumps(index))
    return folder


def report(folder: Path) -> content.Content:
    return content.make(folder, Choice())


RISING, FALLING = list(np.linspace(0, 1, ROWS)), list(np.linspace(1, 0, ROWS))


def test_further_columns_and_pairs_are_figures_of_their_own(tmp_path: Path) -> None:
    keys = {"curves": ["kl", "length"], "against": [["kl", "quality"], ["kl", "length"]]}
    both = {"kl": RISING, "length": FALLING}
    made = report(study(tmp_path / "s", {"a": both, "b": {"kl": FALLING}}, **keys))
    captions = {figure.name: figure.caption for figure in made.figures}
    assert list(captions) == ["curves-talk", "points-talk", "further-talk", "against-talk"]
    for name in ("further-talk", "against-talk"):
        assert "b did not log length." in captions[name]
        assert "did not log kl" not in captions[name]
    assert "quality against kl; length against kl" in captions["against-talk"]
    for figure in made.figures:
        assert figure.light.rstrip().endswith(b"</svg>")
        assert figure.light != figure.dark
    html, markdown = page.html(made), page.markdown(made)
    assert html.count("<figure") == 4
    assert "figures/against-talk.png" in markdown


def test_a_study_that_asks_for_nothing_more_has_the_figures_of_before(tmp_path: Path) -> None:
    made = report(study(tmp_path / "s", {"a": {"kl": RISING}, "b": {"kl": RISING}}))
    assert [figure.name for figure in made.figures] == ["curves-talk", "points-talk"]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"curves": ["kk"]}, "study.curves: kk: no run logged it; did you mean kl?"),
        ({"against": [["kl", "lenght"]]}, "study.against: lenght: no run logged it; did you mean length?"),
    ],
)
def test_a_column_that_no_run_logged_is_refused(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    folder = study(tmp_path / "s", {"a": {"kl": RISING, "length": RISING}}, **keys)
    with pytest.raises(UserError) as error:
        report(folder)
    assert message in str(error.value)


def test_a_path_starts_at_the_first_row_and_ends_with_the_mean_of_its_last_stretch() -> None:
    """Along steps 0 to 25, a stretch a step: of y = s^2 between whole s, linear between them, the mean is known."""
    steps = np.linspace(0, panels.STRETCHES, panels.STRETCHES + 1)
    x, y = (Curve(steps, np.stack([run, run + 2]), []) for run in (steps, steps**2))
    found = panels.path(x, y)
    assert found is not None
    assert found.x.shape == found.y.shape == (2, 1 + panels.STRETCHES)
    assert (found.x[:, 0].tolist(), found.y[:, 0].tolist()) == ([0, 2], [0, 2])
    eighths = np.arange(1, 9) / 8
    last = panels.STRETCHES - 1
    assert found.x[0, -1] == pytest.approx(last + eighths.mean())
    assert found.y[0, -1] == pytest.approx(last**2 + (2 * last + 1) * eighths.mean())
    np.testing.assert_allclose(found.y[1], found.y[0] + 2)


def test_a_path_goes_as_far_as_both_columns_do() -> None:
    whole = np.linspace(0, 100, 11)
    late = np.linspace(20, 80, 7)
    found = panels.path(Curve(whole, whole[None], []), Curve(late, late[None], []))
    assert found is not None
    np.testing.assert_allclose(found.x, found.y)
    assert found.x[0, 0] == 20
    apart = Curve(late + 100, late[None], [])
    assert panels.path(Curve(whole, whole[None], []), apart) is None
    assert panels.path(Curve(np.zeros(0), np.zeros((0, 0)), []), apart) is None


def test_an_axis_has_its_unit() -> None:
    assert axis("objective/kl_per_token") == "objective/kl_per_token [nats a step]"
    assert axis("objective/kl") == "objective/kl [nats a row]"
    assert axis("objective/kl_coef") == "objective/kl_coef"
    assert axis("response_length/mean") == "response_length/mean [steps]"
    assert axis("rewards/good/mean") == "rewards/good/mean"


@pytest.mark.parametrize("high", [0.003, 0.9, 8.7, 117.0, 54321.0])
def test_a_divergence_has_round_ticks_that_a_root_scale_keeps_apart(high: float) -> None:
    ticks = root_ticks(-0.01 * high, high)
    assert ticks[0] == 0
    assert 4 <= len(ticks) <= 10
    assert ticks[-1] <= high
    assert all(f"{tick:.0e}"[0] in "125" for tick in ticks[1:])
    assert np.diff(np.sqrt(ticks)).min() >= 0.1 * np.sqrt(high)
    values = np.array([-0.04, 0.0, 0.25, 9.0])
    np.testing.assert_allclose(root(values), [-0.2, 0, 0.5, 3])


def test_a_figure_says_that_a_divergence_has_another_scale(tmp_path: Path) -> None:
    columns = {"a": {"objective/kl": list(np.linspace(-0.1, 9, ROWS)), "length": RISING}}
    asked = {"curves": ["objective/kl"], "against": [["length", "quality"]]}
    captions = {figure.name: figure.caption for figure in report(study(tmp_path / "s", columns, **asked)).figures}
    assert "A KL has a square-root scale." in captions["further-talk"]
    assert "square-root" not in captions["against-talk"]


def test_names_of_columns_are_never_markup(tmp_path: Path) -> None:
    evil = "rewards/<img src=x onerror=alert(1)>$\\frac/mean"
    folder = study(tmp_path / "s", {"a": {evil: RISING}}, curves=[evil], against=[[evil, "quality"]])
    assert cli.main(["report", str(folder)]) == 0
    for name in ("report.html", "report.md"):
        assert "<img src=x" not in (folder / name).read_text()


# ------------------------------------------------------------------------------------------------ samples


def written(folder: Path, iterations: list[int], torn: str = "") -> Path:
    """samples.jsonl of a run, each iteration with as many lines as its number, of very different lengths."""
    rng = random.Random(0)
    file = folder / "samples.jsonl"
    rows = [
        {"iteration": i, "prompt": f"{i}", "completion": "x" * rng.choice([0, 9, 999]), "reward": k, "scores": {}}
        for i in iterations
        for k in range(i)
    ]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows) + torn)
    return file


@pytest.mark.parametrize("torn", ["", '{"iteration": 99, "pro'])
@pytest.mark.parametrize(
    ("iterations", "wanted"),
    [
        (list(range(1, 60)), [1, 30, 59]),
        (list(range(3, 12)), [3, 7, 11]),
        ([4], [4]),
        ([4, 5], [4, 5]),
        ([1, 8, 9], [1, 9]),  # nothing was kept of the one in the middle
        ([], []),
    ],
)
def test_samples_are_those_of_the_first_the_middle_and_the_last_iteration(
    tmp_path: Path, iterations: list[int], wanted: list[int], torn: str
) -> None:
    stages = samples.stages(written(tmp_path, iterations, torn))
    assert [stage.iteration for stage in stages] == wanted
    for stage in stages:
        n = stage.iteration
        shown = min(n, samples.SHOWN)
        assert [line.prompt for line in stage.lines] == [str(n)] * shown
        assert [line.reward for line in stage.lines] == [k * n // shown for k in range(shown)]


def test_a_file_larger_than_what_is_read_at_once_has_its_last_line_found(tmp_path: Path) -> None:
    file = tmp_path / "samples.jsonl"
    rows = [{"iteration": i, "prompt": "p", "completion": "y" * 3 * samples.BLOCK, "reward": 0.0} for i in range(1, 4)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert [stage.iteration for stage in samples.stages(file)] == [1, 2, 3]


def test_samples_stand_on_the_page_from_start_to_end_with_every_score(tmp_path: Path) -> None:
    folder = study(tmp_path / "s", {"a": {}})
    rows = [
        {
            "iteration": i,
            "prompt": "p",
            "completion": f"written at {i}",
            "reward": 0.25,
            "scores": {"good": 0.75, "bad": None},
        }
        for i in (1, 2, 3)
    ]
    file = folder / "runs" / f"{0:016x}" / "samples.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    made = report(folder)
    for told in (page.html(made), page.markdown(made)):
        places = [told.index(f"written at {i}") for i in (1, 2, 3)]
        assert places == sorted(places)
        assert told.count("good 0.75, bad –") == 3


# ------------------------------------------------------------------------------------------------ the declaration


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"curves": "kl"}, "study.curves takes a list"),
        ({"curves": [3]}, "study.curves: 3: it must be text"),
        ({"curves": ["kl", "kl"]}, "study.curves lists kl twice"),
        ({"curves": ["quality"]}, "study.curves: quality is the metric, whose curves are drawn anyway"),
        ({"against": ["kl", "quality"]}, "study.against: kl: it takes pairs of two columns"),
        ({"against": [["kl"]]}, "study.against: ['kl']: it takes pairs"),
        ({"against": [["kl", "kl"]]}, "study.against: ['kl', 'kl']: it takes pairs of two columns"),
        ({"against": [["kl", "x"], ["kl", "x"]]}, "study.against lists [kl, x] twice"),
        ({"curve": ["kl"]}, "study.curve: no such key; did you mean curves?"),
    ],
)
def test_what_cannot_be_drawn_is_refused_where_it_is_declared(
    tmp_path: Path, keys: dict[str, Any], message: str
) -> None:
    file = tmp_path / "study.yaml"
    body = {"question": "Why?", "mode": "arms", "arms": {"a": []}, "seeds": 2, "metric": METRIC, **keys}
    file.write_text(yaml.safe_dump({"study": body}))
    with pytest.raises(UserError) as error:
        declaration.read(file)
    assert message in str(error.value)


@pytest.mark.parametrize("keys", [{"curves": ["eval/length"]}, {"against": [["quality", "eval/length"]]}])
def test_a_column_of_evaluations_without_any_is_refused_before_the_first_run(
    tmp_path: Path, keys: dict[str, Any]
) -> None:
    file = tmp_path / "study.yaml"
    base = ["algorithm=grpo", "env=cartpole"]
    body = {"question": "Why?", "base": base, "mode": "arms", "arms": {"a": []}, "seeds": 2, "metric": METRIC, **keys}
    file.write_text(yaml.safe_dump({"study": body}))
    with pytest.raises(UserError, match="eval/length is measured by evaluations and there are none"):
        plan(declaration.read(file), None)

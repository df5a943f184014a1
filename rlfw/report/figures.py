"""The figures, each drawn for a light and for a dark page, and written as SVG and PNG."""

from __future__ import annotations

import io
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.report import arms as table
from rlfw.report import curves, statistics, style
from rlfw.report.style import DARK, LIGHT, Theme, axis, plain, strokes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from rlfw.report.arms import Row, Scores
    from rlfw.report.results import Result
    from rlfw.study.records import Records

TOGETHER = 8  # arms that one panel holds; more of them get a panel each
PANELS = 40  # at most, in one figure


@dataclass(frozen=True)
class Figure:
    """A figure, drawn."""

    name: str
    caption: str
    light: bytes  # SVG
    dark: bytes
    png: bytes
    wide: bool  # it has panels side by side


def draw(
    records: Records,
    results: Sequence[Result],
    rows: Sequence[Row],
    scaled: Scores | None,
    further: Mapping[str, Sequence[Figure]],
) -> list[Figure]:
    """Curves and points of each env; interactions of a grid; profiles over envs.

    ``scaled``: None for one env. ``further``: env -> figures that follow on its own.
    """
    found = []
    names = table.names(records)
    for env, mine in table.by_env(rows).items():
        found += [_curves(records, results, names, env), _points(records, mine, env), *further.get(env, ())]
        if len(records.factors) >= 2:
            found.append(_interaction(records, mine, env))
    if scaled is not None:
        found.append(_profile(scaled, names))
    return [figure for figure in found if figure is not None]


def write(figures: Sequence[Figure], folder: Path) -> None:
    """NAME.svg and NAME.png of each."""
    folder.mkdir(exist_ok=True)
    for figure in figures:
        (folder / f"{figure.name}.svg").write_bytes(figure.light)
        (folder / f"{figure.name}.png").write_bytes(figure.png)


def render(name: str, caption: str, size: tuple[float, float], paint: Callable, *, wide: bool = False) -> Figure:
    """``paint`` on a canvas of ``size`` inches, for a light and for a dark page."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Canvas

    drawn: dict[str, bytes] = {}
    for theme in (LIGHT, DARK):
        with matplotlib.rc_context(theme.settings):
            canvas = Canvas(figsize=size, layout="constrained")
            FigureCanvasAgg(canvas)
            paint(canvas, theme)
            drawn[theme.name] = _saved(canvas, "svg")
            if theme is LIGHT:
                drawn["png"] = _saved(canvas, "png")
    return Figure(_file(name), caption, drawn["light"], drawn["dark"], drawn["png"], wide)


def _saved(canvas: Any, kind: str) -> bytes:
    file = io.BytesIO()
    canvas.savefig(file, format=kind, dpi=150, metadata={"Date": None} if kind == "svg" else None)
    return _shorter(file.getvalue()) if kind == "svg" else file.getvalue()


def _shorter(svg: bytes) -> bytes:
    """With lines to a tenth of a point, which no screen shows: half the size of a page."""
    return re.sub(rb' d="[^"]*"', lambda line: re.sub(rb"(\d\.\d)\d+", rb"\1", line[0]), svg)


def _file(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9.]+", "-", name).strip("-")


# ------------------------------------------------------------------------------------------------ learning curves


def _curves(records: Records, results: Sequence[Result], names: list[str], env: str) -> Figure | None:
    mine = [r for r in results if r.run.env == env and r.outcome != "repeated"]
    found = {arm: curve for arm in names if (curve := curves.of(arm, mine)) is not None}
    if not found:
        return None
    metric, unit = records.metric.name, mine[0].unit
    many = len(found) > TOGETHER
    shown = [arm for arm in found if arm != names[0]][:PANELS] if many else []

    def paint(canvas: Any, theme: Theme) -> None:
        looks = strokes(names, theme)
        if many:
            columns = 4
            grid = canvas.subplots(-(-len(shown) // columns), columns, sharex=True, sharey=True, squeeze=False)
            panels = list(grid.flat)
            for panel, arm in zip(panels, shown, strict=False):
                for each in [names[0], arm]:
                    if each in found:
                        draw_curve(panel, found[each], looks[each], each)
                panel.set_title(plain(arm, 30), fontsize=7)
            for panel in panels[len(shown) :]:
                panel.axis("off")
            canvas.suptitle(env, fontsize=10)
            canvas.supxlabel(unit, fontsize=9)
            canvas.supylabel(axis(metric), fontsize=9)
            return
        panel = canvas.subplots()
        for arm, curve in found.items():
            draw_curve(panel, curve, looks[arm], arm)
        panel.set(title=env, xlabel=unit, ylabel=axis(metric))
        handles, labels = panel.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower left", ncols=1 if max(map(len, labels)) > 30 else 2)

    few = any(curve.failed for curve in found.values())
    caption = (
        f"Learning curves on {env}: the mean over the finished runs of an arm and its 95 % t-interval at each step, "
        f"nothing smoothed; {metric} against {unit}."
        + " Thin dotted lines are runs that failed, as far as they got; they are in no mean." * few
        + f" A panel an arm, the base ({names[0]}) in each." * many
        + f" {len(found) - 1 - len(shown)} further arms are not drawn." * (many and len(shown) < len(found) - 1)
    )
    lines = sum(-(-len(arm) // 44) for arm in found)
    size = (11, 1.9 * -(-len(shown) // 4) + 0.5) if many else (5.4, 3.5 + 0.17 * lines)
    return render(f"curves-{env}", caption, size, paint, wide=many)


def draw_curve(panel: Any, curve: curves.Curve, look: style.Stroke, arm: str) -> None:
    """The mean and its interval; a failed run as a thin line of its own."""
    if len(curve.steps):
        label = plain(f"{arm} (n={len(curve.runs)})")
        panel.plot(curve.steps, curve.mean, color=look.color, linestyle=look.dashes, linewidth=1.6, label=label)
        panel.fill_between(curve.steps, curve.low, curve.high, color=look.color, alpha=0.16, linewidth=0)
    for steps, values in curve.failed:
        panel.plot(steps, values, color=look.color, linestyle=":", linewidth=0.8, alpha=0.8)
        if len(steps):
            panel.plot(steps[-1:], values[-1:], marker="x", color=look.color, markersize=5)


# ------------------------------------------------------------------------------------------------ the other figures


def _points(records: Records, rows: list[Row], env: str) -> Figure | None:
    shown = [row for row in rows if row.n]
    if not shown:
        return None

    def paint(canvas: Any, theme: Theme) -> None:
        looks = strokes([row.arm for row in rows], theme)
        panel = canvas.subplots()
        for place, row in enumerate(shown):
            look = looks[row.arm]
            offsets = np.linspace(-0.16, 0.16, row.n) if row.n > 1 else np.zeros(1)
            panel.plot(
                row.scores, place + offsets, look.marker, color=look.color, markersize=4, alpha=0.55, markeredgewidth=0
            )
            if not np.isnan(row.mean.low):
                panel.plot([row.mean.low, row.mean.high], [place] * 2, color=look.color, linewidth=2)
            panel.plot(row.mean.value, place, "|", color=look.color, markersize=15, markeredgewidth=2.2)
        panel.set_yticks(range(len(shown)), [plain(row.arm, 34) for row in shown])
        panel.set_ylim(len(shown) - 0.5, -0.5)
        unit = "steps" if records.metric.summary == "steps_to" else ""
        panel.set(title=env, xlabel=table.described(records.metric) + f" [{unit}]" * bool(unit))
        panel.grid(axis="y", visible=False)

    failed = any(row.failed for row in shown)
    caption = (
        f"Seed by seed on {env}: a point a run, the mean and its 95 % t-interval."
        + " Failed runs stand at the worst score of a finished one." * failed
    )
    return render(f"points-{env}", caption, (5.4, 1.2 + 0.42 * len(shown)), paint)


def _interaction(records: Records, rows: list[Row], env: str) -> Figure | None:
    """The means of a grid: the first factor along x, a line a level of the second, a panel a level of the rest."""
    (first, xs), (second, lines), *_ = records.factors.items()
    words = {arm.name: arm.words for arm in records.arms}
    if len(records.factors) > 2 or not any(row.n for row in rows):
        return None

    def paint(canvas: Any, theme: Theme) -> None:
        panel = canvas.subplots()
        looks = list(strokes([str(level) for level in lines], theme).values())
        for number, (level, look) in enumerate(zip(lines, looks, strict=True)):
            shift = 0.05 * (number - (len(lines) - 1) / 2)
            cells = [_cell(rows, words, f"{first}={x}", f"{second}={level}") for x in xs]
            there = [(place + shift, row.mean) for place, row in enumerate(cells) if row is not None and row.n]
            at = [place for place, _ in there]
            panel.plot(at, [m.value for _, m in there], color=look.color, linestyle=look.dashes, marker=look.marker,
                       markersize=5, label=plain(f"{second}={level}"))  # fmt: skip
            panel.vlines(at, [m.low for _, m in there], [m.high for _, m in there], color=look.color, linewidth=1.2)
        panel.set_xticks(range(len(xs)), [plain(str(x), 16) for x in xs])
        panel.set(title=env, xlabel=first, ylabel=table.described(records.metric))
        panel.grid(axis="x", visible=False)
        handles, labels = panel.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower left", ncols=2)

    caption = (
        f"The grid on {env}: mean and 95 % t-interval of each cell. Parallel lines: {first} and {second} add up; lines "
        "that are not: they interact."
    )
    return render(f"grid-{env}", caption, (5.4, 3.9 + 0.1 * len(lines)), paint)


def _cell(rows: list[Row], words: dict[str, list[str]], *chosen: str) -> Row | None:
    return next((row for row in rows if set(chosen) <= set(words[row.arm])), None)


def _profile(scaled: Scores, names: list[str]) -> Figure | None:
    envs = list(dict.fromkeys(env for _, env in scaled))
    whole = [arm for arm in names if all(len(scaled.get((arm, env), ())) for env in envs)]
    shown, thresholds = whole[:TOGETHER], np.linspace(0, 1, 201)
    if not shown:
        return None
    found = {arm: statistics.profile([scaled[arm, env] for env in envs], thresholds) for arm in shown}

    def paint(canvas: Any, theme: Theme) -> None:
        panel = canvas.subplots()
        for arm, (share, low, high) in found.items():
            look = strokes(names, theme)[arm]
            panel.plot(thresholds, share, color=look.color, linestyle=look.dashes, linewidth=1.6, label=plain(arm))
            panel.fill_between(thresholds, low, high, color=look.color, alpha=0.14, linewidth=0)
        panel.set(xlabel="normalised score", ylabel="share of runs above it", ylim=(-0.02, 1.02))
        handles, labels = panel.get_legend_handles_labels()
        canvas.legend(handles, labels, loc="outside lower left", ncols=1 if max(map(len, labels)) > 30 else 2)

    left = len(names) - len(shown)
    caption = (
        f"Performance profile over {', '.join(envs)}: the share of runs above each normalised score, the mean over "
        "envs, with pointwise 95 % bootstrap intervals. Higher is better everywhere."
        + f" {left} arms are not drawn."
        * bool(left)
    )
    return render("profile", caption, (5.4, 3.7 + 0.17 * len(shown)), paint)

"""What a study asks to see beside its metric: curves of further columns, and where its arms go in two of them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.errors import UserError
from rlfw.registry import suggest
from rlfw.report import arms, curves, series
from rlfw.report.figures import TOGETHER, Figure, draw_curve, render
from rlfw.report.results import STEP
from rlfw.report.style import axis, is_kl, plain, root, root_ticks, strokes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rlfw.report.curves import Curve
    from rlfw.report.results import Result
    from rlfw.report.style import Theme
    from rlfw.study.records import Records

ACROSS = 3  # panels side by side
STRETCHES = 25  # of the training, each a point of a path

Columns = dict[str, dict[str, "Curve"]]  # column -> arm -> its curve


def draw(records: Records, results: Sequence[Result]) -> dict[str, list[Figure]]:
    """env -> its figures; UserError for a column that no run logged."""
    read = {name: _column(results, name) for name in records.columns}
    logged = sorted({name for r in results for name in r.last})
    for name, found in read.items():
        if logged and not any(len(r.values) for r in found):
            key = "curves" if name in records.curves else "against"
            raise UserError(f"study.{key}: {name}: no run logged it{suggest(name, logged)}")
    drawn = {}
    for env in dict.fromkeys(r.run.env for r in results):
        columns: Columns = {
            name: _of_arms(arms.names(records), [r for r in found if r.run.env == env]) for name, found in read.items()
        }
        unit = next(r.unit for r in results if r.run.env == env)
        drawn[env] = [*_curves(records, columns, env, unit), *_against(records, columns, env)]
    return drawn


def _column(results: Sequence[Result], name: str) -> list[Result]:
    """The results, with the steps and values of a column in place of the metric's."""
    found = []
    for r in results:
        if r.outcome != "repeated":
            log = series.read(r.run.path / "metrics.jsonl", [STEP, name])
            has = log.has.get(name, np.zeros(0, dtype=bool))
            steps, values = (log.columns.get(column, np.zeros(0))[has] for column in (STEP, name))
            found.append(replace(r, steps=steps, values=values))
    return found


def _of_arms(names: Sequence[str], results: Sequence[Result]) -> dict[str, Curve]:
    return {arm: curve for arm in names if (curve := curves.of(arm, results)) is not None}


def _panels(kind: str, env: str, caption: str, records: Records, paints: Sequence[Callable[..., Any]]) -> Figure:
    """A panel each of ``paints``, under them one legend."""
    names = arms.names(records)
    across = 2 if len(paints) == 4 else min(ACROSS, len(paints))
    down = -(-len(paints) // across)

    def paint(canvas: Any, theme: Theme) -> None:
        grid = canvas.subplots(down, across, squeeze=False)
        looks = strokes(names, theme)
        handles: dict[str, Any] = {}
        canvas.suptitle(env, fontsize=10)
        for panel, fill in zip(grid.flat, paints, strict=False):
            fill(panel, looks)
            handles |= {label: handle for handle, label in zip(*panel.get_legend_handles_labels(), strict=True)}
        for panel in list(grid.flat)[len(paints) :]:
            panel.axis("off")
        canvas.legend(handles.values(), handles, loc="outside lower left", ncols=columns)

    shown, wide = names[:TOGETHER], across > 1
    columns = (4 if wide else 2) if max(map(len, shown)) <= 30 else across
    size = (11 if wide else 5.4, (2.9 if across == ACROSS else 3.5) * down + 0.3 + 0.2 * -(-len(shown) // columns))
    return render(f"{kind}-{env}", caption, size, paint, wide=wide)


def _scaled(panel: Any, side: str, column: str) -> None:
    """A divergence on a square-root scale, on which the first steps are as long as the later ones.

    An interval that reaches below what is drawn as a line is cut off: a divergence is not negative.
    """
    if is_kl(column):
        lines = np.concatenate([line.get_data()["xy".index(side)] for line in panel.get_lines()])
        low, high = min(np.nanmin(lines), 0), getattr(panel.dataLim, f"interval{side}")[1]
        reach = root(np.array([low, high]))
        reach += np.ptp(reach) * np.array([-0.04, 0.04])
        low, high = reach * np.abs(reach)
        getattr(panel, f"set_{side}scale")("function", functions=(root, lambda x: x * np.abs(x)))
        getattr(panel, f"set_{side}lim")(low, high)
        ticks = root_ticks(low, high)
        getattr(panel, f"set_{side}ticks")(ticks, [f"{tick:g}" for tick in ticks])


def _notes(records: Records, columns: Mapping[str, Mapping[str, Curve]]) -> str:
    """What to know of the panels: their scales, and what they lack."""
    names = arms.names(records)
    told = [
        f" {', '.join(lacking)} did not log {name}."
        for name, found in columns.items()
        if (lacking := [arm for arm in names if arm not in found])
    ]
    roots = " A KL has a square-root scale." * any(map(is_kl, columns))
    return roots + "".join(told) + f" {len(names) - TOGETHER} further arms are not drawn." * (len(names) > TOGETHER)


# ------------------------------------------------------------------------------------------------ further curves


def _curves(records: Records, columns: Columns, env: str, unit: str) -> list[Figure]:
    shown = {name: columns[name] for name in records.curves if columns[name]}
    if not shown:
        return []

    def filled(name: str, found: Mapping[str, Curve]) -> Callable[..., Any]:
        def fill(panel: Any, looks: Any) -> None:
            for arm in arms.names(records)[:TOGETHER]:
                if arm in found:
                    draw_curve(panel, found[arm], looks[arm], arm)
            panel.set_title(axis(name), fontsize=9)
            panel.set_xlabel(unit)
            panel.locator_params(axis="x", nbins=5)
            _scaled(panel, "y", name)

        return fill

    caption = (
        f"What else was logged on {env}, against {unit}: the mean over the finished runs of an arm and its 95 % "
        "t-interval at each step, nothing smoothed." + _notes(records, shown)
    )
    return [_panels("further", env, caption, records, [filled(name, found) for name, found in shown.items()])]


# ------------------------------------------------------------------------------------------------ paths


@dataclass(frozen=True)
class Path:
    """An arm's way through two columns: at the start, then over one stretch of the training after the other."""

    x: np.ndarray  # [runs, 1 + STRETCHES]
    y: np.ndarray


def path(x: Curve, y: Curve) -> Path | None:
    """None where no run has both."""
    if not len(x.steps) or not len(y.steps) or x.steps[-1] <= y.steps[0] or y.steps[-1] <= x.steps[0]:
        return None
    grid = np.linspace(max(x.steps[0], y.steps[0]), min(x.steps[-1], y.steps[-1]), 8 * STRETCHES + 1)
    return Path(*(_stretches(np.stack([np.interp(grid, curve.steps, run) for run in curve.runs])) for curve in (x, y)))


def _stretches(runs: np.ndarray) -> np.ndarray:
    means = runs[:, 1:].reshape(len(runs), STRETCHES, -1).mean(2)
    return np.concatenate([runs[:, :1], means], axis=1)


def _against(records: Records, columns: Columns, env: str) -> list[Figure]:
    shown = [(x, y) for x, y in records.against if columns[x].keys() & columns[y].keys()]
    if not shown:
        return []

    def filled(x: str, y: str) -> Callable[..., Any]:
        def fill(panel: Any, looks: Any) -> None:
            for arm in arms.names(records)[:TOGETHER]:
                if arm in columns[x] and arm in columns[y] and (found := path(columns[x][arm], columns[y][arm])):
                    _draw_path(panel, found, looks[arm], arm)
            panel.set(xlabel=axis(x), ylabel=axis(y))
            _scaled(panel, "x", x)
            _scaled(panel, "y", y)

        return fill

    caption = (
        f"Where each arm goes on {env}: {'; '.join(f'{y} against {x}' for x, y in shown)}. A path leads from the "
        f"circle, the first iteration, to the large mark, the last {100 // STRETCHES} % of the training; each of its "
        "points is the mean over the finished runs and over as long a stretch. A small mark is where one run ends."
        + _notes(records, {name: columns[name] for pair in shown for name in pair})
    )
    return [_panels("against", env, caption, records, [filled(x, y) for x, y in shown])]


def _draw_path(panel: Any, found: Path, look: Any, arm: str) -> None:
    x, y = found.x.mean(0), found.y.mean(0)
    label = plain(f"{arm} (n={len(found.x)})")
    panel.plot(x, y, color=look.color, linestyle=look.dashes, linewidth=1.4)
    panel.plot(x[:1], y[:1], "o", color=look.color, markersize=7, markerfacecolor="none")
    panel.plot(
        found.x[:, -1], found.y[:, -1], look.marker, color=look.color, markersize=4.5, alpha=0.65, markeredgewidth=0
    )
    panel.plot(x[-1:], y[-1:], look.marker, color=look.color, markersize=7)
    panel.plot([], [], color=look.color, linestyle=look.dashes, marker=look.marker, label=label)

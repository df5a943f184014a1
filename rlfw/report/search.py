"""A search on the page: its trials from the best to the worst, what they took, and what may not be read into them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.report import arms, text
from rlfw.report.figures import Figure, render
from rlfw.report.objective import high, objectives, ranked
from rlfw.report.style import plain

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from rlfw.report.arms import Row
    from rlfw.report.results import Result
    from rlfw.report.style import Theme
    from rlfw.study.records import Records, Trial
    from rlfw.study.space import Space

FOREMOST = 7  # trials whose curves, points and samples are shown, beside the base's
ACROSS = 3  # panels side by side
BEST = "#D55E00"


@dataclass(frozen=True)
class Search:
    """A search, as its report has it."""

    base: Trial
    trials: list[Trial]  # with an objective, the best first
    refused: int  # points that no composition is made of
    begun: int  # trials without an objective yet
    objective: str  # what it is
    higher_is_better: bool
    space: Space
    importance: dict[str, float]
    confirm: str  # the command

    @property
    def foremost(self) -> set[str]:
        """The arms that are shown one by one."""
        return {self.base.arm, *(trial.arm for trial in self.trials[:FOREMOST])}

    @property
    def scored(self) -> set[str]:
        """The arms that have an objective, and the base."""
        return {self.base.arm, *(trial.arm for trial in self.trials)}


def read(records: Records, results: Sequence[Result], folder: Path) -> Search | None:
    """None where the study is no search, or nothing has a score yet. The objective is that of the report's metric."""
    if records.search is None or not records.search.trials:
        return None
    scores = objectives(results, records.metric)
    envs = len({run.env for run in records.runs})
    base, *trials = [replace(trial, objective=scores.get(trial.arm)) for trial in records.search.trials]
    told = arms.described(records.metric)
    better = high(records.metric, envs)
    return Search(
        base=base,
        trials=ranked(trials, higher_is_better=better),
        refused=sum(trial.refused is not None for trial in trials),
        begun=sum(trial.refused is None and trial.objective is None for trial in trials),
        objective=told if envs == 1 else f"{told}, normalised, mean over {envs} envs",
        higher_is_better=better,
        space=records.space,
        importance=records.search.importance,
        confirm=records.search.confirm(folder),
    )


def ordered(records: Records, search: Search) -> Records:
    """The base first, then the trials from the best on, then those without a score."""
    place = {arm: number for number, arm in enumerate([search.base.arm, *(t.arm for t in search.trials)])}
    return replace(records, arms=sorted(records.arms, key=lambda arm: place.get(arm.name, len(place))))


def only(
    shown: set[str], records: Records, results: Sequence[Result], rows: Sequence[Row]
) -> tuple[Records, list[Result], list[Row]]:
    """The same of these arms alone."""
    return (
        replace(records, arms=[arm for arm in records.arms if arm.name in shown]),
        [r for r in results if r.run.arm in shown],
        [row for row in rows if row.arm in shown],
    )


def caveats(search: Search) -> Iterator[str]:
    """What to know before reading of the best."""
    trials = search.trials
    if search.begun:
        yield f"{search.begun} trials have no run that has ended: they are left out of what follows."
    if not trials:
        return
    yield (
        f"This is a search: the best of {len(trials)} trials was picked by the runs that it is scored on, so its score "
        "looks better than it is, and so does all that is computed from these runs: its interval, p and P(better). "
        f"What it is worth is seen on fresh seeds alone: {search.confirm}"
    )
    runs, steps, seconds = (sum(getattr(t, what) for t in trials) for what in ("runs", "steps", "seconds"))
    yield (
        f"Tuning has cost {runs} runs, {text.number(steps)} steps and {text.clock(seconds)} of runs; the base had "
        f"{search.base.runs} runs and no tuning. An arm that was tuned less than another is at a disadvantage that is "
        "not its own."
    )
    if len(trials) > FOREMOST:
        yield f"Curves, points and samples are those of the base and of the {FOREMOST} best of {len(trials)} trials."


def table(search: Search) -> tuple[list[str], list[list[tuple[str, Any]]]]:
    """A head, and of each trial what is read and what it is sorted by."""
    head = ["trial", "objective", *search.space, "runs", "failed", "steps", "time"]
    body: list[list[tuple[str, Any]]] = []
    for t in [*search.trials, search.base]:
        body.append([
            (str(t.number) if t.number else "base", t.number),
            (text.number(t.objective), float("nan") if t.objective is None else t.objective),
            *((text.value(_value(t, key)), text.value(_value(t, key))) for key in search.space),
            (str(t.runs), t.runs),
            (str(t.failed), t.failed),
            (text.number(t.steps), t.steps),
            (text.clock(t.seconds), t.seconds),
        ])  # fmt: skip
    return head, body


def _value(trial: Trial, key: str) -> Any:
    """None where the trial leaves the key out."""
    return trial.params[key] if any(word.startswith(f"{key}=") for word in trial.words) else None


# ------------------------------------------------------------------------------------------------ figures


def draw(search: Search) -> list[Figure]:
    """The objective over the trials, and over each key."""
    return [_course(search), _keys(search)] if search.trials else []


def _course(search: Search) -> Figure:
    trials = sorted(search.trials, key=lambda trial: trial.number)
    numbers = [trial.number for trial in trials]
    scores = np.array([trial.objective for trial in trials], dtype=float)
    best = np.maximum.accumulate(scores) if search.higher_is_better else np.minimum.accumulate(scores)

    def paint(canvas: Any, theme: Theme) -> None:
        panel = canvas.subplots()
        panel.plot(numbers, scores, "o", color=theme.ink, markersize=4, alpha=0.7, markeredgewidth=0)
        panel.step(numbers, best, where="post", color=BEST, linewidth=1.6, label="best so far")
        _base(panel, search, theme)
        panel.set(xlabel="trial", ylabel=plain(search.objective))
        panel.xaxis.get_major_locator().set_params(integer=True)
        canvas.legend(*panel.get_legend_handles_labels(), loc="outside lower left", ncols=2)

    caption = (
        "The search: a point a trial, the mean over its seeds. The line is the best so far, which gets better with the "
        "number of trials even where they differ by chance alone."
    )
    return render("search", caption, (5.4, 3.6), paint)


def _keys(search: Search) -> Figure:
    down = -(-len(search.space) // ACROSS)

    def paint(canvas: Any, theme: Theme) -> None:
        grid = canvas.subplots(down, min(ACROSS, len(search.space)), sharey=True, squeeze=False)
        panels = list(grid.flat)
        for panel, (key, levels) in zip(panels, search.space.items(), strict=False):
            points = [(_value(t, key), t.objective, t is search.trials[0]) for t in search.trials]
            there = [point for point in points if point[0] is not None]
            place = _axis(panel, levels)
            for value, score, first in there:
                color, size = (BEST, 6) if first else (theme.ink, 4)
                panel.plot(place(value), score, "o", color=color, markersize=size, alpha=0.75, markeredgewidth=0)
            _base(panel, search, theme)
            share = search.importance.get(key)
            panel.set_xlabel(plain(key, 34) + ("" if share is None else f"\nimportance {share:.0%}"))
        for panel in panels[len(search.space) :]:
            panel.axis("off")
        canvas.supylabel(plain(search.objective), fontsize=9)

    importance = (
        " Importance is a key's share of what sets the better trials apart (PED-ANOVA, arXiv:2304.10255), from these "
        "trials alone: of few trials it is rough."
    )
    caption = "The objective over each key: a point a trial, the best in orange, the base dashed." + importance * bool(
        search.importance
    )
    wide = len(search.space) > 1
    return render("space", caption, (11 if wide else 5.4, 2.9 * down), paint, wide=wide)


def _axis(panel: Any, levels: Any) -> Callable[[Any], Any]:
    """Set up a key's axis; where a value lies on it."""
    if isinstance(levels, list):
        panel.set_xticks(range(len(levels)), [plain(level, 16) for level in levels])
        panel.set_xlim(-0.5, len(levels) - 0.5)
        return levels.index
    if levels.log:
        panel.set_xscale("log")
    return float


def _base(panel: Any, search: Search, theme: Theme) -> None:
    if search.base.objective is not None:
        panel.axhline(search.base.objective, color=theme.ink, linestyle=(0, (5, 2)), linewidth=1, label="the base")

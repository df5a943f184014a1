"""All that a report says, before it is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlfw.report import arms, caveats, factorial, figures, folders, panels, provenance, results, samples
from rlfw.report import search as searched

if TYPE_CHECKING:
    from pathlib import Path

    from rlfw.report.arms import Overall, Row
    from rlfw.report.factorial import Effects
    from rlfw.report.figures import Figure
    from rlfw.report.folders import Choice
    from rlfw.report.provenance import Origin
    from rlfw.report.results import Result
    from rlfw.report.samples import Samples
    from rlfw.report.search import Search
    from rlfw.study.records import Records


@dataclass(frozen=True)
class Content:
    """A report."""

    records: Records
    results: list[Result]
    caveats: list[str]
    rows: dict[str, list[Row]]  # env -> its arms, the base first
    overall: list[Overall]  # empty for one env
    scale: str  # how several envs are put together
    effects: Effects | None
    figures: list[Figure]
    samples: list[Samples]
    origins: list[Origin]
    states: dict[str, int]
    search: Search | None  # of a study whose mode is search


def make(folder: Path, choice: Choice) -> Content:
    """Read ``folder``, compute and draw; UserError where there is nothing that can be reported."""
    records = folders.load(folder, choice)
    found = results.read(records)
    search = searched.read(records, found, folder)
    if search is not None:
        records = searched.ordered(records, search)
    scores = results.counted(found, records.metric)
    rows = arms.rows(records, found, scores)
    by_env = arms.by_env(rows)
    scaled = results.normalized(scores, records.metric) if len(by_env) > 1 else None
    origins = provenance.origins(records.runs)
    states = [r.run.state for r in found]
    told = shown = (records, found, rows)
    if search is not None:
        told, shown = (searched.only(these, *told) for these in (search.scored, search.foremost))
    drawn = figures.draw(*shown, scaled, panels.draw(*shown[:2]))
    return Content(
        records=records,
        results=found,
        caveats=[
            *(() if search is None else searched.caveats(search)),
            *caveats.caveats(*told, origins, chosen=choice.changes_metric),
        ],
        rows=dict(by_env),
        overall=[] if scaled is None else arms.overall(rows, scaled, records.base),
        scale="" if scaled is None else caveats.scale(scaled),
        effects=factorial.effects(records, scores if scaled is None else scaled),
        figures=drawn if search is None else [*searched.draw(search), *drawn],
        samples=samples.read(shown[1]),
        origins=origins,
        states={state: states.count(state) for state in dict.fromkeys(states)},
        search=search,
    )

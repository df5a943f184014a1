"""All that a report says, before it is laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlfw.report import arms, caveats, factorial, figures, folders, provenance, results, samples

if TYPE_CHECKING:
    from pathlib import Path

    from rlfw.report.arms import Overall, Row
    from rlfw.report.factorial import Effects
    from rlfw.report.figures import Figure
    from rlfw.report.folders import Choice
    from rlfw.report.provenance import Origin
    from rlfw.report.results import Result
    from rlfw.report.samples import Samples
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


def make(folder: Path, choice: Choice) -> Content:
    """Read ``folder``, compute and draw; UserError where there is nothing that can be reported."""
    records = folders.load(folder, choice)
    found = results.read(records)
    scores = results.counted(found, records.metric)
    rows = arms.rows(records, found, scores)
    by_env = arms.by_env(rows)
    scaled = results.normalized(scores, records.metric) if len(by_env) > 1 else None
    origins = provenance.origins(records.runs)
    states = [r.run.state for r in found]
    return Content(
        records=records,
        results=found,
        caveats=caveats.caveats(records, found, rows, origins, chosen=choice.changes_metric),
        rows=dict(by_env),
        overall=[] if scaled is None else arms.overall(rows, scaled, records.base),
        scale="" if scaled is None else caveats.scale(scaled),
        effects=factorial.effects(records, scores if scaled is None else scaled),
        figures=figures.draw(records, found, rows, scaled),
        samples=samples.read(found),
        origins=origins,
        states={state: states.count(state) for state in dict.fromkeys(states)},
    )

"""A report as files: report.html in one piece, report.md, figures/, results.csv, timings.csv."""

from __future__ import annotations

import csv
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError
from rlfw.report import arms, figures, results, search, text
from rlfw.report.template import filled

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlfw.report.content import Content


@dataclass(frozen=True)
class Cell:
    """A table's cell: what is read, and what it is sorted by."""

    shown: str
    key: float | str = ""


@dataclass(frozen=True)
class Table:
    """A table under a heading of its own."""

    title: str
    head: list[str]
    body: list[list[Cell]]


def write(content: Content, out: Path) -> None:
    """Write all of it into ``out``; what stands there of an earlier report is replaced."""
    try:
        out.mkdir(parents=True, exist_ok=True)
        figures.write(content.figures, out / "figures")
        (out / "report.html").write_text(html(content), encoding="utf-8")
        (out / "report.md").write_text(markdown(content), encoding="utf-8")
        _write_csv(results.table(content.results, content.records.metric), out / "results.csv")
        _write_csv(results.timings(content.results), out / "timings.csv")
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there: {error.strerror or error}") from error


def html(content: Content) -> str:
    """One file that needs no other and no network."""
    return _filled("page.html", content, escaped=True)


def markdown(content: Content) -> str:
    """The same in Markdown, with the figures beside it."""
    return _filled("page.md", content, escaped=False)


def _filled(template: str, content: Content, *, escaped: bool) -> str:
    return filled(
        template,
        escaped=escaped,
        c=content,
        r=content.records,
        metric=arms.described(content.records.metric),
        better="higher" if results.better_high(content.records.metric) else "lower",
        tables=[*_overall(content), *_arms(content)],
        trials=_trials(content),
        effects=_effects(content),
        differences={arm.name: text.differences(arm) for arm in content.records.arms},
    )


def _write_csv(rows: Sequence[dict[str, Any]], file: Path) -> None:
    with file.open("w", newline="", encoding="utf-8") as out:
        writer = csv.DictWriter(out, list(rows[0]) if rows else ["arm"])
        writer.writeheader()
        writer.writerows(rows)


# ------------------------------------------------------------------------------------------------ tables


HEAD = ["arm", "n", "failed", "mean", "95 % interval", "IQM", "difference from base", "its 95 % interval", "p",
        "p (Holm)", "P(better)", "time a run", "steps a run"]  # fmt: skip


def _arms(content: Content) -> list[Table]:
    tables = []
    for env, rows in content.rows.items():
        body = []
        for row in rows:
            less = row.less_base
            compared = [Cell("base"), *[Cell(text.NONE)] * 4]
            if less is not None:
                by = less.by
                compared = [
                    Cell(text.signed(by.value), by.value),
                    Cell(text.interval(by), by.low),
                    Cell(text.p_value(less.p), less.p),
                    Cell(text.p_value(row.corrected), row.corrected),
                    Cell(text.number(less.improvement), less.improvement),
                ]
            body.append([
                Cell(row.arm, row.arm),
                Cell(f"{row.n}" + f" (+{row.open} open)" * bool(row.open), row.n),
                Cell(str(row.failed), row.failed),
                Cell(text.number(row.mean.value), row.mean.value),
                Cell(text.interval(row.mean), row.mean.low),
                Cell(text.number(row.iqm), row.iqm),
                *compared,
                Cell(text.clock(row.seconds), row.seconds or 0.0),
                Cell(text.number(row.steps), row.steps),
            ])  # fmt: skip
        tables.append(Table(env, HEAD, body))
    return tables


def _overall(content: Content) -> list[Table]:
    if not content.overall:
        return []
    head = [
        "arm",
        "n",
        "IQM",
        "95 % bootstrap interval",
        "difference from base",
        "its 95 % bootstrap interval",
        "P(better)",
    ]
    body = []
    for row in content.overall:
        less = [Cell("base"), Cell(text.NONE)]
        if row.less_base is not None:
            found = row.less_base
            less = [Cell(text.signed(found.value), found.value), Cell(text.interval(found), found.low)]
        body.append([
            Cell(row.arm, row.arm),
            Cell(str(row.n), row.n),
            Cell(text.number(row.iqm.value), row.iqm.value),
            Cell(text.interval(row.iqm), row.iqm.low),
            *less,
            Cell(text.number(row.improvement), row.improvement),
        ])  # fmt: skip
    return [Table("all envs, normalised", head, body)]


def _trials(content: Content) -> Table | None:
    if content.search is None:
        return None
    head, body = search.table(content.search)
    return Table(content.search.objective, head, [[Cell(*cell) for cell in row] for row in body])


def _effects(content: Content) -> list[Table]:
    if content.effects is None:
        return []
    head = ["effect", "what it is", "by", "95 % interval", "p", "p (Holm)", "settings"]
    told = []
    for title, several in (("main effects", content.effects.main), ("interactions", content.effects.interactions)):
        body = [
            [
                Cell(effect.name, effect.name),
                Cell(effect.against),
                Cell(text.signed(effect.by.value), effect.by.value),
                Cell(text.interval(effect.by), effect.by.low),
                Cell(text.p_value(effect.p), effect.p),
                Cell(text.p_value(effect.corrected), effect.corrected),
                Cell(str(effect.settings), effect.settings),
            ]
            for effect in several
        ]
        told += [Table(title, head, body)] * bool(body)
    return told

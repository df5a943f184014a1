"""Runs, studies and folders of runs side by side, as text: how they are composed, then what they reached."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.errors import UserError
from rlfw.report import arms, configs, folders, results, statistics, text
from rlfw.report.results import TIMES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlfw.report.folders import Choice
    from rlfw.report.results import Result
    from rlfw.study.records import Metric, Records

COUNTERS = ("iteration", "episode", "seed")
WIDTH = 60  # of a cell


@dataclass(frozen=True)
class Entry:
    """A run, or the runs of an arm on an env."""

    name: str
    env: str
    config: dict[str, Any] | None  # of its first run; None where no run has begun
    results: list[Result]
    scores: np.ndarray


def compare(dirs: Sequence[Path], choice: Choice) -> str:
    """The page; UserError where there is nothing to compare."""
    loaded = [folders.load(folder, choice) for folder in dirs]
    metric = _common_metric(loaded, choice)
    entries = [
        entry
        for folder, records in zip(dirs, loaded, strict=True)
        for entry in _entries(folder, replace(records, metric=metric))
    ]
    if len(entries) < 2:
        raise UserError("rlfw compare takes two runs or studies, or a folder that holds two arms")
    lines = ["what is compared", *(f"  {number}  {entry.name}" for number, entry in enumerate(entries, start=1)), ""]
    return "\n".join([*lines, *_differences(entries), "", *_numbers(entries, metric), "", *_rest(entries)])


def _common_metric(loaded: Sequence[Records], choice: Choice) -> Metric:
    """What all are compared by; UserError where studies disagree and nobody chose."""
    found = list(dict.fromkeys(records.metric for records in loaded if records.mode != folders.INFERRED))
    if not found and len({records.metric for records in loaded}) > 1:
        return replace(loaded[0].metric, name="objective/scores", last=folders.LAST_ROWS)
    if choice.changes_metric or not found:
        return loaded[0].metric
    if len(found) > 1:
        told = "; ".join(arms.described(metric) for metric in found)
        raise UserError(f"the studies have different metrics ({told}): choose one with --metric NAME")
    return found[0]


def _entries(folder: Path, records: Records) -> list[Entry]:
    found = results.read(records)
    counted = results.counted(found, records.metric)
    envs = list(dict.fromkeys(run.env for run in records.runs))
    entries = []
    for env in envs:
        for arm in arms.names(records):
            mine = [r for r in found if (r.run.arm, r.run.env) == (arm, env) and r.outcome != "repeated"]
            if not mine:
                continue
            begun = next((r.run.path for r in mine if folders.is_run(r.run.path)), None)
            told = [arm] * (len(arms.names(records)) > 1) + [f"on {env}"] * (len(envs) > 1)
            config = None if begun is None else configs.read(begun)
            entries.append(Entry(": ".join([str(folder), *told]), env, config, mine, counted[arm, env]))
    return entries


def _differences(entries: Sequence[Entry]) -> list[str]:
    begun = [entry.config for entry in entries if entry.config is not None]
    several = any(len(entry.results) > 1 for entry in entries)
    keys = [key for key in configs.varying(begun) if key != "seed" or not several]
    if not keys:
        return ["configurations: no difference" + " but the seeds" * several]
    rows = [[key, *(_setting(entry, key) for entry in entries)] for key in keys]
    return ["configurations: what differs", *_table(["", *_numbered(entries)], rows)]


def _setting(entry: Entry, key: str) -> str:
    if entry.config is None or key not in entry.config:
        return text.NONE
    return configs.word(entry.config[key])


def _numbered(entries: Sequence[Entry]) -> list[str]:
    return [str(number) for number in range(1, len(entries) + 1)]


def _numbers(entries: Sequence[Entry], metric: Metric) -> list[str]:
    high = results.better_high(metric)
    head = ["", "n", "failed", "open", "mean", "95 % interval", "against 1", "its 95 % interval", "p", "time", "steps"]
    body = []
    for number, entry in enumerate(entries, start=1):
        outcomes = [r.outcome for r in entry.results]
        mean = statistics.mean(entry.scores)
        less = statistics.difference(entry.scores, entries[0].scores, higher_is_better=high)
        compared = [text.signed(less.by.value), text.interval(less.by), text.p_value(less.p)]
        if number == 1 or entry.env != entries[0].env:
            compared = [text.NONE] * 3
        seconds = [r.run.seconds for r in entry.results if r.run.seconds is not None]
        body.append([
            str(number),
            str(len(entry.scores)),
            str(outcomes.count("failed")),
            str(outcomes.count("open")),
            text.number(mean.value),
            text.interval(mean),
            *compared,
            text.clock(float(np.mean(seconds)) if seconds else None),
            text.number(float(np.mean([r.budget for r in entry.results]))),
        ])  # fmt: skip
    better = "higher" if high else "lower"
    told = [f"{arms.described(metric)}; {better} is better", *_table(head, body)]
    if any(len(entry.scores) < 2 for entry in entries):
        told.append("  one run has no interval: add seeds before you believe a difference")
    if any(r.outcome == "failed" for entry in entries for r in entry.results):
        told.append("  a failed run counts as the worst finished one of its folder and env")
    return told


def _rest(entries: Sequence[Entry]) -> list[str]:
    """Every other number that was logged last, the mean over the runs."""
    names = dict.fromkeys(name for entry in entries for r in entry.results for name in r.last)
    body = []
    for name in names:
        if name.startswith(TIMES) or name in (*COUNTERS, results.STEP):
            continue
        found = [[r.last[name] for r in entry.results if name in r.last] for entry in entries]
        body.append([name, *(text.number(float(np.mean(several))) if several else text.NONE for several in found)])
    return ["the last value of everything else, the mean over the runs", *_table(["", *_numbered(entries)], body)]


def _table(head: Sequence[str], body: Sequence[Sequence[str]]) -> list[str]:
    cut = [[cell if len(cell) <= WIDTH else f"{cell[: WIDTH - 1]}…" for cell in row] for row in [head, *body]]
    widths = [max(len(row[column]) for row in cut) for column in range(len(head))]
    return ["  " + "  ".join(cell.ljust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in cut]

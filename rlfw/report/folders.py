"""Runs as the records of a study: a study's own folder, or any folder of runs, whose arms are told from their words."""

from __future__ import annotations

import json
import math
import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError
from rlfw.registry import suggest
from rlfw.report import configs, series
from rlfw.study import records
from rlfw.study.claims import held
from rlfw.study.records import SUMMARIES, Arm, Metric, Record, Records

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

INFERRED = "inferred"  # the mode of a folder that no study declared
LAST = 3  # evaluations in a final number, where nobody said how many
NAMED = 2  # keys that name an arm in full
LAST_ROWS = 10  # the same for a number that each iteration has


@dataclass(frozen=True)
class Choice:
    """What the command line says about the metric and the base; None: as the study has it, or by default."""

    metric: str | None = None
    summary: str | None = None
    last: int | None = None
    threshold: float | None = None
    lower_is_better: bool = False
    base: str | None = None

    @property
    def changes_metric(self) -> bool:
        """Whether another number is asked for than the study declared."""
        return replace(self, base=None) != Choice()


def load(folder: Path, choice: Choice) -> Records:
    """The records in ``folder``; UserError where it holds no runs, or a choice names what there is not."""
    if not folder.is_dir():
        raise UserError(f"{folder}: no such folder; name a study's, or one that holds runs")
    found = records.load(folder) if (folder / "study.yaml").is_file() else _inferred(folder)
    if choice.base is not None:
        found = _with_base(found, choice.base)
    return replace(found, metric=_metric(found, choice))


def is_run(folder: Path) -> bool:
    """Whether ``folder`` is that of a single run."""
    return (folder / "config.yaml").is_file()


def find(folder: Path) -> list[Path]:
    """Every run in or below ``folder``."""
    found = []
    for path, below, files in os.walk(folder):
        if "config.yaml" in files:
            found.append(Path(path))
            below.clear()
        below.sort()
    return found


def status(run: Path) -> dict[str, Any]:
    """A run's status.json; that it is missing where it is."""
    file = run / "status.json"
    found: dict[str, Any] = json.loads(file.read_text()) if file.is_file() else {"state": "missing"}
    return found


def _inferred(folder: Path) -> Records:
    runs = find(folder)
    if not runs:
        raise UserError(f"{folder} holds no runs: a run's folder has a config.yaml, a study's a study.yaml")
    statuses = {run: status(run) for run in runs}
    runs.sort(key=lambda run: (statuses[run].get("started", 0.0), str(run)))
    settled = {run: configs.read(run) for run in runs}
    envs = {run: configs.env_name(settled[run]) for run in runs}
    keys = _arm_keys(settled, envs)
    groups: dict[tuple[str, ...], list[Path]] = {}
    for run in runs:
        groups.setdefault(configs.frozen(settled[run], keys), []).append(run)
    first = settled[next(iter(groups.values()))[0]]
    arms, found = [], []
    for members in groups.values():
        mine = settled[members[0]]
        apart = {key: (first.get(key), mine.get(key)) for key in keys if first.get(key) != mine.get(key)}
        name = _name(mine, keys, apart)
        arms.append(Arm(name, [f"{key}={configs.word(mine.get(key))}" for key in keys], apart, None))
        found += [_record(run, name, envs[run], settled[run]["seed"], statuses[run]) for run in members]
    question = "No study declared these runs: their arms are told from how their configurations differ."
    metric = Metric("", "final", 1, None, True)
    factors = _factors([settled[members[0]] for members in groups.values()], keys)
    return Records(folder.resolve().name, question, metric, arms[0].name, INFERRED, factors, arms, found)


def _name(config: Mapping[str, Any], keys: Sequence[str], apart: Mapping[str, tuple[Any, Any]]) -> str:
    """What an arm has where arms differ; beyond two such keys, where it differs from the first."""
    told = {key: config[key] for key in keys if key in config} if len(keys) <= NAMED else dict.fromkeys(apart)
    words = [f"{key}={configs.word(config.get(key))}" for key in told]
    return " ".join(words) or "base"


def _factors(arms: Sequence[Mapping[str, Any]], keys: Sequence[str]) -> dict[str, list]:
    """The keys and their levels where the arms are every combination of them; else none."""
    levels = {key: list(dict.fromkeys(configs.word(arm.get(key)) for arm in arms)) for key in keys}
    return levels if len(keys) > 1 and math.prod(map(len, levels.values())) == len(arms) else {}


def _arm_keys(settled: Mapping[Path, Mapping[str, Any]], envs: Mapping[Path, str]) -> list[str]:
    """The keys that vary within some env: what an env's preset sets on its own is no difference between arms."""
    keys: dict[str, None] = {}
    for env in dict.fromkeys(envs.values()):
        keys |= dict.fromkeys(configs.varying([{**settled[run], "seed": 0} for run in settled if envs[run] == env]))
    return list(keys)


def _record(run: Path, arm: str, env: str, seed: int, found: Mapping[str, Any]) -> Record:
    seconds = found["updated"] - found["started"] if "updated" in found else None
    state = "interrupted" if found["state"] == "running" and not held(run / ".lock") else found["state"]
    return Record(run, arm, env, seed, state, found.get("error"), seconds)


def _with_base(found: Records, base: str) -> Records:
    running = {arm.name: arm for arm in found.arms if arm.refused is None}
    if base not in running:
        raise UserError(f"--base {base}: no such arm{suggest(base, running)}")
    old = running[base].differences
    arms = []
    for arm in found.arms:
        keys = dict.fromkeys([*old, *arm.differences])
        pairs = {key: (_value(old, arm.differences, key), _value(arm.differences, old, key)) for key in keys}
        arms.append(replace(arm, differences={key: pair for key, pair in pairs.items() if pair[0] != pair[1]}))
    return replace(found, base=base, arms=arms)


def _value(mine: Mapping[str, tuple[Any, Any]], other: Mapping[str, tuple[Any, Any]], key: str) -> Any:
    """What an arm has at ``key``: its own difference, else what the first base has."""
    return mine[key][1] if key in mine else other[key][0]


def _metric(found: Records, choice: Choice) -> Metric:
    if found.metric.name and not choice.changes_metric:
        return found.metric
    name = choice.metric or found.metric.name or default_metric(found.runs)
    summary = choice.summary or ("steps_to" if choice.threshold is not None else found.metric.summary)
    if summary not in SUMMARIES:
        raise UserError(f"--summary {summary}: no such summary{suggest(summary, SUMMARIES)}")
    threshold = choice.threshold if choice.threshold is not None else found.metric.threshold
    if summary == "steps_to" and threshold is None:
        raise UserError("--summary steps_to counts the steps to a threshold: add --threshold X")
    last = choice.last or (found.metric.last if found.metric.name else LAST if name.startswith("eval/") else LAST_ROWS)
    higher = found.metric.higher_is_better and not choice.lower_is_better
    return Metric(name, summary, last, threshold if summary == "steps_to" else None, higher)


def default_metric(runs: Sequence[Record]) -> str:
    """An evaluation where there were any, else what training saw."""
    logged = {name for run in runs for name in series.names(run.path / "metrics.jsonl")}
    return next((name for name in ("eval/return", "eval/score") if name in logged), "objective/scores")

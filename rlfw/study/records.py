"""What a study's folder holds: its question, its arms, and what became of each run."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlfw.study.space import Space

BEST = "best.yaml"  # of a search: the declaration of a study of its best trial
SUMMARIES = ("final", "auc", "steps_to")
STATES = ("done", "running", "interrupted", "failed", "missing")


@dataclass(frozen=True)
class Arm:
    """One composition of a study."""

    name: str
    words: list[str]  # over the base; of a grid, factor=level is among them for every factor
    differences: dict[str, tuple[Any, Any]]  # key -> (the base arm's value, this arm's); None: it has none
    refused: str | None  # why it does not run


@dataclass(frozen=True)
class Record:
    """One run of an arm: an env and a seed."""

    path: Path
    arm: str
    env: str
    seed: int
    state: str  # one of STATES
    error: str | None  # the last line of a run that failed
    seconds: float | None  # of all its attempts


@dataclass(frozen=True)
class Metric:
    """What the arms are compared by, named before the first run."""

    name: str  # a column of metrics.jsonl
    summary: str  # final: the mean of the last rows that have it; auc: the mean over the steps; steps_to: a threshold
    last: int  # how many rows ``final`` takes
    threshold: float | None  # of ``steps_to``, where fewer steps are better
    higher_is_better: bool


@dataclass(frozen=True)
class Trial:
    """An arm of a search, and what it took. Number 0 is the base, which the search compares itself with."""

    number: int
    arm: str
    params: dict[str, Any]  # the point of the space; the base has none
    words: list[str]  # over the base, with those that come along
    refused: str | None
    configurations: list[str]  # the hash of the arm on each env, with the configuration's own seed
    objective: float | None = None  # None: not all of its runs have ended
    runs: int = 0  # its budget: runs that ended, of these failed, steps of their envs, seconds of all attempts
    failed: int = 0
    steps: float = 0.0
    seconds: float = 0.0


@dataclass(frozen=True)
class Searched:
    """What a search has tried."""

    words: list[str]  # of the command line, beside the declaration's
    importance: dict[str, float]  # key -> its share; empty while trials are too few to say
    trials: list[Trial]  # the base first

    def confirm(self, folder: Path) -> str:
        """The command that trains the best trial and the base on fresh seeds."""
        return shlex.join(["rlfw", "study", str(folder / BEST), *self.words, "--out", f"{folder}-confirmed"])


@dataclass(frozen=True)
class Records:
    """A study as a report reads it."""

    name: str
    question: str
    metric: Metric
    base: str  # the name of the arm that the others are compared with
    mode: str
    factors: dict[str, list]  # key -> its levels, as they stand in the arms' words
    arms: list[Arm]
    runs: list[Record]
    curves: Sequence[str] = ()  # columns to be drawn beside the metric
    against: Sequence[tuple[str, str]] = ()  # columns x and y to be drawn as y over x
    search: Searched | None = None  # of mode: search
    space: Space = field(default_factory=dict)  # what the search varies

    @property
    def columns(self) -> list[str]:
        """Every column that is drawn beside the metric."""
        return list(dict.fromkeys([*self.curves, *(name for pair in self.against for name in pair)]))


def load(folder: Path) -> Records:
    """The study in ``folder``, as far as it has got."""
    from rlfw.study import declaration

    if not (folder / "arms.json").is_file() or not (folder / "study.yaml").is_file():
        raise UserError(f"{folder} is not a study's folder: rlfw study FILE --out {folder} makes one")
    study = declaration.read(folder / "study.yaml")
    arms = read_arms(folder)
    runs = [_record(folder, entry) for entry in read_index(folder)]
    return Records(
        name=folder.resolve().name,
        question=study.question,
        metric=study.metric,
        base=base_of(arms),
        mode=study.mode,
        factors=study.factors,
        arms=arms,
        runs=runs,
        curves=study.curves,
        against=study.against,
        search=None if study.search is None else read_search(folder),
        space={} if study.search is None else study.search.space,
    )


def base_of(arms: list[Arm]) -> str:
    """The arm from which the differences are told: the first that runs and has none."""
    return next(arm.name for arm in arms if arm.refused is None and not arm.differences)


def read_arms(folder: Path) -> list[Arm]:
    """The arms that arms.json holds."""
    found = json.loads((folder / "arms.json").read_text())
    return [
        Arm(arm["name"], arm["words"], {key: tuple(pair) for key, pair in arm["differences"].items()}, arm["refused"])
        for arm in found
    ]


def read_search(folder: Path) -> Searched:
    """What search.json holds; nothing before the first trial."""
    file = folder / "search.json"
    if not file.is_file():
        return Searched([], {}, [])
    found = json.loads(file.read_text())
    return Searched(found["words"], found["importance"], [Trial(**trial) for trial in found["trials"]])


def read_index(folder: Path) -> list[dict[str, Any]]:
    """The entries of index.json: run, arm, env, seed, attempts, seconds, error. Empty before the first run."""
    file = folder / "index.json"
    found: list[dict[str, Any]] = json.loads(file.read_text()) if file.is_file() else []
    return found


def _record(folder: Path, entry: dict[str, Any]) -> Record:
    state = run_state(folder, entry)
    if state == "running" and not _under_way(folder, entry["run"]):
        state = "interrupted"
    seconds = entry["seconds"] if entry["attempts"] else None
    path = folder / "runs" / entry["run"]
    return Record(path, entry["arm"], entry["env"], entry["seed"], state, entry["error"], seconds)


def run_state(folder: Path, entry: dict[str, Any]) -> str:
    """As the run itself left it: one that was killed still says running."""
    if entry["error"] is not None:
        return "failed"
    file = folder / "runs" / entry["run"] / "status.json"
    return str(json.loads(file.read_text())["state"]) if file.is_file() else "missing"


def _under_way(folder: Path, run: str) -> bool:
    """Whether a runner holds the run, or a process its folder."""
    from rlfw.study.claims import held

    return held(folder / "claims" / f"{run}.lock") or held(folder / "runs" / run / ".lock")

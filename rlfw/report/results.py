"""One number a run, and what there is to say of how it came about."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from scipy.integrate import trapezoid

from rlfw.errors import UserError
from rlfw.registry import suggest
from rlfw.report import series

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rlfw.study.records import Metric, Record, Records

STEP = "global_step"
TIMES = ("time", "timing_s/", "perf/")


@dataclass(frozen=True)
class Result:
    """A run, read."""

    run: Record
    score: float | None  # its own; None: it has none
    outcome: str  # finished: it counts as it is; failed: as the worst; open: not yet; repeated: not again
    why: str | None  # of a failed one
    steps: np.ndarray  # [points] the steps at which the metric was logged
    values: np.ndarray  # [points]
    budget: float  # the last step that the run logged; 0 where it logged none
    last: Mapping[str, float]
    broken: int
    censored: bool  # steps_to: the threshold was not reached within the budget
    short: bool  # final: fewer points than it averages

    @property
    def unit(self) -> str:
        """What a step is: completions where the run kept samples of text."""
        return "completions" if (self.run.path / "samples.jsonl").is_file() else "env steps"


def read(records: Records) -> list[Result]:
    """Every run's result, in the records' order; UserError where not one logged the metric.

    Of several runs of one arm, env and seed the last one that is done counts: copies are no further evidence.
    """
    found = [_read(run, records.metric) for run in records.runs]
    logged = {name for r in found for name in r.last}
    if logged and not any(len(r.values) for r in found):
        name = records.metric.name
        raise UserError(f"metric {name}: no run logged it{suggest(name, sorted(logged))}")
    counts: dict[tuple[str, str, int], int] = {}
    for number, r in enumerate(found):
        key = (r.run.arm, r.run.env, r.run.seed)
        if key not in counts or r.run.state == "done" or found[counts[key]].run.state != "done":
            counts[key] = number
    last = set(counts.values())
    return [r if number in last else replace(r, outcome="repeated") for number, r in enumerate(found)]


def _read(run: Record, metric: Metric) -> Result:
    log = series.read(run.path / "metrics.jsonl", [STEP, metric.name])
    has = log.has.get(metric.name, np.zeros(0, dtype=bool))
    steps, values = (log.columns.get(name, np.zeros(0))[has] for name in (STEP, metric.name))
    reached = log.columns.get(STEP, np.zeros(0))
    budget = float(reached[-1]) if len(reached) else 0.0
    score, censored = _score(steps, values, budget, metric)
    outcome, why = _outcome(run, score, len(values), metric.name)
    short = metric.summary == "final" and 0 < len(values) < metric.last
    mine = score if score is not None and np.isfinite(score) else None
    return Result(run, mine, outcome, why, steps, values, budget, log.last, log.broken, censored, short)


def _score(steps: np.ndarray, values: np.ndarray, budget: float, metric: Metric) -> tuple[float | None, bool]:
    """A run's number, and whether it is only a bound. NaN where a value that it needs is none."""
    if not len(values):
        return None, False
    if metric.summary == "final":
        return float(values[-metric.last :].mean()), False
    if metric.summary == "auc":
        span = steps[-1] - steps[0]
        return float(trapezoid(values, steps) / span if span else values[0]), False
    assert metric.threshold is not None
    there = values >= metric.threshold if metric.higher_is_better else values <= metric.threshold
    return (float(steps[there.argmax()]), False) if there.any() else (budget, True)


def _outcome(run: Record, score: float | None, points: int, name: str) -> tuple[str, str | None]:
    if run.state == "failed":
        return "failed", run.error or "it failed and does not say why"
    if run.state != "done":
        return "open", None
    if not points:
        return "failed", f"done, but it never logged {name}"
    if score is None or not np.isfinite(score):
        return "failed", f"its {name} is not a finite number"
    return "finished", None


def better_high(metric: Metric) -> bool:
    """Whether a higher score is better: of steps to a threshold, fewer are."""
    return metric.higher_is_better and metric.summary != "steps_to"


def counted(results: list[Result], metric: Metric) -> dict[tuple[str, str], np.ndarray]:
    """(arm, env) -> the scores that count: a failed run has the worst that any finished run of its env has."""
    found: dict[tuple[str, str], np.ndarray] = {}
    worst = {env: _worst(results, env, metric) for env in dict.fromkeys(r.run.env for r in results)}
    for key in dict.fromkeys((r.run.arm, r.run.env) for r in results):
        mine = [r for r in results if (r.run.arm, r.run.env) == key]
        scores = [
            r.score if r.outcome == "finished" else worst[key[1]] for r in mine if r.outcome in ("finished", "failed")
        ]
        found[key] = np.array([score for score in scores if score is not None], dtype=float)
    return found


def _worst(results: list[Result], env: str, metric: Metric) -> float | None:
    scores = [r.score for r in results if r.run.env == env and r.outcome == "finished" and r.score is not None]
    if not scores:
        return None
    return min(scores) if better_high(metric) else max(scores)


def normalized(scores: dict[tuple[str, str], np.ndarray], metric: Metric) -> dict[tuple[str, str], np.ndarray]:
    """0 for the worst run of an env, 1 for its best, over all arms; so that envs can be put together."""
    found = {}
    for (arm, env), values in scores.items():
        every = np.concatenate([x for (_, where), x in scores.items() if where == env])
        span = np.ptp(every) if len(every) else 0.0
        scaled = (values - every.min()) / span if span else np.full_like(values, 0.5)
        found[arm, env] = scaled if better_high(metric) else 1 - scaled
    return found


def table(results: list[Result], metric: Metric) -> list[dict[str, object]]:
    """results.csv: a row a run. Beside the metric the last value of everything else that the run logged.

    No clock is among them: runs that were cut and went on give the same table as uncut ones.
    """
    names = dict.fromkeys(name for r in results for name in r.last if not name.startswith(TIMES))
    rest = [name for name in names if name not in (STEP, "iteration", "episode")]
    rows: list[dict[str, object]] = []
    for r in _ordered(results):
        row: dict[str, object] = {
            "arm": r.run.arm,
            "env": r.run.env,
            "seed": r.run.seed,
            "state": r.run.state,
            "outcome": r.outcome,
            "metric": metric.name,
            "summary": metric.summary,
            "score": r.score,
            "bound": r.censored,
            "points": len(r.values),
            "steps": r.budget,
            "why": r.why,
            "run": r.run.path.name,
        }
        rows.append(row | {f"last:{name}": _number(r.last.get(name)) for name in rest})
    return rows


def timings(results: list[Result]) -> list[dict[str, object]]:
    """timings.csv: how long each row of results.csv took."""
    return [
        {"arm": r.run.arm, "env": r.run.env, "seed": r.run.seed, "run": r.run.path.name, "seconds": r.run.seconds}
        for r in _ordered(results)
    ]


def _ordered(results: list[Result]) -> list[Result]:
    return sorted(results, key=lambda r: (r.run.env, r.run.arm, r.run.seed, str(r.run.path)))


def _number(value: float | None) -> object:
    return json.dumps(value) if isinstance(value, float) else value

"""The table of arms: for each what it reached, and how it compares with the base."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rlfw.report import results as outcomes
from rlfw.report import statistics

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlfw.report.results import Result
    from rlfw.report.statistics import Difference, Estimate
    from rlfw.study.records import Metric, Records

Scores = dict[tuple[str, str], np.ndarray]  # (arm, env) -> the scores that count


@dataclass(frozen=True)
class Row:
    """An arm on an env."""

    arm: str
    env: str
    scores: np.ndarray  # those that count, failures at their treatment
    failed: int
    open: int  # not finished yet
    mean: Estimate
    iqm: float
    less_base: Difference | None  # None: it is the base
    corrected: float  # p after Holm; NaN where there is no test
    seconds: float | None  # the mean run
    steps: float  # the mean run

    @property
    def n(self) -> int:
        """The runs that count."""
        return len(self.scores)


@dataclass(frozen=True)
class Overall:
    """An arm over all envs, on normalised scores."""

    arm: str
    n: int
    iqm: Estimate
    less_base: Estimate | None
    improvement: float  # the mean over envs of the probability of improvement


def rows(records: Records, results: Sequence[Result], scores: Scores) -> list[Row]:
    """Env by env, the base first. Every comparison of the page is one family for Holm."""
    envs = list(dict.fromkeys(run.env for run in records.runs))
    arms = names(records)
    found = [_row(records, results, scores, arm, env) for env in envs for arm in arms]
    tested = [row.less_base for row in found if row.less_base is not None]
    corrected = iter(statistics.holm([difference.p for difference in tested]))
    return [_corrected(row, next(corrected)) if row.less_base is not None else row for row in found]


def names(records: Records) -> list[str]:
    """The arms that run, the base first."""
    return [records.base, *(arm.name for arm in records.arms if arm.refused is None and arm.name != records.base)]


def _row(records: Records, results: Sequence[Result], scores: Scores, arm: str, env: str) -> Row:
    mine = [r for r in results if (r.run.arm, r.run.env) == (arm, env)]
    values, base = (scores.get((name, env), np.zeros(0)) for name in (arm, records.base))
    high = outcomes.better_high(records.metric)
    seconds = [r.run.seconds for r in mine if r.outcome == "finished" and r.run.seconds is not None]
    return Row(
        arm=arm,
        env=env,
        scores=values,
        failed=sum(r.outcome == "failed" for r in mine),
        open=sum(r.outcome == "open" for r in mine),
        mean=statistics.mean(values),
        iqm=statistics.iqm(values),
        less_base=None if arm == records.base else statistics.difference(values, base, higher_is_better=high),
        corrected=float("nan"),
        seconds=float(np.mean(seconds)) if seconds else None,
        steps=float(np.mean([r.budget for r in mine])) if mine else 0.0,
    )


def _corrected(row: Row, p: float) -> Row:
    return Row(**{**row.__dict__, "corrected": p})


def overall(found: Sequence[Row], scaled: Scores, base: str) -> list[Overall]:
    """Over the envs, each with equal weight for equal numbers of runs; intervals by the stratified bootstrap."""
    envs = list(dict.fromkeys(row.env for row in found))
    told = []
    for arm in dict.fromkeys(row.arm for row in found):
        mine = [scaled.get((arm, env), np.zeros(0)) for env in envs]
        others = [scaled.get((base, env), np.zeros(0)) for env in envs]
        less = None if arm == base else statistics.stratified_difference(mine, others)
        better = [row.less_base.improvement for row in found if row.arm == arm and row.less_base is not None]
        share = float(np.mean(better)) if better else float("nan")
        told.append(Overall(arm, sum(map(len, mine)), statistics.stratified_iqm(mine), less, share))
    return told


def spread(found: Sequence[Row], env: str) -> float:
    """The standard deviation over runs within an arm, pooled over the arms of an env."""
    within = [row.scores for row in found if row.env == env and row.n >= 2]
    freedom = sum(len(values) - 1 for values in within)
    return (
        float(np.sqrt(sum(values.var(ddof=1) * (len(values) - 1) for values in within) / freedom)) if freedom else 0.0
    )


def by_env(found: Sequence[Row]) -> Mapping[str, list[Row]]:
    """env -> its rows."""
    return {env: [row for row in found if row.env == env] for env in dict.fromkeys(row.env for row in found)}


def described(metric: Metric) -> str:
    """How a score is made, in words."""
    if metric.summary == "final":
        return f"{metric.name}, mean of the last {metric.last}" if metric.last > 1 else f"{metric.name}, the last one"
    if metric.summary == "auc":
        return f"{metric.name}, mean over the steps (area under the curve)"
    sign = "at least" if metric.higher_is_better else "at most"
    return f"steps until {metric.name} is {sign} {metric.threshold:g}"

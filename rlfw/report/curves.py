"""An arm's learning curve: its runs on common steps, their mean and its interval."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from rlfw.report.statistics import LEVEL

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.report.results import Result

POINTS = 200


@dataclass(frozen=True)
class Curve:
    """An arm on an env."""

    steps: np.ndarray  # [points]; empty where no run finished
    runs: np.ndarray  # [runs, points], interpolated between what a run logged
    failed: list[tuple[np.ndarray, np.ndarray]]  # steps and values of each failed run, as it logged them

    @property
    def mean(self) -> np.ndarray:
        return np.asarray(self.runs.mean(0))

    @property
    def low(self) -> np.ndarray:
        return self._tail(0)

    @property
    def high(self) -> np.ndarray:
        return self._tail(1)

    def _tail(self, side: int) -> np.ndarray:
        n = len(self.runs)
        if n < 2:
            return np.full_like(self.steps, np.nan)
        error = stats.sem(self.runs, axis=0)
        return np.asarray(self.mean + error * stats.t.interval(LEVEL, n - 1)[side])


def of(arm: str, results: Sequence[Result]) -> Curve | None:
    """The curve of ``arm`` among one env's results, up to where the env's shortest finished run ends."""
    failed = [(r.steps, r.values) for r in results if r.run.arm == arm and r.outcome == "failed" and len(r.values)]
    mine = [_finite(r) for r in results if r.run.arm == arm and r.outcome == "finished"]
    mine = [(steps, values) for steps, values in mine if len(steps)]
    if not mine:
        return Curve(np.zeros(0), np.zeros((0, 0)), failed) if failed else None
    end = min(steps[-1] for r in results if r.outcome == "finished" and len(steps := _finite(r)[0]))
    start = min(max(steps[0] for steps, _ in mine), end)
    grid = np.linspace(start, end, POINTS)
    return Curve(grid, np.stack([np.interp(grid, *run) for run in mine]), failed)


def _finite(r: Result) -> tuple[np.ndarray, np.ndarray]:
    keep = np.isfinite(r.values)
    return r.steps[keep], r.values[keep]

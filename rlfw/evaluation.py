"""Evaluation: fresh episodes with seeds of their own, a mean and its interval; nothing of the training changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from rlfw.interfaces import Env, Policy
    from rlfw.seeding import Streams


@dataclass(frozen=True)
class Interval:
    """A mean over n episodes with its 95 % t-interval; no interval for a single one."""

    mean: float
    low: float
    high: float
    n: int

    @classmethod
    def of(cls, values: list[float]) -> Interval:
        x = np.asarray(values, dtype=float)
        mean, n = float(x.mean()), len(x)
        if n < 2:
            return cls(mean, float("nan"), float("nan"), n)
        half = float(stats.t.ppf(0.975, n - 1) * x.std(ddof=1) / np.sqrt(n))
        return cls(mean, mean - half, mean + half, n)


def evaluate(env: Env, policy: Policy, episodes: int, streams: Streams, *, greedy: bool = True) -> dict[str, Interval]:
    """Metric name -> interval over ``episodes`` episodes; the same seed plays the same episodes."""
    own = streams.child("evaluation")
    found = env.evaluate(policy.actor(own), episodes, own, greedy=greedy)
    return {name: Interval.of(values) for name, values in found.items()}

"""What a search goes by: one number an arm, made of the scores that a report of its runs shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from rlfw.report import results as outcomes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.report.results import Result
    from rlfw.study.records import Metric, Trial


def objectives(results: Sequence[Result], metric: Metric) -> dict[str, float]:
    """arm -> the mean of its runs' scores; over several envs the mean of these means, on normalised scores."""
    scores = outcomes.counted(list(results), metric)
    envs = list(dict.fromkeys(env for _, env in scores))
    if len(envs) > 1:
        scores = outcomes.normalized(scores, metric)
    arms = list(dict.fromkeys(arm for arm, _ in scores))
    whole = [arm for arm in arms if all(len(scores.get((arm, env), ())) for env in envs)]
    return {arm: float(np.mean([scores[arm, env].mean() for env in envs])) for arm in whole}


def high(metric: Metric, envs: int) -> bool:
    """Whether more of it is better; normalised scores are turned so that it is."""
    return envs > 1 or outcomes.better_high(metric)


def ranked(trials: Sequence[Trial], *, higher_is_better: bool) -> list[Trial]:
    """Those that have an objective, the best first; of equal ones the earlier."""
    told = [trial for trial in trials if trial.objective is not None]
    return sorted(told, key=lambda trial: trial.objective or 0.0, reverse=higher_is_better)

"""Of a grid: what a factor's level does on average over the others, and where two factors do not simply add up.

A linear model with one mean a cell, its errors as unequal as the cells' spreads (HC2, which for a cell mean is its own
standard error); every effect is a contrast of cell means, each cell with equal weight whatever its runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations, product
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.report import statistics
from rlfw.report.statistics import Estimate

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlfw.report.arms import Scores
    from rlfw.study.records import Records

Cell = tuple[tuple[str, ...], str]  # a level of each factor, and the env
ENOUGH = 2  # runs a cell, without which it has no spread


@dataclass(frozen=True)
class Effect:
    """A contrast of cell means."""

    name: str
    against: str
    by: Estimate
    p: float
    corrected: float  # after Holm, over all effects of the page
    settings: int  # of the other factors and envs, over which it is the average


@dataclass(frozen=True)
class Effects:
    """What the factors do."""

    main: list[Effect]
    interactions: list[Effect]
    left_out: list[str]  # cells with too few runs


def effects(records: Records, scores: Scores) -> Effects | None:
    """None where the arms are no grid of two factors or more, or no two cells can be compared."""
    if len(records.factors) < 2:
        return None
    cells = _cells(records, scores)
    enough = {cell: values for cell, values in cells.items() if len(values) >= ENOUGH}
    left_out = [" ".join([*levels, f"on {env}"]) for levels, env in cells.keys() - enough.keys()]
    if len(enough) < 2 or sum(map(np.ptp, enough.values())) == 0:
        return None
    model = _Model(enough)
    words = [[f"{key}={level}" for level in levels] for key, levels in records.factors.items()]
    main = [model.main(f, level, levels[0]) for f, levels in enumerate(words) for level in levels[1:]]
    crossed = [
        model.interaction((f, a, words[f][0]), (g, b, words[g][0]))
        for f, g in combinations(range(len(words)), 2)
        for a, b in product(words[f][1:], words[g][1:])
    ]
    found = [effect for effect in [*main, *crossed] if effect is not None]
    if not found:
        return None
    corrected = dict(zip([effect.name for effect in found], statistics.holm([e.p for e in found]), strict=True))
    told = [Effect(**{**effect.__dict__, "corrected": corrected[effect.name]}) for effect in found]
    firsts = sum(effect is not None for effect in main)
    return Effects(told[:firsts], told[firsts:], sorted(left_out))


def _cells(records: Records, scores: Scores) -> dict[Cell, np.ndarray]:
    envs = dict.fromkeys(run.env for run in records.runs)
    levels = {}
    for arm in records.arms:
        if arm.refused is None:
            chosen = [
                next((f"{key}={level}" for level in several if f"{key}={level}" in arm.words), "")
                for key, several in records.factors.items()
            ]
            levels[arm.name] = tuple(chosen)
    return {(mine, env): scores.get((arm, env), np.zeros(0)) for arm, mine in levels.items() for env in envs}


class _Model:
    """The cell means and their covariance."""

    def __init__(self, cells: Mapping[Cell, np.ndarray]) -> None:
        from statsmodels.api import OLS

        self.place = {cell: number for number, cell in enumerate(cells)}
        y = np.concatenate(list(cells.values()))
        sizes = [len(values) for values in cells.values()]
        design = np.repeat(np.eye(len(cells)), sizes, axis=0)  # [runs, cells]
        self.fit: Any = OLS(y, design).fit(cov_type="HC2", use_t=True)

    def main(self, factor: int, level: str, reference: str) -> Effect | None:
        pairs = [
            (cell, _with(cell, factor, reference))
            for cell in self.place
            if cell[0][factor] == level and _with(cell, factor, reference) in self.place
        ]
        return self._effect(level, f"against {reference}", [({a: 1.0, b: -1.0}) for a, b in pairs])

    def interaction(self, first: tuple[int, str, str], second: tuple[int, str, str]) -> Effect | None:
        (f, a, r), (g, b, s) = first, second
        squares = []
        for cell in self.place:
            if cell[0][f] == a and cell[0][g] == b:
                corners = [cell, _with(cell, f, r), _with(cell, g, s), _with(_with(cell, f, r), g, s)]
                if all(corner in self.place for corner in corners):
                    squares.append(dict(zip(corners, (1.0, -1.0, -1.0, 1.0), strict=True)))
        return self._effect(f"{a} × {b}", "beyond the sum of the two", squares)

    def _effect(self, name: str, against: str, contrasts: Sequence[Mapping[Cell, float]]) -> Effect | None:
        if not contrasts:
            return None
        weights = np.zeros(len(self.place))
        for contrast in contrasts:
            for cell, weight in contrast.items():
                weights[self.place[cell]] += weight / len(contrasts)
        test = self.fit.t_test(weights)
        low, high = np.ravel(test.conf_int(1 - statistics.LEVEL))
        by = Estimate(float(np.squeeze(test.effect)), float(low), float(high))
        return Effect(name, against, by, float(np.squeeze(test.pvalue)), float("nan"), len(contrasts))


def _with(cell: Cell, factor: int, level: str) -> Cell:
    levels, env = cell
    return (*levels[:factor], level, *levels[factor + 1 :]), env

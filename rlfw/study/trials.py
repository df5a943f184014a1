"""The trials of a search as arms: drawn, composed, written down, and composed again when the search goes on."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

from rlfw import config, registry
from rlfw.errors import UserError
from rlfw.report.objective import high, objectives, ranked
from rlfw.study import index, sampler, space
from rlfw.study.arms import Draft, completed
from rlfw.study.plan import Composer, Plan, last_of_each
from rlfw.study.records import Arm, Searched, Trial, read_search
from rlfw.study.sampler import Tried
from rlfw.study.settings import differences, identity

if TYPE_CHECKING:
    from pathlib import Path

    from rlfw.report.results import Result
    from rlfw.study.declaration import Study
    from rlfw.study.plan import Cell, Run
    from rlfw.study.space import Search

FIRST_SEED = 1000  # of a search's runs: the seeds 0, 1, ... of any other study are fresh to what it finds
REFUSED = 20  # proposals in a row that no composition is made of, after which a search gives up
BASE = "base"


@dataclass
class Trials:
    """What a search has tried so far; the base comes first."""

    study: Study
    first: list[str]  # the word that names the declaration's own experiment
    words: list[str]  # of the command line
    found: list[Trial] = field(default_factory=list)
    cells: dict[str, list[Cell]] = field(default_factory=dict)  # arm -> its compositions
    results: list[Result] = field(default_factory=list)  # of the runs that ended
    importance: dict[str, float] = field(default_factory=dict)
    exhausted: bool = False  # no point is left that was not proposed

    def __post_init__(self) -> None:
        self.composer = Composer(self.study, self.first)
        config.prepare_for([*self.study.base, *self.first])
        self.space = space.typed(self.search.space)

    @property
    def search(self) -> Search:
        assert self.study.search is not None
        return self.study.search

    @property
    def running(self) -> list[Trial]:
        """The trials that run; the base is none."""
        return [trial for trial in self.found[1:] if trial.refused is None]

    @property
    def log(self) -> Searched:
        """What is written down."""
        return Searched(self.words, self.importance, self.found)

    @property
    def high(self) -> bool:
        """Whether a higher objective is better."""
        return high(self.study.metric, len(self.study.envs))

    # ------------------------------------------------------------------------------------------------ one by one

    def extend(self, trials: int) -> bool:
        """Propose up to the end of a batch, or until ``trials`` run; whether there is anything new.

        A proposal knows the results of the batches before its own, whatever else has ended meanwhile: a search that
        is cut, or has other workers, proposes the same.
        """
        before = len(self.found)
        if not self.found:
            self._add(Draft(BASE, []), {})
            if self.found[0].refused is not None:
                raise UserError(f"study.base: {self.found[0].refused}")
            self._check_space()
        batch = self.search.batch
        end = min(trials, (len(self.running) // batch + 1) * batch)
        while len(self.running) < end and not self.exhausted:
            self._check_refused()
            tried = self._tried(len(self.running) // batch * batch)
            point = sampler.propose(self.space, self.search.sampler, tried, higher_is_better=self.high)
            self.exhausted = point is None
            if point is not None:
                words = space.words(point)
                self._add(completed(self.study, " ".join(words), words), point)
        if not self.running:
            raise UserError(f"study.space: no point of it can run, the first because: {self.found[1].refused}")
        return len(self.found) > before

    def _add(self, draft: Draft, point: dict[str, Any]) -> None:
        cells, refused = self.composer(draft)
        self.cells[draft.name] = cells
        named = [identity(cell.cfg) for cell in cells]
        self.found.append(Trial(len(self.found), draft.name, point, draft.words, refused, named))

    def _tried(self, told: int) -> list[Tried]:
        """All points as the sampler sees them, where the first ``told`` that run have been told."""
        seen = {trial.arm for trial in self.running[:told]}
        scores = objectives([r for r in self.results if r.run.arm in {*seen, BASE}], self.study.metric)
        return [
            Tried(
                trial.params,
                "refused" if trial.refused is not None else "told" if trial.arm in seen else "pending",
                scores.get(trial.arm),
            )
            for trial in self.found[1:]
        ]

    def _check_refused(self) -> None:
        last = self.found[1:][-REFUSED:]
        if len(last) == REFUSED and all(trial.refused is not None for trial in last):
            raise UserError(
                f"study.space: of {len(self.found) - 1} points drawn the last {REFUSED} are refused, the first of them "
                f"({last[0].arm}) because: {last[0].refused}"
            )

    def _check_space(self) -> None:
        """UserError for a key, a bound or a choice that no composition of the base takes."""
        for rule in (*map(str.split, self.study.coupled), *self.study.skip):
            for word in rule:
                key, _, level = word.partition("=")
                levels = self.space.get(key, [])
                if isinstance(levels, list) and level not in levels:
                    raise UserError(f"study.with and study.skip: {word} is no choice of study.space")
        base = [*self.study.base, *self.first, *self.study.envs[0].words]
        composed = self.cells[BASE][0].cfg
        for key, levels in self.space.items():
            axis, *rest = key.split(".")
            # Where the part is one of the choices, the key waits for it; else it must be the base's.
            waits = axis in self.space and bool(rest) and axis in registry.AXES and rest[0] not in composed[axis]
            for value in levels if isinstance(levels, list) else (levels.low, levels.high):
                words = [*([f"{axis}={rest[0]}"] if waits else []), *space.words({key: value})]
                try:
                    config.compose(last_of_each([*base, *words]))
                except UserError as error:
                    raise UserError(f"study.space.{key}: {error}") from error

    # ------------------------------------------------------------------------------------------------ the folder

    def read(self, folder: Path) -> None:
        """Take up what another call, or another runner, has written down; UserError where it is something else."""
        for trial in read_search(folder).trials[len(self.found) :]:
            if trial.refused is None:
                self.cells[trial.arm], refused = self.composer(Draft(trial.arm, trial.words))
                if (
                    refused is not None
                    or [identity(cell.cfg) for cell in self.cells[trial.arm]] != trial.configurations
                ):
                    raise UserError(
                        f"{folder} holds trials of another configuration: the base, a preset or a plugin has changed "
                        "since; name a fresh folder"
                    )
            self.found.append(trial)

    def write(self, folder: Path) -> None:
        """Write them down."""
        index.write(folder / "search.json", json.dumps(asdict(self.log), indent=1) + "\n")

    def plan(self) -> Plan:
        """As any study has it."""
        known = {arm: cells[0].cfg for arm, cells in self.cells.items() if cells}
        base = next(iter(known))
        arms = [
            Arm(t.arm, t.words, {} if t.refused is not None else differences(known[base], known[t.arm]), t.refused)
            for t in self.found
        ]
        return Plan(arms, [cell for trial in self.found if trial.refused is None for cell in self.cells[trial.arm]])

    def runs(self, seeds: int) -> list[Run]:
        """Of all trials, a seed after the other."""
        cells = self.plan().cells
        return [cell.run(FIRST_SEED + seed) for seed in range(seeds) for cell in cells]

    def tell(self, results: list[Result], seeds: int) -> None:
        """What the runs have reached and each trial has taken. Seeds beyond ``seeds`` count once they are done."""
        asked = range(FIRST_SEED, FIRST_SEED + seeds)
        self.results = results = [r for r in results if r.outcome != "open" or r.run.seed in asked]
        scores = objectives(results, self.study.metric)
        found = []
        for trial in self.found:
            mine = [r for r in results if r.run.arm == trial.arm]
            ended = [r for r in mine if r.outcome in ("finished", "failed")]
            budget: dict[str, Any] = {
                "runs": len(ended),
                "failed": sum(r.outcome == "failed" for r in ended),
                "steps": sum(r.budget for r in mine),
                "seconds": round(sum(r.run.seconds or 0.0 for r in mine), 2),
            }
            whole = bool(ended) and len(ended) == len(mine)
            found.append(replace(trial, objective=scores.get(trial.arm) if whole else None, **budget))
        self.found = found
        told = self._tried(len(self.running))
        self.importance = sampler.importance(self.space, told, higher_is_better=self.high)

    # ------------------------------------------------------------------------------------------------ the outcome

    @property
    def ranked(self) -> list[Trial]:
        """The trials that have an objective, the best first; the base is none."""
        return ranked(self.found[1:], higher_is_better=self.high)

    def best(self) -> Trial | None:
        """The first of them; None before there is one."""
        return next(iter(self.ranked), None)

    def beats_base(self, trial: Trial) -> bool:
        """Whether its objective is better than the base's."""
        return ranked([self.found[0], trial], higher_is_better=self.high)[0] is trial

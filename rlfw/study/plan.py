"""From a declaration to runs: every arm is composed and checked as the trainer would, before any time is spent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlfw import config, trust
from rlfw.errors import UserError
from rlfw.study import arms as declared
from rlfw.study import declaration
from rlfw.study.check import Check
from rlfw.study.records import Arm
from rlfw.study.settings import differences, identity

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

    from rlfw.study.arms import Draft
    from rlfw.study.declaration import Env, Study


@dataclass(frozen=True)
class Run:
    """One process: an arm on an env with a seed."""

    name: str  # the hash of its configuration, and its folder's name
    arm: str
    env: str
    seed: int
    words: list[str]  # as for rlfw train, but for its folder
    again: list[str]  # of these, what a run that goes on must be told anew


@dataclass(frozen=True)
class Cell:
    """An arm on an env."""

    arm: str
    env: str
    words: list[str]
    cfg: DictConfig

    def run(self, seed: int) -> Run:
        cfg = self.cfg.copy()
        cfg.seed = seed
        return Run(identity(cfg), self.arm, self.env, seed, [*self.words, f"seed={seed}"], _again(self.words))


@dataclass(frozen=True)
class Plan:
    """The arms with their differences, and what runs."""

    arms: list[Arm]
    cells: list[Cell]

    def runs(self, seeds: int) -> list[Run]:
        """All of them, a seed after the other, so that a study that is cut compares its arms fairly."""
        return [cell.run(seed) for seed in range(seeds) for cell in self.cells]


def plan(study: Study, experiment: str | None) -> Plan:
    """``experiment``: the word that names the file's own experiment, if it has one.

    An arm that is refused on one env is refused: the arms are compared on the same envs. Of equal compositions the
    first runs. UserError where nothing is left, or where no run would log the metric.
    """
    first = [] if experiment is None else [experiment]
    arms: list[Arm] = []
    cells: list[Cell] = []
    composer = Composer(study, first)
    for draft in declared.drafts(study):
        composed, reason = composer(draft)
        arms.append(Arm(draft.name, draft.words, {}, reason))
        cells += composed
    if not cells:
        raise UserError("no arm can run:" + "".join(f" {arm.name}: {arm.refused};" for arm in arms).rstrip(";"))
    return Plan(_told_apart(study, arms, cells, first), cells)


class Composer:
    """Composes the arms of a study and checks them, one after the other."""

    def __init__(self, study: Study, first: list[str]) -> None:
        self.study, self.first = study, first
        self._check = Check()
        self._equal: dict[tuple[str, ...], str] = {}  # the hashes of an arm's compositions -> its name

    def __call__(self, draft: Draft) -> tuple[list[Cell], str | None]:
        """The arm on each env; or none, and why it does not run."""
        if draft.skipped is not None:
            return [], draft.skipped
        study = self.study
        declaration.check_words(draft.name, draft.words)
        cells, reason = self._compose(draft)
        if reason is not None:
            return [], reason
        _check_metric(study, cells[0].cfg)
        same = tuple(identity(cell.cfg) for cell in cells)
        if same in self._equal:
            return [], f"the same composition as {self._equal[same]}"
        self._equal[same] = draft.name
        return cells, None

    def _compose(self, draft: Draft) -> tuple[list[Cell], str | None]:
        """The arm on each env, or why it is refused; UserError where it would run code that a file alone names."""
        envs, cells = self.study.envs, []
        for env in envs:
            words = last_of_each([*self.study.base, *self.first, *env.words, *draft.words, "progress=false"])
            try:
                cfg = config.compose(words)
            except UserError as error:
                return [], _reason(error, env, envs)
            trust.check_named(cfg, config.typed_overrides(self.study.typed))
            try:
                self._check(cfg, words)
            except UserError as error:
                return [], _reason(error, env, envs)
            cells.append(Cell(draft.name, env.name, words, cfg))
        return cells, None


def _reason(error: UserError, env: Env, envs: Sequence[Env]) -> str:
    return str(error) if len(envs) == 1 else f"{env.name}: {error}"


def last_of_each(words: Sequence[str]) -> list[str]:
    """The words, of those with one key the last alone: an arm's word stands for the base's."""
    return list({word.partition("=")[0]: word for word in words}.values())


def _check_metric(study: Study, cfg: DictConfig) -> None:
    beside = {"curves": study.curves, "against": [name for pair in study.against for name in pair]}
    for key, names in {"metric.name": [study.metric.name], **beside}.items():
        for name in names:
            if name.startswith("eval/") and not cfg.evaluation.every:
                raise UserError(
                    f"study.{key}: {name} is measured by evaluations and there are none: add evaluation.every=N to "
                    "the base"
                )


def _told_apart(study: Study, arms: list[Arm], cells: list[Cell], first: list[str]) -> list[Arm]:
    """The arms with their differences from the one that is the base, or else from the first that runs."""
    env = study.envs[0]
    known = {cell.arm: cell.cfg for cell in cells if cell.env == env.name}
    base = next(iter(known))
    if study.mode in ("grid", "arms"):
        words = last_of_each([*study.base, *first, *env.words, "progress=false"])
        try:
            plain = identity(config.compose(words))
        except UserError:
            plain = ""  # the base alone is no composition: its arms complete it
        base = next((arm for arm, cfg in known.items() if identity(cfg) == plain), base)
    return [
        Arm(arm.name, arm.words, differences(known[base], known[arm.name]) if arm.name in known else {}, arm.refused)
        for arm in arms
    ]


def _again(words: Sequence[str]) -> list[str]:
    """Plugins, and modules to import: no saved configuration may name them alone."""
    typed = config.typed_overrides(words)
    return [
        word
        for word, (key, value) in zip(words, typed, strict=True)
        if key == "plugins" or (isinstance(value, str) and ":" in value)
    ]

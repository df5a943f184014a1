"""From a declaration to its arms: a name, the words over the base, and whether the declaration itself skips it."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from rlfw.errors import UserError

if TYPE_CHECKING:
    from rlfw.study.declaration import Study


@dataclass(frozen=True)
class Draft:
    """An arm before it is composed."""

    name: str
    words: list[str]
    skipped: str | None = None


def drafts(study: Study) -> list[Draft]:
    """Every arm of the study, in the order of its declaration.

    grid           every combination of levels
    one_at_a_time  base, then each level of each factor alone
    leave_one_out  all (the base with every factor's level), then all without one factor
    arms           as they are named
    """
    found = [completed(study, name, words) for name, words in _MODES[study.mode](study)]
    _check_used(study, found)
    return found


def _grid(study: Study) -> list[tuple[str, list[str]]]:
    cells = product(*([f"{key}={level}" for level in levels] for key, levels in study.factors.items()))
    return [(" ".join(words), list(words)) for words in cells]


def _one_at_a_time(study: Study) -> list[tuple[str, list[str]]]:
    words = [f"{key}={level}" for key, levels in study.factors.items() for level in levels]
    return [("base", []), *((word, [word]) for word in words)]


def _leave_one_out(study: Study) -> list[tuple[str, list[str]]]:
    words = [f"{key}={level}" for key, (level,) in study.factors.items()]
    return [("all", words), *((f"without {out}", [word for word in words if word != out]) for out in words)]


def _arms(study: Study) -> list[tuple[str, list[str]]]:
    return list(study.arms.items())


_MODES = {"grid": _grid, "one_at_a_time": _one_at_a_time, "leave_one_out": _leave_one_out, "arms": _arms}


def completed(study: Study, name: str, words: list[str]) -> Draft:
    """With the words that come along, and the reason to skip it if there is one."""
    along = [word for chosen, more in study.coupled.items() if set(chosen.split()) <= set(words) for word in more]
    skipped = next((rule for rule in study.skip if set(rule) <= set(words)), None)
    # A factor's own word comes last: what comes along gives way to it.
    return Draft(name, [*along, *words], None if skipped is None else f"the declaration skips {' '.join(skipped)}")


def _check_used(study: Study, found: list[Draft]) -> None:
    """UserError for a constraint that meets no arm: a level was renamed, or there is a slip."""
    for chosen in study.coupled:
        if not any(set(chosen.split()) <= set(draft.words) for draft in found):
            raise UserError(f"study.with.{chosen} meets no arm: it reads factor=level as under factors")
    for rule in study.skip:
        if not any(set(rule) <= set(draft.words) for draft in found):
            raise UserError(f"study.skip: {' '.join(rule)} meets no arm: it reads factor=level as under factors")

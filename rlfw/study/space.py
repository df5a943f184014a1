"""What a search varies: for each key a range or a list of choices; how many trials; how they are chosen."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw import registry
from rlfw.errors import UserError
from rlfw.registry import suggest
from rlfw.schema import root_keys
from rlfw.study import declaration
from rlfw.study.settings import APART

if TYPE_CHECKING:
    from collections.abc import Mapping

SAMPLERS = ("tpe", "random")
RANGE = ("low", "high", "step", "log")
FINE = 3  # digits of a value that is drawn: 0.00123 in a range of logarithms, a thousandth of any other range
SLACK = 1e-9  # of a step, by which rounding may miss


@dataclass(frozen=True)
class Range:
    """Numbers between two others, these included."""

    low: float
    high: float
    step: float | None = None
    log: bool = False

    @property
    def whole(self) -> bool:
        """Whether it holds whole numbers alone."""
        return all(isinstance(x, int) for x in (self.low, self.high, self.step or 1))

    def rounded(self, value: float) -> float:
        """A number that was drawn, with no more digits than are told apart."""
        if self.whole:
            return int(value)
        if self.step is not None:
            return float(f"{value:.12g}")  # 0.1 + 2 * 0.1 reads 0.3
        digits = FINE - math.floor(math.log10(self.high - self.low))
        near = float(f"{value:.{FINE}g}") if self.log else round(value, digits)
        return min(max(near, self.low), self.high)


Space = dict[str, Range | list[str]]  # key -> what it takes; choices are words of the command line


@dataclass(frozen=True)
class Search:
    """The part of a declaration that mode: search has of its own."""

    space: Space
    trials: int
    batch: int  # trials that are proposed at once; each knows the results of the batches before its own
    sampler: str


def read(at: str, body: Mapping[str, Any]) -> Search:
    """The search that a declaration's ``body`` describes; UserError with the key for whatever cannot be one."""
    for name in ("space", "trials"):
        if name not in body:
            raise UserError(f"{at}.{name} is missing: mode: search varies the keys under space in so many trials")
    for name in ("factors", "arms"):
        if body.get(name):
            raise UserError(f"{at}.{name} has no effect with mode: search; a search draws its arms from space")
    sampler = body.get("sampler", "tpe")
    if sampler not in SAMPLERS:
        raise UserError(f"{at}.sampler: {sampler}: no such sampler{suggest(str(sampler), SAMPLERS)}")
    found = body["space"]
    if not isinstance(found, dict) or not found:
        raise UserError(f"{at}.space takes keys, each with {{low, high}} or a list of choices, not {found!r}")
    space = {str(key): _levels(f"{at}.space.{key}", str(key), levels) for key, levels in found.items()}
    return Search(
        space=space,
        trials=declaration.count(f"{at}.trials", body["trials"]),
        batch=declaration.count(f"{at}.batch", body.get("batch", 4)),
        sampler=sampler,
    )


def typed(space: Space) -> Space:
    """With the types of the keys: whole bounds of a key that takes any number are no whole numbers."""
    found: Space = {}
    for key, levels in space.items():
        if isinstance(levels, Range) and levels.whole and _takes_any_number(key):
            step = None if levels.step is None else float(levels.step)
            levels = Range(float(levels.low), float(levels.high), step, levels.log)
        found[key] = levels
    return found


def size(space: Space) -> float:
    """How many points it has; infinity where a range has no steps."""
    return math.prod(map(_size, space.values()))


def words(params: Mapping[str, Any]) -> list[str]:
    """The words that make a point of the space. A key of a part that the point does not choose is left out."""
    return [f"{key}={declaration.written(value)}" for key, value in params.items() if not _waits(key, params)]


def _waits(key: str, params: Mapping[str, Any]) -> bool:
    axis, *rest = key.split(".")
    if axis not in params or not rest or axis not in registry.AXES:
        return False
    chosen = str(params[axis]).strip("[]").split(",")
    return rest[0] not in [part for word in chosen for part in registry.aliases(axis).get(word, [word])]


def described(levels: Range | list[str]) -> str:
    """For a person."""
    if isinstance(levels, list):
        return " | ".join(levels)
    how = " on a log scale" * levels.log + (f" in steps of {levels.step:g}" if levels.step is not None else "")
    return f"{declaration.written(levels.low)} to {declaration.written(levels.high)}{how}"


def _size(levels: Range | list[str]) -> float:
    if isinstance(levels, list):
        return len(levels)
    if levels.step is None and not levels.whole:
        return math.inf
    return round((levels.high - levels.low) / (levels.step or 1)) + 1


def _levels(at: str, key: str, levels: Any) -> Range | list[str]:
    if key.split(".")[0] in APART and key not in declaration.OWN:
        raise UserError(f"{at}: nothing that is learned depends on it")
    if key == "env":
        raise UserError(f"{at}: trials are compared on the same envs: list them under envs")
    if isinstance(levels, dict):
        found = _range(at, levels)
        declaration.check_words(at, words({key: found.low}))
        return found
    if not isinstance(levels, list) or len(levels) < 2:
        raise UserError(f"{at} takes {{low: A, high: B}} or a list of at least two choices, not {levels!r}")
    choices = [declaration.written(level) for level in levels]
    if twice := [word for word, times in Counter(choices).items() if times > 1]:
        raise UserError(f"{at} lists {twice[0]} twice")
    declaration.check_words(at, [f"{key}={choice}" for choice in choices])
    return choices


def _range(at: str, found: Mapping[str, Any]) -> Range:
    for name in found:
        if name not in RANGE:
            raise UserError(f"{at}.{name}: no such key{suggest(str(name), RANGE)}")
    for name in ("low", "high"):
        if name not in found:
            raise UserError(f"{at}.{name} is missing: a range reads {{low: A, high: B}}, with log: true or step: S")
    low, high = (_number(f"{at}.{name}", found[name]) for name in ("low", "high"))
    step = None if found.get("step") is None else _number(f"{at}.step", found["step"])
    log = found.get("log", False)
    if not isinstance(log, bool):
        raise UserError(f"{at}.log: {log}: true or false")
    if low >= high:
        raise UserError(f"{at}: low: {low} is not below high: {high}")
    if log and low <= 0:
        raise UserError(f"{at}: low: {low} has no logarithm: with log: true it must be above 0")
    if log and step is not None:
        raise UserError(f"{at}.step has no effect with log: true; keep one of them, or list the choices")
    if step is not None and (step <= 0 or abs((high - low) / step - round((high - low) / step)) > SLACK / step):
        raise UserError(f"{at}: no number of steps of {step} leads from low: {low} to high: {high}")
    return Range(low, high, step, log)


def _number(at: str, found: Any) -> float:
    try:
        number = float(found) if isinstance(found, str) else found  # YAML takes 1e-4, without a dot, for a text
    except ValueError:
        number = None
    if isinstance(number, bool) or not isinstance(number, int | float) or not math.isfinite(number):
        raise UserError(f"{at}: {found}: it must be a number")
    return number


def _takes_any_number(key: str) -> bool:
    head, *rest = key.split(".")
    if head not in registry.AXES:
        return isinstance({name: default for name, default, _ in root_keys()}.get(key), float)
    if len(rest) != 2 or rest[0] not in registry.names(head):
        return False
    return "float" in registry.entry(head, rest[0]).keys.get(rest[1], ("", None))[0]

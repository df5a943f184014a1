"""The user's reward functions: plain Python, every value checked where it enters.

B completions   F functions
"""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from rlfw.errors import RunError, UserError
from rlfw.registry import suggest

from .calling import Call, Caller, CallFailed
from .reward_signature import Given, Signature, given

if TYPE_CHECKING:
    from rlfw.interfaces import Completions

    from .text import Example

RewardFunction = Callable[..., Any]


class RewardFunctions:
    """Named functions and their weights."""

    def __init__(
        self,
        functions: Any,
        weights: Mapping[str, float],
        example: Example,
        source: str,
        workers: int,
        timeout: float | None,
    ) -> None:
        """``functions``: one, several, or by name. ``example``: what they may ask for. ``source``: who, in errors.

        ``workers`` calls run at a time, each for at most ``timeout`` seconds.
        """
        self.source = source
        self.functions = _named(functions, source)
        self.weights = {**dict.fromkeys(self.functions, 1.0), **_known(weights, self.functions, source)}
        self.signatures = {name: Signature.of(f, name, example, source) for name, f in self.functions.items()}
        self.call = Caller(_workers(workers, source), _timeout(timeout, source))

    def check(self) -> None:
        """UserError where there are none, which is enough for what needs no reward."""
        if not self.functions:
            raise UserError(f"{self.source} has no reward function")

    def __call__(self, examples: Sequence[Example], written: Completions) -> tuple[dict[str, Tensor], Tensor]:
        """Each function's values [B], NaN where it gave none, and their weighted sum [B], NaN where none gave any."""
        self.check()
        there = given(examples, written)
        found = self._values(there)
        scores = {name: _checked(values, f"{self.source}: the reward function {name}", there) for name, values in found}
        values = torch.stack(list(scores.values()))  # [F, B]
        weights = torch.tensor(list(self.weights.values()), dtype=values.dtype)[:, None]
        total = (weights * values).nansum(0)
        return scores, total.where(values.isfinite().any(0), torch.nan)

    def close(self) -> None:
        self.call.close()

    def _values(self, there: Given) -> list[tuple[str, Any]]:
        """Name and values of each function: whatever it returned, or a list where it is called once a completion."""
        everything, num = slice(None), len(there["completions"])
        asked = [
            (name, rows)
            for name, signature in self.signatures.items()
            for rows in (range(num) if signature.single else [everything])
        ]
        try:
            values = iter(self.call([self._call(name, there, rows) for name, rows in asked]))
        except CallFailed as failed:
            name, rows = asked[failed.number]
            if isinstance(rows, int):
                raise self._failure(name, failed.cause, sample(there, rows)) from failed
            raise self._failure_of_all(name, failed.cause, there) from failed
        return [
            (name, [next(values) for _ in range(num)] if signature.single else next(values))
            for name, signature in self.signatures.items()
        ]

    def _call(self, name: str, there: Given, rows: slice | int) -> Call:
        return Call(self.functions[name], self.signatures[name].arguments(there, rows))

    def _failure(self, name: str, cause: BaseException | None, whom: str) -> RunError:
        what = f"took longer than timeout={self.call.timeout} s" if cause is None else f"raised {cause!r}"
        return RunError(f"{self.source}: the reward function {name} {what} for {whom}")

    def _failure_of_all(self, name: str, cause: BaseException | None, there: Given) -> RunError:
        """With the sample that fails alone, where one does."""
        num = len(there["completions"])
        if cause is None:
            remedy = "one that takes prompt and completion has that time for each"
            return self._failure(name, cause, f"{num} completions together; {remedy}")
        for b in range(num):
            try:
                self.call([self._call(name, there, slice(b, b + 1))])
            except CallFailed as alone:
                return self._failure(name, alone.cause, sample(there, b))
        return self._failure(name, cause, f"{num} completions together")


def _checked(values: Any, source: str, there: Given) -> Tensor:
    """The values [B] of one reward function, checked one by one."""
    num = len(there["completions"])
    if isinstance(values, Tensor | np.ndarray):
        values = values.tolist()
    if isinstance(values, str) or not isinstance(values, Sequence):
        what = "None" if values is None else f"{type(values).__name__} {values!r:.80}"
        raise RunError(f"{source} returned {what}; it must return a list of {num} numbers")
    if len(values) != num:
        raise RunError(f"{source} returned {len(values)} values for {num} completions")
    return torch.tensor([_number(value, source, there, b) for b, value in enumerate(values)], dtype=torch.float64)


def _number(value: Any, source: str, there: Given, b: int) -> float:
    """NaN for no opinion; RunError for what is no number."""
    if value is None:
        return math.nan
    if not isinstance(value, numbers.Real | np.bool_) and not (isinstance(value, Tensor) and value.numel() == 1):
        raise RunError(f"{source} gave {value!r:.80} for {sample(there, b)}; it must be a number or None")
    number = float(value)
    if math.isinf(number):
        raise RunError(f"{source} gave {number} for {sample(there, b)}; a reward must be finite")
    return number


def sample(there: Given, b: int) -> str:
    return f"the completion {there['completions'][b]!r} of the prompt {there['prompts'][b]!r:.200}"


def _named(rewards: Any, source: str) -> dict[str, RewardFunction]:
    """Reward functions by name, one alone under its own."""
    if isinstance(rewards, Mapping):
        found = dict(rewards)
    else:
        several = list(rewards) if isinstance(rewards, Sequence) else [rewards]
        found = {_name(function): function for function in several}
        if len(found) < len(several):
            raise UserError(f"{source}: two reward functions share a name; give them as {{name: function}}")
    for name, function in found.items():
        if not callable(function):
            raise UserError(f"{source}: the reward function {name} is {function!r}, which cannot be called")
        if inspect.isclass(function):
            raise UserError(f"{source}: the reward function {name} is a class: give an object of it, {name}()")
        if name in ("score", "length"):
            raise UserError(f"{source}: a reward function cannot be called {name}, which is a metric of its own")
    return found


def _name(function: Any) -> str:
    name = getattr(function, "__name__", type(function).__name__)  # an object with __call__ has no name
    return "reward" if name == "<lambda>" else str(name)


def _known(weights: Mapping[str, float], functions: Mapping[str, Any], source: str) -> dict[str, float]:
    for name in weights:
        if name not in functions:
            raise UserError(f"{source}: a weight for the reward function {name}{suggest(name, functions)}")
        if not isinstance(weights[name], numbers.Real) or not math.isfinite(weights[name]):
            raise UserError(
                f"{source}: the weight of the reward function {name} is {weights[name]!r}, no finite number"
            )
    return {name: float(weight) for name, weight in weights.items()}


def _workers(workers: int, source: str) -> int:
    if workers < 1:
        raise UserError(f"{source}: workers={workers}: it must be at least 1")
    return workers


def _timeout(timeout: float | None, source: str) -> float | None:
    if timeout is not None and not 0 < timeout < math.inf:
        raise UserError(f"{source}: timeout={timeout}: it is a number of seconds, or null for none")
    return timeout

"""The user's reward functions: plain Python, called on lists, every value checked where it enters.

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

if TYPE_CHECKING:
    from .text import Example

RewardFunction = Callable[..., Any]


class RewardFunctions:
    """Named functions and their weights."""

    def __init__(self, functions: Any, weights: Mapping[str, float], example: Example, source: str) -> None:
        """``functions``: one, several, or by name. ``example``: what they may ask for. ``source``: who, in errors."""
        self.source = source
        self.functions = _named(functions, source)
        self.weights = {**dict.fromkeys(self.functions, 1.0), **_known(weights, self.functions, source)}
        self.arguments = {name: _arguments(f, name, example, source) for name, f in self.functions.items()}

    def __call__(self, examples: list[Example], completions: list[str]) -> tuple[dict[str, Tensor], Tensor]:
        """Each function's values [B], NaN where it gave none, and their weighted sum [B], NaN where none gave any."""
        scores = {name: self._call(name, examples, completions) for name in self.functions}
        values = torch.stack(list(scores.values()))  # [F, B]
        weights = torch.tensor(list(self.weights.values()), dtype=values.dtype)[:, None]
        total = (weights * values).nansum(0)
        return scores, total.where(values.isfinite().any(0), torch.nan)

    def _call(self, name: str, examples: list[Example], completions: list[str]) -> Tensor:
        """The values [B] of one reward function, checked one by one."""

        def call(b: slice) -> Any:
            given, wanted = _given(examples[b], completions[b]), self.arguments[name]
            return self.functions[name](**{k: v for k, v in given.items() if wanted is None or k in wanted})

        source = f"{self.source}: the reward function {name}"
        try:
            values = call(slice(None))
        except (Exception, SystemExit) as error:
            for b, example in enumerate(examples):
                try:
                    call(slice(b, b + 1))
                except (Exception, SystemExit) as alone:
                    raise RunError(f"{source} raised {alone!r} for {_sample(example, completions[b])}") from alone
            raise RunError(f"{source} raised {error!r} for {len(examples)} completions together") from error
        if isinstance(values, Tensor | np.ndarray):
            values = values.tolist()
        if isinstance(values, str) or not isinstance(values, Sequence):
            what = "None" if values is None else f"{type(values).__name__} {values!r:.80}"
            raise RunError(f"{source} returned {what}; it must return a list of {len(examples)} numbers")
        if len(values) != len(examples):
            raise RunError(f"{source} returned {len(values)} values for {len(examples)} completions")
        return torch.tensor(
            [_number(v, source, e, c) for v, e, c in zip(values, examples, completions, strict=True)],
            dtype=torch.float64,
        )


def _given(examples: list[Example], completions: list[str]) -> dict[str, list[Any]]:
    """What reward functions may ask for, one entry a completion; answers only where the task has them."""
    given: dict[str, list[Any]] = {"prompts": [e.prompt for e in examples], "completions": completions}
    if any(e.answer is not None for e in examples):
        given["answers"] = [e.answer for e in examples]
    return given | {name: [e.columns[name] for e in examples] for name in examples[0].columns}


def _number(value: Any, source: str, example: Example, completion: str) -> float:
    """NaN for no opinion; RunError for what is no number."""
    if value is None:
        return math.nan
    if not isinstance(value, numbers.Real | np.bool_) and not (isinstance(value, Tensor) and value.numel() == 1):
        raise RunError(f"{source} gave {value!r:.80} for {_sample(example, completion)}; it must be a number or None")
    number = float(value)
    if math.isinf(number):
        raise RunError(f"{source} gave {number} for {_sample(example, completion)}; a reward must be finite")
    return number


def _sample(example: Example, completion: str) -> str:
    return f"the completion {completion!r} of the prompt {example.prompt!r:.200}"


def _named(rewards: Any, source: str) -> dict[str, RewardFunction]:
    """Reward functions by name, one alone under its own."""
    if isinstance(rewards, Mapping):
        found = dict(rewards)
    else:
        several = list(rewards) if isinstance(rewards, Sequence) else [rewards]
        found = {_name(function): function for function in several}
        if len(found) < len(several):
            raise UserError(f"{source}: two reward functions share a name; give them as {{name: function}}")
    if not found:
        raise UserError(f"{source} has no reward function")
    for name, function in found.items():
        if not callable(function):
            raise UserError(f"{source}: the reward function {name} is {function!r}, which cannot be called")
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


def _arguments(function: RewardFunction, name: str, example: Example, source: str) -> set[str] | None:
    """The keywords that a reward function takes; None: any. UserError where it asks for what there is not."""
    parameters = inspect.signature(function).parameters.values()
    offered = list(_given([example], [""]))
    for p in parameters:
        required = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
        if required and p.name not in offered:
            there = ", ".join(offered)
            raise UserError(f"{source}: the reward function {name} asks for {p.name}; there are {there}")
    if any(p.kind is p.VAR_KEYWORD for p in parameters):
        return None
    return {p.name for p in parameters}

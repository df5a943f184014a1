"""What a reward function is given: by the names of its parameters, for one completion or for all of them.

B completions
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rlfw.interfaces import Completions

    from .text import Example

# what a function of one completion names -> what a function of all of them names
ONE = {"prompt": "prompts", "completion": "completions", "answer": "answers"}
SINGULAR = {several: one for one, several in ONE.items()}
RESERVED = (*ONE, *SINGULAR, "ids", "finish")  # names that no column may have

Given = dict[str, list[Any]]  # name -> a value for each of B completions


def given(examples: Sequence[Example], written: Completions) -> Given:
    """All that reward functions may ask for. ``answers`` only where the task has them.

    ``ids`` are the tokens of a completion, the one that ended it included; ``finish`` is "stop" where the model ended
    by itself and "length" where it was cut.
    """
    lengths = written.mask.sum(1).tolist()
    found: Given = {
        "prompts": [e.prompt for e in examples],
        "completions": written.texts,
        "ids": [row[:length] for row, length in zip(written.ids.tolist(), lengths, strict=True)],
        "finish": ["stop" if ended else "length" for ended in written.ended.tolist()],
    }
    return found | _from_examples(examples)


def _from_examples(examples: Sequence[Example]) -> Given:
    answers = {"answers": [e.answer for e in examples]} if any(e.answer is not None for e in examples) else {}
    return answers | {name: [e.columns[name] for e in examples] for name in examples[0].columns}


@dataclass(frozen=True)
class Signature:
    """How a reward function is called: with which of what there is, and how often."""

    names: frozenset[str] | None  # None: with all there is
    single: bool  # once a completion, with a value each; else once, with lists

    @classmethod
    def of(cls, function: Callable[..., Any], name: str, example: Example, source: str) -> Signature:
        """UserError, naming ``source``, where it asks for what there is not."""
        at = f"{source}: the reward function {name}"
        if _yields(function):
            raise UserError(f"{at} yields; it returns its number, or the list of them")
        try:
            parameters = inspect.signature(function).parameters.values()
        except ValueError as error:  # some functions in C
            raise UserError(f"{at} has no signature to be called by: wrap it in a function of your own") from error
        own = {p.name for p in parameters}
        single = bool(own & ONE.keys())
        if single and (mixed := own & SINGULAR.keys()):
            raise UserError(
                f"{at} asks for {min(own & ONE.keys())} and {min(mixed)}: it is called once a completion with "
                "prompt, completion, answer, or once with the lists prompts, completions, answers"
            )
        offered = ["prompts", "completions", "ids", "finish", *_from_examples([example])]
        if single:
            offered = [SINGULAR.get(known, known) for known in offered]
        for p in parameters:
            required = p.default is p.empty and p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)
            if required and p.kind is p.POSITIONAL_ONLY:
                raise UserError(f"{at} takes {p.name} by position; it is called by keyword: take the / away")
            if required and p.name not in offered:
                raise UserError(f"{at} asks for {p.name}; there are {', '.join(offered)}")
        everything = any(p.kind is p.VAR_KEYWORD for p in parameters)
        if not everything and own.isdisjoint(offered):
            raise UserError(
                f"{at} asks for nothing that there is: name completion, completions or others of its inputs"
            )
        return cls(None if everything else frozenset(own), single)

    def arguments(self, given: Given, rows: slice | int) -> dict[str, Any]:
        """The keywords for the completions ``rows``, or for the one."""
        named = {SINGULAR.get(name, name) if self.single else name: values[rows] for name, values in given.items()}
        return {name: value for name, value in named.items() if self.names is None or name in self.names}


def _yields(function: Callable[..., Any]) -> bool:
    called = (function, type(function).__call__)
    return any(inspect.isgeneratorfunction(f) or inspect.isasyncgenfunction(f) for f in called)

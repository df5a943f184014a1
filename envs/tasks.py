"""Toy text tasks with exact checkers, small enough for a character model on one core."""

from __future__ import annotations

import string
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.registry import register, suggest
from rlfw.seeding import Streams  # noqa: TC001  the registry reads the annotations

from .text import Example, TextEnv, TextTask

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np


@dataclass(frozen=True)
class Sizes:
    """How large the examples are. Its defaults are those of the env's keys."""

    alphabet: str = "abcdefghij"
    min_length: int = 3  # letters of a word
    max_length: int = 5
    max_operand: int = 99

    def length(self, rng: np.random.Generator) -> int:
        return int(rng.integers(self.min_length, self.max_length + 1))

    def word(self, rng: np.random.Generator) -> str:
        return "".join(self.alphabet[i] for i in rng.integers(len(self.alphabet), size=self.length(rng)))


LETTERS = ("alphabet", "min_length", "max_length")


@dataclass(frozen=True)
class Kind:
    """A toy task."""

    draw: Callable[[np.random.Generator, Sizes], tuple[str, str]]  # -> prompt, answer
    keys: tuple[str, ...]  # the sizes that it reads
    characters: Callable[[Sizes], str]  # all that prompts and answers use
    longest: Callable[[Sizes], tuple[str, str]]  # a prompt and an answer as long as any


def _copy(rng: np.random.Generator, sizes: Sizes) -> tuple[str, str]:
    word = sizes.word(rng)
    return f"c:{word}=", word


def _reverse(rng: np.random.Generator, sizes: Sizes) -> tuple[str, str]:
    word = sizes.word(rng)
    return f"r:{word}=", word[::-1]


def _sort_letters(rng: np.random.Generator, sizes: Sizes) -> tuple[str, str]:
    word = sizes.word(rng)
    return f"s:{word}=", "".join(sorted(word))


def _count(rng: np.random.Generator, sizes: Sizes) -> tuple[str, str]:
    """How often a letter stands in a word: n:a,bacad= -> 2. Every count up to the word's length is as likely."""
    letter, *others = rng.permutation(list(sizes.alphabet)).tolist()
    length = sizes.length(rng)
    number = int(rng.integers(length + 1))
    word = [letter] * number + [others[i] for i in rng.integers(len(others), size=length - number)]
    return f"n:{letter},{''.join(rng.permutation(word))}=", str(number)


def _arithmetic(rng: np.random.Generator, sizes: Sizes) -> tuple[str, str]:
    a, b = (int(x) for x in rng.integers(sizes.max_operand + 1, size=2))
    return f"{a}+{b}=", str(a + b)


def _word(draw: Callable[[np.random.Generator, Sizes], tuple[str, str]], mark: str) -> Kind:
    """A task from a word to a word."""
    return Kind(
        draw,
        LETTERS,
        lambda sizes: f"{mark}:={sizes.alphabet}",
        lambda sizes: (f"{mark}:{'a' * sizes.max_length}=", "a" * sizes.max_length),
    )


KINDS = {
    "copy": _word(_copy, "c"),
    "reverse": _word(_reverse, "r"),
    "sort_letters": _word(_sort_letters, "s"),
    "count": Kind(
        _count,
        LETTERS,
        lambda sizes: f"n:,={sizes.alphabet}{string.digits}",
        lambda sizes: (f"n:a,{'a' * sizes.max_length}=", str(sizes.max_length)),
    ),
    "arithmetic": Kind(
        _arithmetic,
        ("max_operand",),
        lambda sizes: f"+={string.digits}",
        lambda sizes: (f"{sizes.max_operand}+{sizes.max_operand}=", str(2 * sizes.max_operand)),
    ),
}


def exact(completions: list[str], answers: list[str]) -> list[float]:
    """1 for the right answer, to the letter; else 0."""
    return [float(completion == answer) for completion, answer in zip(completions, answers, strict=True)]


class ToyTask(TextTask):
    """A mixture of toy tasks in equal parts, its examples drawn as it goes."""

    def __init__(self, names: list[str], sizes: Sizes, max_new_tokens: int | None = None) -> None:
        self.kinds, self.sizes = [KINDS[name] for name in names], sizes
        longest = [kind.longest(sizes) for kind in self.kinds]
        super().__init__(
            rewards=exact,
            max_new_tokens=max(len(answer) for _, answer in longest) + 2 if max_new_tokens is None else max_new_tokens,
            alphabet="".join(kind.characters(sizes) for kind in self.kinds),
            max_prompt_chars=max(len(prompt) for prompt, _ in longest),
        )

    def draw(self, rng: np.random.Generator) -> Example:
        return Example(*self.kinds[rng.integers(len(self.kinds))].draw(rng, self.sizes))


@register("env", "tasks")
def tasks(
    streams: Streams,
    *,
    names: list[str],
    alphabet: str = Sizes.alphabet,
    min_length: int = Sizes.min_length,
    max_length: int = Sizes.max_length,
    max_operand: int = Sizes.max_operand,
    max_new_tokens: int | None = None,
) -> TextEnv:
    """Toy tasks in equal parts: copy, reverse, sort_letters, count, arithmetic. The reward is 1 for the exact answer.

    ``names``: which. Words have ``min_length`` to ``max_length`` letters of ``alphabet``; sums have operands from 0 to
    ``max_operand``. ``max_new_tokens``: null for the longest answer, its end, and one to spare.
    """
    sizes = Sizes(alphabet, min_length, max_length, max_operand)
    _check(list(names), sizes)
    return TextEnv(streams, ToyTask(list(names), sizes, max_new_tokens), name="tasks")


def _check(names: list[str], sizes: Sizes) -> None:
    if not names:
        raise UserError(f"env.tasks.names is empty: choose of {', '.join(KINDS)}")
    for name in names:
        if name not in KINDS:
            raise UserError(f"env.tasks.names: there is no task {name}{suggest(name, KINDS)}")
    if len(set(names)) < len(names):
        raise UserError(f"env.tasks.names=[{','.join(names)}] names a task twice")
    read = {key for name in names for key in KINDS[name].keys}
    for key in Sizes.__dataclass_fields__:
        if key not in read and getattr(sizes, key) != getattr(Sizes, key):
            raise UserError(f"env.tasks.{key}={getattr(sizes, key)} has no effect on names=[{','.join(names)}]")
    at_least("env.tasks.min_length", sizes.min_length, 1)
    at_least("env.tasks.max_length", sizes.max_length, sizes.min_length)
    at_least("env.tasks.max_operand", sizes.max_operand, 0)
    letters = set(sizes.alphabet)
    if not 2 <= len(letters) == len(sizes.alphabet) or letters & set(":,="):
        raise UserError(f"env.tasks.alphabet={sizes.alphabet}: two or more characters, all different, none of : , =")

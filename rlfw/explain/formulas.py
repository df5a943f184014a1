"""The formulas of a composition: each part's with its numbers, the loss that they make, the symbols that occur."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.explain.recipes import shown
from rlfw.notation import SYMBOLS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rlfw.interfaces import Part


@dataclass(frozen=True)
class Line:
    """A line of mathematics, and which part wrote it."""

    text: str
    by: str = ""


def filled(formula: str, keys: Mapping[str, Any]) -> str:
    """The formula with the numbers of the configuration; a key that is null keeps its name."""
    return formula.format_map({key: key if value is None else shown(value) for key, value in keys.items()})


def clauses(formula: str) -> list[str]:
    """``S = a b, b = 2; loss + c`` -> its statements."""
    found: list[str] = []
    for piece in re.split(r";\s+|,\s+(?=[^\s,;()]+ [=←] |[^\s,;()]+, [^\s,;()]+ = )", formula):
        if found and re.fullmatch(r"\S+", found[-1]):  # the first of two names: k, λ = 2, 3
            piece = f"{found.pop()}, {piece}"
        found.append(piece)
    return found


def right(formula: str, left: str) -> str:
    """What stands behind ``left =`` in the first statement; all of it where ``left`` is another."""
    head = clauses(formula)[0]
    return head.removeprefix(f"{left} = ")


def product(factor: str, term: str) -> str:
    """``factor`` times ``term``, with brackets where they are needed."""
    return f"{factor}{term}" if _is_product(term) else f"{factor}({term})"


def _is_product(term: str) -> bool:
    """No sum and no case distinction outside of brackets."""
    outside = term
    while (inner := re.sub(r"\([^()]*\)|\[[^\[\]]*\]", "", outside)) != outside:
        outside = inner
    return re.search(r" [-+] | if | where |^-", outside) is None


def added(term: str) -> str:
    """``term`` as a further summand."""
    return f"- {term[1:].lstrip()}" if term.startswith("-") and _is_product(term[1:]) else f"+ {term}"


# The names in a symbol's entry: "i, t" explains i and t, "k3(d)" k3.
_HEADS = {name: entry for entry in SYMBOLS for name in re.sub(r"[(\[].*", "", entry).split(", ")}
_WORD = re.compile(r"k3\+|1(?=\[)|[^\W\d_]+\d*(?:_(?:[^\W\d_]+|\{[^}]*\}))?")


def symbols(texts: Iterable[str]) -> dict[str, str]:
    """The symbols that occur, in the order of rlfw/notation.py, with their meaning."""
    found: set[str] = set()
    while new := _entries(texts) - found:
        found |= new
        texts = [SYMBOLS[entry] for entry in new if "(" not in entry]
    return {entry: meaning for entry, meaning in SYMBOLS.items() if entry in found}


def _entries(texts: Iterable[str]) -> set[str]:
    names: list[str] = []
    text = re.sub(r"\w\u0302", "", " ".join(texts)).replace("Σᵢₜ", "i t")  # m̂ is no m
    for word in _WORD.findall(text):
        base, _, index = word.partition("_")
        names += [word] if word in _HEADS else [base, *re.findall(r"\b[^\W\d_]\b", index)]
    return {_HEADS[name] for name in names if name in _HEADS}


def sentence(part: Part) -> str:
    """The first sentence of a part's docstring."""
    return " ".join((type(part).__doc__ or "").split("\n\n")[0].split())

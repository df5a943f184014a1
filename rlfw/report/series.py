"""Columns of metrics.jsonl: only those that are asked for are read."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


RECENT = 20  # rows in which the last value of everything is looked for: not every row has every number


@dataclass(frozen=True)
class Log:
    """What a run logged. A row lacks what was not measured in its iteration."""

    columns: dict[str, np.ndarray]  # name -> [rows]; NaN where a row does not have it
    has: dict[str, np.ndarray]  # name -> [rows] bool; a NaN that was logged is one that a row has
    last: dict[str, float]  # the last of every number, as far as the last rows and evaluation tell
    broken: int  # lines that could not be read, the last one of a run that was killed among them


EMPTY = Log({}, {}, {}, 0)


def read(file: Path, names: Sequence[str]) -> Log:
    """The columns ``names`` of a run's metrics.jsonl: a flat object a line, as json.dumps writes it.

    A line is not parsed; each name is looked up in its bytes. That is four times as fast as json.loads and takes the
    NaN and Infinity that strict parsers refuse.
    """
    if not file.is_file():
        return EMPTY
    lines = file.read_bytes().split(b"\n")
    whole = [line for line in lines if line.endswith(b"}")]
    broken = sum(bool(line.strip()) for line in lines) - len(whole)
    columns, has = {}, {}
    for name in names:
        key = f"{json.dumps(name)}: ".encode()
        found = [_value(line, key) for line in whole]
        columns[name] = np.array([np.nan if value is None else value for value in found], dtype=float)
        has[name] = np.array([value is not None for value in found], dtype=bool)
    return Log(columns, has, _last(whole), broken)


def names(file: Path) -> list[str]:
    """The names that a run logged, as far as its last row and its last evaluation tell."""
    return list(read(file, ()).last)


def _value(line: bytes, key: bytes) -> float | None:
    start = line.find(key)
    if start < 0:
        return None
    start += len(key)
    end = line.find(b",", start)
    text = line[start : end if end >= 0 else -1]
    return float("nan") if text == b"null" else float(text)


def _last(lines: Sequence[bytes]) -> dict[str, float]:
    if not lines:
        return {}
    evaluated = next((line for line in reversed(lines) if b'"eval/' in line), b"{}")
    evaluation: dict[str, Any] = json.loads(evaluated)
    found = {name: value for name, value in evaluation.items() if name.startswith("eval/")}
    for line in lines[-RECENT:]:
        found |= json.loads(line)
    return found

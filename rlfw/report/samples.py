"""What a language model wrote, a few lines of each arm at the start, in the middle and at the end of a run.

As text that can be shown, never as markup or control codes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from itertools import takewhile
from typing import TYPE_CHECKING, Any

from rlfw.errors import printable
from rlfw.report.text import number

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path
    from typing import BinaryIO

    from rlfw.report.results import Result

SHOWN = 4
LONGEST = 300  # characters of a text
BLOCK = 65_536  # bytes of samples.jsonl that are read at once


@dataclass(frozen=True)
class Sample:
    """A prompt, what was written, and what it earned."""

    prompt: str
    completion: str
    reward: float | None
    scores: str  # each reward function's own value, where there are several


@dataclass(frozen=True)
class Stage:
    """Of one iteration."""

    iteration: int
    lines: list[Sample]


@dataclass(frozen=True)
class Samples:
    """Of one run."""

    arm: str
    env: str
    seed: int
    stages: list[Stage]

    @property
    def scored(self) -> bool:
        """Whether there are several reward functions."""
        return any(line.scores for stage in self.stages for line in stage.lines)


def read(results: Sequence[Result]) -> list[Samples]:
    """Of each arm and env the first seed that finished and kept samples: evenly spaced lines, good and bad alike."""
    found: dict[tuple[str, str], Samples] = {}
    for r in sorted(results, key=lambda r: r.run.seed):
        key = (r.run.arm, r.run.env)
        if r.outcome == "finished" and key not in found and (kept := stages(r.run.path / "samples.jsonl")):
            found[key] = Samples(*key, r.run.seed, kept)
    order = list(dict.fromkeys((r.run.arm, r.run.env) for r in results))
    return [found[key] for key in order if key in found]


def stages(file: Path) -> list[Stage]:
    """The first iteration, the one in the middle and the last."""
    if not file.is_file():
        return []
    with file.open("rb") as lines:
        reach = span(lines)
        if reach is None:
            return []
        start, end = reach
        wanted = dict.fromkeys([start, (start + end) // 2, end])
        found = [_of_iteration(lines, iteration) for iteration in wanted]
    return [stage for stage in found if stage.lines]


def _of_iteration(lines: BinaryIO, iteration: int) -> Stage:
    found = of_iteration(lines, iteration)
    return Stage(iteration, [_sample(found[i]) for i in evenly(len(found), SHOWN)])


def of_iteration(lines: BinaryIO, iteration: int) -> list[Mapping[str, Any]]:
    """All of its lines."""
    return list(takewhile(lambda row: row["iteration"] == iteration, rows(lines, place(lines, iteration))))


def evenly(num: int, shown: int) -> list[int]:
    """``shown`` of the places 0 to ``num`` - 1, or all of them where there are no more."""
    shown = min(shown, num)
    return [k * num // shown for k in range(shown)]


def span(lines: BinaryIO) -> tuple[int, int] | None:
    """The first iteration and the last; None where there is no whole line."""
    first, last = next(rows(lines, 0), None), _last(lines)
    return None if first is None or last is None else (first["iteration"], last["iteration"])


def next_iteration(lines: BinaryIO, iteration: int) -> int:
    """This one, or the first after it that has lines; ``iteration`` is not beyond the last."""
    return int(next(rows(lines, place(lines, iteration)))["iteration"])


def place(lines: BinaryIO, iteration: int) -> int:
    """Where the first line of ``iteration`` or of a later one begins, by bisection: iterations never fall."""
    low, high = 0, lines.seek(0, 2)
    while low < high:
        middle = (low + high) // 2
        row = next(rows(lines, middle), None)
        low, high = (middle + 1, high) if row is not None and row["iteration"] < iteration else (low, middle)
    return low


def rows(lines: BinaryIO, place: int) -> Iterator[Mapping[str, Any]]:
    """The whole lines that begin at ``place`` or after it."""
    lines.seek(max(0, place - 1))
    if place:
        lines.readline()  # the rest of the line before, unless it ends right there
    for line in lines:
        if line.endswith(b"}\n"):
            yield json.loads(line)


def _last(lines: BinaryIO) -> Mapping[str, Any] | None:
    """The last line that is whole."""
    end = lines.seek(0, 2)
    for start in range(end - BLOCK, -BLOCK, -BLOCK):
        found = None
        for found in rows(lines, max(0, start)):  # noqa: B007
            pass
        if found is not None:
            return found
    return None


def _sample(row: Mapping[str, Any]) -> Sample:
    scores = row.get("scores", {})
    told = ", ".join(f"{name} {number(value)}" for name, value in scores.items()) if len(scores) > 1 else ""
    return Sample(_shown(row["prompt"]), _shown(row["completion"]), row.get("reward"), _shown(told))


def _shown(text: Any) -> str:
    """In one line; whatever is not printable, a newline and an escape sequence among them, is spelt out."""
    told = printable(text if isinstance(text, str) else json.dumps(text))
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}…"

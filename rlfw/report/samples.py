"""What a language model wrote, a few lines of each arm; as text that can be shown, never as markup or control codes."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import printable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from rlfw.report.results import Result

SHOWN = 4
LONGEST = 300  # characters of a text
TAIL = 400_000  # bytes of samples.jsonl that are looked at, from its end


@dataclass(frozen=True)
class Sample:
    """A prompt, what was written, and what it earned."""

    prompt: str
    completion: str
    reward: float | None


@dataclass(frozen=True)
class Samples:
    """Of one run's last iteration."""

    arm: str
    env: str
    seed: int
    iteration: int
    lines: list[Sample]


def read(results: Sequence[Result]) -> list[Samples]:
    """Of each arm and env the first seed that finished and kept samples: evenly spaced lines, good and bad alike."""
    found: dict[tuple[str, str], Samples] = {}
    for r in sorted(results, key=lambda r: r.run.seed):
        key = (r.run.arm, r.run.env)
        if r.outcome == "finished" and key not in found and (rows := _last_rows(r.run.path / "samples.jsonl")):
            chosen = [rows[k * len(rows) // SHOWN] for k in range(min(SHOWN, len(rows)))]
            lines = [Sample(_shown(row["prompt"]), _shown(row["completion"]), row.get("reward")) for row in chosen]
            found[key] = Samples(*key, r.run.seed, rows[0]["iteration"], lines)
    order = list(dict.fromkeys((r.run.arm, r.run.env) for r in results))
    return [found[key] for key in order if key in found]


def _last_rows(file: Path) -> list[Mapping[str, Any]]:
    if not file.is_file():
        return []
    with file.open("rb") as samples:
        size = samples.seek(0, 2)
        samples.seek(max(0, size - TAIL))
        lines = samples.read().split(b"\n")[bool(size > TAIL) :]
    rows = [json.loads(line) for line in lines if line.endswith(b"}")]
    return [row for row in rows if row["iteration"] == rows[-1]["iteration"]]


def _shown(text: Any) -> str:
    """In one line; whatever is not printable, a newline and an escape sequence among them, is spelt out."""
    told = printable(text if isinstance(text, str) else json.dumps(text))
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}…"

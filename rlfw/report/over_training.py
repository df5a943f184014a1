"""What a run wrote over its training: a choice of samples.jsonl as one page, however long that file is.

Only the lines of the iterations that are shown are read.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError
from rlfw.report import samples
from rlfw.report.template import filled
from rlfw.run import load_config, typed_words

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FILE = "samples.jsonl"
ITERATIONS = 25  # that are shown, where nobody says how many
ROWS = 6  # of each, evenly spaced
EXTREMES = 2  # of each, with the highest reward, and as many with the lowest
LONGEST = 2000  # characters of a text
MOST = 20_000  # samples on a page, which a browser still sorts at once


@dataclass(frozen=True)
class Line:
    """A sample, and why it is shown."""

    iteration: int
    prompt: str
    completion: str
    scores: Mapping[str, float | None]
    reward: float | None
    advantage: float | None
    finish: str
    length: int | None  # tokens
    picked: str  # evenly, highest, lowest: what holds of it
    first: bool  # of those of its iteration


@dataclass(frozen=True)
class Chosen:
    """What is shown of a run."""

    lines: list[Line]
    iterations: list[int]
    span: tuple[int, int]  # the first and the last iteration that wrote samples
    per_iteration: int

    @cached_property
    def scores(self) -> list[str]:
        """The reward functions."""
        return list(dict.fromkeys(name for line in self.lines for name in line.scores))


def choose(run: Path, iterations: int = ITERATIONS, per_iteration: int = ROWS) -> Chosen:
    """Iterations evenly spaced from the first to the last, and of each some lines evenly spaced, the highest and the
    lowest rewards; UserError where the run wrote no samples."""
    for flag, value, low in (("--iterations", iterations, 2), ("--rows", per_iteration, 1)):
        if value < low:
            raise UserError(f"{flag} {value}: at least {low}")
    file = run / FILE
    if not file.is_file():
        raise UserError(f"{run} has no {FILE}: a run on a text env writes it, from its first iteration on")
    try:
        with file.open("rb") as content:
            reach = samples.span(content)
            if reach is None:
                raise UserError(f"{file} holds no whole line yet")
            start, end = reach
            wanted = (start + k * (end - start) // (iterations - 1) for k in range(iterations))
            there = list(dict.fromkeys(samples.next_iteration(content, iteration) for iteration in wanted))
            lines = [line for i in there for line in _lines(i, samples.of_iteration(content, i), per_iteration)]
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise UserError(f"{file} is not as a run writes it: {error!r:.200}") from error
    if len(lines) > MOST:
        raise UserError(f"{len(lines):,} samples are more than a page takes ({MOST:,}): lower --iterations or --rows")
    return Chosen(lines, there, reach, per_iteration)


def _lines(iteration: int, rows: Sequence[Mapping[str, Any]], per_iteration: int) -> list[Line]:
    picked: dict[int, list[str]] = {i: ["evenly"] for i in samples.evenly(len(rows), per_iteration)}
    rewards = {i: float(row["reward"]) for i, row in enumerate(rows) if row.get("reward") is not None}
    order = sorted(rewards, key=lambda i: rewards[i])  # of equal ones the earlier line first
    if order and rewards[order[0]] < rewards[order[-1]]:
        for why, several in (("highest", sorted(order, key=lambda i: -rewards[i])), ("lowest", order)):
            for i in several[:EXTREMES]:
                picked.setdefault(i, []).append(why)
    return [
        _line(iteration, rows[i], ", ".join(picked[i]), first=number == 0) for number, i in enumerate(sorted(picked))
    ]


def _line(iteration: int, row: Mapping[str, Any], picked: str, *, first: bool) -> Line:
    return Line(
        iteration,
        _cut(row["prompt"]),
        _cut(row["completion"]),
        {str(name): _number(value) for name, value in row.get("scores", {}).items()},
        _number(row.get("reward")),
        _number(row.get("advantage")),
        str(row.get("finish", "")),
        None if row.get("length") is None else int(row["length"]),
        picked,
        first,
    )


def _number(value: Any) -> float | None:
    return None if value is None or math.isnan(float(value)) else float(value)


def _cut(text: Any) -> str:
    told = str(text)
    more = len(told) - LONGEST
    return told if more <= 0 else f"{told[:LONGEST]}… ({more:,} more characters)"


def html(run: Path, chosen: Chosen) -> str:
    """One file that needs no other and no network; without JavaScript it is a plain table."""
    cfg = load_config(run)
    (env,), (policy,) = cfg.env.values(), cfg.policy.values()
    facts = {"env": env.part, "policy": policy.part, "seed": cfg.seed}
    name = str(run.resolve().name)
    return filled(
        "samples.html",
        escaped=True,
        c=chosen,
        name=name,
        facts=facts,
        words=shlex.join(typed_words(run)),
        extremes=EXTREMES,
    )


def write(run: Path, out: Path, iterations: int = ITERATIONS, per_iteration: int = ROWS) -> Chosen:
    """Write the page to ``out``; what is on it."""
    load_config(run)  # a folder that is no run's is refused as such
    chosen = choose(run, iterations, per_iteration)
    told = html(run, chosen)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(told, encoding="utf-8")
    except OSError as error:
        raise UserError(f"--out {out}: cannot write there: {error.strerror or error}") from error
    return chosen

"""What a run says at its end: its last score, and what to look at next."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from rlfw import trust
from rlfw.run import load_config

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

TRAINED = "objective/scores"


def closing(run: Path) -> list[str]:
    """A line with the score and one with commands."""
    with (run / "metrics.jsonl").open(encoding="utf-8") as lines:
        return [f"done: {last_scores(lines)}", f"next: {'  |  '.join(commands(run))}"]


def last_scores(lines: Iterable[str]) -> str:
    """Of the rows of metrics.jsonl: the last evaluation where there was one, and what training saw last."""
    evaluation, score, at, end = "", None, 0, 0
    for row in map(json.loads, lines):
        end = row["iteration"]
        names = [name for name in row if name.startswith("eval/")]
        if names:
            evaluation = f"{names[0]} {row[names[0]]:.4g} in the last evaluation, at iteration {row['iteration']}"
        if TRAINED in row:
            score, at = row[TRAINED], end
    trained = f"no {TRAINED}: not one episode ended"
    if score is not None:
        trained = f"{TRAINED} {score:.4g} {'over the last iteration' if at == end else f'at iteration {at} of {end}'}"
    return "; ".join(filter(None, (evaluation, trained)))


def commands(run: Path) -> list[str]:
    """As a person types them."""
    cfg = load_config(run)
    again = [f"{key}={value}" for key, value in trust.imported(cfg).items()]  # no file may name code alone
    plugins = [f"plugins=[{','.join(cfg.plugins)}]"] if cfg.plugins else []
    board = [shlex.join(["tensorboard", "--logdir", str(run)])] if cfg.tensorboard else []
    evaluation = shlex.join(["rlfw", "eval", str(run), *again, *plugins])
    text = (run / "samples.jsonl").is_file()
    words = [shlex.join(["rlfw", "sample", str(run), *again, *plugins]), shlex.join(["rlfw", "samples", str(run)])]
    return [evaluation, *(words if text else []), *board, f"{shlex.join(['rlfw', 'compare', str(run)])} OTHER"]

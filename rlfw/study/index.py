"""index.json: which runs a study has, how often they were tried, how long that took. Written whole, under a lock."""

from __future__ import annotations

import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from filelock import FileLock

from rlfw.study.records import read_index

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextmanager
def changing(folder: Path) -> Iterator[list[dict[str, Any]]]:
    """The entries, to be changed in place: no other runner reads or writes them meanwhile."""
    with FileLock(folder / ".index.lock"):
        entries = read_index(folder)
        yield entries
        write(folder / "index.json", json.dumps(entries, indent=1) + "\n")


def write(file: Path, text: str) -> None:
    """``text`` takes the file's place by one rename."""
    aside = file.with_name(f".{file.name}.{os.getpid()}.partial")
    aside.write_text(text, encoding="utf-8")
    os.replace(aside, file)


def entry(run: str, arm: str, env: str, seed: int) -> dict[str, Any]:
    """The entry of a run that was not tried yet."""
    return {"run": run, "arm": arm, "env": env, "seed": seed, "attempts": 0, "seconds": 0.0, "error": None}


def find(entries: list[dict[str, Any]], run: str) -> dict[str, Any]:
    """The entry of a run."""
    return next(found for found in entries if found["run"] == run)

"""Whose fault an unforeseen error is: a plugin's, with its line and what may find the cause, or rlfw's own."""

from __future__ import annotations

import traceback
from pathlib import Path

from rlfw import registry


def told(error: Exception) -> str:
    """A sentence, without its end."""
    said = f"{type(error).__name__}: {error}"
    plugins = registry.plugins()
    words = f"plugins=[{','.join(map(_shown, plugins))}]"
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in plugins]
    if frames:
        file, line = frames[-1].filename, frames[-1].lineno or 0
        return f"{_shown(file)}, line {line}: {said}; find out more with rlfw check {part_at(file, line)} {words}"
    if plugins:
        return f"this is a fault of rlfw or of a plugin: {said}; find out more with rlfw check {words}"
    return f"this is a fault of rlfw: {said}"


def part_at(file: str, line: int) -> str:
    """AXIS/NAME of the last part that ``file`` registers above ``line``, else of its first; empty without any."""
    found: list[tuple[int, str]] = []
    for axis in registry.AXES:
        for name in registry.names(axis):
            where, _, number = registry.entry(axis, name).place.rpartition(":")
            if where == file:
                found.append((int(number), f"{axis}/{name}"))
    above = [part for number, part in sorted(found) if number <= line]
    return above[-1] if above else min(found, default=(0, ""))[1]


def _shown(file: str) -> str:
    """A path as a person in this folder writes it."""
    path, here = Path(file), Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)

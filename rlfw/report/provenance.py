"""What was run where, with which versions: the runs of one provenance.json's content together."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rlfw.study.records import Record

UNKNOWN = "unknown"


@dataclass(frozen=True)
class Origin:
    """Runs that were made alike."""

    runs: int
    commit: str
    versions: str
    platform: str
    first: str  # when the first of them began
    last: str
    resumed: int  # how many of them were resumed at least once


def origins(runs: Sequence[Record]) -> list[Origin]:
    """One for each machine, commit and set of versions; the most runs first."""
    groups: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for run in runs:
        file = run.path / "provenance.json"
        if not file.is_file():
            continue
        found = json.loads(file.read_text())
        for part in [found, *found.get("resumed", [])]:
            groups.setdefault((_commit(part), _versions(part), _platform(part)), []).append(
                {"time": part.get("time", UNKNOWN), "resumed": "resumed" in found, "run": run.path}
            )
    told = [_origin(key, parts) for key, parts in groups.items()]
    return sorted(told, key=lambda origin: -origin.runs)


def _origin(key: tuple[str, str, str], parts: Sequence[Mapping[str, Any]]) -> Origin:
    times = sorted(part["time"] for part in parts)
    runs = {part["run"] for part in parts}
    resumed = {part["run"] for part in parts if part["resumed"]}
    return Origin(len(runs), *key, first=times[0], last=times[-1], resumed=len(resumed))


def _commit(part: Mapping[str, Any]) -> str:
    git = part.get("git", {})
    dirty = " with changes that were not committed" if git.get("dirty") else ""
    return f"{git['commit'][:12]}{dirty}" if git.get("commit") else UNKNOWN


def _versions(part: Mapping[str, Any]) -> str:
    return ", ".join(f"{name} {version}" for name, version in part.get("versions", {}).items()) or UNKNOWN


def _platform(part: Mapping[str, Any]) -> str:
    return f"{part.get('platform', UNKNOWN)}, {part.get('cpus', '?')} cores"

"""rlfw list: every recipe and part, in short; one axis with its keys."""

from __future__ import annotations

import textwrap
from typing import Any

from rlfw import registry
from rlfw.errors import UserError

WIDTH = 118  # of a line

# What each group decides.
GROUPS = {
    "algorithm": "a part on each axis, as a paper has them",
    "env": "where rollouts come from",
    "policy": "what acts and scores",
    "sampler": "how much is collected, in which groups",
    "baseline": "what a return is compared with",
    "normalize": "the scale of advantages",
    "ratio": "where the current policy meets the old one",
    "aggregation": "how the losses of steps become one number",
    "optimizer": "the rule of a step",
    "reward": "stages between the env's rewards and the learner's; a list",
    "regularizer": "what keeps an update small; a list: one surrogate, any penalties",
    "weight": "steps and rows that count less, or not at all; a list",
    "controller": "what turns knobs while training; a list",
}


def rows(group: str | None = None) -> list[dict[str, Any]]:
    """axis, name, summary and keys of every part and preset; ``group``: of one axis, or of algorithm."""
    if group is not None and group not in GROUPS:
        raise UserError(f"no such axis: {group}{registry.suggest(group, GROUPS)}")
    found: list[dict[str, Any]] = []
    for axis in GROUPS if group is None else [group]:
        if axis in registry.PRESETS:
            found += [{"axis": axis, "name": n, "summary": s, "keys": {}} for n, s in registry.presets(axis).items()]
        if axis in registry.AXES:
            for name in registry.names(axis):
                part = registry.entry(axis, name)
                keys = {key: {"type": kind, "default": default} for key, (kind, default) in part.keys.items()}
                found.append({"axis": axis, "name": name, "summary": part.summary, "keys": keys})
        for name, several in registry.aliases(axis).items():
            found.append({"axis": axis, "name": name, "summary": f"Stands for [{','.join(several)}].", "keys": {}})
    return found


def short(found: list[dict[str, Any]]) -> str:
    """A line each, under the headings of their axes."""
    lines: list[str] = []
    width = max(len(row["name"]) for row in found)
    for axis in dict.fromkeys(row["axis"] for row in found):
        lines += [*[""] * bool(lines), f"{axis}=  {GROUPS[axis]}"]
        for row in (row for row in found if row["axis"] == axis):
            lines.append(
                f"  {row['name']:<{width}}  {textwrap.shorten(row['summary'], WIDTH - width - 4, placeholder=' ...')}"
            )
    return "\n".join([*lines, "", "rlfw list AXIS: an axis with all keys, e.g. rlfw list baseline"])


def full(found: list[dict[str, Any]]) -> str:
    """Whole sentences, and the keys with their defaults."""
    lines = []
    for row in found:
        lines += [f"{row['axis']}={row['name']}", f"    {row['summary']}"]
        for key, about in row["keys"].items():
            lines.append(f"    {row['axis']}.{row['name']}.{key} = {about['default']}  ({about['type']})")
    return "\n".join(lines)

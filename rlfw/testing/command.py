"""rlfw check: is a part sound?"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from rlfw import config, registry
from rlfw.errors import UserError

from .battery import check, parts
from .report import summary

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .report import Report

DESCRIPTION = """\
Says within a minute whether a part is sound: shapes, padding, order, micro-batches, determinism, the first minibatch,
finite differences, where gradients go, tasks with a known optimum, save and load, degenerate batches, cost.

  rlfw check regularizer/clip
  rlfw check regularizer/mine plugins=[my_parts.py] regularizer.mine.coef=0.3
  rlfw check plugins=[my_parts.py]      every part of the file
  rlfw check --all                      every part there is

exit codes: 0 sound, 1 not sound, 2 the input was wrong
"""


def main(words: Sequence[str], *, every: bool = False, why: bool = False, as_json: bool = False) -> int:
    """Check the parts that ``words`` name, or every one; an exit code."""
    torch.set_num_threads(1)  # the tensors are tiny: several threads wait for each other
    overrides = [word for word in words if _is_override(word)]
    chosen = [word for word in words if word not in overrides]
    files: list[str] = next((value for key, value in config.typed_overrides(overrides) if key == "plugins"), [])
    config.prepare_for(overrides)
    if every and chosen:
        raise UserError(f"--all checks every part, {chosen[0]} among them: leave one of the two out")
    if every:
        chosen = parts()
    elif not chosen and files:
        chosen = _of_files(files)
    if not chosen:
        raise UserError("check takes AXIS/NAME, e.g. regularizer/clip, or --all")
    if len(chosen) > 1 and len(overrides) > bool(files):
        raise UserError("keys go with one part: check them one at a time")
    reports, left_out = [], 0
    for part in chosen:
        try:
            reports.append(check(part, overrides))
        except UserError as error:
            if not every:
                raise
            print(f"{part:<32} not checked: {error}", file=sys.stderr if as_json else sys.stdout)
            left_out += 1
            continue
        if not as_json and len(chosen) > 1:
            print(reports[-1].line, flush=True)
    _show(reports, left_out, as_json=as_json, why=why)
    return 0 if all(report.sound for report in reports) else 1


def _show(reports: list[Report], left_out: int, *, as_json: bool, why: bool) -> None:
    if as_json:
        found = [report.as_json() for report in reports]
        print(json.dumps(found if len(found) > 1 else found[0], default=str))
    elif len(reports) == 1:
        print(reports[0].text(why=why))
    else:
        print(summary(reports, left_out))


def _is_override(word: str) -> bool:
    """plugins=... and axis.part.key=VALUE; axis=name is a part, algorithm=name one who took a recipe for it."""
    key, sign, _ = word.partition("=")
    return bool(sign) and key not in (*registry.AXES, "algorithm") and "/" not in key


def _of_files(files: Sequence[str]) -> list[str]:
    """The parts that plugin files registered."""
    paths = {str(Path(file).resolve()) for file in files}
    found = [
        f"{axis}/{name}"
        for axis in registry.AXES
        for name in registry.names(axis)
        if registry.entry(axis, name).place.rpartition(":")[0] in paths
    ]
    if not found:
        raise UserError(f"{', '.join(files)} registers no part")
    return found

"""How long runs take, from those that are done."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from rlfw.study.records import read_index, run_state

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from rlfw.study.plan import Run


class Estimate:
    """The mean time of an arm's runs on an env; of an arm without any, that of the env's runs, else of all."""

    def __init__(self, folder: Path) -> None:
        self._seconds: dict[tuple[str | None, str | None], list[float]] = defaultdict(list)
        for entry in read_index(folder):
            if run_state(folder, entry) == "done" and entry["seconds"]:
                self._add(entry["arm"], entry["env"], entry["seconds"])

    def add(self, run: Run, seconds: float) -> None:
        """One more run is done."""
        self._add(run.arm, run.env, seconds)

    def _add(self, arm: str, env: str, seconds: float) -> None:
        for key in ((arm, env), (None, env), (None, None)):
            self._seconds[key].append(seconds)

    def of(self, run: Run) -> float | None:
        """Seconds of one run; None while none is done."""
        for key in ((run.arm, run.env), (None, run.env), (None, None)):
            if known := self._seconds.get(key):
                return sum(known) / len(known)
        return None

    def left(self, runs: Sequence[tuple[Run, float]], workers: int) -> float | None:
        """Seconds until ``runs`` are done, each with the seconds that it has had; None while nothing is known."""
        found = [(self.of(run), had) for run, had in runs]
        known = [max(0.0, whole - had) for whole, had in found if whole is not None]
        return sum(known) / workers if len(known) == len(found) else None


def clock(seconds: float) -> str:
    """Seconds as a person says them."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes:02} min" if hours else f"{minutes} min {rest:02} s" if minutes else f"{rest} s"

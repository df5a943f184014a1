"""What a person sees while a study runs: on a terminal a table that lives, elsewhere a line an event."""

from __future__ import annotations

import sys
import time
from collections import Counter
from typing import TYPE_CHECKING, Any, Protocol

from rlfw.errors import printable
from rlfw.study.estimate import clock

if TYPE_CHECKING:
    from rlfw.study.plan import Run
    from rlfw.study.runner import Runner

COLUMNS = ("done", "running", "failed", "interrupted", "left")


class Table(Protocol):
    """What the runner tells."""

    def started(self, run: Run, *, go_on: bool) -> None: ...
    def ended(self, run: Run, state: str, error: str, seconds: float, count: str) -> None: ...
    def waiting(self, runs: int) -> None: ...
    def show(self, runner: Runner, *, last: bool = False) -> None: ...


def table() -> Table:
    """The one for this terminal, or for none."""
    return Live() if sys.stdout.isatty() else Lines()


def said(run: Run) -> str:
    """A run as a person names it."""
    return f"{run.arm} | {run.env} | seed={run.seed}"


class Lines:
    """A line an event."""

    def __init__(self) -> None:
        self._waiting = 0

    def started(self, run: Run, *, go_on: bool) -> None:
        print(f"{'go on' if go_on else 'start':<11} {said(run)}", flush=True)

    def ended(self, run: Run, state: str, error: str, seconds: float, count: str) -> None:
        if seconds:  # the others were ended by earlier calls
            why = "" if state == "done" else f": {printable(error)}"
            print(f"{state:<11} {said(run)}  {seconds:.1f} s  ({count}){why}", flush=True)

    def waiting(self, runs: int) -> None:
        if runs != self._waiting:
            self._waiting = runs
            print(f"wait        {runs} run(s) are with another process", flush=True)

    def show(self, runner: Runner, *, last: bool = False) -> None:
        pass


class Live:
    """Arms down, states across, and the time left; drawn anew twice a second."""

    def __init__(self) -> None:
        from rich.live import Live as Screen

        self._screen = Screen(auto_refresh=False, vertical_overflow="ellipsis")
        self._screen.start()
        self._waiting = 0
        self._began = self._drawn = time.monotonic()

    def started(self, run: Run, *, go_on: bool) -> None:
        self._drawn = 0.0

    def ended(self, run: Run, state: str, error: str, seconds: float, count: str) -> None:
        self._drawn = 0.0

    def waiting(self, runs: int) -> None:
        self._waiting = runs

    def show(self, runner: Runner, *, last: bool = False) -> None:
        if last or time.monotonic() - self._drawn > 0.5:
            self._drawn = time.monotonic()
            self._screen.update(self._draw(runner), refresh=True)
        if last:
            self._screen.stop()

    def _draw(self, runner: Runner) -> Any:
        from rich.table import Table as Drawn
        from rich.text import Text

        counts = runner.counts()
        left = runner.left()
        took = f"{clock(time.monotonic() - self._began)} so far"
        others = f"; {self._waiting} with another process" if self._waiting and not runner.active else ""
        ending = "" if runner.stopping is None else "; ending: the runs save themselves, Ctrl-C again ends them at once"
        caption = (
            f"{took}, {'the time left is not known yet' if left is None else clock(left) + ' left'}{others}{ending}"
        )
        drawn = Drawn(caption=caption)
        drawn.add_column("arm", overflow="fold")
        for column in COLUMNS:
            drawn.add_column(column, justify="right")
        for arm, found in counts.items():
            drawn.add_row(Text(arm), *_cells(found))
        if len(counts) > 1:
            drawn.add_section()
            drawn.add_row("all", *_cells(sum(counts.values(), Counter())))
        return drawn


def _cells(found: Counter[str]) -> list[str]:
    return [str(found[column] or "") for column in COLUMNS]

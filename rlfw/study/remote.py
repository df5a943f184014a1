"""A run that an engine has on some node: it is told by its order's file, and heard through its log."""

from __future__ import annotations

import os
import sys
import time
import uuid
from abc import abstractmethod
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from rlfw.study.launcher import Job
from rlfw.study.order import LOOK, Order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from filelock import FileLock

    from rlfw.study.plan import Run


@dataclass(frozen=True)
class Outcome:
    """How a job ended."""

    code: int
    seconds: float | None = None  # as measured where it ran
    said: str | None = None  # of the engine, where the run itself said nothing


@dataclass
class Remote(Job):
    """A run on a node, or in the engine's queue."""

    order: Order
    looked: float = 0.0
    began: float | None = None
    over: Outcome | None = None

    @property
    def seconds(self) -> float:
        if self.over is not None and self.over.seconds is not None:
            return self.over.seconds
        return 0.0 if self.began is None else time.monotonic() - self.began

    @property
    def code(self) -> int | None:
        if self.over is None and time.monotonic() - self.looked > LOOK:
            self.looked = time.monotonic()
            if self.began is None and self.log.stat().st_size > self.start:
                self.began = self.looked
            self.over = self.ask()
        return None if self.over is None else self.over.code

    def signal(self, number: int) -> None:
        self.order.send(number)
        self.withdraw()

    def last_line(self) -> str:
        said = None if self.over is None else self.over.said
        return super().last_line() if said is None else said

    @abstractmethod
    def ask(self) -> Outcome | None:
        """How it ended, None while it has not."""

    @abstractmethod
    def withdraw(self) -> None:
        """Out of the queue, where it has not begun."""


def give_order(run: Run, words: Sequence[str], lock: FileLock, log: Path, threads: int) -> Order:
    """The order to train these words, written down."""
    claim = Path(lock.lock_file).resolve()
    path = claim.parents[1] / "runs" / run.name
    made = Order(
        mark=uuid.uuid4().hex,
        file=str(claim.with_suffix(".order")),
        claim=str(claim),
        words=list(words),
        again=[f"resume={path}", *run.again],
        run=str(path),
        log=str(log.resolve()),
        threads=threads,
        folder=os.getcwd(),
        path=[entry for entry in sys.path if entry],
    )
    made.give()
    return made

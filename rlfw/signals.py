"""SIGINT (Ctrl-C) and SIGTERM as a wish that is met in its own time."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class Stoppable(Protocol):
    """What ends by itself once it is asked to."""

    stopping: int | None  # the signal that asks it to


@contextmanager
def handed(stop: Callable[[int], None]) -> Iterator[None]:
    """Meanwhile the number of each SIGINT and SIGTERM goes to ``stop``. In another than the main thread none does."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(signum: int, frame: Any) -> None:
        stop(signum)

    before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def ending(work: Stoppable) -> Iterator[None]:
    """The first signal asks ``work`` to end in order; the second ends it at once, as a KeyboardInterrupt."""

    def stop(signum: int) -> None:
        if work.stopping is not None:
            raise KeyboardInterrupt
        work.stopping = signum

    with handed(stop):
        yield

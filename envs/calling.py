"""Calls of the user's functions: so many at a time, each with a time limit, their results in the order of the calls.

A call that is out of time is left behind: Python cannot end a thread. All threads are daemons, so that none of them
keeps the process from ending.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from rlfw.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

GRACE = 1.0  # seconds beyond all limits, after which the calls themselves hold up the event loop


@dataclass(frozen=True)
class Call:
    """A function with its arguments."""

    function: Callable[..., Any]
    arguments: Mapping[str, Any]

    def __call__(self) -> Any:
        return self.function(**self.arguments)

    @property
    def asynchronous(self) -> bool:
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(
            getattr(self.function, "__call__", None)  # noqa: B004  an object whose __call__ is async
        )


class CallFailed(Exception):
    """One of several calls gave no result."""

    def __init__(self, number: int, cause: BaseException | None) -> None:
        """``number``: which of the calls. ``cause``: what it raised; None: it was out of time."""
        super().__init__(number, cause)
        self.number, self.cause = number, cause


class Caller:
    """Makes calls, ``workers`` at a time, each for at most ``timeout`` seconds (None: as long as it takes).

    Plain functions that are called one at a time without a limit run where they are called from. Otherwise each has
    a thread of its own, and async functions share one event loop, which lives as long as the caller.
    """

    def __init__(self, workers: int = 1, timeout: float | None = None) -> None:
        self.workers, self.timeout = workers, timeout
        self._loop: asyncio.AbstractEventLoop | None = None

    def __call__(self, calls: Sequence[Call]) -> list[Any]:
        """What each call gives; CallFailed, once one of them fails, for the first that did."""
        if self.workers == 1 and self.timeout is None and not any(call.asynchronous for call in calls):
            return [_directly(number, call) for number, call in enumerate(calls)]
        work = asyncio.run_coroutine_threadsafe(self._all(calls), self._running_loop())
        longest = None if self.timeout is None else (len(calls) / self.workers + 1) * self.timeout + GRACE
        try:
            return work.result(longest)
        except TimeoutError as error:
            raise RunError(
                f"an async function held up the others beyond its {self.timeout} s: it must await what takes long"
            ) from error

    def close(self) -> None:
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._loop = None

    async def _all(self, calls: Sequence[Call]) -> list[Any]:
        gate = asyncio.Semaphore(self.workers)  # first come, first served: the calls start in their order
        tasks = [asyncio.create_task(self._one(number, call, gate)) for number, call in enumerate(calls)]
        done, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
        for task in left:
            task.cancel()
        failed = [error for task in done if (error := task.exception()) is not None]
        if failed:
            raise min(failed, key=lambda error: error.number if isinstance(error, CallFailed) else -1)
        return [task.result() for task in tasks]

    async def _one(self, number: int, call: Call, gate: asyncio.Semaphore) -> Any:
        async with gate:
            try:
                async with asyncio.timeout(self.timeout) as limit:
                    return await (call() if call.asynchronous else _in_thread(call))
            except (Exception, SystemExit) as error:
                raise CallFailed(number, None if limit.expired() else error) from error

    def _running_loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            self._loop = asyncio.new_event_loop()
            threading.Thread(target=_run, args=(self._loop,), daemon=True).start()
        return self._loop


def _run(loop: asyncio.AbstractEventLoop) -> None:
    loop.run_forever()
    loop.close()


def _directly(number: int, call: Call) -> Any:
    try:
        return call()
    except (Exception, SystemExit) as error:
        raise CallFailed(number, error) from error


async def _in_thread(call: Call) -> Any:
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[tuple[Any, BaseException | None]] = loop.create_future()

    def settle(value: Any, error: BaseException | None) -> None:
        if not ended.done():  # out of time in the meantime
            ended.set_result((value, error))

    def work() -> None:
        found: tuple[Any, BaseException | None]
        try:
            found = call(), None
        except (Exception, SystemExit) as error:
            found = None, error
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
            loop.call_soon_threadsafe(settle, *found)

    threading.Thread(target=work, daemon=True).start()
    value, error = await ended
    if error is not None:
        raise error
    return value

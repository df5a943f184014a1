"""Calls of the user's functions: so many at a time, results in their order, a limit on each, failures by number."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from rlfw.envs.calling import Call, Caller, CallFailed
from rlfw.errors import RunError


def calls(function, num):
    return [Call(function, {"i": i}) for i in range(num)]


def backwards(i):
    """The first call ends last."""
    time.sleep(0.005 * (5 - i))
    return i


async def backwards_async(i):
    await asyncio.sleep(0.005 * (5 - i))
    return i


class Awaited:
    """An object with an async __call__."""

    async def __call__(self, i):
        await asyncio.sleep(0)
        return i


@pytest.mark.parametrize("function", [backwards, backwards_async, Awaited()])
@pytest.mark.parametrize("limits", [(1, None), (1, 30.0), (3, None), (8, 30.0)])
def test_results_stand_in_the_order_of_the_calls(function, limits):
    caller = Caller(*limits)
    assert caller(calls(function, 5)) == caller(calls(function, 5)) == [0, 1, 2, 3, 4]
    caller.close()


@pytest.mark.parametrize("kind", ["threads", "async"])
def test_so_many_run_at_a_time_and_no_more(kind):
    """Three meet at a barrier, which two alone would never pass; a fourth beside them would be seen."""
    lock, inside, most = threading.Lock(), 0, 0
    barrier, meeting = threading.Barrier(3), [0, None]

    def enter(step):
        nonlocal inside, most
        with lock:
            inside += step
            most = max(most, inside)

    def threaded(i):
        enter(1)
        barrier.wait(20)
        enter(-1)

    async def awaited(i):
        enter(1)
        if meeting[0] % 3 == 0:
            meeting[1] = asyncio.Event()
        meeting[0] += 1
        event = meeting[1]
        if meeting[0] % 3 == 0:
            event.set()
        await event.wait()
        enter(-1)

    caller = Caller(3, 20.0)
    caller(calls(threaded if kind == "threads" else awaited, 9))
    assert most == 3
    caller.close()


def test_one_at_a_time_without_a_limit_runs_where_it_is_called_from():
    assert Caller()([Call(threading.get_ident, {})]) == [threading.get_ident()]


@pytest.mark.parametrize("workers", [1, 4])
def test_a_call_that_is_out_of_time_is_named_and_left_behind(workers):
    forever = threading.Event()

    def slow(i):
        if i == 2:
            forever.wait(60)
        return i

    caller = Caller(workers, 0.5)
    with pytest.raises(CallFailed) as failed:
        caller(calls(slow, 4))
    assert (failed.value.number, failed.value.cause) == (2, None)
    assert caller(calls(lambda i: i, 3)) == [0, 1, 2]  # the others go on
    forever.set()
    caller.close()


def test_an_async_call_that_is_out_of_time_is_cancelled():
    cancelled = threading.Event()

    async def slow(i):
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    caller = Caller(1, 0.1)
    with pytest.raises(CallFailed) as failed:
        caller(calls(slow, 1))
    assert failed.value.cause is None
    assert cancelled.wait(20)
    caller.close()


def test_an_async_call_that_never_awaits_cannot_hold_the_run(monkeypatch):
    monkeypatch.setattr("rlfw.envs.calling.GRACE", 0.1)
    forever = threading.Event()

    async def blocking(i):
        forever.wait(60)

    with pytest.raises(RunError, match=r"beyond its 0.1 s: it must await"):
        Caller(1, 0.1)(calls(blocking, 1))
    forever.set()


@pytest.mark.parametrize("error", [ValueError("no"), SystemExit(3), StopIteration(), TimeoutError("of its own")])
@pytest.mark.parametrize("limits", [(1, None), (4, None), (1, 30.0)])
@pytest.mark.parametrize("asynchronous", [False, True])
def test_what_a_call_raises_comes_with_its_number(error, limits, asynchronous):
    def plain(i):
        if i == 1:
            raise error
        return i

    async def awaited(i):
        return plain(i)

    caller = Caller(*limits)
    with pytest.raises(CallFailed) as failed:
        caller(calls(awaited if asynchronous else plain, 4))
    assert failed.value.number == 1
    if not isinstance(error, StopIteration):  # a coroutine makes a RuntimeError of it
        assert failed.value.cause is error
    caller.close()


def test_the_loop_lives_from_one_round_to_the_next():
    """A client of the user's that belongs to a loop may be kept."""

    async def which(i):
        return asyncio.get_running_loop()

    caller = Caller(2)
    loops = {*caller(calls(which, 2)), *caller(calls(which, 2))}
    assert len(loops) == 1
    caller.close()

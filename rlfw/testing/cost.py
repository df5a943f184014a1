"""Time and memory of a part beside its siblings."""

from __future__ import annotations

import statistics
import time
from functools import lru_cache
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from rlfw import registry

from .call import call
from .cases import Case, Cells, Watched
from .report import Result, passed

if TYPE_CHECKING:
    from .subject import Subject

ROWS, STEPS = 128, 64


def cost(subject: Subject) -> Result:
    """A part runs at every optimizer step. One that builds [B, B] or [T, T], or loops over rows in Python, is cheap in
    a test and not in a run. It never fails here: look at the numbers."""
    milliseconds, arrays = _measure(subject)
    others = [
        found for name in registry.names(subject.axis) if name != subject.name and (found := _sibling(subject, name))
    ]
    words = f"[B, T] = [{ROWS}, {STEPS}]: {milliseconds:.2f} ms, {arrays:.1f} arrays of [B, T] made on the way"
    if others:
        time_, memory = (statistics.median(x) for x in zip(*others, strict=True))
        words += f"; its siblings: {time_:.2f} ms, {memory:.1f} arrays in the median"
    return passed(words)


@lru_cache
def _of_sibling(axis: str, name: str) -> tuple[str, float, float] | None:
    from .subject import subject

    try:
        found = subject(axis, name)
        return (found.kind, *_measure(found))
    except Exception:  # a sibling that is broken, or not to be had without settings, is no measure
        return None


def _sibling(subject: Subject, name: str) -> tuple[float, float] | None:
    found = _of_sibling(subject.axis, name)
    return found[1:] if found is not None and found[0] == subject.kind else None


def _measure(subject: Subject) -> tuple[float, float]:
    """Milliseconds of one call, with its backward where it has one, and the bytes it makes over those of [B, T]."""
    assembled, case = subject.compose(), _large(subject)
    if subject.axis not in ("reward", "baseline"):
        credited = assembled.composition.credit(case.batch)
        case = Case(cast("Watched", credited), case.logprobs, case.entropy, case.values)

    def once() -> None:
        total = sum(x.sum() for x in call(subject, assembled, case).values() if x.requires_grad)
        if isinstance(total, Tensor):
            total.backward()

    with _Made() as made:
        once()
    seconds = []
    for _ in range(5):
        start = time.perf_counter()
        once()
        seconds.append(time.perf_counter() - start)
    return 1000 * min(seconds), made.bytes / (4 * ROWS * STEPS)


class _Made(TorchDispatchMode):
    """Counts the bytes of the tensors that are made; views are none."""

    def __init__(self) -> None:
        super().__init__()
        self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        known = {x.untyped_storage().data_ptr() for x in args if isinstance(x, Tensor)}
        for x in found if isinstance(found, tuple | list) else [found]:
            if isinstance(x, Tensor) and x.untyped_storage().data_ptr() not in known:
                self.bytes += x.numel() * x.element_size()
        return found


def _large(subject: Subject) -> Case:
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator)

    mask = torch.arange(STEPS) < torch.randint(1, STEPS + 1, (ROWS, 1), generator=generator)
    old = torch.where(mask, -normal(ROWS, STEPS).abs(), 0)
    noise = [torch.where(mask, old + 0.1 * normal(ROWS, STEPS), 0) for _ in range(3)]
    entropy = torch.where(mask, normal(ROWS, STEPS).abs(), 0)
    values = normal(ROWS, STEPS + 1)
    batch = Watched(
        context=Cells(torch.arange(ROWS * STEPS).reshape(ROWS, STEPS)),
        actions=torch.zeros(ROWS, STEPS, dtype=torch.int64),
        logprobs=noise[0],
        rewards=torch.where(mask, normal(ROWS, STEPS), 0),
        mask=mask,
        terminated=torch.ones(ROWS, dtype=torch.bool),
        truncated=torch.zeros(ROWS, dtype=torch.bool),
        group=torch.arange(ROWS) // 8,
        episode=torch.arange(ROWS),
        scores={"a": normal(ROWS), "b": normal(ROWS)},
        values=values,
        old_logprobs=old,
        ref_logprobs=noise[1],
        entropy=entropy,
        greedy_returns=normal(ROWS),
    )
    return Case(batch, *(x.reshape(-1) for x in (noise[2], entropy, values[:, :-1])))

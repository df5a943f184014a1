"""Who runs what: a lock a run, held by its runner, so that two runners on one folder share the work."""

from __future__ import annotations

from pathlib import Path  # noqa: TC003

from filelock import FileLock, Timeout


def claim(folder: Path, run: str) -> FileLock | None:
    """The lock of a run; None where another runner holds it, or where a process that outlived its runner writes it."""
    lock = FileLock(folder / "claims" / f"{run}.lock")
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return None
    if held(folder / "runs" / run / ".lock"):
        lock.release()
        return None
    return lock


def held(path: Path) -> bool:
    """Whether some process holds the lock ``path``."""
    if not path.is_file():
        return False
    lock = FileLock(path)
    try:
        lock.acquire(timeout=0)
    except Timeout:
        return True
    lock.release()
    return False

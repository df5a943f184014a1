"""Errors that name the thing and the remedy, and how they are said."""

from __future__ import annotations

import sys
import traceback


class UserError(Exception):
    """A mistake in a config, a flag or a file, found before the run starts: exit code 2, no traceback."""


class RunError(Exception):
    """What ends a run under way, e.g. an env that raises or a reward that is not a number: exit code 1."""


def tell(error: Exception, *, debug: bool = False, job: str = "") -> int:
    """Say on stderr, in one line, what went wrong; the exit code. ``debug``: the traceback before it."""
    if debug:
        traceback.print_exception(error)
    said = str(error)
    if isinstance(error, RunError):
        said = f"the run failed: {said}"
    elif not isinstance(error, UserError):
        from rlfw import blame

        said = f"{blame.told(error)}{'' if debug else '; run it again with --debug for the traceback'}"
    line = " ".join(": ".join(["rlfw", *filter(None, [job]), said]).split())
    print(printable(line), file=sys.stderr)
    return 2 if isinstance(error, UserError) else 1


def printable(text: str) -> str:
    """``text`` as a terminal may show it: an escape sequence, or whatever else is not printable, is spelt out."""
    return "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)

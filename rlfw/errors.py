"""Errors that name the thing and the remedy."""


class UserError(Exception):
    """A mistake in a config, a flag or a file, found before the run starts: exit code 2, no traceback."""


class RunError(Exception):
    """What ends a run under way, e.g. an env that raises or a reward that is not a number: exit code 1."""

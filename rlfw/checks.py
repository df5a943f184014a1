"""Checks of configuration values, each with a message that names the key and the remedy."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence


def one_of(key: str, value: str, allowed: Sequence[str]) -> None:
    if value not in allowed:
        raise UserError(f"{key}={value}: choose one of {', '.join(allowed)}")


def at_least(key: str, value: float | None, low: float) -> None:
    """None passes: it stands for a default taken elsewhere."""
    if value is not None and not value >= low:
        raise UserError(f"{key}={value}: it must be at least {low}")


def above(key: str, value: float | None, low: float) -> None:
    if value is not None and not value > low:
        raise UserError(f"{key}={value}: it must be greater than {low}")


def between(key: str, value: float | None, low: float, high: float) -> None:
    if value is not None and not low <= value <= high:
        raise UserError(f"{key}={value}: it must lie in [{low}, {high}]")

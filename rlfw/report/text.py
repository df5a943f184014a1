"""Numbers, intervals and names as a page shows them."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from rlfw.errors import printable
from rlfw.report.configs import word

if TYPE_CHECKING:
    from rlfw.report.statistics import Estimate
    from rlfw.study.records import Arm

NONE = "–"


def number(value: float | None) -> str:
    """Three significant digits or more: 0.0123, 1.23, 123, 12,345."""
    if value is None or math.isnan(value):
        return NONE
    if math.isinf(value):
        return "∞" if value > 0 else "-∞"
    if value == 0 or 0.001 <= abs(value) < 100:
        return f"{value:.3g}"
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.2e}"


def interval(found: Estimate) -> str:
    """[low, high]."""
    return NONE if math.isnan(found.low) else f"[{number(found.low)}, {number(found.high)}]"


def signed(value: float) -> str:
    """With a sign before what is not zero."""
    return f"+{number(value)}" if value > 0 else number(value)


def p_value(value: float) -> str:
    """Two digits, and never 0."""
    return (
        NONE if math.isnan(value) else "<0.001" if value < 0.001 else f"{value:.3f}" if value < 0.1 else f"{value:.2f}"
    )


def clock(seconds: float | None) -> str:
    """12 s, 3.4 min, 5.6 h."""
    if seconds is None:
        return NONE
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds:.3g} s"


def value(found: Any) -> str:
    """A setting; a dash where there is none."""
    return NONE if found is None else word(found)


def printable_lines(told: str) -> str:
    """Its lines; within each, what is not printable is spelt out."""
    return "\n".join(printable(line) for line in told.split("\n"))


def differences(arm: Arm) -> list[str]:
    """key: the base's value → the arm's."""
    return [f"{key}: {value(a)} → {value(b)}" for key, (a, b) in arm.differences.items()]

"""How a figure looks: colours that colour-blind readers tell apart, line styles beside them, light and dark."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from typing import Any

import numpy as np

OKABE_ITO = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#999933")
UNITS = {  # of a column, or of all that begin so; of the README's table of metrics those that have one
    "objective/kl_coef": "",
    "objective/kl_per_token": "nats a step",
    "objective/kl": "nats a row",
    "objective/entropy_coef": "",
    "objective/entropy": "nats a step",
    "policy/approxkl": "nats a step",
    "loss/kl": "nats a step",
    "loss/entropy": "nats a step",
    "loss/nll": "nats a step",
    "response_length/clip_ratio": "share of rows",
    "response_length/": "steps",
    "sampling/logp_difference": "nats",
    "timing_s/": "s",
}
DASHES: tuple[Any, ...] = ("-", (0, (5, 1.5)), (0, (1, 1)), (0, (5, 1, 1, 1)), (0, (8, 2, 1, 2, 1, 2)))
MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Theme:
    """The page that a figure stands on."""

    name: str
    ink: str
    faint: str
    ground: str

    @property
    def settings(self) -> Any:
        """For matplotlib.rc_context."""
        inked = ("text.color", "axes.labelcolor", "xtick.color", "ytick.color", "axes.edgecolor")
        return {
            **dict.fromkeys(inked, self.ink),
            "figure.facecolor": self.ground,
            "axes.facecolor": self.ground,
            "savefig.facecolor": self.ground,
            "axes.spines.top": False,
            "axes.spines.right": False,
            "axes.grid": True,
            "grid.color": self.faint,
            "grid.linewidth": 0.6,
            "axes.axisbelow": True,
            "axes.titlesize": 10,
            "axes.labelsize": 9,
            "xtick.labelsize": 8,
            "ytick.labelsize": 8,
            "legend.fontsize": 8,
            "legend.frameon": False,
            "svg.hashsalt": "rlfw",
            "axes.formatter.useoffset": False,
        }


LIGHT = Theme("light", ink="#1b1f24", faint="#e4e7eb", ground="#ffffff")
DARK = Theme("dark", ink="#e6e8eb", faint="#343a42", ground="#171a1e")


@dataclass(frozen=True)
class Stroke:
    """An arm's own look; the base's is the ink, unbroken."""

    color: str
    dashes: Any
    marker: str


def strokes(arms: list[str], theme: Theme) -> dict[str, Stroke]:
    """The look of each arm, the base (the first) among them."""
    found = {arms[0]: Stroke(theme.ink, "-", "o")}
    for number, arm in enumerate(arms[1:]):
        turn, place = divmod(number, len(OKABE_ITO))
        dashes = DASHES[(place + turn + 1) % len(DASHES)]
        found[arm] = Stroke(OKABE_ITO[place], dashes, MARKERS[(place + 1) % len(MARKERS)])
    return found


def axis(column: str) -> str:
    """A column as an axis names it, with its unit."""
    return plain(column) + f" [{unit(column)}]" * bool(unit(column))


def unit(column: str) -> str:
    """Of a column; empty where it has none."""
    return next((unit for start, unit in UNITS.items() if column.startswith(start)), "")


def is_kl(column: str) -> bool:
    """Whether a column is a divergence, which near its start grows with the square of the distance."""
    return "kl" in column and bool(unit(column))


def root(x: np.ndarray) -> np.ndarray:
    """The square root with its sign: an estimate of a divergence may be a little below 0."""
    return np.asarray(np.sign(x) * np.sqrt(np.abs(x)))


def root_ticks(low: float, high: float) -> list[float]:
    """0 and round numbers (1, 2, 5, ...) from ``low`` to ``high``, apart enough to be read on a square-root scale."""
    reach = root(np.array([low, high]))
    found = [0.0]
    for power in range(-4, 7):
        for first in (1, 2, 5):
            tick = first * 10.0**power
            if tick <= high and np.sqrt(tick) - np.sqrt(found[-1]) >= 0.11 * np.ptp(reach):
                found.append(tick)
    return found


def plain(name: str, width: int = 44) -> str:
    """A name as a figure takes it: no mathematics in its dollars, long ones in lines."""
    return "\n".join(textwrap.wrap(name.replace("$", r"\$"), width)) or " "

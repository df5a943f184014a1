"""When a run is saved, and which checkpoints stay."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable


@dataclass
class Retention:
    """The newest ones, the best one, and milestones. The newest always stays."""

    keep: int  # the newest so many; -1: all
    every: int = 0  # iterations between checkpoints; 0: at every tenth of the budget
    milestones: int = 0  # every so many iterations one stays for good; 0: none
    best: tuple[int, float] | None = None  # iteration and score of the best evaluation

    def evaluated(self, iteration: int, score: float) -> None:
        """Remember an evaluation that beats all before."""
        if self.best is None or score > self.best[1]:
            self.best = (iteration, score)

    def due(self, iteration: int, before: float, after: float) -> bool:
        """Whether this iteration is saved, which took the budget's share spent from ``before`` to ``after``."""
        if self.best is not None and self.best[0] == iteration:
            return True
        if self.milestones and iteration % self.milestones == 0:
            return True
        return iteration % self.every == 0 if self.every else int(after * 10) > int(before * 10)

    def stays(self, saved: Iterable[int]) -> set[int]:
        """The iterations, of those that are saved, whose checkpoints stay."""
        saved = sorted(saved)
        if self.keep < 0:
            return set(saved)
        kept = set(saved[-max(self.keep, 1) :])
        kept |= {i for i in saved if self.milestones and i % self.milestones == 0}
        return kept | ({self.best[0]} & set(saved) if self.best is not None else set())

    def state_dict(self) -> dict[str, Any]:
        return {"best": None if self.best is None else list(self.best)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.best = None if state["best"] is None else (int(state["best"][0]), float(state["best"][1]))

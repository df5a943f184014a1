"""The progress bar: reward, KL, entropy, length and time left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from tqdm import tqdm

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omegaconf import DictConfig

SHOWN = {
    "reward": "objective/scores",
    "kl": "policy/approxkl_avg",
    "kl_ref": "objective/kl_per_token",
    "entropy": "objective/entropy",
    "length": "response_length/mean",
}


class Progress:
    """On a terminal a bar; elsewhere a line every half minute."""

    def __init__(self, cfg: DictConfig, unit: str) -> None:
        unit = "iterations" if cfg.iterations is not None else unit
        self.total = cfg.iterations or cfg.total_steps
        interval = 0.1 if sys.stderr.isatty() else 30.0
        self.bar = tqdm(
            total=self.total,
            unit=f" {unit}",
            mininterval=interval,
            disable=not cfg.progress,
            dynamic_ncols=True,
            delay=1e-6,  # nothing is shown of a run that is refused before its first iteration
        )
        self.drawn = False

    def show(self, progress: float, metrics: Mapping[str, float]) -> None:
        known = {name: metrics[key] for name, key in SHOWN.items() if key in metrics}
        self.bar.set_postfix({name: f"{value:.3g}" for name, value in known.items()}, refresh=False)
        drawn = self.bar.update(min(round(progress * self.total), self.total) - self.bar.n)
        self.drawn = self.drawn or bool(drawn)

    def say(self, sentence: str) -> None:
        """A line on stderr, above the bar where one is drawn."""
        if self.drawn:
            tqdm.write(sentence, file=sys.stderr)
        else:  # tqdm.write would draw it
            print(sentence, file=sys.stderr, flush=True)

    def close(self) -> None:
        self.bar.close()

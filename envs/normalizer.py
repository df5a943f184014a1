"""Running normalisation of observations and rewards: state of the env, saved with the run and frozen in evaluation.

N sub-envs   D entries of an observation
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

CLIP = 10.0  # normalised observations and rewards are held within +-CLIP
EPS = 1e-8  # joins the variance


class RunningMoments:
    """Mean and population variance of everything seen so far, in float64, batch by batch (Chan et al. 1979)."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.count = 0
        self.mean, self.squares = np.zeros(shape), np.zeros(shape)  # the mean; the sum of squared deviations from it

    def update(self, batch: np.ndarray) -> None:
        """``batch`` [n, ...], n >= 1."""
        n = len(batch)
        mean = batch.mean(0, dtype=np.float64)
        delta = mean - self.mean
        total = self.count + n
        self.squares += np.square(batch - mean).sum(0) + np.square(delta) * (self.count * n / total)
        self.mean += delta * (n / total)
        self.count = total

    @property
    def var(self) -> np.ndarray:
        """1 where all numbers so far are equal."""
        return np.where(self.squares > 0, self.squares / max(self.count, 1), 1.0)

    def state_dict(self) -> dict[str, Any]:
        return {
            "count": self.count,
            "mean": torch.from_numpy(self.mean.copy()),
            "squares": torch.from_numpy(self.squares.copy()),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.count = int(state["count"])
        self.mean, self.squares = (np.array(state[name], dtype=np.float64) for name in ("mean", "squares"))


class ObservationNormalizer:
    """(x - mean) / std, clipped. Entries where ``scaled`` is False (one-hot, bits) pass as they are."""

    def __init__(self, shape: tuple[int, ...], scaled: np.ndarray) -> None:
        self.moments = RunningMoments(shape)
        self._scaled = scaled  # [...] bool

    def update(self, observations: np.ndarray) -> None:
        """``observations`` [n, ...] as the env gave them."""
        if len(observations):
            self.moments.update(observations)

    def __call__(self, observations: np.ndarray) -> np.ndarray:
        """[n, ...] float32 -> the same, normalised with what is known now."""
        found = (observations - self.moments.mean) / np.sqrt(self.moments.var + EPS)
        return np.where(self._scaled, found.clip(-CLIP, CLIP), observations).astype(np.float32)


class RewardNormalizer:
    """r / std of the running discounted return G <- gamma G + r, clipped; the mean stays where it is.

    G starts from 0 in every episode, whether the last one terminated or was cut.
    """

    def __init__(self, gamma: float) -> None:
        self.gamma = gamma
        self.moments = RunningMoments(())
        self.returns = np.zeros(0)  # [N]

    def start(self, num_envs: int) -> None:
        """All sub-envs are at an episode's start."""
        self.returns = np.zeros(num_envs)

    def __call__(self, rewards: np.ndarray, done: np.ndarray, live: np.ndarray) -> np.ndarray:
        """``rewards`` [N] -> the same, normalised. ``live`` [N]: who stepped; ``done`` [N]: whose episode ended."""
        self.returns = self.gamma * self.returns + rewards
        if live.any():
            self.moments.update(self.returns[live])
        self.returns[done] = 0.0
        return np.clip(rewards / np.sqrt(self.moments.var + EPS), -CLIP, CLIP)

    def state_dict(self) -> dict[str, Any]:
        return {"moments": self.moments.state_dict(), "returns": torch.from_numpy(self.returns.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.moments.load_state_dict(state["moments"])
        self.returns = np.array(state["returns"], dtype=np.float64)

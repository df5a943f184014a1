"""What N sub-envs did, step by step, and the rows it is cut into.

N sub-envs   K steps an env   B rows   T steps of the longest row   S filled cells of [B, T]   A action dimensions
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from rlfw.context import Observations
from rlfw.rollout import Episodes, Rollout


@dataclass
class Running:
    """The episodes under way, one in each sub-env."""

    episode: np.ndarray  # [N] int64
    returns: np.ndarray  # [N] float64: the sum of the env's rewards before the present rollout
    lengths: np.ndarray  # [N] int64: steps before the present rollout
    actions: list[list[np.ndarray]]  # per sub-env, the pieces of its actions before the present rollout

    @classmethod
    def start(cls, episode: np.ndarray) -> Running:
        N = len(episode)
        return cls(episode, np.zeros(N), np.zeros(N, np.int64), [[] for _ in range(N)])


class Recorder:
    """Env-major buffers [N, K, ...], twice as long whenever they are full."""

    def __init__(self, num_envs: int, capacity: int) -> None:
        self._num_envs, self._capacity = num_envs, capacity
        self._steps = 0
        self._buffers: dict[str, np.ndarray] = {}  # name -> [N, capacity, ...]
        self._finals: list[tuple[int, int, np.ndarray]] = []  # sub-env, step, the observation after it

    def add(self, **columns: np.ndarray) -> None:
        """One step of every sub-env, each column [N, ...] or longer: ``observations``, ``actions``, ``rewards`` (to
        learn from), ``raw`` (the env's own rewards), ``terminated``, ``done``, ``live`` and ``episode``."""
        t = self._steps
        if t == 0:
            for name, column in columns.items():
                self._buffers[name] = np.empty((self._num_envs, self._capacity, *column.shape[1:]), column.dtype)
        elif t == self._capacity:
            self._capacity *= 2
            for name, buffer in self._buffers.items():
                self._buffers[name] = np.concatenate([buffer, np.empty_like(buffer)], 1)
        for name, column in columns.items():
            self._buffers[name][:, t] = column[: self._num_envs]
        self._steps += 1

    def end(self, i: int, observation: np.ndarray) -> None:
        """The step added last ended the episode of sub-env ``i``; ``observation`` [...] followed it."""
        self._finals.append((i, self._steps - 1, observation.copy()))

    def rollout(self, logprobs: np.ndarray, observations: np.ndarray, running: Running) -> Rollout:
        """Rows, env by env and in time, each cut where an episode or the recording ended; every episode a group.

        ``logprobs`` [K, N]. ``observations`` [N, ...]: after the last step, for the rows that go on. ``running`` comes
        as it was before the first step, but for its episode ids, and is left as it is after the last step.
        """
        K = self._steps
        taken = {name: buffer[:, :K] for name, buffer in self._buffers.items()}
        live, done = taken["live"], taken["done"]  # [N, K]
        last = done.copy()
        last[:, -1] |= live[:, -1]
        env, step = last.nonzero()  # [B] the last step of every row
        length = np.diff(last[live].nonzero()[0], prepend=-1)  # [B]
        mask = np.arange(length.max()) < length[:, None]  # [B, T]

        def rows(flat: np.ndarray) -> torch.Tensor:  # [S, ...] -> [B, T, ...], zero off the mask
            rectangle = np.zeros((*mask.shape, *flat.shape[1:]), flat.dtype)
            rectangle[mask] = flat
            return torch.from_numpy(rectangle)

        ended, terminated, episode = done[env, step], taken["terminated"][env, step], taken["episode"][env, step]
        finals = self._finals + [(int(i), K - 1, observations[i]) for i in env[~ended]]
        finals.sort(key=lambda final: final[:2])
        returns = np.add.reduceat(taken["raw"][live], length.cumsum() - length)  # [B]
        returns, lengths = self._carry(env, step, ended, returns, length, taken["actions"], running)
        return Rollout(
            context=Observations(
                torch.from_numpy(taken["observations"][live]),
                torch.from_numpy(np.stack([observation for *_, observation in finals])),
                torch.from_numpy(mask),
            ),
            actions=rows(taken["actions"][live]),
            logprobs=rows(logprobs.T[live]),
            rewards=rows(taken["rewards"][live].astype(np.float32)),
            mask=torch.from_numpy(mask),
            terminated=torch.from_numpy(terminated),
            truncated=torch.from_numpy(ended & ~terminated),
            group=torch.from_numpy(episode),
            episode=torch.from_numpy(episode),
            episodes=Episodes(torch.from_numpy(returns[ended]), torch.from_numpy(lengths[ended])),
            spent=int(length.sum()),
            num_generated=len(length),
        )

    @staticmethod
    def _carry(
        env: np.ndarray,
        step: np.ndarray,
        ended: np.ndarray,
        returns: np.ndarray,
        length: np.ndarray,
        actions: np.ndarray,
        running: Running,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Add what ``running`` brought along to each sub-env's first row; leave there what its last row takes along.

        Rows [B] in, of which every sub-env has at least one; returns and lengths [B] from each episode's start out.
        """
        first, last = np.diff(env, prepend=-1) > 0, np.diff(env, append=-1) != 0  # [B] with N True each
        returns[first] += running.returns
        lengths = length.copy()
        lengths[first] += running.lengths
        running.returns = np.where(ended[last], 0.0, returns[last])
        running.lengths = np.where(ended[last], 0, lengths[last])
        for i, t, n, over, whole in zip(env[last], step[last], length[last], ended[last], first[last], strict=True):
            piece = [] if over else [actions[i, t + 1 - n : t + 1].copy()]
            running.actions[i] = running.actions[i] + piece if whole and not over else piece
        return returns, lengths

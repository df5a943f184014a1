"""CartPole-v1, vectorised: bit-equal to gymnasium's, states and resets alike.

N sub-envs
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium.envs.classic_control import CartPoleEnv
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space

from .vector import reset_mask, seeds_of

if TYPE_CHECKING:
    from gymnasium import spaces

GRAVITY, FORCE, TAU = 9.8, 10.0, 0.02  # m/s^2, N, s between steps
MASS_POLE, TOTAL_MASS = 0.1, 0.1 + 1.0  # kg
LENGTH, POLE_MASS_LENGTH = 0.5, 0.1 * 0.5  # half the pole's length in m; kg m
LIMITS = np.array([[2.4], [12 * 2 * math.pi / 360]])  # [2, 1] of the position in m, of the angle in rad


class CartPoleVectorEnv(VectorEnv):
    """The contract of LoopVectorEnv, with gymnasium's float64 expressions in gymnasium's order over all N at once."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 (gymnasium's own attribute)

    def __init__(self, num_envs: int, max_episode_steps: int = 500) -> None:
        single = CartPoleEnv()
        self.num_envs, self.max_episode_steps = num_envs, max_episode_steps
        self.single_observation_space: spaces.Space = single.observation_space
        self.single_action_space: spaces.Space = single.action_space
        self.observation_space = batch_space(single.observation_space, num_envs)
        self.action_space = batch_space(single.action_space, num_envs)
        self.elapsed = np.zeros(num_envs, np.int64)  # [N] steps since the reset
        self._state = np.zeros((4, num_envs))  # x, its velocity, the angle, its velocity
        self._change = np.zeros((4, num_envs))
        self.observations = np.zeros((num_envs, 4), np.float32)
        self._idle = np.ones(num_envs, np.bool_)  # ended, or never reset
        self._num_idle = num_envs
        self._rngs: list[np.random.Generator | None] = [None] * num_envs

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[np.ndarray, dict[str, Any]]:
        seeds = seeds_of(seed, self.num_envs)
        mask, _ = reset_mask(options, self.num_envs)
        for i in np.flatnonzero(mask).tolist():
            if (rng := self._rngs[i]) is None or seeds[i] is not None:
                rng = self._rngs[i] = np.random.Generator(np.random.PCG64(np.random.SeedSequence(seeds[i])))
            self._state[:, i] = rng.uniform(-0.05, 0.05, 4)
        self.elapsed[mask] = 0
        self._idle[mask] = False
        self._num_idle = int(self._idle.sum())
        self.observations[:] = self._state.T
        return self.observations, {}

    def step(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        _, velocity, angle, spin = self._state
        change = self._change
        cos, sin = np.cos(angle), np.sin(angle)
        push = actions * (2 * FORCE) - FORCE
        pull = (push + POLE_MASS_LENGTH * np.square(spin) * sin) / TOTAL_MASS
        turn = (GRAVITY * sin - cos * pull) / (LENGTH * (4.0 / 3.0 - MASS_POLE * np.square(cos) / TOTAL_MASS))
        change[0], change[2], change[3] = velocity, spin, turn
        np.subtract(pull, POLE_MASS_LENGTH * turn * cos / TOTAL_MASS, out=change[1])
        change *= TAU
        if self._num_idle:
            change[:, self._idle] = 0.0
        self._state += change
        self.elapsed += ~self._idle if self._num_idle else 1
        self.observations[:] = self._state.T
        rewards = np.ones(self.num_envs)
        too_far, too_tilted = np.abs(self._state[::2]) > LIMITS
        terminated = too_far | too_tilted
        truncated = self.elapsed >= self.max_episode_steps
        if self._num_idle:
            rewards[self._idle], terminated[self._idle], truncated[self._idle] = 0.0, False, False
        self._idle |= terminated | truncated
        self._num_idle = int(np.count_nonzero(self._idle))
        return self.observations, rewards, terminated, truncated, {}

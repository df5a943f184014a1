"""Any gymnasium env, N of them stepped in a plain loop.

    N sub-envs

The contract of both vector envs of this package is gymnasium's with autoreset DISABLED: ``step`` returns the true last
observation of an episode, and ``reset(seed=..., options={"reset_mask": mask})`` starts the next one where ``mask`` [N]
is True. One extension: a sub-env that has ended, or was never reset, is left alone by ``step``. Its observation stays,
its reward is 0 and its flags are False, so that N whole episodes are played by stepping until the last one has ended.

The arrays that come back are the env's own buffers; the next call overwrites them. Infos are not kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rlfw.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable


class LoopVectorEnv(VectorEnv):
    """N copies of what ``make`` returns: no batched infos, no copies, no check but of the first observation's shape."""

    metadata = {"autoreset_mode": AutoresetMode.DISABLED}  # noqa: RUF012 (gymnasium's own attribute)

    def __init__(self, make: Callable[[], gym.Env], num_envs: int) -> None:
        self.num_envs = num_envs
        self.envs = [make() for _ in range(num_envs)]
        self.spec = self.envs[0].spec
        self.single_observation_space: spaces.Space = self.envs[0].observation_space
        self.single_action_space: spaces.Space = self.envs[0].action_space
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.elapsed = np.zeros(num_envs, np.int64)  # [N] steps since the reset
        self._nested = not isinstance(
            self.single_observation_space, (spaces.Box, spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)
        )
        self.observations: Any = create_empty_array(self.single_observation_space, num_envs)
        self._parts: list[Any] = list(iterate(self.observation_space, self.observations)) if self._nested else []
        self._rewards = np.zeros(num_envs)
        self._terminated, self._truncated = np.zeros(num_envs, np.bool_), np.zeros(num_envs, np.bool_)
        self._live: list[int] = []

    @property
    def name(self) -> str:
        return self.spec.id if self.spec else type(self.envs[0]).__name__

    def reset(
        self, *, seed: int | list[int | None] | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        seeds = seeds_of(seed, self.num_envs)
        mask, options = reset_mask(options, self.num_envs)
        for i in np.flatnonzero(mask).tolist():
            try:
                observation, _ = self.envs[i].reset(seed=seeds[i], options=options)
                if not self._nested and np.shape(observation) != self.single_observation_space.shape:
                    raise ValueError(
                        f"the observation has shape {np.shape(observation)}, "
                        f"its space says {self.single_observation_space.shape}"
                    )
                self._store(i, observation)
            except (Exception, SystemExit) as error:
                raise RunError(f"{self.name}: the reset of sub-env {i} raises {error!r}") from error
        self._gather()
        self.elapsed[mask] = 0
        self._live = sorted({*self._live, *np.flatnonzero(mask).tolist()})
        return self.observations, {}

    def step(self, actions: np.ndarray) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        envs, observations, rewards = self.envs, self.observations, self._rewards
        terminated, truncated = self._terminated, self._truncated
        split = self._split(actions)
        i = 0
        try:
            if len(self._live) < self.num_envs:
                rewards[:], terminated[:], truncated[:] = 0.0, False, False
            if self._nested:
                for i in self._live:
                    self._parts[i], rewards[i], terminated[i], truncated[i], _ = envs[i].step(split[i])
                self._gather()
            else:
                for i in self._live:
                    observations[i], rewards[i], terminated[i], truncated[i], _ = envs[i].step(split[i])
        except (Exception, SystemExit) as error:
            raise RunError(f"{self.name}: step {self.elapsed[i] + 1} of sub-env {i} raises {error!r}") from error
        if len(self._live) == self.num_envs:
            self.elapsed += 1
        else:
            self.elapsed[self._live] += 1
        if terminated.any() or truncated.any():
            self._live = [i for i in self._live if not (terminated[i] or truncated[i])]
        return observations, rewards, terminated, truncated, {}

    def _store(self, i: int, observation: Any) -> None:
        (self._parts if self._nested else self.observations)[i] = observation

    def _gather(self) -> None:
        if self._nested:
            self.observations = concatenate(self.single_observation_space, self._parts, self.observations)

    def _split(self, actions: np.ndarray) -> list[Any]:
        """One action a sub-env, as its space contains it: a python int, or an array (0-d for a Box of shape ())."""
        if isinstance(self.single_action_space, spaces.Discrete):
            return list(actions.tolist())
        return [actions[i, ...] for i in range(self.num_envs)]

    def close_extras(self, **kwargs: Any) -> None:
        for env in self.envs:
            env.close()


def seeds_of(seed: int | Iterable[int | None] | None, num_envs: int) -> list[int | None]:
    """gymnasium's rule: one number counts up over the sub-envs."""
    if seed is None:
        return [None] * num_envs
    return [seed + i for i in range(num_envs)] if isinstance(seed, int) else list(seed)


def reset_mask(options: dict[str, Any] | None, num_envs: int) -> tuple[np.ndarray, dict[str, Any] | None]:
    """The sub-envs to reset [N], all without a mask, and the options that are meant for them."""
    rest = dict(options or {})
    mask = rest.pop("reset_mask", np.ones(num_envs, np.bool_))
    return mask, rest or None

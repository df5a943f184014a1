"""Any gymnasium id.

N sub-envs   K steps an env   B rows   T steps of the longest row   A action dimensions
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import warnings
from dataclasses import KW_ONLY, dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import torch

from rlfw.checks import at_least, one_of
from rlfw.errors import RunError, UserError
from rlfw.interfaces import ControlSpec, Env, EpisodeGroups, Request, StepActor, Steps
from rlfw.registry import register
from rlfw.seeding import Streams  # noqa: TC001 (the registry evaluates the signature)

from .border import action_border, encoding
from .cartpole import CartPoleVectorEnv
from .normalizer import ObservationNormalizer, RewardNormalizer
from .recorder import Recorder, Running
from .vector import LoopVectorEnv

if TYPE_CHECKING:
    from rlfw.rollout import Rollout

MAX_EPISODE_STEPS = 100_000  # an episode that must be whole and has no limit of its own is given up here


@register("env", "gym")
@dataclass
class GymEnv(Env):
    """Any gymnasium id, in N copies at once, every episode with a seed of its own.

    ``max_episode_steps``: another time limit than the id's own. ``vectorization``: auto takes a vectorised env of
    rlfw's own where there is one (CartPole-v1, bit-equal to gymnasium's), loop steps gymnasium's own in a loop.
    ``normalize_observations``, ``normalize_rewards``: by running moments, clipped at 10, frozen in evaluation; the
    returns that are reported stay the env's own. ``kwargs``: passed to gymnasium.make.
    An episode that terminates and hits its limit in one step has terminated.
    """

    gamma: float
    streams: Streams
    _: KW_ONLY
    id: str
    max_episode_steps: int | None = None
    vectorization: str = "auto"
    normalize_observations: bool = False
    normalize_rewards: bool = False
    kwargs: dict[str, Any] = field(default_factory=dict)
    unit: ClassVar[str] = "env steps"
    only_with: ClassVar[dict[str, tuple[str, Any]]] = {"gamma": ("normalize_rewards", True)}
    imports: ClassVar[tuple[str, ...]] = ("id",)

    def __post_init__(self) -> None:
        one_of("env.gym.vectorization", self.vectorization, ("auto", "loop"))
        at_least("env.gym.max_episode_steps", self.max_episode_steps, 1)
        self.name = self.id
        single = self._make()
        where = f"env.gym.id={self.id}"
        for name in ("observation_space", "action_space"):
            if not isinstance(getattr(single, name, None), gymnasium.Space):
                raise UserError(f"{where}: its {name} is no space of gymnasium")
        self._encoding = encoding(single.observation_space, where)
        self._to_env = action_border(single.action_space, where)
        max_steps = single.spec.max_episode_steps if single.spec else None
        self.spec = ControlSpec(self._encoding.shape, self._encoding.dtype, single.action_space, max_steps)
        single.close()
        if self.normalize_observations and not self._encoding.scaled.any():
            raise UserError(f"env.gym.normalize_observations: {self.id} has no real-valued observations to normalise")
        self._observation_normalizer = (
            ObservationNormalizer(self._encoding.shape, self._encoding.scaled) if self.normalize_observations else None
        )
        self._reward_normalizer = RewardNormalizer(self.gamma) if self.normalize_rewards else None
        self._num_episodes = 0  # started so far: the next episode's id
        self._running: Running | None = None  # under Steps
        self._observations = np.zeros(0)  # [N, ...] what the policy sees next, under Steps
        # until the first rollout after a load: per sub-env the actions to play again, and where they must lead [N, ...]
        self._restored: tuple[list[np.ndarray], np.ndarray] | None = None
        self._vectors: dict[str, Any] = {}  # use -> vector env

    def check_greedy(self) -> None:
        if self.normalize_rewards:
            raise UserError(
                f"{self.name}: the return of a greedy episode has no part in the running scale of the rewards: "
                "set env.gym.normalize_rewards=false"
            )

    # -------------------------------------------------------------------------------------------- collection

    def collect(self, request: Request, actor: StepActor) -> Rollout:
        if isinstance(request, Steps):
            return self._collect_steps(request.num_envs, request.num_steps, actor)
        return self._collect_groups(request, actor)

    def _collect_steps(self, N: int, K: int, actor: StepActor) -> Rollout:
        if self._running is not None and len(self._running.episode) != N:
            raise UserError(
                f"{self.name}: {len(self._running.episode)} sub-envs are under way and {N} are asked for; "
                "their number stays as it is during a run"
            )
        vector = self._vector("steps", N)
        if self._restored is not None:
            self._replay(vector)
        if self._running is None:
            self._start_all(vector)
        running = self._running
        assert running is not None
        recorder, live, observations = Recorder(N, K), np.ones(N, np.bool_), self._observations
        for _ in range(K):
            observations, done = self._step(vector, actor, observations, live, running.episode, recorder)
            if done.any():
                ended = np.flatnonzero(done)
                for i in ended.tolist():
                    recorder.end(i, observations[i])
                running.episode[ended] = self._new_episodes(len(ended))
                observations[ended] = self._reset(vector, running.episode, done)
        self._observations = observations
        return recorder.rollout(actor.logprobs(), observations, running)

    def _collect_groups(self, request: EpisodeGroups, actor: StepActor) -> Rollout:
        """The first sub-envs of a vector that may be larger: the actor's noise keeps its shape over requests."""
        B = request.num_episodes
        vector = self._vector("groups", B)
        N = vector.num_envs
        episode = self._new_episodes(B)
        group = episode[:: request.group_size].repeat(request.group_size)  # named after its first episode
        live = np.arange(N) < B
        if self._reward_normalizer:
            self._reward_normalizer.start(N)
        observations = np.zeros((N, *self._encoding.shape), self._encoding.dtype)
        observations[:B] = self._reset(vector, group, live)
        recorder = Recorder(B, 128)
        while live.any():
            observations, done = self._step(vector, actor, observations, live, episode, recorder)
            for i in np.flatnonzero(done).tolist():
                recorder.end(i, observations[i])
            live = live & ~done
            self._check_ends(vector)
        rollout = recorder.rollout(actor.logprobs()[:, :B], observations, Running.start(episode))
        rollout = dataclasses.replace(rollout, group=torch.from_numpy(group))
        return self._with_greedy(rollout, group[:: request.group_size], actor) if request.greedy else rollout

    def _with_greedy(self, rollout: Rollout, starts: np.ndarray, actor: StepActor) -> Rollout:
        """``rollout`` with one greedy episode from the start of each of its P groups, the seeds number ``starts`` [P].

        It draws nothing and teaches the normalisers nothing, so the rows are the same as without it.
        """
        vector = self._vector("greedy", len(starts))
        returns = self._play(vector, actor, [self.streams.integer("episode", i) for i in starts.tolist()], greedy=True)
        actor.logprobs()  # of no use to anybody, but the actor keeps them until they are asked for
        spent = rollout.spent + int(vector.elapsed[: len(starts)].sum())
        each = torch.from_numpy(returns).float().repeat_interleave(len(rollout.group) // len(starts))
        return dataclasses.replace(rollout, greedy_returns=each, spent=spent)

    def _step(
        self,
        vector: Any,
        actor: StepActor,
        observations: np.ndarray,
        live: np.ndarray,
        episode: np.ndarray,
        recorder: Recorder,
    ) -> tuple[np.ndarray, np.ndarray]:
        """One step of the sub-envs that are ``live``: the observations after it as the policy sees them, and done."""
        actions = actor.act(observations)
        batch, raw, terminated, truncated, _ = vector.step(self._to_env(actions))
        done = terminated | truncated
        after = self._checked(vector, self._encoding.encode(batch), raw)
        if self._observation_normalizer:
            self._observation_normalizer.update(after[live])
            after = self._observation_normalizer(after)
        rewards = self._reward_normalizer(raw, done, live) if self._reward_normalizer else raw
        recorder.add(
            observations=observations,
            actions=actions,
            rewards=rewards,
            raw=raw,
            terminated=terminated,
            done=done,
            live=live,
            episode=episode,
        )
        return after, done

    def evaluate(
        self, actor: StepActor, num_episodes: int, streams: Streams, *, greedy: bool = True
    ) -> dict[str, list[float]]:
        """One episode in each of ``num_episodes`` sub-envs: none is favoured for being short.

        Episode i is reset from the i-th seed of ``streams``, so that equal streams play the same starts again.
        """
        vector = self._vector("evaluation", num_episodes)
        seeds = [streams.integer("episode", i) for i in range(num_episodes)]
        returns = self._play(vector, actor, seeds, greedy=greedy)
        return {"return": returns.tolist(), "length": vector.elapsed.astype(float).tolist()}

    def _play(self, vector: Any, actor: StepActor, seeds: list[int], *, greedy: bool) -> np.ndarray:
        """One episode from each of ``seeds`` [n] in the first n sub-envs, the normaliser frozen: their returns [n]."""
        seen = self._observation_normalizer or (lambda x: x)
        idle = vector.num_envs - len(seeds)
        live = np.arange(vector.num_envs) < len(seeds)
        returns = np.zeros(vector.num_envs)
        batch, _ = vector.reset(seed=[*seeds, *[None] * idle], options={"reset_mask": live})
        observations = self._checked(vector, self._encoding.encode(batch))
        while live.any():
            actions = actor.act(seen(observations), greedy=greedy)
            batch, rewards, terminated, truncated, _ = vector.step(self._to_env(actions))
            observations = self._checked(vector, self._encoding.encode(batch), rewards)
            returns += rewards
            live &= ~(terminated | truncated)
            self._check_ends(vector)
        return returns[: len(seeds)]

    def close(self) -> None:
        for vector in self._vectors.values():
            vector.close()
        self._vectors.clear()

    # -------------------------------------------------------------------------------------------- sub-envs

    def _make(self) -> gymnasium.Env:
        limit = {} if self.max_episode_steps is None else {"max_episode_steps": self.max_episode_steps}
        try:
            return gymnasium.make(self.id, disable_env_checker=True, **limit, **self.kwargs)
        except gymnasium.error.DependencyNotInstalled as error:
            remedy = "pip install 'rlfw[box2d]'" if "box2d" in str(error).lower() else str(error)
            raise UserError(f"env.gym.id={self.id} needs a package that is not installed: {remedy}") from error
        except (gymnasium.error.UnregisteredEnv, gymnasium.error.DeprecatedEnv) as error:
            near = difflib.get_close_matches(self.id, gymnasium.registry, n=1, cutoff=0.5)
            raise UserError(
                f"env.gym.id={self.id}: gymnasium knows no such env{f'; did you mean {near[0]}?' if near else ''}"
            ) from error
        except (Exception, SystemExit) as error:
            given = f" with env.gym.kwargs={self.kwargs}" if self.kwargs else ""
            raise UserError(f"env.gym.id={self.id}{given} cannot be made: {error!r}") from error

    def _vector(self, use: str, num_envs: int) -> Any:
        """The vector env that serves ``use``; it is made anew where more sub-envs are asked for, or other ones."""
        vector = self._vectors.get(use)
        enough = vector is not None and (vector.num_envs == num_envs or use == "steps")
        if not enough and use in ("groups", "greedy"):  # a resampling of fewer groups leaves the others idle
            enough = vector is not None and vector.num_envs > num_envs
        if not enough:
            if vector is not None:
                vector.close()
            if self.vectorization == "auto" and self.id == "CartPole-v1" and not self.kwargs:
                vector = CartPoleVectorEnv(num_envs, self.max_episode_steps or 500)
            else:
                vector = LoopVectorEnv(self._make, num_envs)
            self._vectors[use] = vector
        return vector

    def _new_episodes(self, n: int) -> np.ndarray:
        """The ids of the next ``n`` episodes."""
        first, self._num_episodes = self._num_episodes, self._num_episodes + n
        return np.arange(first, first + n)

    def _start_all(self, vector: Any) -> None:
        """Fresh episodes in all sub-envs, under Steps."""
        self._running = Running.start(self._new_episodes(vector.num_envs))
        if self._reward_normalizer:
            self._reward_normalizer.start(vector.num_envs)
        self._observations = self._reset(vector, self._running.episode, np.ones(vector.num_envs, np.bool_))

    def _reset(self, vector: Any, start: np.ndarray, mask: np.ndarray) -> np.ndarray:
        """Reset where ``mask`` [N], each from the seed number ``start`` [N]: what the policy sees there."""
        first = self._reset_raw(vector, start, mask)
        if self._observation_normalizer:
            self._observation_normalizer.update(first)
            first = self._observation_normalizer(first)
        return first

    def _reset_raw(self, vector: Any, start: np.ndarray, mask: np.ndarray) -> np.ndarray:
        seeds: list[int | None] = [None] * len(mask)
        for i in np.flatnonzero(mask).tolist():
            seeds[i] = self.streams.integer("episode", int(start[i]))
        batch, _ = vector.reset(seed=seeds, options={"reset_mask": mask})
        observations: np.ndarray = self._checked(vector, self._encoding.encode(batch))[mask]
        return observations

    def _checked(self, vector: Any, observations: np.ndarray, rewards: np.ndarray | None = None) -> np.ndarray:
        """``observations`` [N, ...], or a RunError if they or the ``rewards`` [N] hold a number that is not finite."""
        for what, array in (("an observation", observations), ("a reward", rewards)):
            if array is None or math.isfinite(np.vdot(array, array)):  # the short way in a loop of small arrays
                continue
            if not np.isfinite(array).all():
                i = int(np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(1))[0])
                bad = array[i] if array.ndim == 1 else array[i][~np.isfinite(array[i])][0]
                raise RunError(
                    f"{self.name}: step {vector.elapsed[i]} of the episode in sub-env {i} gives {what} of {bad}; "
                    "it must be finite"
                )
        return observations

    def _check_ends(self, vector: Any) -> None:
        if self.spec.max_steps is None and vector.elapsed.max() >= MAX_EPISODE_STEPS:
            raise RunError(
                f"{self.name}: an episode has not ended after {MAX_EPISODE_STEPS} steps and has no limit; "
                "set env.gym.max_episode_steps=N"
            )

    # -------------------------------------------------------------------------------------------- checkpoints

    def state_dict(self) -> dict[str, Any]:
        """Counters and moments; of the episodes under way their ids and actions, from which they are played again."""
        state: dict[str, Any] = {"num_episodes": self._num_episodes}
        if self._observation_normalizer:
            state["observations"] = self._observation_normalizer.moments.state_dict()
        if self._reward_normalizer:
            state["rewards"] = self._reward_normalizer.state_dict()
        if (running := self._running) is not None:
            raw = self._restored[1] if self._restored else self._encoding.encode(self._vectors["steps"].observations)
            state["running"] = {
                "episode": torch.from_numpy(running.episode.copy()),
                "returns": torch.from_numpy(running.returns.copy()),
                "lengths": torch.from_numpy(running.lengths.copy()),
                "actions": [torch.from_numpy(np.concatenate(pieces)) if pieces else None for pieces in running.actions],
                "observations": torch.from_numpy(self._observations.copy()),  # as they were normalised at the time
                "raw": torch.from_numpy(raw),
            }
        return state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._num_episodes = int(state["num_episodes"])
        if self._observation_normalizer:
            self._observation_normalizer.moments.load_state_dict(state["observations"])
        if self._reward_normalizer:
            self._reward_normalizer.load_state_dict(state["rewards"])
        self._vectors.pop("steps", None)
        self._running = None
        if (saved := state.get("running")) is not None:
            actions = [[] if played is None else [np.asarray(played)] for played in saved["actions"]]
            episode, returns, lengths = (np.array(saved[name]) for name in ("episode", "returns", "lengths"))
            self._running = Running(episode, returns, lengths, actions)
            self._observations = np.array(saved["observations"])
            self._restored = [pieces[0] if pieces else np.zeros(0) for pieces in actions], np.array(saved["raw"])

    def _replay(self, vector: Any) -> None:
        """Play the episodes under way again: each is reset in its time, so that all arrive with the same step.

        Nothing of it passes the normalisers. Where seed and actions do not lead to the same place again, the env is
        not deterministic: fresh episodes are started, with a warning.
        """
        assert self._running is not None
        assert self._restored is not None
        episode, (played, raw), self._restored = self._running.episode, self._restored, None
        total = max(map(len, played))
        start = np.array([total - len(actions) for actions in played])  # [N] the step before which each is reset
        like = max(played, key=len)[:1]
        actions = np.repeat(like, len(played), 0)  # [N] or [N, A]
        same = True
        for t in range(total + 1):
            if (due := start == t).any():
                self._reset_raw(vector, episode, due)
            if t < total:
                live = start <= t
                actions[live] = [played[i][t - start[i]] for i in np.flatnonzero(live)]
                _, _, terminated, truncated, _ = vector.step(self._to_env(actions))
                same &= not (terminated | truncated).any()
        if not same or not np.array_equal(self._encoding.encode(vector.observations), raw):
            warnings.warn(
                f"{self.name}: the episodes under way do not come back by replay, so the env is not deterministic; "
                "the resumed run starts fresh ones and is not exactly the one that was interrupted",
                stacklevel=2,
            )
            self._start_all(vector)

"""The vector envs: our CartPole is gymnasium's, the loop is gymnasium's SyncVectorEnv, n copies are n single envs."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from rlfw.envs.cartpole import CartPoleVectorEnv
from rlfw.envs.vector import LoopVectorEnv
from rlfw.errors import RunError


def play(env, actions, seeds):
    """Every observation, reward and flag of ``actions`` [K, N]; ended sub-envs are reset from the next of ``seeds``."""
    n = env.num_envs
    seeds = iter(seeds)
    observations, _ = env.reset(seed=[next(seeds) for _ in range(n)])
    stream = [np.array(observations)]
    for action in actions:
        observations, rewards, terminated, truncated, _ = env.step(action)
        stream += [np.array(x) for x in (observations, rewards, terminated, truncated)]
        if (done := terminated | truncated).any():
            mask = np.array(done)
            seed = [next(seeds) if over else None for over in mask]
            observations, _ = env.reset(seed=seed, options={"reset_mask": mask})
            stream.append(np.array(observations))
    return stream


def assert_equal(left, right):
    assert len(left) == len(right)
    for a, b in zip(left, right, strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("num_envs", [1, 3, 8])
@pytest.mark.parametrize("limit", [500, 12])
def test_our_cartpole_is_bit_equal_to_gymnasiums(num_envs, limit):
    rng = np.random.default_rng(num_envs)
    actions = rng.integers(2, size=(1500, num_envs))
    seeds = rng.integers(2**31, size=100_000).tolist()
    make = lambda: gym.make("CartPole-v1", max_episode_steps=limit)  # noqa: E731
    theirs = play(SyncVectorEnv([make] * num_envs, autoreset_mode=AutoresetMode.DISABLED), actions, seeds)
    ours = play(CartPoleVectorEnv(num_envs, limit), actions, seeds)
    assert sum(x.sum() for x in theirs if x.dtype == bool) > 60 * num_envs  # many ends were compared
    assert_equal(ours, theirs)


def test_our_cartpole_goes_on_drawing_resets_without_a_seed():
    ours, theirs = CartPoleVectorEnv(1), gym.make("CartPole-v1")
    ours.reset(seed=3), theirs.reset(seed=3)
    np.testing.assert_array_equal(ours.reset()[0][0], theirs.reset()[0])


def test_our_cartpole_stays_within_its_spaces():
    env, theirs = CartPoleVectorEnv(2), gym.make("CartPole-v1")
    assert env.single_observation_space == theirs.observation_space
    assert env.single_action_space == theirs.action_space
    assert env.observation_space.contains(env.reset(seed=1)[0])


@pytest.mark.parametrize(
    "env_id", ["CartPole-v1", "Acrobot-v1", "Pendulum-v1", "MountainCarContinuous-v0", "FrozenLake-v1", "Taxi-v4"]
)
def test_the_loop_is_gymnasiums_sync_vector_env(env_id):
    make = lambda: gym.make(env_id, max_episode_steps=15)  # noqa: E731
    theirs = SyncVectorEnv([make] * 3, autoreset_mode=AutoresetMode.DISABLED)
    theirs.action_space.seed(0)
    actions = [theirs.action_space.sample() for _ in range(60)]
    seeds = range(1000)
    assert_equal(play(LoopVectorEnv(make, 3), actions, seeds), play(theirs, actions, seeds))


def test_n_copies_are_n_single_envs():
    make = lambda: gym.make("Acrobot-v1", max_episode_steps=10)  # noqa: E731
    actions = np.random.default_rng(0).integers(3, size=(10, 4))
    together = play(LoopVectorEnv(make, 4), actions, range(100))
    for i in range(4):
        env = make()
        stream = [env.reset(seed=i)[0]]
        for action in actions[:, i]:
            stream += list(env.step(action)[:4])
        for ours, single in zip(together, stream, strict=False):
            np.testing.assert_array_equal(ours[i], single)


@pytest.mark.parametrize(
    "make", [lambda: CartPoleVectorEnv(3), lambda: LoopVectorEnv(lambda: gym.make("CartPole-v1"), 3)]
)
def test_an_ended_sub_env_is_left_alone(make):
    env = make()
    env.reset(seed=[1, 2, 3])
    actions = np.array([1, 0, 1])
    last, ended = {}, np.zeros(3, bool)
    for t in range(200):
        observations, rewards, terminated, truncated, _ = env.step(actions)
        for i in np.flatnonzero(ended):
            np.testing.assert_array_equal(observations[i], last[i][0])
            assert rewards[i] == 0
            assert not terminated[i]
            assert not truncated[i]
            assert env.elapsed[i] == last[i][1]
        for i in np.flatnonzero(terminated):
            last[i] = observations[i].copy(), t + 1
        ended = ended | terminated
        if ended.all():
            break
    assert ended.all()
    env.reset(seed=[7, None, None], options={"reset_mask": np.array([True, False, False])})
    assert env.elapsed.tolist() == [0, last[1][1], last[2][1]]
    assert env.step(actions)[1].tolist() == [1, 0, 0]


class Broken(gym.Env):
    observation_space, action_space = gym.spaces.Box(-1, 1, (2,)), gym.spaces.Discrete(2)

    def __init__(self, wrong_shape=False):
        self.wrong_shape, self.steps = wrong_shape, 0

    def reset(self, *, seed=None, options=None):
        return np.zeros(1 if self.wrong_shape else 2, np.float32), {}

    def step(self, action):
        self.steps += 1
        if self.steps == 5:
            raise ZeroDivisionError("the robot fell over")
        return np.zeros(2, np.float32), 0.0, False, False, {}


def test_an_env_that_raises_is_named_with_sub_env_and_step():
    env = LoopVectorEnv(Broken, 2)
    env.reset()
    env.envs[0].steps = -10
    for _ in range(4):
        env.step(np.zeros(2, np.int64))
    with pytest.raises(RunError, match=r"Broken: step 5 of sub-env 1 raises ZeroDivisionError.*fell over"):
        env.step(np.zeros(2, np.int64))


def test_a_first_observation_of_another_shape_is_refused():
    with pytest.raises(RunError, match=r"reset of sub-env 0 raises .*shape \(1,\), its space says \(2,\)"):
        LoopVectorEnv(lambda: Broken(wrong_shape=True), 1).reset()

"""GymEnv: rows, episodes, seeds, normalisers, borders, bad input and resume, with envs and actors that are scripted."""

import dataclasses
import warnings

import gymnasium as gym
import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlfw import functional as F
from rlfw.envs.gym import GymEnv
from rlfw.errors import RunError, UserError
from rlfw.interfaces import EpisodeGroups, StepActor, Steps
from rlfw.registry import build
from rlfw.seeding import Streams


class Script(StepActor):
    """Acts by a function of (observations, step); its log-probs are minus the step's number."""

    def __init__(self, choose=lambda observations, t: np.zeros(len(observations), np.int64)):
        self.choose, self.t, self.taken = choose, 0, []

    def act(self, observations, *, greedy=False):
        actions = self.choose(observations, self.t)
        self.taken.append(-self.t * np.ones(len(observations), np.float32))
        self.t += 1
        return actions

    def logprobs(self):
        taken, self.taken = np.stack(self.taken), []
        return taken


def random_bits(seed=0):
    rng = np.random.default_rng(seed)
    return Script(lambda observations, t: rng.integers(2, size=len(observations)))


class Counting(gym.Env):
    """Rewards 1 a step for ``lengths[k]`` steps, where k is the number of the instance; observes (k, steps taken)."""

    observation_space, action_space = spaces.Box(-np.inf, np.inf, (2,)), spaces.Discrete(2)
    made, steps_ever = 0, 0

    def __init__(self, lengths=(3,), reward=1.0, last=None, both=False):
        self.k, self.lengths, self.reward, self.last, self.both = Counting.made, lengths, reward, last, both
        Counting.made += 1

    def _see(self):
        return np.array([self.k, self.t], np.float32)

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return self._see(), {}

    def step(self, action):
        self.t += 1
        Counting.steps_ever += 1
        done = self.t == self.lengths[self.k % len(self.lengths)]
        reward = self.last if done and self.last is not None else self.reward
        return self._see(), reward, done, done and self.both, {}


class TwoStates(gym.Env):
    """S and F, one-hot, each the start with probability 1/2. S pays 0 and leads to F, F pays 1 and stays."""

    observation_space, action_space = spaces.Box(0, 1, (2,)), spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.state = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.state], {}

    def step(self, action):
        reward, self.state = float(self.state), 1
        return np.eye(2, dtype=np.float32)[1], reward, False, False, {}


class Faulty(gym.Env):
    """Gives something that is not finite, or raises, at step 5 of 8."""

    observation_space, action_space = spaces.Box(-1, 1, (3,)), spaces.Discrete(2)

    def __init__(self, fault="raise"):
        self.fault = fault

    def reset(self, *, seed=None, options=None):
        self.t = 0
        return np.zeros(3, np.float32), {}

    def step(self, action):
        self.t += 1
        observation, reward = np.full(3, 0.5, np.float32), 1.0
        if self.t == 5:
            match self.fault:
                case "raise":
                    raise OSError("no signal")
                case "observation":
                    observation[1] = np.nan
                case _:
                    reward = float(self.fault)
        return observation, reward, self.t == 8, False, {}


class Recording(gym.Env):
    """One step an episode; refuses, and so raises, an action that its space does not contain."""

    def __init__(self, action_space=None, observation_space=None):
        self.action_space = action_space or spaces.Discrete(2)
        self.observation_space = observation_space or spaces.Box(-1, 1, (2,))
        self.actions = []

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.observation_space.seed(seed)
        return self.observation_space.sample(), {}

    def step(self, action):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert self.action_space.contains(action), repr(action)
        self.actions.append(action)
        return self.observation_space.sample(), float(self.np_random.random()), True, False, {}


for cls in (Counting, TwoStates, Faulty, Recording):
    gym.register(f"{cls.__name__}-v0", cls)


def make(env_id, seed=0, gamma=0.99, **keys):
    Counting.made, Counting.steps_ever = -1, 0  # the env that only shows its spaces is number -1
    return GymEnv(gamma, Streams(seed), id=env_id, **keys)


def rows_of(rollout):
    """(group, episode, steps, terminated, truncated) of every row."""
    lengths = rollout.mask.sum(1).tolist()
    columns = (rollout.group, rollout.episode, rollout.terminated, rollout.truncated)
    return [(g, e, n, te, tr) for n, (g, e, te, tr) in zip(lengths, zip(*(c.tolist() for c in columns)))]  # noqa: B905


# ------------------------------------------------------------------------------------------------ rows


def test_rows_are_cut_env_major_at_ends_and_go_on_over_rollouts():
    env = make("Counting-v0", kwargs={"lengths": (2, 3, 5)})
    first = env.collect(Steps(3, 4), Script()).check("x")
    assert rows_of(first) == [
        (0, 0, 2, True, False),
        (3, 3, 2, True, False),
        (1, 1, 3, True, False),
        (4, 4, 1, False, False),
        (2, 2, 4, False, False),
    ]
    assert first.mask.shape == (5, 4)
    seen = first.context.flat.tolist()
    assert seen == [[0, 0], [0, 1], [0, 0], [0, 1], [1, 0], [1, 1], [1, 2], [1, 0], [2, 0], [2, 1], [2, 2], [2, 3]]
    assert first.context.final.tolist() == [[0, 2], [0, 2], [1, 3], [1, 1], [2, 4]]  # never a reset's observation
    assert first.logprobs[0].tolist() == [0, -1, 0, 0]
    assert first.logprobs[1].tolist() == [-2, -3, 0, 0]
    second = env.collect(Steps(3, 4), Script()).check("x")
    assert rows_of(
        second
    ) == [  # ids in the order of the starts: 5 came last above, 6 after one step, 7 and 8 after two
        (5, 5, 2, True, False),
        (7, 7, 2, True, False),
        (4, 4, 2, True, False),
        (8, 8, 2, False, False),
        (2, 2, 1, True, False),
        (6, 6, 3, False, False),
    ]
    assert second.episodes.lengths.tolist() == [2, 2, 3, 5]
    assert second.episodes.returns.tolist() == [2, 2, 3, 5]
    assert second.spent == 12


@pytest.mark.parametrize("lengths", [(3,), (1,), (2, 3, 5)])
@pytest.mark.parametrize("num_steps", [1, 2, 7])
def test_every_row_is_a_real_step_and_every_episode_is_counted_right(lengths, num_steps):
    env = make("Counting-v0", kwargs={"lengths": lengths})
    steps, found = 0, []
    for _ in range(12):
        rollout = env.collect(Steps(3, num_steps), Script()).check("x")
        steps += rollout.spent
        found += list(zip(rollout.episodes.returns.tolist(), rollout.episodes.lengths.tolist(), strict=True))
        assert rollout.rewards[rollout.mask].mean() == 1
    assert steps == Counting.steps_ever == 12 * 3 * num_steps
    assert all(r == n for r, n in found)
    assert {n for _, n in found} <= set(lengths)


def test_a_time_limit_truncates_and_its_final_observation_is_kept():
    rollout = make("Counting-v0", max_episode_steps=4, kwargs={"lengths": (99,)}).collect(Steps(2, 9), Script())
    assert rows_of(rollout.check("x"))[:3] == [(0, 0, 4, False, True), (2, 2, 4, False, True), (4, 4, 1, False, False)]
    assert rollout.context.final[:3].tolist() == [[0, 4], [0, 4], [0, 1]]


def test_terminated_and_truncated_together_is_terminated():
    rollout = make("Counting-v0", kwargs={"both": True}).collect(Steps(1, 3), Script()).check("x")
    assert rows_of(rollout) == [(0, 0, 3, True, False)]


@pytest.mark.parametrize("num_envs", [1, 4])
@pytest.mark.parametrize("num_steps", [1, 3, 16])
def test_truncation_bootstraps_from_the_true_final_observation(num_envs, num_steps):
    """V(F) = 10 and V(S) = 9 at gamma 0.9: the targets r + gamma V(final) reproduce exactly these values."""
    env = make("TwoStates-v0", max_episode_steps=1)
    for _ in range(3):
        rollout = env.collect(Steps(num_envs, num_steps), Script()).check("x")
        assert bool(rollout.truncated.all())
        value = lambda observations: observations @ torch.tensor([9.0, 10.0])  # noqa: E731
        values = torch.stack([value(rollout.context.flat), value(rollout.context.final)], 1)
        advantages = F.gae(rollout.rewards, values, rollout.mask, ~rollout.terminated, 0.9, 0.95)
        assert advantages.abs().max() < 1e-5


def test_returns_do_not_run_over_the_end_of_an_episode():
    env = make("Counting-v0", kwargs={"lengths": (2,), "reward": 0.0, "last": 1.0})
    rollout = env.collect(EpisodeGroups(4, 1), Script()).check("x")
    returns = F.returns_to_go(rollout.rewards, rollout.mask, 1.0)
    assert returns[rollout.mask].tolist() == [1] * 8
    for num_steps in (1, 3, 4):
        rollout = env.collect(Steps(2, num_steps), Script())
        assert rollout.episodes.returns.tolist() == [1] * len(rollout.episodes.returns)


def test_the_number_of_sub_envs_stays():
    env = make("Counting-v0")
    env.collect(Steps(2, 4), Script())
    with pytest.raises(UserError, match="2 sub-envs are under way and 3 are asked for"):
        env.collect(Steps(3, 4), Script())


# ------------------------------------------------------------------------------------------------ groups and seeds


def test_groups_are_whole_episodes_from_one_reset():
    env = make("CartPole-v1")
    rollout = env.collect(EpisodeGroups(6, 3), random_bits()).check("x")
    assert rollout.group.tolist() == [0, 0, 0, 3, 3, 3]
    assert rollout.episode.tolist() == [0, 1, 2, 3, 4, 5]
    assert bool(rollout.terminated.all())
    lengths = rollout.mask.sum(1)
    assert rollout.episodes.lengths.tolist() == lengths.tolist()
    assert rollout.episodes.returns.tolist() == lengths.tolist()
    start = rollout.context.flat[lengths.cumsum(0) - lengths]
    assert all(torch.equal(start[3 * g], start[3 * g + k]) for g in range(2) for k in range(3))
    assert not torch.equal(start[0], start[3])
    again = env.collect(EpisodeGroups(2, 2), random_bits())
    assert again.group.tolist() == [6, 6]
    assert again.episode.tolist() == [6, 7]


def test_fewer_groups_leave_sub_envs_idle():
    """A vector once made serves smaller requests: the idle sub-envs are no rows, cost nothing and teach nothing."""
    env = make("Counting-v0", normalize_observations=True, kwargs={"lengths": (2, 3, 4, 5)})
    env.collect(EpisodeGroups(4, 2), Script())
    seen, steps = env._observation_normalizer.moments.count, Counting.steps_ever
    rollout = env.collect(EpisodeGroups(2, 2), Script()).check("x")
    assert rollout.mask.sum(1).tolist() == [2, 3]
    assert rollout.group.tolist() == [4, 4]
    assert rollout.episode.tolist() == [4, 5]
    assert rollout.spent == Counting.steps_ever - steps == 5
    assert env._observation_normalizer.moments.count - seen == 5 + 2  # every step's end, and two resets
    assert Counting.made == 4


def test_groups_hold_episodes_longer_than_the_first_buffers():
    rollout = make("Counting-v0", kwargs={"lengths": (300, 2)}).collect(EpisodeGroups(4, 2), Script()).check("x")
    assert rollout.mask.sum(1).tolist() == [300, 2, 300, 2]
    assert rollout.context.final.tolist() == [[0, 300], [1, 2], [2, 300], [3, 2]]
    assert rollout.context.flat[:, 1].tolist() == [*range(300), 0, 1, *range(300), 0, 1]


@pytest.mark.parametrize("vectorization", ["auto", "loop"])
def test_each_episode_has_the_seed_of_its_number(vectorization):
    rollout = make("CartPole-v1", seed=7, vectorization=vectorization).collect(Steps(3, 60), random_bits())
    lengths = rollout.mask.sum(1)
    start = rollout.context.flat[lengths.cumsum(0) - lengths]
    single = gym.make("CartPole-v1")
    for episode, observation in zip(rollout.episode.tolist(), start.numpy(), strict=True):
        np.testing.assert_array_equal(observation, single.reset(seed=Streams(7).integer("episode", episode))[0])


def mlp(env, seed=0):
    policy = build("policy", {"part": "mlp", "hidden_sizes": [16]}, env_spec=env.spec, streams=Streams(seed))
    with torch.no_grad():
        policy.output.weight *= 100  # so that it is decided, one way or the other
    return policy


def played(env_id, policy, seed, see=lambda observation: observation):
    """Return and length of a greedy episode of gymnasium's own env, reset from ``seed``."""
    env = gym.make(env_id)
    observation, _ = env.reset(seed=seed)
    total, steps, done = 0.0, 0, False
    while not done:
        with torch.no_grad():
            outputs = policy.outputs(torch.as_tensor(see(observation)[None], dtype=torch.float32))
        observation, reward, terminated, truncated, _ = env.step(int(outputs.argmax()))
        total, steps, done = total + reward, steps + 1, terminated or truncated
    return total, steps


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1"])
def test_a_greedy_episode_is_what_anybody_plays_from_the_groups_seed(env_id):
    env = make(env_id)
    policy = mlp(env)
    for k in range(2):
        rollout = env.collect(EpisodeGroups(6, 2, True), policy.actor(Streams(1))).check("x")
        found = [played(env_id, policy, Streams(0).integer("episode", i)) for i in (6 * k, 6 * k + 2, 6 * k + 4)]
        assert rollout.group.tolist() == [6 * k + i for i in (0, 0, 2, 2, 4, 4)]
        assert rollout.greedy_returns.tolist() == [total for total, _ in found for _ in range(2)]
        assert rollout.spent == int(rollout.mask.sum()) + sum(steps for _, steps in found)
        assert rollout.num_generated == 6


def test_a_greedy_episode_is_seen_through_the_frozen_normaliser():
    env = make("CartPole-v1", normalize_observations=True)
    policy = mlp(env)
    rollout = env.collect(EpisodeGroups(6, 2, True), policy.actor(Streams(1))).check("x")
    moments = env._observation_normalizer.moments
    assert moments.count == int(rollout.mask.sum()) + 6

    def see(observation):
        return ((observation - moments.mean) / np.sqrt(moments.var + 1e-8)).clip(-10, 10)

    found = [played("CartPole-v1", policy, Streams(0).integer("episode", i), see)[0] for i in (0, 2, 4)]
    assert rollout.greedy_returns[::2].tolist() == found


@pytest.mark.parametrize("normalized", [False, True])
def test_greedy_episodes_leave_the_sampled_ones_as_they_are(normalized):
    found = []
    for greedy in (False, True):
        env = make("CartPole-v1", normalize_observations=normalized)
        actor = mlp(env).actor(Streams(1))
        found.append([env.collect(EpisodeGroups(n, 2, greedy), actor).check("x") for n in (8, 4, 8)])
    for plain, beside in zip(*found, strict=True):
        for name in ("actions", "logprobs", "rewards", "mask", "group", "episode"):
            assert torch.equal(getattr(plain, name), getattr(beside, name)), name
        assert torch.equal(plain.context.flat, beside.context.flat)
        assert plain.greedy_returns is None


def test_a_greedy_return_has_no_place_on_a_running_scale():
    env = make("CartPole-v1", normalize_rewards=True)
    with pytest.raises(UserError, match=r"set env\.gym\.normalize_rewards=false"):
        env.check_greedy()
    make("CartPole-v1").check_greedy()


def test_our_cartpole_gives_the_rollouts_of_gymnasiums():
    envs = [make("CartPole-v1", vectorization=v, max_episode_steps=30) for v in ("auto", "loop")]
    for request in (Steps(4, 50), Steps(4, 50), EpisodeGroups(6, 2)):
        one, two = (env.collect(request, random_bits(1)) for env in envs)
        for field in dataclasses.fields(one):
            left, right = getattr(one, field.name), getattr(two, field.name)
            if isinstance(left, torch.Tensor):
                assert torch.equal(left, right), field.name
        assert torch.equal(one.context.flat, two.context.flat)
        assert torch.equal(one.context.final, two.context.final)
        assert torch.equal(one.episodes.returns, two.episodes.returns)
        assert bool(one.terminated.any())
        assert bool(one.truncated.any())


def test_an_endless_episode_is_given_up(monkeypatch):
    monkeypatch.setattr("rlfw.envs.gym.MAX_EPISODE_STEPS", 500)
    env = make("Counting-v0", kwargs={"lengths": (10**9,)})
    with pytest.raises(RunError, match=r"has not ended after 500 steps .* set env.gym.max_episode_steps"):
        env.evaluate(Script(), 1, Streams(0))


# ------------------------------------------------------------------------------------------------ normalisation


def test_reported_returns_are_the_envs_own_under_normalisation():
    env = make("Counting-v0", normalize_rewards=True, normalize_observations=True, kwargs={"reward": 100.0})
    rollout = env.collect(Steps(2, 30), Script()).check("x")
    assert rollout.episodes.returns.tolist() == [300.0] * 20
    assert rollout.rewards.abs().max() <= 10
    assert rollout.context.flat.abs().max() <= 10
    assert env.evaluate(Script(), 2, Streams(0)) == {"return": [300.0, 300.0], "length": [3.0, 3.0]}


def test_observations_are_normalised_by_all_that_the_policy_saw():
    env = make("Counting-v0", normalize_observations=True)
    env.collect(Steps(1, 7), Script())
    seen = np.array([[0, t] for t in (0, 1, 2, 3, 0, 1, 2, 3, 0, 1)], float)  # resets and final observations included
    moments = env.state_dict()["observations"]
    assert moments["count"] == len(seen)
    np.testing.assert_allclose(moments["mean"], seen.mean(0), rtol=1e-12)
    np.testing.assert_allclose(moments["squares"] / len(seen), seen.var(0), rtol=1e-12)


def test_ended_sub_envs_add_nothing_to_the_moments():
    env = make("Counting-v0", normalize_observations=True, normalize_rewards=True, kwargs={"lengths": (1, 40)})
    env.collect(EpisodeGroups(2, 1), Script())
    state = env.state_dict()
    assert state["observations"]["count"] == 2 + 1 + 40
    assert state["rewards"]["moments"]["count"] == 1 + 40


def test_evaluation_changes_nothing_of_training():
    def train(evaluate):
        env, found = make("CartPole-v1", normalize_observations=True, normalize_rewards=True), []
        for k in range(4):
            if evaluate:
                env.evaluate(random_bits(9), 5, Streams(0).child("evaluation"))
            found.append(env.collect(Steps(3, 20), random_bits(k)))
        return found

    for one, two in zip(train(False), train(True), strict=True):
        assert torch.equal(one.context.flat, two.context.flat)
        assert torch.equal(one.rewards, two.rewards)


def test_evaluation_plays_each_sub_env_once_from_its_own_seed():
    env = make("CartPole-v1")
    found = env.evaluate(random_bits(2), 5, Streams(3))
    assert found == env.evaluate(random_bits(2), 5, Streams(3))
    single, rng = gym.make("CartPole-v1"), np.random.default_rng(2)
    actions = rng.integers(2, size=(500, 5))
    for i in range(5):
        single.reset(seed=Streams(3).integer("episode", i))
        length = next(t + 1 for t in range(500) if single.step(int(actions[t, i]))[2])
        assert found["length"][i] == found["return"][i] == length


# ------------------------------------------------------------------------------------------------ borders


@pytest.mark.parametrize(
    ("space", "action", "expected"),
    [
        (spaces.Discrete(2), np.array([1, 0]), 1),
        (spaces.Discrete(3, start=5), np.array([2, 0]), 7),
        (spaces.Discrete(1), np.array([0, 0]), 0),
        (spaces.MultiDiscrete([2, 3]), np.array([[1, 2], [0, 0]]), [1, 2]),
        (
            spaces.MultiDiscrete([[2, 3], [4, 5]], start=[[1, 1], [1, 1]]),
            np.array([[1, 2, 3, 4]] * 2),
            [[2, 3], [4, 5]],
        ),
        (spaces.MultiBinary(3), np.array([[1, 0, 1]] * 2), [1, 0, 1]),
        (spaces.Box(-1, 1, ()), np.array([[3.0]] * 2, np.float32), 1.0),
        (spaces.Box(-1, 1, (1,)), np.array([[-3.0]] * 2, np.float32), [-1.0]),
        (spaces.Box(-0.1, 0.1, (1,), np.float64), np.array([[3.0]] * 2, np.float32), [0.1]),
        (spaces.Box(-np.inf, np.inf, (2,)), np.array([[9.0, -9.0]] * 2, np.float32), [9.0, -9.0]),
        (
            spaces.Box(-1, 1, (2, 3)),
            np.array([[0, 0.25, 5, 0.5, -5, 1]] * 2, np.float32),
            [[0, 0.25, 1], [0.5, -1, 1]],
        ),
    ],
    ids=lambda value: repr(value) if isinstance(value, spaces.Space) else "",
)
def test_actions_arrive_in_their_space_and_are_stored_as_they_were_chosen(space, action, expected):
    env = make("Recording-v0", kwargs={"action_space": space})
    rollout = env.collect(Steps(2, 3), Script(lambda observations, t: action)).check("x")
    inner = env._vectors["steps"].envs[0].unwrapped
    assert len(inner.actions) == 3
    np.testing.assert_array_equal(inner.actions[0], np.array(expected, dtype=space.dtype))
    np.testing.assert_array_equal(rollout.actions[rollout.mask][0], action[0])  # unclipped, from 0


@pytest.mark.parametrize(
    ("space", "shape", "dtype"),
    [
        (spaces.Box(-1, 1, (3,)), (3,), "float32"),
        (spaces.Box(-1, 1, (3,), np.float64), (3,), "float32"),
        (spaces.Box(-1, 1, ()), (), "float32"),
        (spaces.Box(0, 255, (8, 8, 1), np.uint8), (8, 8, 1), "uint8"),
        (spaces.Box(0, 255, (8, 8), np.uint8), (8, 8), "uint8"),
        (spaces.Box(0, 255, (8,), np.uint8), (8,), "float32"),
        (spaces.Discrete(4), (4,), "float32"),
        (spaces.Discrete(4, start=-1), (4,), "float32"),
        (spaces.MultiDiscrete([2, 3]), (5,), "float32"),
        (spaces.MultiBinary([2, 2]), (4,), "float32"),
        (spaces.Dict(a=spaces.Box(-1, 1, (2, 2)), b=spaces.Discrete(3), c=spaces.Box(0, 1, ())), (8,), "float32"),
        (spaces.Tuple([spaces.Discrete(2), spaces.Dict(x=spaces.MultiBinary(2))]), (4,), "float32"),
    ],
    ids=str,
)
def test_every_observation_space_becomes_the_array_that_gymnasium_flattens_it_to(space, shape, dtype):
    env = make("Recording-v0", kwargs={"observation_space": space})
    assert env.spec.observation_shape == shape
    assert env.spec.observation_dtype == dtype
    rollout = env.collect(Steps(2, 3), Script()).check("x")
    flat = rollout.context.flat.numpy()
    assert flat.shape == (6, *shape)
    assert flat.dtype == dtype
    space.seed(Streams(0).integer("episode", 0))
    expected = spaces.flatten(space, space.sample()).astype(dtype)
    np.testing.assert_array_equal(flat[0].ravel(), expected)
    space.sample()
    assert rollout.context.final.shape == (6, *shape)


def test_only_real_numbers_are_normalised():
    space = spaces.Dict(a=spaces.Discrete(3), b=spaces.Box(-1, 1, (2,)))
    env = make("Recording-v0", normalize_observations=True, kwargs={"observation_space": space})
    flat = env.collect(Steps(2, 30), Script()).context.flat
    assert set(flat[:, :3].unique().tolist()) == {0.0, 1.0}
    assert flat[:, 3:].std() == pytest.approx(1, abs=0.2)


# ------------------------------------------------------------------------------------------------ bad input


@pytest.mark.parametrize("normalized", [False, True])
@pytest.mark.parametrize("fault", ["observation", "nan", "inf", "-inf"])
def test_a_number_that_is_not_finite_stops_the_run_before_a_normaliser_hears_of_it(fault, normalized):
    env = make("Faulty-v0", normalize_observations=normalized, normalize_rewards=normalized, kwargs={"fault": fault})
    what = r"an observation of nan" if fault == "observation" else rf"a reward of {fault}"
    with pytest.raises(RunError, match=rf"Faulty-v0: step 5 of the episode in sub-env 0 gives {what}"):
        env.collect(Steps(2, 8), Script())
    if normalized:
        assert env.state_dict()["observations"]["mean"].isfinite().all()
        assert env.state_dict()["rewards"]["moments"]["mean"].isfinite()


def test_an_env_that_raises_stops_the_run():
    with pytest.raises(RunError, match=r"Faulty-v0: step 5 of sub-env 0 raises OSError\('no signal'\)"):
        make("Faulty-v0").collect(Steps(2, 8), Script())


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"env_id": "CartPoel-v1"}, r"env.gym.id=CartPoel-v1: .*no such env; did you mean CartPole-v1\?"),
        ({"env_id": "CartPole-v9"}, r"no such env; did you mean CartPole-v"),
        ({"env_id": "Zzzzqqq"}, r"no such env$"),
        ({"env_id": "CartPole-v1", "kwargs": {"gravity": 3}}, r"kwargs=\{'gravity': 3\} cannot be made: TypeError"),
        ({"env_id": "CartPole-v1", "vectorization": "sync"}, r"vectorization=sync: choose one of auto, loop"),
        ({"env_id": "CartPole-v1", "max_episode_steps": 0}, r"max_episode_steps=0: it must be at least 1"),
        ({"env_id": "FrozenLake-v1", "normalize_observations": True}, r"has no real-valued observations"),
        (
            {"env_id": "Recording-v0", "kwargs": {"action_space": spaces.Box(0, 9, (2,), np.int64)}},
            r"actions in Box.*int64\) are not supported",
        ),
        (
            {"env_id": "Recording-v0", "kwargs": {"action_space": spaces.Dict(a=spaces.Discrete(2))}},
            r"env.gym.id=Recording-v0: actions in Dict.* are not supported",
        ),
        (
            {"env_id": "Recording-v0", "kwargs": {"observation_space": spaces.Text(5)}},
            r"env.gym.id=Recording-v0: observations in Text.* are not supported",
        ),
        (
            {
                "env_id": "Recording-v0",
                "kwargs": {"observation_space": spaces.Dict(eye=spaces.Box(0, 255, (8, 8, 3), np.uint8))},
            },
            r"entry 'eye' is an image",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else value["env_id"],
)
def test_bad_settings_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        make(**keys)


def test_a_missing_package_is_named_with_its_extra(monkeypatch):
    def missing(*_, **__):
        raise gym.error.DependencyNotInstalled("Box2D is not installed, you can install it by ...")

    monkeypatch.setattr(gym, "make", missing)
    with pytest.raises(UserError, match=r"LunarLander-v3 needs .* pip install 'rlfw\[box2d\]'"):
        make("LunarLander-v3")


# ------------------------------------------------------------------------------------------------ resume


@pytest.mark.parametrize("env_id", ["CartPole-v1", "Acrobot-v1", "Taxi-v4"])
@pytest.mark.parametrize("normalized", [False, True])
def test_a_resumed_env_goes_on_bit_for_bit(env_id, normalized):
    keys = {"normalize_rewards": normalized, "normalize_observations": normalized and env_id != "Taxi-v4"}
    env = make(env_id, max_episode_steps=45, **keys)
    for k in range(3):
        env.collect(Steps(3, 20), random_bits(k))
    other = make(env_id, max_episode_steps=45, **keys)
    other.load_state_dict(env.state_dict())
    other.load_state_dict(other.state_dict())  # nor is anything lost by saving before the first step
    for k in range(3, 7):
        one, two = env.collect(Steps(3, 20), random_bits(k)), other.collect(Steps(3, 20), random_bits(k))
        assert torch.equal(one.context.flat, two.context.flat)
        assert torch.equal(one.context.final, two.context.final)
        assert torch.equal(one.rewards, two.rewards)
        assert rows_of(one) == rows_of(two)
        assert torch.equal(one.episodes.returns, two.episodes.returns)
        assert torch.equal(one.episodes.lengths, two.episodes.lengths)


class Drifting(Counting):
    """Observes a number that no seed decides."""

    def _see(self):
        return np.random.default_rng().normal(size=2).astype(np.float32)


gym.register("Drifting-v0", Drifting)


def test_an_env_without_determinism_is_resumed_with_fresh_episodes_and_a_warning():
    env = make("Drifting-v0", kwargs={"lengths": (50,)})
    env.collect(Steps(2, 5), Script())
    other = make("Drifting-v0", kwargs={"lengths": (50,)})
    other.load_state_dict(env.state_dict())
    with pytest.warns(UserWarning, match="Drifting-v0: .* not deterministic"):
        rollout = other.collect(Steps(2, 5), Script()).check("x")
    assert rollout.episode.tolist() == [2, 3]

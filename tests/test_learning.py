"""Does it learn? Short versions of what benchmarks/learning records at length."""

from __future__ import annotations

import json
from pathlib import Path

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces

import rlfw
from rlfw import registry
from rlfw.api import evaluate_run
from rlfw.context import Observations
from rlfw.interfaces import Policy
from rlfw.run import checkpoints, load_config
from rlfw.seeding import Streams

pytestmark = pytest.mark.slow


class Endless(gymnasium.Env):
    """One state, reward 1 a step, no end of its own."""

    observation_space = spaces.Box(-1, 1, (1,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.ones(1, np.float32), {}

    def step(self, action):
        return np.ones(1, np.float32), 1.0, False, False, {}


class TwoStates(gymnasium.Env):
    """S and F, one-hot. A reset picks either; from S reward 0 and on to F; from F reward 1 and F again."""

    observation_space = spaces.Box(0, 1, (2,), np.float32)
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.at = int(self.np_random.integers(2))
        return np.eye(2, dtype=np.float32)[self.at], {}

    def step(self, action):
        reward, self.at = float(self.at), 1
        return np.eye(2, dtype=np.float32)[1], reward, False, False, {}


class Bandit(Endless):
    """One step; arm 0 pays -1, arm 1 pays -2."""

    def step(self, action):
        return np.ones(1, np.float32), -1.0 - float(action), True, False, {}


class Echo(gymnasium.Env):
    """Repeat the observation: reward 1 for the right action, 100 steps an episode."""

    def __init__(self, space: spaces.Space) -> None:
        self.action_space = space
        self.observation_space = spaces.Box(-2, 2, (int(np.prod(np.shape(space.sample()) or (1,))),), np.float32)

    def _next(self) -> np.ndarray:
        self.target = self.action_space.sample()
        return np.asarray(self.target, np.float32).reshape(-1)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        if seed is not None:
            self.action_space.seed(seed)
        self.at = 0
        return self._next(), {}

    def step(self, action):
        if isinstance(self.action_space, spaces.Box):
            reward = 1.0 if np.abs(np.asarray(action) - self.target).max() < 0.4 else 0.0
        else:
            reward = float(np.mean(np.asarray(action) == self.target))
        self.at += 1
        return self._next(), reward, False, self.at >= 100, {}


for name, entry in {"Endless-v0": Endless, "TwoStates-v0": TwoStates, "Bandit-v0": Bandit}.items():
    gymnasium.register(name, entry)
gymnasium.register("EchoDiscrete-v0", lambda: Echo(spaces.Discrete(2)))
gymnasium.register("EchoMultiDiscrete-v0", lambda: Echo(spaces.MultiDiscrete([2, 3])))
gymnasium.register("EchoMultiBinary-v0", lambda: Echo(spaces.MultiBinary(2)))
gymnasium.register("EchoBox-v0", lambda: Echo(spaces.Box(-1, 1, (1,), np.float32)))


def train(out: Path, *words: str) -> Path:
    return rlfw.train([*words, "progress=false", "tensorboard=false", f"out={out}"])


def trained_policy(run: Path) -> Policy:
    """The newest checkpoint's policy with its critic."""
    cfg = load_config(run)
    streams = Streams(cfg.seed)
    (env_node,), (policy_node,) = cfg.env.values(), cfg.policy.values()
    env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
    policy = registry.build("policy", policy_node, env_spec=env.spec, streams=streams)
    policy.add_critic("own")
    policy.load(checkpoints(run)[-1] / "policy")
    return policy


def values(run: Path, observations: list[list[float]]) -> list[float]:
    """V of each observation."""
    flat = torch.tensor(observations)
    context = Observations(flat, flat[:1], torch.ones(1, len(flat), dtype=torch.bool))
    with torch.no_grad():
        return trained_policy(run).values(context, torch.zeros(1, len(flat)), context.mask)[0, :-1].tolist()


CRITIC = [
    "algorithm=ppo",
    "env=gym",
    "lr=0",
    "baseline.critic.lr=0.003",
    "baseline.critic.max_grad_norm=100",
    "controller=[]",
    "gamma=0.9",
]


@pytest.mark.parametrize("num_steps", [1, 7, 64])
def test_a_time_limit_is_bootstrapped_at_any_rollout_length(num_steps: int, tmp_path: Path) -> None:
    """V = 1 / (1 - gamma) = 10; a limit taken for an end converges to 2.6."""
    sizes = ["sampler.steps.num_envs=8", f"sampler.steps.num_steps={num_steps}", "num_minibatches=1", "iterations=600"]
    run = train(tmp_path / "run", *CRITIC, "env.gym.id=Endless-v0", "env.gym.max_episode_steps=5", *sizes)
    assert values(run, [[1.0]])[0] == pytest.approx(10, abs=0.3)


@pytest.mark.parametrize("num_envs", [1, 8])
def test_a_cut_episode_is_bootstrapped_from_its_own_last_observation(num_envs: int, tmp_path: Path) -> None:
    """V(F) = 10 and V(S) = 9. From the next episode's first observation it would be 5.5 and 4.5."""
    sizes = [f"sampler.steps.num_envs={num_envs}", f"sampler.steps.num_steps={64 // num_envs}", "iterations=500"]
    run = train(tmp_path / "run", *CRITIC, "env.gym.id=TwoStates-v0", "env.gym.max_episode_steps=1", *sizes)
    found = values(run, [[0.0, 1.0], [1.0, 0.0]])
    assert found[0] == pytest.approx(10, abs=0.4)
    assert found[1] == pytest.approx(9, abs=0.4)


@pytest.mark.parametrize("regularizer", ["none", "clip", "kl", "both"])
def test_the_lesser_evil_wins_with_negative_rewards_and_no_baseline(regularizer: str, tmp_path: Path) -> None:
    words = ["algorithm=reinforce", "env=gym", "env.gym.id=Bandit-v0", "ratio=token", f"regularizer={regularizer}"]
    run = train(tmp_path / "run", *words, "lr=0.01", "sampler.episodes.num_episodes=64", "iterations=150")
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["objective/scores"] > -1.15


@pytest.mark.parametrize("space", ["Discrete", "MultiDiscrete", "MultiBinary", "Box"])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_echo(space: str, algorithm: str, tmp_path: Path) -> None:
    words = [
        f"algorithm={algorithm}",
        "env=gym",
        f"env.gym.id=Echo{space}-v0",
        "gamma=0.5",
        "lr=0.003",
        "total_steps=40000",
    ]
    run = train(
        tmp_path / "run", *words, "sampler.steps.num_steps=16", "regularizer=[]" if algorithm == "a2c" else "epochs=4"
    )
    assert evaluate_run(run, 10)["return"].mean >= 90


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_cartpole_with_the_preset_defaults(algorithm: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", f"algorithm={algorithm}", "env=cartpole", "seed=1")
    assert evaluate_run(run, 50)["return"].mean >= 475


def test_what_is_learnt_under_a_short_limit_lasts_longer(tmp_path: Path) -> None:
    """Trained on episodes cut at 50 steps, it balances for 200 and more."""
    words = ["lr=3e-4", "gamma=0.99", "baseline.critic.gae_lambda=1.0", "sampler.steps.num_steps=128", "seed=1"]
    words.append("env.gym.max_episode_steps=50")
    run = train(tmp_path / "run", "algorithm=ppo", "env=cartpole", *words)
    long = evaluate_run(run, 50, overrides=["env.gym.max_episode_steps=500"])
    assert long["return"].mean >= 200


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
def test_a_language_model_improves_on_its_warm_start(algorithm: str, tmp_path: Path) -> None:
    run = train(tmp_path / "run", f"algorithm={algorithm}", "env=reverse", "checkpoint.keep=-1", "seed=1")
    saved = checkpoints(run)
    before, after = (evaluate_run(path, 300)["score"].mean for path in (saved[0], saved[-1]))
    assert after >= before + 0.1

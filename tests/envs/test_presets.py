"""The YAML presets: each settles, and makes the env and the policy that it says."""

import pytest
from omegaconf import OmegaConf

from rlfw import registry
from rlfw.config import compose
from rlfw.seeding import Streams

IDS = {
    "cartpole": "CartPole-v1",
    "acrobot": "Acrobot-v1",
    "mountain_car": "MountainCar-v0",
    "pendulum": "Pendulum-v1",
    "mountain_car_continuous": "MountainCarContinuous-v0",
    "lunar_lander": "LunarLander-v3",
    "frozen_lake": "FrozenLake-v1",
    "taxi": "Taxi-v4",
}


@pytest.mark.parametrize("algorithm", ["ppo", "grpo"])
@pytest.mark.parametrize("name", IDS)
def test_every_preset_settles_under_every_kind_of_sampler(name, algorithm):
    cfg = compose([f"algorithm={algorithm}", f"env={name}"])
    assert cfg.env.gym.id == IDS[name]
    assert list(cfg.policy) == ["mlp"]
    assert cfg.total_steps > 0
    (sampler,) = cfg.sampler.values()
    size = sampler.num_envs * sampler.num_steps if algorithm == "ppo" else sampler.num_episodes
    assert size % (cfg.num_minibatches if algorithm == "ppo" else sampler.group_size) == 0


@pytest.mark.parametrize("name", [name for name in IDS if name != "lunar_lander"])
def test_every_preset_makes_its_env_and_its_policy(name):
    cfg = OmegaConf.to_container(compose([f"env={name}"]))
    streams = Streams(0)
    env = registry.build("env", cfg["env"]["gym"], gamma=cfg["gamma"], streams=streams)
    policy = registry.build("policy", cfg["policy"]["mlp"], env_spec=env.spec, streams=streams)
    assert env.spec.max_steps is not None
    assert policy.memoryless


def test_every_preset_is_described_in_its_first_line():
    registry.load_components()
    described = registry.presets("env")
    for name in IDS:
        assert IDS[name] in described[name]
        assert len(described[name]) < 110


def test_keyword_arguments_reach_gymnasium():
    cfg = OmegaConf.to_container(compose(["env=frozen_lake", "env.gym.kwargs.is_slippery=false"]))
    env = registry.build("env", cfg["env"]["gym"], gamma=1.0, streams=Streams(0))
    assert env._make().unwrapped.P[0][2] == [(1.0, 1, 0, False)]  # to the right: one certain outcome

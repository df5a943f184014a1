"""stable-baselines3's PPO at the setting of gym_ppo.py: peer_sb3.py STEPS SEED THREADS. Runs in its own environment."""

import sys

import torch
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env

steps, seed, threads = (int(word) for word in sys.argv[1:])
torch.set_num_threads(threads)
PPO(
    "MlpPolicy",
    make_vec_env("CartPole-v1", n_envs=8, seed=seed),
    n_steps=128,
    batch_size=256,
    n_epochs=4,
    learning_rate=2.5e-4,
    gamma=0.99,
    gae_lambda=0.95,
    clip_range=0.2,
    ent_coef=0.01,
    vf_coef=0.5,
    max_grad_norm=0.5,
    policy_kwargs={"net_arch": {"pi": [64, 64], "vf": [64, 64]}, "activation_fn": torch.nn.Tanh},
    seed=seed,
    device="cpu",
).learn(steps)

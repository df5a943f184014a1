"""Every baseline and every regularizer runs on every kind of env, with the same words; the refused ones are a table."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

import rlfw
from rlfw import registry
from rlfw.errors import UserError

pytestmark = pytest.mark.medium

ENVS = {
    "discrete": ["env=cartpole", "policy.mlp.hidden_sizes=[8]", "env.gym.max_episode_steps=12"],
    "continuous": [
        *["env=pendulum", "policy.mlp.hidden_sizes=[8]", "env.gym.max_episode_steps=12"],
        "env.gym.normalize_rewards=false",  # the returns of greedy episodes are not scaled
    ],
    "text": [
        "env=reverse",
        "warmup.steps=1",
        "policy.causal_lm.hidden_size=8",
        "policy.causal_lm.num_layers=1",
        "policy.causal_lm.num_heads=1",
    ],
}
registry.load_components()
BASELINES = registry.names("baseline")
REGULARIZERS = ["none", "both", "[clip,kl,kl_old,entropy]"]
SAMPLERS = {
    "episodes": ["sampler=episodes", "sampler.episodes.num_episodes=8", "sampler.episodes.group_size=4"],
    "alone": ["sampler=episodes", "sampler.episodes.num_episodes=4", "sampler.episodes.group_size=1"],
    "steps": ["sampler=steps", "sampler.steps.num_envs=2", "sampler.steps.num_steps=8"],
}
QUIET = ["progress=false", "tensorboard=false", "iterations=1", "epochs=2", "num_minibatches=2", "normalize=none"]

# (sampler, baseline) -> the sentence that refuses it; every other pair runs
REFUSED = {
    ("alone", "group_mean"): "baseline=group_mean compares samples within a group",
    ("alone", "leave_one_out"): "baseline=leave_one_out compares samples within a group",
    ("steps", "none"): "baseline=none needs whole episodes: set sampler=episodes",
    ("steps", "group_mean"): "baseline=group_mean compares samples within a group",
    ("steps", "leave_one_out"): "baseline=leave_one_out compares samples within a group",
    ("steps", "greedy"): "baseline=greedy plays a greedy episode from each group's start: set sampler=episodes",
    **{
        ("steps", name): f"baseline={name} needs whole episodes: set sampler=episodes"
        for name in ("constant", "ema", "batch_mean", "adaptive_critic")
    },
    **{
        (sampler, name): f"baseline={name} compares samples within a group"
        for sampler in ("alone", "steps")
        for name in ("length_weighted", "best_of_group")
    },
}


@pytest.mark.parametrize(("env", "baseline"), product(ENVS, BASELINES))
def test_every_baseline_with_every_regularizer_on_every_env(env: str, baseline: str, tmp_path: Path) -> None:
    for i, regularizer in enumerate(REGULARIZERS):
        words = [*ENVS[env], f"baseline={baseline}", f"regularizer={regularizer}", *SAMPLERS["episodes"], *QUIET]
        reward = ["reward=[kl]"] if i % 2 else []
        run = rlfw.train(["algorithm=ppo", *words, *reward, f"out={tmp_path / str(i)}"])
        row = json.loads((run / "metrics.jsonl").read_text())
        assert row["optim/num_steps"] == 4
        assert all(abs(value) < 1e9 for name, value in row.items() if name != "time")


@pytest.mark.parametrize(("env", "ratio"), product(ENVS, ("token", "product")))
def test_every_regularizer_on_every_env(env: str, ratio: str, tmp_path: Path) -> None:
    for name in registry.names("regularizer"):
        if ratio == "product" and "step_ratio" in rlfw.build("regularizer", {"part": name}).needs:
            continue
        words = [*ENVS[env], "baseline=group_mean", f"ratio={ratio}", f"regularizer=[{name}]", *SAMPLERS["episodes"]]
        run = rlfw.train(["algorithm=ppo", *words, *QUIET, f"out={tmp_path / name}"])
        row = json.loads((run / "metrics.jsonl").read_text())
        assert row["optim/num_steps"] == 4
        assert row["optim/skipped_steps"] == 0


@pytest.mark.parametrize(("env", "sampler", "baseline"), product(ENVS, SAMPLERS, BASELINES))
def test_the_refused_compositions_are_these_and_no_others(
    env: str, sampler: str, baseline: str, tmp_path: Path
) -> None:
    refused = REFUSED.get((sampler, baseline))
    if env == "text" and sampler == "steps" and refused is None:
        refused = "gives whole episodes alone: set sampler=episodes"
    words = [*ENVS[env], f"baseline={baseline}", "regularizer=both", *SAMPLERS[sampler], *QUIET]
    words = ["algorithm=ppo", *words, f"out={tmp_path / 'run'}"]
    if refused is None:
        rlfw.train(words)
    else:
        with pytest.raises(UserError) as error:
            rlfw.train(words)
        assert refused in str(error.value)
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("env", "words"),
    [
        ("discrete", ["normalize=group_std", "aggregation=sequence_mean"]),
        ("discrete", ["normalize=whiten", "ratio=sequence", "aggregation=prompt_mean"]),
        ("continuous", ["normalize=batch_std", "ratio=product", "aggregation=constant"]),
        ("continuous", ["ratio=none", "regularizer=[kl,entropy]", "aggregation=token_sum", "optimizer=sgd"]),
        ("text", ["normalize=whiten", "ratio=sequence", "aggregation=token_mean", "weight=[truncated]"]),
        ("text", ["baseline=critic", "baseline.critic.network=head", "aggregation=sequence_sum"]),
        (
            "discrete",
            ["baseline=critic", "baseline.critic.network=head", "baseline.critic.clip=0.2", "optimizer=rmsprop"],
        ),
    ],
)
def test_the_other_axes_meet_every_env(env: str, words: list[str], tmp_path: Path) -> None:
    base = ["algorithm=ppo", "baseline=group_mean", *ENVS[env], *SAMPLERS["episodes"], *QUIET]
    rlfw.train([*base, "controller=[anneal,target_kl]", *words, f"out={tmp_path / 'run'}"])

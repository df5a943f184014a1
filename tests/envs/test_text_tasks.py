"""The toy tasks ask what they say, and a small model learns them from their answers."""

import re

import numpy as np
import pytest

from rlfw.config import compose
from rlfw.envs.tasks import KINDS, Sizes
from rlfw.envs.text import TextEnv, TextTask
from rlfw.errors import UserError
from rlfw.policies.causal_lm import CausalLM
from rlfw.registry import build, load_components
from rlfw.seeding import Streams
from rlfw.supervised import warm_up

load_components()
PRESETS = {
    "copy": ["copy"],
    "reverse": ["reverse"],
    "sort_letters": ["sort_letters"],
    "count": ["count"],
    "arithmetic": ["arithmetic"],
    "reverse_sort": ["reverse", "sort_letters"],
}


def make(names, seed=0, **keys) -> TextEnv:
    return build("env", {"part": "tasks", "names": names, **keys}, streams=Streams(seed))


def answer(prompt: str) -> str:
    """Worked out from the prompt alone."""
    task, _, rest = prompt[:-1].partition(":")
    if task == "n":
        letter, word = rest.split(",")
        return str(sum(c == letter for c in word))
    if task in "crs":
        return {"c": rest, "r": "".join(reversed(rest)), "s": "".join(sorted(rest))}[task]
    return str(sum(int(x) for x in task.split("+")))


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("keys", [{}, {"large": True}])
def test_answers_are_right_and_within_what_the_spec_says(name, keys):
    large = {"max_operand": 1234} if name == "arithmetic" else {"alphabet": "xyz", "min_length": 1, "max_length": 12}
    env = make([name], **(large if keys else {}))
    pairs = env.warmup_pairs(500, np.random.default_rng(0))
    assert all(answer(prompt) == right for prompt, right in pairs)
    assert len({prompt for prompt, _ in pairs}) > 300
    assert set("".join(prompt + right for prompt, right in pairs)) <= set(env.spec.alphabet)
    assert max(len(prompt) for prompt, _ in pairs) <= env.spec.max_prompt_chars
    assert max(len(right) for _, right in pairs) + 2 <= env.spec.max_steps


def test_words_have_the_lengths_and_letters_that_are_asked_for():
    env = make(["reverse"], alphabet="pq", min_length=2, max_length=4)
    words = [prompt[2:-1] for prompt, _ in env.warmup_pairs(300, np.random.default_rng(0))]
    assert {len(word) for word in words} == {2, 3, 4}
    assert set("".join(words)) == set("pq")


def test_counts_are_spread_evenly():
    pairs = make(["count"], min_length=4, max_length=4).warmup_pairs(1000, np.random.default_rng(0))
    share = np.bincount([int(right) for _, right in pairs]) / 1000
    assert (abs(share - 0.2) < 0.06).all()


def test_a_mixture_has_equal_parts():
    prompts = [p for p, _ in make(["copy", "arithmetic"]).warmup_pairs(1000, np.random.default_rng(0))]
    assert abs(sum(p.startswith("c:") for p in prompts) - 500) < 80


def test_the_reward_is_exact():
    env = make(["copy"])
    (name, exact), *none = env.rewards.functions.items()
    assert (name, none) == ("exact", [])
    assert exact(completions=["abc", "abcd", "", "ab c"], answers=["abc"] * 4) == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"names": []}, "names is empty"),
        ({"names": ["revers"]}, "did you mean reverse"),
        ({"names": ["copy", "copy"]}, "twice"),
        ({"names": ["arithmetic"], "max_length": 7}, r"env.tasks.max_length=7 has no effect on names=\[arithmetic\]"),
        ({"names": ["arithmetic"], "alphabet": "xyz"}, "env.tasks.alphabet=xyz has no effect"),
        ({"names": ["copy", "count"], "max_operand": 7}, "env.tasks.max_operand=7 has no effect"),
        ({"names": ["copy"], "min_length": 6}, "max_length=5: it must be at least 6"),
        ({"names": ["copy"], "min_length": 0}, "min_length=0"),
        ({"names": ["copy"], "alphabet": "aab"}, "alphabet=aab"),
        ({"names": ["copy"], "alphabet": "a:="}, "alphabet=a:="),
        ({"names": ["copy"], "max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_keys_that_are_wrong_or_cannot_matter_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        make(**keys)


@pytest.mark.parametrize("algorithm", ["ppo", "a2c", "grpo", "dr_grpo", "rloo", "reinforce"])
@pytest.mark.parametrize("preset", PRESETS)
def test_presets_compose_with_every_algorithm(preset, algorithm):
    cfg = compose([f"env={preset}", f"algorithm={algorithm}"])
    assert list(cfg.env.tasks.names) == PRESETS[preset]
    assert list(cfg.policy) == ["causal_lm"]
    assert list(cfg.sampler) == ["episodes"]
    assert cfg.sampler.episodes.group_size == {"grpo": 8, "dr_grpo": 8, "rloo": 4}.get(algorithm, 1)
    assert (cfg.gamma, cfg.lr, cfg.max_grad_norm) == (1.0, 1e-4, 1.0)
    assert cfg.total_steps == 60 * cfg.sampler.episodes.num_episodes
    if "critic" in cfg.baseline:
        assert not cfg.baseline.critic.bootstrap_truncated
    make(**{k: list(v) if k == "names" else v for k, v in cfg.env.tasks.items() if k != "part"})


def test_sizes_are_the_defaults_of_the_keys():
    cfg = compose(["env=tasks", "policy=causal_lm", "sampler=episodes", "env.tasks.names=[copy]"])
    assert Sizes(**{k: cfg.env.tasks[k] for k in Sizes.__dataclass_fields__}) == Sizes()


# ---------------------------------------------------------------------------------------------------- warm start


def settings(steps: int, **keys):
    return compose([f"warmup.steps={steps}", *(f"warmup.{key}={value}" for key, value in keys.items())]).warmup


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_warm_start_learns_the_answers(architecture):
    streams = Streams(0)
    env = make(["copy"], alphabet="ab", min_length=1, max_length=2)
    policy = CausalLM(env.spec, streams, architecture=architecture, hidden_size=32, num_layers=2, num_heads=2)

    def score() -> float:
        return float(np.mean(env.evaluate(policy.actor(Streams(1)), 50, Streams(2))["score"]))

    before = score()
    losses = warm_up(policy, env, settings(120, batch_size=32, lr=3e-3), streams)
    assert losses[0] == pytest.approx(np.log(len(policy.tokenizer)), abs=0.3)  # it knew nothing
    assert losses[-1] < 0.2
    assert before < 0.2
    assert score() > 0.9
    assert all(p.grad is None for p in policy.parameters())


def test_a_warm_start_is_the_same_for_the_same_seed():
    def losses(seed: int) -> list[float]:
        env = make(["reverse"], seed=seed)
        policy = CausalLM(env.spec, Streams(seed), hidden_size=16, num_layers=1, num_heads=2)
        return warm_up(policy, env, settings(3), Streams(seed))

    assert losses(0) == losses(0)
    assert losses(0) != losses(1)


def test_a_warm_start_without_answers_is_refused_with_the_remedy():
    streams = Streams(0)
    env = TextEnv(streams, TextTask(prompts=["ab"], rewards=lambda completions: [0.0]), name="mute")
    policy = CausalLM(env.spec, streams, hidden_size=16, num_layers=1, num_heads=2)
    with pytest.raises(
        UserError, match=re.escape("warmup.steps=5: env=mute has no answers to learn from; set warmup.steps=0")
    ):
        warm_up(policy, env, settings(5), streams)

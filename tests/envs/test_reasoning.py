"""The tasks of reasoning-gym, where it is installed: prompts by seed, its own scores, keys checked."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest

from rlfw.config import compose
from rlfw.envs.text import TextEnv
from rlfw.errors import UserError
from rlfw.interfaces import EpisodeGroups
from rlfw.policies.causal_lm import CausalLM
from rlfw.registry import build
from rlfw.seeding import Streams

MISSING = importlib.util.find_spec("reasoning_gym") is None


def needs_it(test):
    reason = "reasoning-gym is not installed: pip install 'rlfw[reasoning-gym]'"
    return pytest.mark.slow(pytest.mark.skipif(MISSING, reason=reason)(test))


def make(seed=0, **keys) -> TextEnv:
    compose([])
    return build("env", {"part": "reasoning_gym", "task": "spell_backward", **keys}, streams=Streams(seed))


@pytest.mark.skipif(not MISSING, reason="reasoning-gym is installed")
def test_without_the_package_the_extra_is_named():
    with pytest.raises(UserError, match=r"needs the package reasoning-gym: pip install 'rlfw\[reasoning-gym\]'"):
        make()


@needs_it
def test_prompts_follow_from_the_seed_and_evaluation_has_others():
    env, again, other = make(size=500), make(size=500), make(1, size=500)
    drawn = [[e.task.draw(np.random.default_rng(i)).prompt for i in range(200)] for e in (env, again, other)]
    assert drawn[0] == drawn[1]
    assert len(set(drawn[0]) & set(drawn[2])) < 20
    train = {env.task.dataset[i]["question"] for i in range(500)}
    held_out = {env.held_out.dataset[i]["question"] for i in range(500)}
    assert len(train & held_out) < 50  # of one dictionary: a word may be drawn twice


@needs_it
def test_the_reward_is_its_own_score():
    env = make(config={"min_word_len": 3, "max_word_len": 4})
    score = env.rewards.functions["answer_score"]
    for i in range(20):
        example = env.task.draw(np.random.default_rng(i))
        word = example.columns["entry"]["metadata"]["word"]
        assert 3 <= len(word) <= 4
        assert example.answer == word[::-1]
        assert score(completion=f" {word[::-1]}\n", entry=example.columns["entry"]) == 1
        assert score(completion="", entry=example.columns["entry"]) == 0


@needs_it
def test_a_completion_that_its_scorer_cannot_read_is_worth_nothing():
    env = make(task="prime_factorization")
    entry = env.task.draw(np.random.default_rng(0)).columns["entry"]
    with pytest.raises(ValueError, match="invalid literal"):
        env.task.dataset.score_answer("words", entry)
    assert env.rewards.functions["answer_score"](completion="words", entry=entry) == 0


@needs_it
def test_a_rollout_holds_its_prompts():
    env = make(size=50, max_new_tokens=3)
    policy = CausalLM(env.spec, Streams(0), hidden_size=8, num_layers=1, num_heads=1)
    rollout = env.collect(EpisodeGroups(8, 2), policy.actor(Streams(1))).check("reasoning_gym")
    assert len(rollout.mask) == 8
    assert all("backward" in sample["prompt"] for sample in rollout.samples)


@needs_it
@pytest.mark.parametrize("task", ["chain_sum", "gcd", "letter_counting", "base_conversion", "maze", "sudoku"])
def test_its_own_answers_are_right(task):
    env = make(task=task, size=100)
    for i in range(5):
        example = env.task.draw(np.random.default_rng(i))
        assert env.rewards.functions["answer_score"](completion=example.answer, entry=example.columns["entry"]) == 1


@needs_it
@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"task": "spell_backwards"}, "env.reasoning_gym.task=spell_backwards: .*no such task; did you mean"),
        ({"config": {"min_word": 3}}, "env.reasoning_gym.config.min_word: spell_backward has no such key"),
        ({"config": {"size": 3}}, "env.reasoning_gym.config.size: write env.reasoning_gym.size"),
        ({"config": {"seed": 3}}, "env.reasoning_gym.config.seed: spell_backward has no such key"),
        ({"config": {"min_word_len": 9, "max_word_len": 3}}, "max_word_len must be >= min_word_len"),
        ({"size": 0}, "env.reasoning_gym.size=0: it must be at least 1"),
        ({"task": "composite"}, "Must specify at least one dataset"),
    ],
)
def test_keys_that_cannot_be_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        make(**keys)

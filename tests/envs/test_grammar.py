"""The small language: its parser against an enumeration, its rewards by their formulas, its words as tokens."""

import itertools
import random

import numpy as np
import pytest

from rlfw.config import compose
from rlfw.envs.grammar import LONGEST, VOCABULARY, WORDS, parses
from rlfw.envs.text import TextEnv
from rlfw.errors import UserError
from rlfw.interfaces import EpisodeGroups
from rlfw.policies.causal_lm import CausalLM
from rlfw.registry import build, load_components
from rlfw.seeding import Streams
from rlfw.testing import check

load_components()
KINDS = {name: WORDS[letter].split() for name, letter in zip("ask det adj noun vi vt adv stop".split(), WORDS)}  # noqa: B905, SIM905


def make(**keys) -> TextEnv:
    return build("env", {"part": "sentences", **keys}, streams=Streams(0))


def shapes() -> set[tuple[str, ...]]:
    """Every sentence of the language by the kinds of its words, written out from the rules."""
    phrases = [("det", "noun"), ("det", "adj", "noun")]
    verbs = [("vi",), *(("vt", *phrase) for phrase in phrases)]
    return {(*p, *v, *a, "stop") for p, v, a in itertools.product(phrases, verbs, [(), ("adv",)])}


def spoken(kinds, rng: random.Random) -> list[str]:
    return [rng.choice(KINDS[kind]) for kind in kinds]


# ---------------------------------------------------------------------------------------------------- the parser


def test_the_language_has_47_words_each_of_one_kind():
    assert len(VOCABULARY) == len(set(VOCABULARY)) == 47
    assert sum(len(words) for words in KINDS.values()) == 47


def test_the_parser_takes_the_sentences_of_the_language_and_no_other_sequence_of_kinds():
    """Every sequence of up to six kinds, a word each; longer sentences are below."""
    rng, right = random.Random(0), shapes()
    assert len(right) == 12
    for length in range(1, 7):
        for kinds in itertools.product(KINDS, repeat=length):
            words = spoken(kinds, rng)
            noun = next((word for word, kind in zip(words, kinds, strict=True) if kind == "noun"), "dog")
            assert parses(" ".join(words), noun) == (kinds in right), words


@pytest.mark.parametrize("kinds", sorted(shapes()), ids=" ".join)
def test_a_sentence_parses_and_no_corruption_of_it_does(kinds):
    """A word dropped, doubled, swapped with the next or replaced: right only where its kinds are still a sentence's."""
    rng, right = random.Random(1), shapes()
    kind_of = {word: kind for kind, words in KINDS.items() for word in words}
    for _ in range(40):
        words = spoken(kinds, rng)
        noun = words[kinds.index("noun")]
        assert parses(" ".join(words), noun)
        assert not parses(" ".join(words), rng.choice([other for other in KINDS["noun"] if other != noun]))
        for i in range(len(words)):
            other = rng.choice(VOCABULARY)
            broken = [
                words[:i] + words[i + 1 :],
                words[: i + 1] + words[i:],
                words[:i] + words[i : i + 2][::-1] + words[i + 2 :],
                [*words[:i], other, *words[i + 1 :]],
                [*words[:i], "word", *words[i + 1 :]],
            ]
            for found in broken:
                told = tuple(kind_of.get(word, "none") for word in found)
                subject = next((w for w, kind in zip(found, told, strict=True) if kind == "noun"), None)
                assert parses(" ".join(found), noun) == (told in right and subject == noun), found


@pytest.mark.parametrize(
    "text", ["", " ", ".", "the dog", "the dog waits", "the  dog waits .", " the dog waits .", "d n i ."]
)
def test_what_is_no_sentence_does_not_parse(text):
    assert not parses(text, "dog")


# ---------------------------------------------------------------------------------------------------- the env


def test_every_answer_is_right_and_they_differ():
    env = make()
    pairs = env.warmup_pairs(1000, np.random.default_rng(0))
    prompts, answers = zip(*pairs, strict=True)
    assert env.rewards.functions["quality"](prompts=list(prompts), completions=list(answers)) == [1.0] * 1000
    assert len(set(prompts)) == 24
    assert len(set(answers)) > 900
    assert set(" ".join(prompts + answers).split()) == set(VOCABULARY)
    assert max(len(answer.split()) for answer in answers) == LONGEST < env.spec.max_steps
    assert max(map(len, prompts)) == env.spec.max_prompt_chars


def test_rewards_are_their_formulas():
    env = make(keyword="old", cap=3, max_new_tokens=12)
    texts = ["the old dog sees the old cat .", "old old old old old", "", "the older dog waits ."]
    functions = env.rewards.functions
    assert functions["keyword"](completions=texts) == pytest.approx([2 / 3, 1, 0, 0])
    assert functions["short"](completions=texts) == pytest.approx([1 - 8 / 12, 1 - 5 / 12, 1, 1 - 5 / 12])
    assert functions["quality"](prompts=["describe dog"] * 4, completions=texts) == [1, 0, 0, 0]


@pytest.mark.parametrize("reward", ["quality", "keyword", "short"])
def test_one_reward_is_learned_from_and_all_are_logged(reward):
    env = make(reward=reward)
    policy = CausalLM(env.spec, Streams(0), hidden_size=16, num_layers=1, num_heads=2)
    rollout = env.collect(EpisodeGroups(16, 4), policy.actor(Streams(1))).check("sentences")
    assert set(rollout.scores) == {"quality", "keyword", "short"} == set(env.score_names)
    assert rollout.rewards.sum(1).tolist() == pytest.approx(rollout.scores[reward].tolist())
    assert rollout.scores["short"].std() > 0


@pytest.mark.parametrize("preset", ["grammar", "grammar_keyword", "grammar_short"])
def test_presets_differ_in_their_reward_alone(preset):
    cfg, plain = (compose(["algorithm=grpo", f"env={name}"]) for name in (preset, "grammar"))
    assert cfg.env.sentences.reward == preset.removeprefix("grammar").removeprefix("_") or "quality"
    cfg.env.sentences.reward = plain.env.sentences.reward
    assert cfg == plain
    assert (list(cfg.policy), list(cfg.sampler), cfg.gamma) == (["causal_lm"], ["episodes"], 1.0)


@pytest.mark.medium
def test_it_is_seeded_goes_on_after_a_save_and_is_evaluated_aside():
    report = check("env/grammar_keyword")
    assert not report.having("failed")
    assert report.having("passed")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reward": "keywrd"}, "env.sentences.reward=keywrd: choose one of quality, keyword, short"),
        ({"keyword": "god"}, "env.sentences.keyword=god: the language has no such word; did you mean good"),
        ({"cap": 0}, "env.sentences.cap=0: it must be at least 1"),
        ({"max_new_tokens": 9}, "env.sentences.max_new_tokens=9: it must be at least 10"),
    ],
)
def test_keys_that_are_wrong_are_refused(keys, message):
    with pytest.raises(UserError, match=message):
        make(**keys)

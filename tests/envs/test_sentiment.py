"""Reviews rewarded by a lexicon: what counts as a review, what the lexicon says, and how easily it is gamed."""

from __future__ import annotations

import math

import numpy as np
import pytest

from rlfw.config import compose
from rlfw.envs.named_rewards import named_rewards
from rlfw.envs.sentiment import DISLIKES, LIKES, LONGEST, NEITHER, VOCABULARY, review
from rlfw.envs.text import TextEnv
from rlfw.errors import UserError
from rlfw.registry import build
from rlfw.seeding import Streams

sentiment = named_rewards(["sentiment"], {})["sentiment"]


def make(**keys) -> TextEnv:
    compose([])
    return build("env", {"part": "reviews", **keys}, streams=Streams(0))


def test_the_score_is_vaders():
    """A valence x of the published lexicon, alone, gives x / sqrt(x^2 + 15); several of them add up."""
    valence = {"good": 1.9, "great": 3.1, "bad": -2.5}
    for text, total in (("good", 1.9), ("the food was bad .", -2.5), ("good and great", 1.9 + 3.1), ("plain", 0.0)):
        assert sentiment(text) == pytest.approx(total / math.sqrt(total**2 + 15), abs=1e-4)
    assert sentiment("great " * 13) == pytest.approx(13 * valence["great"] / math.hypot(13 * 3.1, 15**0.5), abs=1e-4)


def test_saying_one_friendly_word_over_and_over_beats_any_review():
    best = max(sentiment(f"the food was very {a} and very {b} .") for a in LIKES for b in LIKES)
    assert best < sentiment("great " * 5)
    assert all(sentiment(f"the food was {word} .") > 0 for word in LIKES)
    assert all(sentiment(f"the food was {word} .") == 0 for word in NEITHER)
    assert all(sentiment(f"the food was {word} .") < 0 for word in DISLIKES)


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("the food was good .", 1),
        ("the food looks very small and quite awful .", 1),
        ("the room was good .", 0),  # another one was asked for
        ("the food was good", 0),
        ("the food good .", 0),
        ("the food was good and .", 0),
        ("the food was good good .", 0),
        ("the  food was good .", 0),
        ("good good good good .", 0),
        ("", 0),
    ],
)
def test_what_is_a_review_of_food(text, right):
    assert review("review food", text) == right


def test_the_warm_start_has_reviews_of_all_opinions_within_what_the_spec_says():
    env = make()
    pairs = env.warmup_pairs(2000, np.random.default_rng(0))
    assert all(review(prompt, answer) == 1 for prompt, answer in pairs)
    words = {word for pair in pairs for text in pair for word in text.split()}
    assert words == set(VOCABULARY) == set(env.spec.vocabulary)
    assert max(len(answer.split()) for _, answer in pairs) == LONGEST < env.spec.max_steps
    scores = [sentiment(answer) for _, answer in pairs]
    assert abs(np.mean(scores)) < 4 * np.std(scores) / len(scores) ** 0.5 + 0.05  # friendly and unfriendly alike


def test_what_is_learned_from_is_the_sentiment_alone():
    env = make()
    assert env.score_names == ("sentiment", "review")
    assert env.rewards.weights == {"sentiment": 1.0, "review": 0.0}
    assert compose(["algorithm=grpo", "env=sentiment"]).env.reviews.part == "reviews"
    with pytest.raises(UserError, match=r"env.reviews.max_new_tokens=9: it must be at least 10"):
        make(max_new_tokens=9)


def test_without_the_lexicon_the_extra_is_named(monkeypatch):
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"needs the package nltk-vader-sentiment: pip install 'rlfw\[sentiment\]'"):
        make()

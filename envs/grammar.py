"""A small language with an exact parser: the true reward of a sentence, and rewards that can be gamed in its place.

    request   ask noun
    sentence  phrase verbs [adverb] .       its first noun is the one that was asked for
    phrase    determiner [adjective] noun
    verbs     intransitive | transitive phrase

Requests and the sentences of the warm start are drawn word by word, each word of a kind as likely as any other.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from rlfw.checks import at_least, one_of
from rlfw.errors import UserError
from rlfw.registry import register, suggest
from rlfw.seeding import Streams  # noqa: TC001  the registry reads the annotations

from .text import Example, TextEnv, TextTask

if TYPE_CHECKING:
    import numpy as np

    from rlfw.interfaces import TextSpec

WORDS = {  # a letter of SENTENCE -> its words
    "?": "describe picture",
    "d": "a the my your our",
    "a": "good small old red happy quiet warm bright tall young",
    "n": "dog cat child teacher river garden song house bird road friend tree",
    "i": "sleeps sings waits smiles falls grows",
    "t": "sees likes finds helps follows remembers",
    "r": "today slowly often again here",
    ".": ".",
}
SENTENCE = re.compile(r"da?n(i|tda?n)r?\.")
LETTER = {word: letter for letter, words in WORDS.items() for word in words.split()}
VOCABULARY = tuple(LETTER)
LONGEST = 9  # words of a sentence
ADJECTIVE, ADVERB, INTRANSITIVE = 0.6, 0.4, 0.4  # how likely each is in a sentence of the warm start
REWARDS = ("quality", "keyword", "short")


def parses(sentence: str, noun: str) -> bool:
    """Whether ``sentence`` is one of the language, and about ``noun``."""
    words = sentence.split(" ")
    letters = "".join(LETTER.get(word, "-") for word in words)
    return SENTENCE.fullmatch(letters) is not None and words[letters.index("n")] == noun


class GrammarTask(TextTask):
    """Requests for a sentence about a noun, drawn as they come; ``reward`` names the one that is learned from."""

    def __init__(self, reward: str, keyword: str, cap: int, max_new_tokens: int) -> None:
        def quality(prompts: list[str], completions: list[str]) -> list[float]:
            asked = (prompt.split(" ")[1] for prompt in prompts)
            return [float(parses(text, noun)) for text, noun in zip(completions, asked, strict=True)]

        def keyword_(completions: list[str]) -> list[float]:
            return [min(text.split(" ").count(keyword), cap) / cap for text in completions]

        def short(completions: list[str]) -> list[float]:
            return [1 - len(text.split()) / max_new_tokens for text in completions]

        super().__init__(
            rewards=dict(zip(REWARDS, (quality, keyword_, short), strict=True)),
            weights={name: float(name == reward) for name in REWARDS},
            max_new_tokens=max_new_tokens,
            alphabet="".join(VOCABULARY) + " ",
            max_prompt_chars=max(map(len, _words("?"))) + 1 + max(map(len, _words("n"))),
        )

    def spec(self) -> TextSpec:
        return replace(super().spec(), vocabulary=VOCABULARY)

    def draw(self, rng: np.random.Generator) -> Example:
        noun = _any("n", rng)
        return Example(f"{_any('?', rng)} {noun}", " ".join([*self._sentence(noun, rng), "."]))

    def _sentence(self, noun: str, rng: np.random.Generator) -> list[str]:
        words = _phrase(noun, rng)
        if rng.random() < INTRANSITIVE:
            words.append(_any("i", rng))
        else:
            words += [_any("t", rng), *_phrase(_any("n", rng), rng)]
        return [*words, _any("r", rng)] if rng.random() < ADVERB else words


def _words(letter: str) -> list[str]:
    return WORDS[letter].split()


def _any(letter: str, rng: np.random.Generator) -> str:
    words = _words(letter)
    return words[rng.integers(len(words))]


def _phrase(noun: str, rng: np.random.Generator) -> list[str]:
    adjective = [_any("a", rng)] if rng.random() < ADJECTIVE else []
    return [_any("d", rng), *adjective, noun]


@register("env", "sentences")
def sentences(
    streams: Streams, *, reward: str = "quality", keyword: str = "good", cap: int = 8, max_new_tokens: int = 14
) -> TextEnv:
    """Sentences about a noun, in a small language of a token a word.

    ``reward``: what is learned from, quality, keyword or short; all three are logged. quality: 1 where an exact parser
    takes the sentence and it is about the noun, else 0. keyword: how often ``keyword`` stands in it, ``cap`` times
    at most, over ``cap``. short: 1 less the number of words over ``max_new_tokens``, the most tokens of a completion.
    """
    one_of("env.sentences.reward", reward, REWARDS)
    if keyword not in VOCABULARY:
        raise UserError(f"env.sentences.keyword={keyword}: the language has no such word{suggest(keyword, VOCABULARY)}")
    at_least("env.sentences.cap", cap, 1)
    at_least("env.sentences.max_new_tokens", max_new_tokens, LONGEST + 1)  # a sentence and its end
    return TextEnv(streams, GrammarTask(reward, keyword, cap, max_new_tokens), name="sentences")

"""Tokens that are words: text comes back as it was, also from a folder; what cannot come back is refused."""

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from rlfw.envs.grammar import VOCABULARY
from rlfw.envs.text import TextEnv, TextTask
from rlfw.errors import UserError
from rlfw.interfaces import EpisodeGroups, TextSpec
from rlfw.policies.causal_lm import CausalLM
from rlfw.policies.tokenizer import EOS, PAD, UNKNOWN, character_tokenizer, task_tokenizer, word_tokenizer
from rlfw.seeding import Streams

WORDS = ("ab", "b", "a", "don't", ".", "été")


def texts(words, number=200):
    rng = np.random.default_rng(0)
    return [" ".join(rng.choice(words, size=rng.integers(1, 9))) for _ in range(number)]


@pytest.mark.parametrize("words", [WORDS, VOCABULARY])
def test_words_survive_the_tokenizer_and_its_folder(words, tmp_path: Path):
    made = word_tokenizer(words)
    made.save_pretrained(tmp_path)
    for tokenizer in (made, AutoTokenizer.from_pretrained(tmp_path, local_files_only=True)):
        assert len(tokenizer) == len(words) + 3
        for text in texts(words):
            ids = tokenizer(text)["input_ids"]
            assert ids == [3 + words.index(word) for word in text.split(" ")]
            assert tokenizer.decode(ids, clean_up_tokenization_spaces=False) == text


def test_special_tokens_come_first_and_an_unknown_word_is_said_so():
    tokenizer = word_tokenizer(WORDS)
    assert tokenizer.convert_tokens_to_ids([PAD, EOS, UNKNOWN]) == [0, 1, 2]
    assert tokenizer("ab abb a")["input_ids"] == [3, 2, 5]


def test_a_task_without_a_vocabulary_has_a_token_a_character():
    ids = task_tokenizer(TextSpec("ab ", 4, 4))("a b")["input_ids"]
    assert ids == character_tokenizer("ab ")("a b")["input_ids"] == [3, 5, 4]
    assert task_tokenizer(TextSpec("ab ", 4, 4, vocabulary=("a", "b")))("a b")["input_ids"] == [3, 4]


@pytest.mark.parametrize("word", ["", "a b", " a", "<eos>", "a\n"])
def test_a_word_that_would_not_come_back_is_refused(word):
    with pytest.raises(UserError, match="the task's vocabulary has"):
        word_tokenizer(["b", word])
    with pytest.raises(UserError, match="'b'"):
        word_tokenizer(["b", "b"])


def test_a_prompt_with_another_word_is_refused_by_name():
    spec = TextSpec("abc ", 6, 4, vocabulary=("a", "b", "abc"))
    policy = CausalLM(spec, Streams(0), hidden_size=16, num_layers=1, num_heads=2)
    ids, lengths = policy.encode_prompts(["a abc", "b"], room=4)
    assert (ids.tolist(), lengths.tolist()) == ([[3, 5], [4, 0]], [2, 1])
    with pytest.raises(UserError, match="the prompt 'a bc b' has the word 'bc', which the task's vocabulary lacks"):
        policy.encode_prompts(["a bc b"], room=4)


def test_what_a_word_model_writes_is_words_with_a_space_between():
    spec = TextSpec("ab", 6, 5, vocabulary=WORDS)
    policy = CausalLM(spec, Streams(0), hidden_size=16, num_layers=1, num_heads=2)
    done = policy.actor(Streams(1)).complete(["ab b", "."], group_size=16, max_new_tokens=5)
    for text, ids, mask in zip(done.texts, done.ids.tolist(), done.mask.tolist(), strict=True):
        written = [i for i, on in zip(ids, mask, strict=True) if on]
        assert text == " ".join(WORDS[i - 3] for i in written if i > 2)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_what_was_sampled_is_what_is_scored_where_its_text_has_other_tokens(architecture: str, tmp_path: Path):
    """A tokenizer with the tokens a, b and ab. The text of a, b is read again as ab: never by a rollout."""
    from tokenizers import Tokenizer, decoders, models
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    CausalLM(TextSpec("abc", 6, 6), Streams(0), architecture=architecture, hidden_size=16, num_heads=2).save(tmp_path)
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    tokens = Tokenizer(models.BPE({PAD: 0, EOS: 1, UNKNOWN: 2, "a": 3, "b": 4, "ab": 5}, [("a", "b")]))
    tokens.decoder = decoders.Fuse()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=tokens, eos_token=EOS, pad_token=EOS)
    tokenizer.save_pretrained(tmp_path)
    task = TextTask(prompts=["ab", "ba"], rewards=lambda ids: [float(len(row)) for row in ids], max_new_tokens=6)
    env = TextEnv(Streams(0), task)
    policy = CausalLM(env.spec, Streams(0), path=str(tmp_path))
    rollout = env.collect(EpisodeGroups(64, 32), policy.actor(Streams(1)))
    scored = policy.score(rollout.context, rollout.actions, rollout.mask).logprobs
    apart = 0
    for b, sample in enumerate(rollout.samples):
        written = rollout.actions[b][rollout.mask[b]].tolist()
        prompt = tokenizer(sample["prompt"])["input_ids"]
        logits = model(input_ids=torch.tensor([prompt + written])).logits[0, len(prompt) - 1 : -1]
        expected = logits.log_softmax(-1)[torch.arange(len(written)), written]
        torch.testing.assert_close(scored[b, : len(written)], expected, rtol=0, atol=1e-5)
        assert sample["reward"] == len(written)
        apart += (3, 4) in pairwise(written)
    assert apart > 2
    assert tokenizer("ab")["input_ids"] == [5]

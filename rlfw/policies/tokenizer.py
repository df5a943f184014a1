"""A tokenizer with one token a character or one a word, in the form that transformers saves and loads."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from transformers import PreTrainedTokenizerFast

    from rlfw.interfaces import TextSpec

PAD, EOS, UNKNOWN = SPECIAL = "<pad>", "<eos>", "<unk>"  # ids 0, 1, 2; the others follow in their own order


def task_tokenizer(spec: TextSpec) -> PreTrainedTokenizerFast:
    """A token a word where the task has a vocabulary, else one a character of its alphabet."""
    return character_tokenizer(spec.alphabet) if spec.vocabulary is None else word_tokenizer(spec.vocabulary)


def character_tokenizer(alphabet: str) -> PreTrainedTokenizerFast:
    """len(alphabet) + 3 tokens."""
    from tokenizers import Regex, decoders, pre_tokenizers

    return _tokenizer(alphabet, pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated"), decoders.Fuse())


def word_tokenizer(words: Sequence[str]) -> PreTrainedTokenizerFast:
    """len(words) + 3 tokens. Text is words with one space between any two."""
    from tokenizers import pre_tokenizers

    for word in words:
        if not word or word.split() != [word] or word in SPECIAL or words.count(word) > 1:
            raise UserError(
                f"the task's vocabulary has {word!r}: a word is there once, without spaces, no special token"
            )
    return _tokenizer(words, pre_tokenizers.WhitespaceSplit(), None)


def _tokenizer(tokens: Iterable[str], pre_tokenizer: Any, decoder: Any) -> PreTrainedTokenizerFast:
    """``decoder``: None puts a space between any two tokens."""
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    vocabulary = {token: i for i, token in enumerate([*SPECIAL, *tokens])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizer
    if decoder is not None:
        tokenizer.decoder = decoder
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=PAD,
        eos_token=EOS,
        unk_token=UNKNOWN,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )

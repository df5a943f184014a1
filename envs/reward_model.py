"""A learned reward: a transformers sequence classifier with one output, which scores a prompt with its completion.

B texts
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from rlfw.errors import UserError
from rlfw.policies.language_models import quiet

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor


class RewardModel:
    """The score of prompt and completion, written one after the other; no gradient, no dropout, float32.

    ``folder``: model and tokenizer, as save_pretrained writes them. What is longer than the model's context loses its
    beginning. A text that stands in a batch several times is scored once, so that equal completions have equal rewards.
    """

    def __init__(self, folder: str | Path, *, batch_size: int = 64, key: str = "the reward model") -> None:
        """``key``: who asks, in errors."""
        self.model, self.tokenizer = load_classifier(folder, key)
        self.model.requires_grad_(False)
        self.batch_size = batch_size

    def __call__(self, prompts: Sequence[str], completions: Sequence[str]) -> list[float]:
        texts = [prompt + completion for prompt, completion in zip(prompts, completions, strict=True)]
        distinct = sorted(set(texts), key=lambda text: (len(text), text))  # rows of a batch are about as long
        with torch.inference_mode():
            batches = [distinct[i : i + self.batch_size] for i in range(0, len(distinct), self.batch_size)]
            scores = torch.cat([score(self.model, self.tokenizer, batch) for batch in batches]).tolist()
        found = dict(zip(distinct, scores, strict=True))
        return [found[text] for text in texts]


def score(model: Any, tokenizer: Any, texts: Sequence[str]) -> Tensor:
    """[B] the model's output for each text."""
    size = getattr(model.config, "max_position_embeddings", None)  # not every architecture has one
    inputs = tokenizer(list(texts), padding=True, truncation=size is not None, max_length=size, return_tensors="pt")
    logits: Tensor = model(input_ids=inputs["input_ids"], attention_mask=inputs["attention_mask"]).logits
    return logits[:, 0]


def load_classifier(folder: str | Path, key: str, *, new_head: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer of a local folder. ``new_head``: a model without a head gets one of random weights."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    quiet()
    at = f"{key}={folder}"
    if not Path(folder).is_dir():
        raise UserError(f"{at}: there is no such folder; models are read from disk, never downloaded")
    try:
        # A folder is data: no code of its own is run, no pickle is read, nothing is fetched.
        data: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        sizes = {"num_labels": 1} if new_head else {}
        read: Any = AutoModelForSequenceClassification.from_pretrained
        model, found = read(
            folder, dtype=torch.float32, output_loading_info=True, use_safetensors=True, **sizes, **data
        )
        tokenizer = AutoTokenizer.from_pretrained(folder, **data)
    except Exception as error:  # what a broken folder raises depends on how it is broken
        raise UserError(f"{at}: transformers cannot load it as a sequence classifier: {error!r:.300}") from error
    missing = sorted(found["missing_keys"])
    if missing and not new_head:
        raise UserError(f"{at} is no trained reward model: weights are missing, e.g. {missing[0]}")
    if model.config.num_labels != 1:
        raise UserError(f"{at} has {model.config.num_labels} outputs; a reward model has one")
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        raise UserError(f"{at}: its tokenizer has neither a padding nor an end-of-sequence token")
    model.config.pad_token_id = tokenizer.pad_token_id  # a decoder reads the last token that is none
    tokenizer.padding_side, tokenizer.truncation_side = "right", "left"
    return model.eval(), tokenizer

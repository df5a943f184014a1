"""What a model's folder says of itself: one that cannot be a policy is refused in a sentence that says why."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from rlfw.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path

CLASSIFIERS = ("ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")  # ends of classes' names
WORDS = ("*token*", "vocab*", "*.model")  # files of tokenizers
PICKLES = ("*.bin", "*.pt", "*.pth", "*.ckpt")
_PUT = ": put the model's tokenizer.json there"
CONFIGS = {"model": "config.json", "tokenizer": "tokenizer_config.json"}


def check_folder(folder: Path, source: str) -> None:
    """UserError, naming ``source``, for a folder without the files of a language model."""
    if not (folder / CONFIGS["model"]).is_file():
        raise UserError(f"{source} has no config.json: a model's folder is as transformers' save_pretrained writes it")
    if not any(folder.glob("*.safetensors")):
        pickles = sorted(file.name for pattern in PICKLES for file in folder.glob(pattern))
        if pickles:
            raise UserError(
                f"{source} has pickled weights alone ({pickles[0]}), which may hold code and are not read: save the "
                "model anew with transformers' save_pretrained, which writes safetensors"
            )
        raise UserError(f"{source} has no weights: neither a .safetensors nor a .gguf file")
    classes = _read(folder / CONFIGS["model"], source).get("architectures") or []
    if other := [name for name in classes if name.endswith(CLASSIFIERS)]:
        raise UserError(f"{source} is a {other[0]}: it judges texts and writes none; a reward model can be one")


def check_tokenizer(tokenizer: Any, rows: int, source: str) -> None:
    """UserError for a tokenizer that knows no text, or tokens beyond the ``rows`` of the model's embeddings."""
    vocabulary = tokenizer.get_vocab()
    if vocabulary.keys() <= set(tokenizer.all_special_tokens):  # what transformers makes up where there are no files
        raise UserError(f"{source} has no tokenizer{_PUT}")
    last = max(vocabulary.values())
    if last >= rows:
        raise UserError(
            f"{source}: the tokenizer has tokens up to number {last}, the model up to {rows - 1}: it is another "
            "model's, or the model lacks its resize_token_embeddings"
        )


def failure(what: str, folder: Path, gguf: str | None, source: str, error: Exception) -> UserError:
    """Why transformers could not load ``what``, the model or the tokenizer, in one line."""
    if gguf is None and "auto_map" in _read(folder / CONFIGS[what], source):
        return UserError(
            f"{source}: its {what} is code of its own (auto_map in {CONFIGS[what]}), which is never run: choose a "
            "model that transformers knows"
        )
    first = next(iter(str(error).strip().splitlines()), "")
    remedy = ""
    if what == "model" and gguf is not None:
        remedy = f"; is {gguf} whole?"
    elif what == "tokenizer" and not (folder / "tokenizer.json").is_file():
        if not any(file for pattern in WORDS for file in folder.glob(pattern)):
            return UserError(f"{source} has no tokenizer{_PUT}")
        remedy = _PUT
    return UserError(f"{source}: transformers cannot load its {what}: {type(error).__name__}: {first:.200}{remedy}")


def _read(file: Path, source: str) -> dict[str, Any]:
    """The keys of a JSON file; none where there is no file."""
    try:
        found = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    except ValueError as error:
        raise UserError(f"{source}: {file.name} is no JSON: {error}") from error
    if not isinstance(found, dict):
        raise UserError(f"{source}: {file.name} holds no keys")
    return found

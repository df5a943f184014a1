"""Language models of transformers: initialised here, or loaded from a folder.

transformers takes seconds to import, so it is imported where a model is made.
"""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlfw.checks import at_least
from rlfw.errors import UserError
from rlfw.policies.folder import check_folder, check_tokenizer, failure
from rlfw.registry import suggest

if TYPE_CHECKING:
    from rlfw.interfaces import TextSpec
    from rlfw.seeding import Streams

KEY = "policy.causal_lm"


def initialised(
    architecture: str, sizes: dict[str, int], further: dict[str, Any], vocab_size: int, spec: TextSpec, streams: Streams
) -> Any:
    """A model with random weights, drawn from the run's own stream."""
    from transformers import AutoConfig, AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as ARCHITECTURES

    quiet()
    for name, size in sizes.items():
        at_least(f"{KEY}.{name}", size, 1)
    hidden, heads = sizes["hidden_size"], sizes["num_heads"]
    if hidden % heads:
        raise UserError(f"{KEY}.hidden_size={hidden} is not a multiple of {KEY}.num_heads={heads}")
    if architecture not in ARCHITECTURES:
        near = suggest(architecture, ARCHITECTURES)
        raise UserError(f"{KEY}.architecture={architecture}: transformers has no such causal LM{near}")
    default = AutoConfig.for_model(architecture)
    further = _checked(further, default)
    keys = {
        "vocab_size": vocab_size,
        "hidden_size": hidden,
        "intermediate_size": 4 * hidden,
        "num_hidden_layers": sizes["num_layers"],
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": hidden // heads,
        "max_position_embeddings": spec.max_prompt_chars + spec.max_steps,
        "tie_word_embeddings": True,
        "pad_token_id": 0,
        "eos_token_id": 1,
        "bos_token_id": None,
    }
    derived = {key for key in keys if isinstance(getattr(type(default), key, None), property)}
    keys = {key: value for key, value in keys.items() if hasattr(default, key) and key not in derived}
    try:
        config = AutoConfig.for_model(architecture, **(keys | further))
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(streams.integer("policy weights"))
            model = AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
        with torch.no_grad():
            model(input_ids=torch.ones(1, 2, dtype=torch.long), use_cache=False)  # some sizes fail here at the latest
    except Exception as error:  # what sizes that do not fit raise depends on the architecture
        why = " ".join(str(error).split())
        raise UserError(f"{KEY}: transformers cannot build this {architecture}: {why:.300}") from error
    return supported(model, f"{KEY}.architecture={architecture}")


OWN_KEYS = {"hidden_size": "hidden_size", "num_hidden_layers": "num_layers", "num_attention_heads": "num_heads"}


def _checked(further: dict[str, Any], default: Any) -> dict[str, Any]:
    """The keys of ``config`` under their common names (n_positions is max_position_embeddings in all but name)."""
    common = {own: name for name, own in default.attribute_map.items()}
    for key in further:
        if not hasattr(default, key):
            raise UserError(f"{KEY}.config.{key}: {type(default).__name__} has no such key")
        if (name := common.get(key, key)) in OWN_KEYS:
            raise UserError(f"{KEY}.config.{key}: write {KEY}.{OWN_KEYS[name]}")
        if name == "vocab_size":
            raise UserError(f"{KEY}.config.{key} follows from the task's alphabet or vocabulary")
    return {common.get(key, key): value for key, value in further.items()}


def loaded(path: str) -> tuple[Any, Any]:
    """Model and tokenizer of a local folder, or of a GGUF file."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    quiet()
    source, (folder, gguf) = f"{KEY}.path={path}", _found(path)
    # A folder is data: no code of its own is run, no pickle is read, nothing is fetched.
    data: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
    weights = {"use_safetensors": True} if gguf is None else unpacked(gguf)
    words = {} if gguf is None or (folder / "tokenizer.json").is_file() else {"gguf_file": gguf}
    if gguf is None:
        check_folder(folder, source)
    what = "model"
    try:
        read: Any = AutoModelForCausalLM.from_pretrained
        model, found = read(folder, dtype=torch.float32, output_loading_info=True, **weights, **data)
        what = "tokenizer"
        tokenizer = AutoTokenizer.from_pretrained(folder, **words, **data)
    except Exception as error:  # what a broken folder raises depends on how it is broken
        raise failure(what, folder, gguf, source, error) from error
    if found["missing_keys"]:
        raise UserError(f"{source}: weights are missing, e.g. {sorted(found['missing_keys'])[0]}")
    check_tokenizer(tokenizer, model.get_input_embeddings().weight.shape[0], source)
    return supported(model, source), tokenizer


def _found(path: str) -> tuple[Path, str | None]:
    """The folder, and the GGUF file that holds its weights, where no safetensors file does."""
    there = Path(path)
    if there.is_file() and there.suffix == ".gguf":
        return there.parent, there.name
    if not there.is_dir():
        raise UserError(f"{KEY}.path={path}: there is no such folder; models are read from disk, never downloaded")
    files = [] if any(there.glob("*.safetensors")) else sorted(there.glob("*.gguf"))
    if len(files) > 1:
        raise UserError(f"{KEY}.path={path} has {len(files)} GGUF files: name one, as {KEY}.path={files[0]}")
    return there, files[0].name if files else None


def unpacked(gguf: str) -> dict[str, Any]:
    """How transformers is told to read a GGUF file: every weight as a number."""
    from transformers import GgufConfig

    if missing := [name for name in ("gguf", "accelerate") if find_spec(name) is None]:
        raise UserError(f"{KEY}.path: {gguf} needs {' and '.join(missing)}: pip install 'rlfw[gguf]'")
    return {"gguf_file": gguf, "quantization_config": GgufConfig(dequantize=True)}


def supported(model: Any, source: str) -> Any:
    """The model, or a UserError: left padding in generation is exact for attention, not for a running state.

    A model that looks ahead, as encoders do, gives a token's probability in view of that token.
    """
    from transformers import DynamicCache
    from transformers.cache_utils import DynamicLayer

    if not all(isinstance(layer, DynamicLayer) for layer in DynamicCache(config=model.config).layers):
        raise UserError(f"{source}: {type(model).__name__} keeps a running state; choose a model of attention layers")
    with torch.no_grad():
        one, other = model(input_ids=torch.tensor([[0, 0], [0, 1]]), use_cache=False).logits[:, 0]
    if (one - other).abs().max() > 1e-4 * one.abs().max():
        raise UserError(
            f"{source}: {type(model).__name__} looks ahead: what it says of a token depends on later ones; an encoder "
            "becomes a decoder by is_decoder: true in its config"
        )
    return model


def end_of_sequence(model: Any, tokenizer: Any) -> Tensor:
    """The ids that end a completion: the tokenizer's first, then those of the generation config (one or a list)."""
    configured = model.generation_config.eos_token_id
    ids = [tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])]
    vocabulary = model.get_input_embeddings().weight.shape[0]
    found = list(dict.fromkeys(i for i in ids if i is not None and i < vocabulary))
    if not found:
        raise UserError(f"{KEY}: neither the model nor its tokenizer names an end-of-sequence token")
    return torch.tensor(found)


def device(name: str) -> torch.device:
    """auto: a GPU that torch can use, else the CPU."""
    try:
        found = torch.device("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else torch.device(name)
    except RuntimeError:
        found = None
    if found is None or found.type not in ("cpu", "cuda"):
        raise UserError(f"{KEY}.device={name}: choose auto, cpu, cuda or cuda:N")
    if found.type == "cuda" and (found.index or 0) >= torch.cuda.device_count():
        count = torch.cuda.device_count()
        raise UserError(f"{KEY}.device={name}: torch sees {count} such devices: set {KEY}.device=auto or cpu")
    return found


def quiet() -> None:
    """transformers' warnings are about uses that do not occur here, e.g. padding that causality hides."""
    from transformers.utils import logging

    if "TRANSFORMERS_VERBOSITY" not in os.environ:
        logging.set_verbosity_error()
        logging.disable_progress_bar()

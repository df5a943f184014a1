"""A resolved configuration as what sets a run apart: its hash, and how it differs from another's."""

from __future__ import annotations

import functools
import hashlib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlfw import registry

if TYPE_CHECKING:
    from collections.abc import Mapping

    from omegaconf import DictConfig

# Where a run is written, how it is shown, how it is saved and shared out: nothing that training or evaluation read.
APART = ("out", "resume", "progress", "tensorboard", "checkpoint", "dump", "threads", "overrides")


def identity(cfg: DictConfig) -> str:
    """The hash of all that makes the run's numbers: equal compositions have equal ones.

    The order of the parts of a list axis counts, as it does in the pipeline. A plugin counts by its source, and a file
    that a part reads by what stands in it.
    """
    found: dict[str, Any] = OmegaConf.to_container(cfg, resolve=True)  # type: ignore[assignment]
    for key in APART:
        found.pop(key, None)
    for axis in registry.AXES:
        for node in found[axis].values():
            node |= {key: _content(node[key]) for key in registry.entry(axis, node["part"]).files}
    for axis in registry.LISTS:
        found[axis] = list(found[axis].items())
    found["plugins"] = [(Path(file).name, hashlib.sha256(Path(file).read_bytes()).hexdigest()) for file in cfg.plugins]
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def _content(named: Any) -> Any:
    """Each file, or each one of a folder, by its name and hash; a name of nothing stays as it is."""
    if isinstance(named, dict):
        return {key: _content(value) for key, value in named.items()}
    if named is None or not Path(named).exists():
        return named
    path = Path(named)
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(file.name, _hash(file, file.stat().st_mtime_ns)) for file in files if file.is_file()]


@functools.cache
def _hash(file: Path, changed: int) -> str:
    """``changed``: when it was, so that a file is read once."""
    with file.open("rb") as content:
        return hashlib.file_digest(content, "sha256").hexdigest()


def differences(base: DictConfig, arm: DictConfig) -> dict[str, tuple[Any, Any]]:
    """key -> (value in ``base``, value in ``arm``). Of a part that only the arm has: its keys beside their defaults."""
    a, b = _flat(base), _flat(arm)
    keys = [*b, *(key for key in a if key not in b and not _within_part(key))]
    found = {key: (a.get(key), b.get(key)) for key in keys if a.get(key, _default(arm, key)) != b.get(key)}
    return {key: found[key] for key in sorted(found, key=lambda key: (_within_part(key), "." in key))}


def _within_part(key: str) -> bool:
    return key.split(".")[0] in registry.AXES and "." in key


def _default(cfg: DictConfig, key: str) -> Any:
    """Of a part's key; a value that equals none for any other."""
    if not _within_part(key):
        return ...
    axis, name, inner, *deeper = key.split(".")
    default = registry.entry(axis, cfg[axis][name].part).keys[inner][1]
    for step in deeper:
        default = default.get(step, ...)
    return default


def _flat(cfg: DictConfig) -> dict[str, Any]:
    found: Any = OmegaConf.to_container(cfg, resolve=True)
    return {key: value for key, value in flattened(found).items() if key != "seed"}


def flattened(found: Mapping[str, Any]) -> dict[str, Any]:
    """axis -> its part, or the list of them; axis.part.key and every root key -> its value."""
    flat: dict[str, Any] = {}
    for key, value in found.items():
        if key in APART:
            continue
        if key in registry.AXES:
            parts = [name if node["part"] == name else f"{name}:{node['part']}" for name, node in value.items()]
            flat[key] = parts if key in registry.LISTS else parts[0]
            for name, node in value.items():
                flat |= _leaves(f"{key}.{name}", {inner: x for inner, x in node.items() if inner != "part"})
        else:
            flat |= _leaves(key, value)
    return flat


def _leaves(path: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {leaf: x for key, inner in value.items() for leaf, x in _leaves(f"{path}.{key}", inner).items()}

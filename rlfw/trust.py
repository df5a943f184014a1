"""What a configuration that somebody else wrote may not do: run code that the command line does not name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig, OmegaConf

from rlfw import registry
from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Mapping


def check_data(where: str, found: Any) -> None:
    """UserError for a key that asks for a Python object by its path, however deep it lies."""
    if any(key == "_target_" for key, _ in _items(found)):
        raise UserError(f"{where}_target_: no such key; parts are chosen by name, never by a Python path")


def check_file(where: str, found: Mapping[str, Any]) -> None:
    """The same for a file, which sets nothing of Hydra's own either: launchers, callbacks and loggers are code."""
    check_data(f"{where}: ", found)
    words = [*found, *(word for pair in _items(found.get("defaults")) for word in pair)]
    if strange := next((word for word in words if isinstance(word, str) and re.search(r"\bhydra\b", word)), None):
        raise UserError(f"{where}: {strange}: Hydra's own settings are taken from the command line alone")


def _items(found: Any) -> Iterator[tuple[Any, Any]]:
    """Every key with its value, and every entry of a list with its place."""
    if isinstance(found, DictConfig):
        found = OmegaConf.to_container(found)
    pairs = found.items() if isinstance(found, dict) else enumerate(found) if isinstance(found, list) else ()
    for key, value in pairs:
        yield key, value
        yield from _items(value)


def imported(cfg: DictConfig) -> dict[str, str]:
    """The keys of ``cfg`` whose value names a module that would be imported, as in module:Env-v0."""
    found = {}
    for axis in registry.AXES:
        for name, node in cfg[axis].items():
            for key in registry.entry(axis, node.part).imports:
                if ":" in str(node[key]):
                    found[f"{axis}.{name}.{key}"] = str(node[key])
    return found


def check_imports(cfg: DictConfig, typed: Collection[str]) -> None:
    """UserError for a module that would be imported where its key is not among the ``typed`` ones."""
    for key, value in imported(cfg).items():
        if key not in typed:
            raise UserError(
                f"{key}={value} imports the module {value.partition(':')[0]}, which a file alone may not do: "
                f"write {key}={value} on the command line too"
            )


def check_named(cfg: DictConfig, typed: Collection[tuple[str, Any]]) -> None:
    """The same for a study, whose file holds words of its own: key and value are among the ``typed`` ones.

    The composed value is what counts. A word may set it in many ways: quoted, after a +, as a dict, by interpolation.
    """
    for key, value in imported(cfg).items():
        if (key, value) not in typed:
            raise UserError(
                f"{key}={value} imports the module {value.partition(':')[0]}, which no file may name: "
                f"rlfw study FILE {key}={value}"
            )

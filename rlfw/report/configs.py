"""A run's configuration as flat keys, and how several differ. Data alone: no part is built, no plugin loaded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import yaml

from rlfw import registry
from rlfw.errors import UserError
from rlfw.study.settings import flattened

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

try:
    from yaml import CSafeLoader as Loader  # twenty times as fast, where PyYAML was built with it
except ImportError:
    from yaml import SafeLoader as Loader  # type: ignore[assignment]


def read(run: Path) -> dict[str, Any]:
    """axis -> its part, or the list of them; axis.part.key and every root key -> its value; the seed with them."""
    file = run / "config.yaml"
    try:
        found = yaml.load(file.read_bytes(), Loader)
    except (OSError, yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{file} cannot be read: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict) or "seed" not in found:
        raise UserError(f"{file} is not the configuration of a run")
    return {key: value or "none" if key in registry.LISTS else value for key, value in flattened(found).items()}


def varying(configs: Sequence[Mapping[str, Any]]) -> list[str]:
    """The keys in which these differ, parts first. A part that some lack tells itself: its keys are left away where
    those that have it agree."""
    keys = dict.fromkeys(key for config in configs for key in config)
    found = [key for key in keys if _differs([config[key] for config in configs if key in config])]
    lacking = [key for key in keys if key not in found and any(key not in config for config in configs)]
    chosen = {key for key in found if key in registry.AXES}
    found += [key for key in lacking if _axis(key) not in chosen]
    return sorted(found, key=lambda key: (key not in registry.AXES, "." in key))


def _differs(values: Sequence[Any]) -> bool:
    return any(value != values[0] for value in values)


def _axis(key: str) -> str:
    return key.split(".")[0] if "." in key else ""


def env_name(config: Mapping[str, Any]) -> str:
    """The env of a run: what its part was given to play, the gym's id or the names of tasks; else the part."""
    name = config["env"]
    given = config.get(f"env.{name}.id", config.get(f"env.{name}.names", name))
    return "+".join(given) if isinstance(given, list) else str(given)


def word(value: Any) -> str:
    """A value as the command line has it."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{','.join(map(word, value))}]"
    return "null" if value is None else str(value)


def frozen(config: Mapping[str, Any], keys: Iterable[str]) -> tuple[str, ...]:
    """The values of ``keys``, comparable."""
    return tuple(repr(config.get(key)) for key in keys)

"""The published algorithms as they are written down, and what lies between two of them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import OmegaConf

from rlfw import registry

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from omegaconf import DictConfig

# What an algorithm owns; an env's preset owns the rest.
AXES = (
    "sampler",
    "reward",
    "baseline",
    "normalize",
    "ratio",
    "regularizer",
    "weight",
    "aggregation",
    "controller",
    "optimizer",
)
ROOT = ("epochs", "num_minibatches")

Choice = dict[str, dict[str, Any]]  # instance -> its part and its keys


@dataclass(frozen=True)
class Recipe:
    """A composition without its env: what is chosen on each axis, with every key."""

    axes: Mapping[str, Choice]
    root: Mapping[str, Any]
    name: str = ""
    summary: str = ""
    notes: tuple[str, ...] = ()
    given: frozenset[str] = field(default_factory=frozenset)  # axis.part.key that its file writes down

    @property
    def differs(self) -> list[str]:
        """Where it is not its paper."""
        return [note.removeprefix("Differs: ") for note in self.notes if note.startswith("Differs: ")]

    @property
    def remarks(self) -> list[str]:
        """What else its file says, the lines of a sentence joined."""
        text = " ".join(note for note in self.notes if not note.startswith("Differs: "))
        return re.split(r"(?<=\.) ", text) if text else []

    @property
    def age(self) -> tuple[str, str]:
        """The arXiv id, which sorts by date; papers older than arXiv come first."""
        found = re.search(r"arXiv:(\d{4}\.\d{4,5})", self.summary)
        return (found[1] if found else "", self.name)


def recipe(name: str) -> Recipe:
    """The recipe ``algorithm=name``."""
    preset = registry.preset("algorithm", name)
    chosen = _root_defaults() | _chosen(preset.node)
    axes = {}
    for axis in AXES:
        words = chosen[axis]
        parts = [
            part for word in words for part in registry.aliases(axis).get(word, [word]) if not _nothing(axis, part)
        ]
        written = preset.node.get(axis, {})
        axes[axis] = {part: _keys(axis, part) | written.get(part, {}) for part in parts}
    given = {
        f"{axis}.{part}.{key}"
        for axis in AXES
        for part in axes[axis]
        for key in preset.node.get(axis, {}).get(part, {})
    }
    root = {key: preset.node.get(key, 1) for key in ROOT}
    return Recipe(axes, root, name, preset.summary, preset.notes, frozenset(given))


def recipes() -> list[Recipe]:
    """All of them, the oldest paper first."""
    return sorted((recipe(name) for name in registry.presets("algorithm")), key=lambda r: r.age)


def _root_defaults() -> dict[str, list[str]]:
    return _chosen(yaml.safe_load((files("rlfw.conf") / "config.yaml").read_text()))


def _chosen(node: Mapping[str, Any]) -> dict[str, list[str]]:
    """axis -> the words chosen under defaults."""
    pairs = [item for entry in node.get("defaults", []) if isinstance(entry, dict) for item in entry.items()]
    axes = {key.removeprefix("override ").lstrip("/"): value for key, value in pairs}
    return {axis: value if isinstance(value, list) else [value] for axis, value in axes.items() if axis in AXES}


def _nothing(axis: str, word: str) -> bool:
    return axis in registry.LISTS and word == "none" and word not in registry.names(axis)


def _keys(axis: str, part: str) -> dict[str, Any]:
    return {"part": part, **{key: default for key, (_, default) in registry.entry(axis, part).keys.items()}}


def composed(cfg: DictConfig) -> Recipe:
    """What a settled configuration composes."""
    axes: dict[str, Any] = {axis: OmegaConf.to_container(cfg[axis], resolve=False) for axis in AXES}
    return Recipe(axes, {key: cfg[key] for key in ROOT})


def chosen(group: str, typed: Mapping[str, Any]) -> str:
    """The member of ``algorithm`` or ``env`` that is typed, or else the experiment's, or else the root's default."""
    nodes: list[Any] = [yaml.safe_load((files("rlfw.conf") / "config.yaml").read_text())]
    if "experiment" in typed:
        node = ConfigStore.instance().load(f"experiment/{Path(str(typed['experiment'])).stem}.yaml").node
        nodes.insert(0, OmegaConf.to_container(node))
    entries = [entry for node in nodes for entry in node.get("defaults", []) if isinstance(entry, dict)]
    words = {key.split("/")[-1]: str(word) for entry in reversed(entries) for key, word in entry.items()}
    return str(typed.get(group, words[group]))


def env_owned(env: str) -> frozenset[str]:
    """axis.part.key, or an axis, that the env's preset decides."""
    if env not in registry.presets("env"):
        return frozenset()
    node = registry.preset("env", env).node
    keys = {f"{axis}.{part}.{key}" for axis in AXES for part, keys in node.get(axis, {}).items() for key in keys}
    return frozenset(keys | _chosen(node).keys())


def differences(old: Recipe, new: Recipe, ignored: Iterable[str] = ()) -> list[str]:
    """What turns ``old`` into ``new``, one change a line. ``ignored``: axes and axis.part.key."""
    ignored, found = set(ignored), []
    for axis in AXES:
        if axis in ignored:
            continue
        before, after = old.axes[axis], new.axes[axis]
        if list(before) != list(after):
            found.append(f"{axis}: {_words(axis, before)} -> {_words(axis, after)}")
        for name in after:
            for key, value in after[name].items() if name in before else ():
                path = f"{axis}.{name}.{key}"
                if path not in ignored and before[name][key] != value:
                    found.append(f"{path}: {shown(before[name][key])} -> {shown(value)}")
    return found + [f"{key}: {old.root[key]} -> {new.root[key]}" for key in ROOT if old.root[key] != new.root[key]]


def distance(old: Recipe, new: Recipe, ignored: Iterable[str] = ()) -> tuple[int, int]:
    """How many parts and keys differ, and how many parts of them; in a list each part that comes or goes counts."""
    ignored = set(ignored)
    swaps = [max(len(set(old.axes[axis]) ^ set(new.axes[axis])) - 1, 0) for axis in set(registry.LISTS) - ignored]
    lines = differences(old, new, ignored)
    parts = sum(line.partition(":")[0] in AXES for line in lines)
    return len(lines) + sum(swaps), parts + sum(swaps)


def nearest(new: Recipe, among: Iterable[Recipe], ignored: Iterable[str] = (), first: str = "") -> Recipe:
    """The recipe with the fewest differences; of equals the one called ``first``, then the oldest."""
    return min(
        among, key=lambda old: (distance(old, new, ignored)[0], old.name != first, distance(old, new, ignored), old.age)
    )


def _words(axis: str, choice: Choice) -> str:
    return f"[{', '.join(choice)}]" if axis in registry.LISTS else ", ".join(choice)


def shown(value: Any) -> str:
    """As a person writes it on the command line."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return re.sub(r"e([-+])0", r"e\1", f"{value:g}") if isinstance(value, float) else str(value)

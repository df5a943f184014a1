"""No key is silently ignored: what a person typed and nothing would read is refused before the run.

An experiment or a preset may hold such keys, for words that choose another part later. What shows only in the end, as a
budget in steps, is said in the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rlfw import registry
from rlfw.config import leaves, typed_overrides
from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from omegaconf import DictConfig

# root key -> the key that switches off, at 0, all that reads it
SWITCHES = {"evaluation.episodes": "evaluation.every", "warmup.lr": "warmup.steps", "warmup.batch_size": "warmup.steps"}


def check(cfg: DictConfig, overrides: Sequence[str]) -> None:
    """UserError for the first typed key that has no effect."""
    for word in [leaf for key, value in typed_overrides(overrides) for leaf in leaves(key, value)]:
        axis, *rest = word.split(".")
        if word in SWITCHES and _value(cfg, SWITCHES[word]) == 0:
            raise UserError(f"{word} has no effect with {SWITCHES[word]}=0: set {SWITCHES[word]}=N")
        if word == "gamma" and not _reads_gamma(cfg):
            (baseline,) = (node.part for node in cfg.baseline.values())
            reading = [n for n in registry.names("baseline") if "gamma" in registry.entry("baseline", n).wires]
            raise UserError(
                f"gamma has no effect: neither baseline={baseline} nor any other part or the env reads it; leave it "
                f"away, or choose a baseline that discounts ({', '.join(reading)})"
            )
        if word == "dump" and cfg.dump is not None and cfg.iterations is not None and cfg.dump > cfg.iterations:
            raise UserError(f"dump={cfg.dump} has no effect: the last iteration is iterations={cfg.iterations}")
        if axis in registry.AXES and len(rest) > 1:
            _check_key(cfg, axis, rest[0], rest[1])


def _check_key(cfg: DictConfig, axis: str, name: str, key: str) -> None:
    node = cfg[axis][name]
    entry = registry.entry(axis, node.part)
    if not entry.reads(key, node):
        switch, value = entry.part.only_with[key]  # type: ignore[attr-defined]
        raise UserError(
            f"{axis}.{name}.{key} has no effect with {axis}.{name}.{switch}={_word(node[switch])}: "
            f"set {axis}.{name}.{switch}={_word(value)}"
        )


def _reads_gamma(cfg: DictConfig) -> bool:
    nodes = [(axis, node) for axis in registry.AXES for node in cfg[axis].values()]
    return any(registry.entry(axis, node.part).reads("gamma", node) for axis, node in nodes)


def _value(cfg: DictConfig, path: str) -> object:
    group, key = path.split(".")
    return cfg[group][key]


def _word(value: object) -> str:
    """As a person writes it."""
    return "null" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def unmet(cfg: DictConfig, iterations: int) -> list[str]:
    """What never came about in a run that ended after so many ``iterations``, a sentence each."""
    found = []
    if cfg.dump is not None and cfg.dump > iterations:
        found.append(f"dump={cfg.dump} wrote nothing")
    if cfg.evaluation.every > iterations:
        found.append(f"evaluation.every={cfg.evaluation.every} never evaluated")
    if cfg.checkpoint.every > iterations:
        found.append(f"checkpoint.every={cfg.checkpoint.every} saved nothing but the start and the end")
    return [f"{sentence}: the run ended at iteration {iterations}" for sentence in found]

"""From words on the command line to a settled configuration."""

from __future__ import annotations

import re
from dataclasses import is_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from hydra import compose as hydra_compose
from hydra import initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override, Sweep
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf, open_dict
from omegaconf.errors import OmegaConfBaseException

from rlfw import registry
from rlfw.errors import UserError
from rlfw.schema import Checkpoint, Config, Evaluation, Warmup

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """The settled configuration of these overrides; UserError for any that is wrong or without effect."""
    overrides = list(overrides)
    typed = typed_overrides(overrides)
    for key, value in typed:
        if isinstance(value, Sweep):
            raise UserError(f"{key} has several values: a sweep needs -m; one value with commas reads [a,b]")
        if value is None and key in (*registry.AXES, "algorithm"):
            raise UserError(f"{key}=null: name a part, or write {key}=none where there is one")
    overrides = prepare_for(overrides)
    GlobalHydra.instance().clear()
    try:
        with initialize_config_module("rlfw.conf", version_base="1.3"):
            cfg = hydra_compose("config", overrides=overrides)
        return settle(cfg, overrides)
    except (HydraException, OmegaConfBaseException, ValueError) as error:
        raise UserError(explain(error, overrides)) from error


def prepare_for(words: Sequence[str]) -> list[str]:
    """``prepare`` with the plugins and experiments that a command line names; its words, paths replaced by names."""
    typed = typed_overrides([word for word in words if "=" in word])
    plugins: list[str] | None = next((value for key, value in typed if key == "plugins"), [])
    prepare(plugins, experiments=[value for key, value in typed if key == "experiment" and isinstance(value, str)])
    return [_experiment_name(word) for word in words]


def prepare(plugins: Sequence[str] | None = (), experiments: Sequence[str] = ()) -> None:
    """Fill Hydra's store: the root schema, every part, every preset, and the experiments that are named."""
    if plugins is None or isinstance(plugins, str):
        raise UserError(f"plugins={plugins}: it takes a list, plugins=[FILE]")
    registry.load_components(plugins)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for axis in registry.LISTS:
        if "none" not in registry.names(axis):
            store.store(group=axis, name="none", node={})
    for name in experiments:
        path = _experiment_path(name)
        if path is None:
            found = sorted(p.stem for p in Path("experiments").glob("*.yaml"))
            raise UserError(f"experiment={name}: no such file{registry.suggest(name, found) if found else ''}")
        store.store(group="experiment", name=path.stem, node=_read(path), package="_global_")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text()) or {}
    except yaml.YAMLError as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no keys: an experiment reads key: value")
    for axis in registry.AXES:
        if not isinstance(found.get(axis, {}), dict):
            raise UserError(f"{path}: {axis}: parts are chosen under defaults, as - override /{axis}: NAME")
    _check_defaults(path, found.get("defaults") or [])
    return found


def _check_defaults(path: Path, defaults: list[Any]) -> None:
    """What Hydra takes for something else, or gives up on without a word."""
    last = ""
    for key, value in (item for entry in defaults if isinstance(entry, dict) for item in entry.items()):
        if isinstance(value, bool):
            raise UserError(f"{path}: {key}: YAML reads off, no and on as true or false; name a part, or write none")
        if last.startswith("override ") and not key.startswith("override "):
            raise UserError(f"{path}: {key} stands after {last}: overrides come last under defaults")
        if key.partition("@")[0] in registry.AXES:
            raise UserError(f"{path}: {key}: a group of the root reads /{key}")
        _check_lists([(key.removeprefix("override ").lstrip("/"), value)])
        last = key


def _experiment_path(name: str) -> Path | None:
    candidates = [Path(name), Path("experiments") / name, Path("experiments") / f"{name}.yaml"]
    return next((path for path in candidates if path.is_file()), None)


def _experiment_name(word: str) -> str:
    """experiment=path/to/x.yaml names the group's member x."""
    if word.startswith("experiment=") and (path := _experiment_path(word.partition("=")[2])) is not None:
        return f"experiment={path.stem}"
    return word


def typed_overrides(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """(key, value) of every override, the key without + and @."""
    return [(override.key_or_group, override.value()) for override in _parse(overrides)]


def _parse(overrides: Sequence[str]) -> list[Override]:
    try:
        return OverridesParser.create().parse_overrides(overrides=list(overrides))
    except HydraException as error:
        raise UserError(f"an override reads key=value: {str(error).splitlines()[0]}") from error


def _flat(key: str, value: Any) -> list[str]:
    """The keys that key=value sets: a.b={c: 1, d: 2} sets a.b.c and a.b.d."""
    if not isinstance(value, dict):
        return [key]
    return [leaf for name, inner in value.items() for leaf in _flat(f"{key}.{name}", inner)]


def _check_lists(typed: list[tuple[str, Any]]) -> None:
    """Hydra takes [a,a] for [a], and [a,none] for [a]."""
    for axis, value in typed:
        if axis not in registry.LISTS or not isinstance(value, list):
            continue
        names = [name for word in value for name in registry.aliases(axis).get(str(word), [word])]
        written = f"{axis}=[{','.join(map(str, value))}]"
        for name in names:
            if names.count(name) > 1:
                raise UserError(f"{written} names {name} twice; a second one reads +{axis}@{axis}.{name}_2={name}")
        if "none" in names and len(names) > 1:
            raise UserError(f"{written}: none stands alone")


def settle(cfg: DictConfig, overrides: Sequence[str] = ()) -> DictConfig:
    """Drop what a preset keeps for parts that are not chosen; refuse what a person typed for them.

    After it every node of an axis has a ``part``, single axes hold exactly one, and no value is missing.
    """
    typed = typed_overrides(overrides)
    _check_lists(typed)
    words = [leaf for key, value in typed for leaf in _flat(key, value)]
    for word in words:
        axis, *rest = word.split(".")
        if axis in registry.AXES and rest[1:] == ["part"]:
            raise UserError(f"{word} cannot be set: choose a part with {axis}=NAME")
    with open_dict(cfg):
        for key in cfg:
            if key not in Config.__dataclass_fields__:
                raise UserError(f"{key!s}: {_unknown(str(key))}")
        for key, inner in (("warmup", Warmup), ("evaluation", Evaluation), ("checkpoint", Checkpoint)):
            for name in cfg[key].keys() - inner.__dataclass_fields__.keys():
                raise UserError(f"{key}.{name}: {_unknown(f'{key}.{name}')}")
        if cfg.iterations is not None and "total_steps" not in words:
            cfg.total_steps = None  # a preset's budget gives way to the one in rollouts
        for axis in registry.AXES:
            nodes = cfg[axis]
            chosen = [name for name in nodes if nodes[name] is not None and "part" in nodes[name]]
            for name in [name for name in nodes if name not in chosen]:
                schema = registry.entry(axis, name).schema  # an unknown name is refused here
                stray = next((word for word in words if f"{word}.".startswith(f"{axis}.{name}.")), None)
                if stray is not None:
                    raise UserError(_no_effect(stray, axis, name, chosen))
                OmegaConf.merge(OmegaConf.structured(schema), nodes[name] or {})  # a preset's typos are refused too
                del nodes[name]
            if axis in registry.SINGLE and len(chosen) != 1:
                raise UserError(f"{axis} takes one part, got {', '.join(chosen) or 'none'}")
            for name in chosen:
                part = nodes[name]["part"]
                for key, value in ((str(key), value) for key, value in nodes[name].items_ex(resolve=False)):
                    if key != "part" and key not in registry.entry(axis, part).keys:
                        raise UserError(f"{axis}.{name}.{key}: {_unknown(f'{axis}.{part}.{key}')}")
                    if OmegaConf.is_missing(nodes[name], key):
                        raise UserError(f"{axis}.{name}.{key} must be given: write {axis}.{name}.{key}=VALUE")
                    if value is None and not _optional(axis, part, key):
                        raise UserError(f"{axis}.{name}.{key}=null: it takes a value")
    if list(cfg.plugins) != next((value for key, value in typed if key == "plugins"), []):
        raise UserError("plugins are read from the command line alone: write plugins=[FILE] there")
    return cfg


def _no_effect(key: str, axis: str, name: str, chosen: Sequence[str]) -> str:
    several = f"[{','.join([*chosen, name])}]" if axis in registry.LISTS else name
    return f"{key} has no effect: {axis}={name} is not chosen; write {axis}={several}"


def _optional(axis: str, part: str, key: str) -> bool:
    return "None" in str(registry.entry(axis, part).fields[key].type)


def explain(error: Exception, overrides: Sequence[str] = ()) -> str:
    """Hydra's and OmegaConf's messages as one sentence with a remedy."""
    instances = {word.package: str(word.value()) for word in _parse(overrides) if word.package is not None}
    while isinstance(error.__cause__, Exception) and not isinstance(error, OmegaConfBaseException):
        error = error.__cause__
    text = re.sub(r"^.* raised while composing config:\n", "", str(error))
    if found := re.search(r"Could not (?:find|load) '(\w+)/([^']+)'", text):
        group, name = found.groups()
        return f"{group}={name}: no such choice{registry.suggest(name, choices(group))}"
    if found := re.search(r"Could not override '([^']+@[^']+)'", text):
        return f"{found[1]} is not there to be replaced; a further instance reads +{found[1]}=NAME"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"{found[1]}: {_unknown(found[1], instances)}"
    if found := re.search(r"Key '([^']+)' (?:not in|is not in struct)", text):
        path = next(iter(re.findall(r"full_key: (\S+)", text)), found[1])
        axis, *rest = path.split(".")
        if axis in registry.AXES and len(rest) == 1 and rest[0] in registry.names(axis):
            typed = typed_overrides(overrides)
            key = next((leaf for word in typed for leaf in _flat(*word) if leaf.startswith(f"{path}.")), path)
            choice: Any = next((value for word, value in reversed(typed) if word == axis), [])
            return _no_effect(key, axis, rest[0], choice if isinstance(choice, list) else [choice])
        return f"{path}: {_unknown(path, instances)}"
    if found := re.search(r"full_key: (\S+)", text):
        return f"{found[1]}: {text.splitlines()[0]}"
    return text.splitlines()[0]


def choices(group: str) -> list[str]:
    """Every name that group=NAME takes."""
    own = registry.names(group) if group in registry.AXES else []
    shared = list(registry.presets(group)) if group in registry.PRESETS else []
    more = [*registry.aliases(group), *(["none"] if group in registry.LISTS else [])]
    return [*shared, *own, *more]


def _unknown(path: str, instances: Mapping[str, str] | None = None) -> str:
    head, *rest = path.split(".")
    root = list(Config.__dataclass_fields__)
    if head not in root:
        return f"no such key{registry.suggest(head, root)}"
    if head in registry.AXES and rest:
        part = (instances or {}).get(f"{head}.{rest[0]}", rest[0])
        if part not in registry.names(head):
            return f"no such part{registry.suggest(part, registry.names(head))}"
        keys = list(registry.entry(head, part).keys)
        return f"no such key{registry.suggest(rest[-1], keys)}" if keys else f"{head}={part} has no keys"
    inner = Config.__dataclass_fields__[head].default_factory
    if rest and is_dataclass(inner):
        return f"no such key{registry.suggest(rest[0], list(inner.__dataclass_fields__))}"
    return "no such key"

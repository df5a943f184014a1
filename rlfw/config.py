"""From words on the command line to a settled configuration."""

from __future__ import annotations

import importlib.resources
import math
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

from rlfw import registry, trust
from rlfw.errors import UserError
from rlfw.schema import Checkpoint, Config, Evaluation, Warmup, open_keys

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


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
    for key, value in typed:
        if key in (*registry.SINGLE, "algorithm", "experiment") and isinstance(value, list) and len(value) > 1:
            one = "part" if key in registry.AXES else "name"
            raise UserError(f"{key} takes one {one}, got {', '.join(map(str, value))}")
        for name in value if isinstance(value, list) else [value]:
            if key in registry.AXES and isinstance(name, bool | int | float):
                raise UserError(f"{key}={str(name).lower()}: a part is chosen by its name")
    plugins: list[str] | None = next((value for key, value in typed if key == "plugins"), [])
    prepare(plugins, experiments=[value for key, value in typed if key == "experiment" and isinstance(value, str)])
    return [_experiment_name(word) for word in words]


def prepare(plugins: Sequence[str] | None = (), experiments: Sequence[str] = ()) -> None:
    """Fill Hydra's store: the root schema, every part, every preset, and the experiments that are named."""
    if not isinstance(plugins, list | tuple) or not all(isinstance(plugin, str) for plugin in plugins):
        raise UserError(f"plugins={plugins}: it takes a list, plugins=[FILE]")
    registry.load_components(plugins)
    store = ConfigStore.instance()
    store.store(name="schema", node=Config)
    for axis in registry.LISTS:
        if "none" not in registry.names(axis):
            store.store(group=axis, name="none", node={})
    for name in experiments:
        path = experiment_path(name)
        if path is None:
            found = sorted({p.stem for folder in (HERE, _shipped()) for p in folder.glob("*.yaml")})
            raise UserError(f"experiment={name}: no such file{registry.suggest(name, found) if found else ''}")
        store.store(group="experiment", name=path.stem, node=_read(path), package="_global_")


def _read(path: Path) -> dict[str, Any]:
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise UserError(f"{path} is no YAML: {' '.join(str(error).split())}") from error
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no keys: an experiment reads key: value")
    for axis in registry.AXES:
        if not isinstance(found.get(axis, {}), dict):
            raise UserError(f"{path}: {axis}: parts are chosen under defaults, as - override /{axis}: NAME")
    if not isinstance(found.get("defaults") or [], list):
        raise UserError(f"{path}: defaults is a list: a line each, as - override /baseline: NAME")
    trust.check_file(str(path), found)
    if _budgets(found) == set(BUDGETS):
        raise UserError(f"{path}: the budget is total_steps: N or iterations: N, not both")
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
        if key.removeprefix("override ").lstrip("/").partition("@")[0] == "experiment":
            raise UserError(f"{path}: an experiment chooses no other experiment: write its keys here")
        if key.partition("@")[0] in registry.AXES:
            raise UserError(f"{path}: {key}: a group of the root reads /{key}")
        _check_lists([(key.removeprefix("override ").lstrip("/"), value)])
        last = key


HERE = Path("experiments")


def _shipped() -> Path:
    """The experiments and studies that rlfw brings along."""
    return Path(str(importlib.resources.files("rlfw.experiments")))


def experiment_path(name: str) -> Path | None:
    """The file of this path; else of this name in experiments/ here, else among those that are shipped."""
    inside = [folder / file for folder in (HERE, _shipped()) for file in (name, f"{name}.yaml")]
    candidates = [Path(name), *(inside if ".." not in Path(name).parts else [])]  # a name stays in its folder
    found = next((path for path in candidates if path.is_file()), None)
    if found is not None and (not re.fullmatch(r"[A-Za-z_][\w-]*", found.stem) or found.stem in registry.NO_NAMES):
        raise UserError(
            f"experiment={name}: the name of an experiment is made of letters, digits, _ and -, and it is a word: "
            "rename the file"
        )
    return found


def _experiment_name(word: str) -> str:
    """experiment=path/to/x.yaml names the group's member x."""
    if word.startswith("experiment=") and (path := experiment_path(word.partition("=")[2])) is not None:
        return f"experiment={path.stem}"
    return word


def typed_overrides(overrides: Sequence[str]) -> list[tuple[str, Any]]:
    """(key, value) of every override, the key without + and @."""
    return [(override.key_or_group, override.value()) for override in _parse(overrides)]


def _parse(overrides: Sequence[str]) -> list[Override]:
    parser, found = OverridesParser.create(), []
    for word in overrides:
        try:
            found += parser.parse_overrides(overrides=[word])
        except HydraException as error:
            raise UserError(
                f"an override reads key=value and {word!r} does not; a value with spaces or brackets of its own has "
                "quotes within the shell's: 'key=\"a value\"'"
            ) from error
        if found[-1].is_delete():
            raise UserError(f"{word}: a key cannot be taken away; write key=VALUE, or axis=none where there is one")
        if not found[-1].key_or_group:
            raise UserError(f"{word}: an override reads key=value and this one has no key")
    return found


def leaves(key: str, value: Any) -> list[str]:
    """The keys that key=value sets: a.b={c: 1, d: 2} sets a.b.c and a.b.d."""
    if not isinstance(value, dict):
        return [key]
    return [leaf for name, inner in value.items() for leaf in leaves(f"{key}.{name}", inner)]


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
    _check_values(cfg)
    trust.check_data("", cfg)
    words = [leaf for key, value in typed for leaf in leaves(key, value)]
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
        _settle_budget(cfg, typed)
        for axis in registry.AXES:
            nodes = cfg[axis]
            for name, node in nodes.items_ex(resolve=False):
                if node is not None and not isinstance(node, DictConfig):
                    raise UserError(f"{axis}.{name}={node}: its keys read {axis}.{name}.KEY=VALUE")
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
    trust.check_imports(cfg, words)
    if list(cfg.plugins) != next((value for key, value in typed if key == "plugins"), []):
        raise UserError("plugins are read from the command line alone: write plugins=[FILE] there")
    return cfg


def _check_values(cfg: DictConfig) -> None:
    """Every value can be read, and no number is NaN. What a part's own key lacks is said where the part is settled."""
    missing = sorted(str(key) for key in OmegaConf.missing_keys(cfg))
    for key in missing:
        if key.partition(".")[0] not in registry.AXES:
            raise UserError(f"{key} must be given: write {key}=VALUE")
    try:
        values = OmegaConf.to_container(cfg, resolve=True)
    except OmegaConfBaseException as error:
        raise UserError(explain(error)) from error
    for key, value in _numbers("", values):
        if math.isnan(value):
            raise UserError(f"{key}=nan: it must be a number")


def _numbers(path: str, value: Any) -> Iterator[tuple[str, float]]:
    """Every float within ``value`` with its key."""
    if isinstance(value, float):
        yield path, value
    elif isinstance(value, dict | list):
        for key, inner in value.items() if isinstance(value, dict) else enumerate(value):
            yield from _numbers(f"{path}.{key}".lstrip("."), inner)


def check_saved(cfg: DictConfig, words: Sequence[str]) -> None:
    """UserError for a configuration read from a run's folder that no run could have, or that asks to run code."""
    try:
        OmegaConf.merge(OmegaConf.structured(Config), cfg)
        for axis in registry.AXES:
            for name, node in cfg[axis].items():
                if not isinstance(node, DictConfig) or "part" not in node:
                    raise UserError(f"config.yaml: {axis}.{name} names no part: the file has been changed")
                OmegaConf.merge(OmegaConf.structured(registry.entry(axis, node.part).schema), node)
            if axis in registry.SINGLE and len(cfg[axis]) != 1:
                raise UserError(f"config.yaml: {axis} takes one part, got {', '.join(cfg[axis]) or 'none'}")
    except OmegaConfBaseException as error:
        raise UserError(f"config.yaml: {explain(error)}") from error
    trust.check_data("config.yaml: ", cfg)
    trust.check_imports(cfg, [leaf for key, value in typed_overrides(words) for leaf in leaves(key, value)])


def change(cfg: DictConfig, words: Sequence[str]) -> list[str]:
    """Set in a run's ``cfg`` what may change while it goes on; the plugins. UserError for any other word."""
    plugins: list[str] = []
    given = typed_overrides(words)
    for key, value in given:
        if key == "plugins":
            plugins = list(value)
        elif isinstance(value, str) and ":" in value and OmegaConf.select(cfg, key) == value:
            continue  # a module that is named once more, as it must be
        elif key not in open_keys():
            known = registry.suggest(key, open_keys()) if key.partition(".")[0] in ("evaluation", "checkpoint") else ""
            raise UserError(
                f"{key} cannot change while a run goes on{known}; its budget and its reports can "
                f"({', '.join(open_keys())}): leave it away, or start a new run"
            )
        else:
            try:
                OmegaConf.update(OmegaConf.structured(Config), key, value)
            except OmegaConfBaseException as error:
                raise UserError(explain(error)) from error
            OmegaConf.update(cfg, key, value)
    budgets = {key for key, value in given if key in ("total_steps", "iterations") and value is not None}
    if len(budgets) == 1:  # a budget of the other kind takes the place of the run's own
        cfg[({"total_steps", "iterations"} - budgets).pop()] = None
    return plugins


BUDGETS = ("total_steps", "iterations")


def _budgets(found: Mapping[str, Any]) -> set[str]:
    return {key for key in BUDGETS if found.get(key) is not None}


def _settle_budget(cfg: DictConfig, typed: list[tuple[str, Any]]) -> None:
    """One budget: the typed one over the experiment's over a preset's; of two presets' the one in rollouts."""
    written = next((value for key, value in typed if key == "experiment" and isinstance(value, str)), None)
    experiment = {} if written is None else ConfigStore.instance().load(f"experiment/{written}.yaml").node
    for chosen in (_budgets(dict(typed)), _budgets(experiment or {}), _budgets(cfg) & {"iterations"}):
        if chosen:
            for other in set(BUDGETS) - chosen:
                cfg[other] = None
            return


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
    if found := re.search(r"Could not (?:find|load) '(\w+)/([^']*)'", text):
        group, name = found.groups()
        if Path(f"{name}.py").is_file():
            return f"{group}={name}: no such choice; {name}.py lies here: add plugins=[{name}.py]"
        return f"{group}={name}: no such choice{registry.suggest(name, choices(group))}"
    if found := re.search(r"Could not override '([^']+@[^']+)'", text):
        return f"{found[1]} is not there to be replaced; a further instance reads +{found[1]}=NAME"
    if found := re.search(r"An item is already at '([^']+)'", text):
        return f"{found[1]} is there already: write {found[1]}=VALUE without the +"
    if found := re.search(r"Could not override '([^']+)'", text):
        return f"{found[1]}: {_unknown(found[1], instances)}"
    if found := re.search(r"Key '([^']+)' (?:not in|is not in struct)", text):
        path = next(iter(re.findall(r"full_key: (\S+)", text)), found[1])
        axis, *rest = path.split(".")
        if axis in registry.AXES and len(rest) == 1 and rest[0] in registry.names(axis):
            typed = typed_overrides(overrides)
            key = next((leaf for word in typed for leaf in leaves(*word) if leaf.startswith(f"{path}.")), path)
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

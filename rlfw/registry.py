"""Parts by axis and name. One declaration registers a part, its configuration, its defaults and its help.

Positional parameters of a part are wired by name: gamma and streams for an env, env_spec and streams for a policy,
gamma and max_steps for the algorithm's parts. Keyword-only parameters are its configuration and live under
``axis.part.key``.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import inspect
from copy import deepcopy
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

# One part on each of these; any number, in order, on those.
SINGLE = ("env", "policy", "sampler", "baseline", "normalize", "ratio", "aggregation", "optimizer")
LISTS = ("reward", "regularizer", "weight", "controller")
AXES = SINGLE + LISTS
PRESETS = ("algorithm", "env")  # config groups filled from YAML files that lie beside the parts

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    axis: str
    name: str
    part: Callable[..., Any]
    schema: type
    defaults: Mapping[str, Any]  # those that the registration puts in place of the signature's

    @property
    def summary(self) -> str:
        """The first sentence of the docstring."""
        return (inspect.getdoc(self.part) or "").split("\n\n")[0].replace("\n", " ")

    @property
    def fields(self) -> dict[str, Field[Any]]:
        """The configuration's dataclass fields by key."""
        return {f.name: f for f in fields(self.schema) if f.name != "part"}

    @property
    def keys(self) -> dict[str, tuple[str, Any]]:
        """key -> (type, default) of the configuration; the default is "???" where one must be given."""
        rows = {}
        for f in self.fields.values():
            assert f.default_factory is not MISSING
            kind = f.type.__name__ if type(f.type) is type else str(f.type)
            rows[f.name] = (kind, f.default_factory())
        return rows


_PARTS: dict[str, dict[str, Entry]] = {axis: {} for axis in AXES}
_ALIASES: dict[str, dict[str, list[str]]] = {axis: {} for axis in AXES}
_PRESETS: dict[str, dict[str, str]] = {group: {} for group in PRESETS}  # name -> its first comment line


def register(axis: str, name: str, **defaults: Any) -> Callable[[T], T]:
    """Register a part under ``axis=name``; ``defaults`` replace those of its signature."""
    if axis not in _PARTS:
        raise ValueError(f"there is no axis {axis}; there are {', '.join(AXES)}")

    def add(part: T) -> T:
        if name in _PARTS[axis]:
            known = _PARTS[axis][name].part
            raise ValueError(f"{axis}={name} is already {known.__module__}.{known.__qualname__}")  # type: ignore[attr-defined]
        rows: list[tuple[str, Any, Any]] = [("part", str, field(default=name))]
        keys = {p.name: p for p in inspect.signature(part, eval_str=True).parameters.values()}  # type: ignore[arg-type]
        for unknown in defaults.keys() - keys.keys():
            raise ValueError(f"{axis}={name}: the default {unknown} is not a parameter of {part}")
        for key in keys.values():
            if key.kind is key.KEYWORD_ONLY:
                default = defaults.get(key.name, _default(part, key))
                rows.append((key.name, key.annotation, field(default_factory=partial(deepcopy, default))))
        schema = make_dataclass(f"{axis}_{name}", rows)
        _PARTS[axis][name] = Entry(axis, name, part, schema, defaults)  # type: ignore[arg-type]
        node = OmegaConf.structured(schema)
        for key in keys.keys() & node.keys():
            if isinstance(node._get_node(key), DictConfig):  # the names within a mapping are the user's own
                OmegaConf.set_struct(node._get_node(key), False)
        ConfigStore.instance().store(group=axis, name=name, node=node, package=f"{axis}.{name}")
        return part

    return add


def _default(part: Any, key: inspect.Parameter) -> Any:
    if key.default is key.empty:
        return "???"
    made = getattr(part, "__dataclass_fields__", {}).get(
        key.name
    )  # a dataclass hides default_factory from its signature
    return made.default_factory() if made is not None and made.default_factory is not MISSING else key.default


def register_alias(axis: str, name: str, names: list[str]) -> None:
    """``axis=name`` stands for several parts of a list axis."""
    _ALIASES[axis][name] = names
    ConfigStore.instance().store(group=axis, name=name, node={"defaults": list(names)})


def aliases(group: str) -> dict[str, list[str]]:
    """Words that stand for several parts of an axis."""
    return _ALIASES.get(group, {})


def entry(axis: str, name: str) -> Entry:
    """The part ``axis=name``, or a UserError with the nearest name."""
    if name not in _PARTS[axis]:
        load_components()  # build() may be the first thing that a program calls
    if name not in _PARTS[axis]:
        raise UserError(f"{axis}={name}: no such part{suggest(name, _PARTS[axis])}")
    return _PARTS[axis][name]


def names(axis: str) -> list[str]:
    """The parts of an axis, in the order of registration."""
    return list(_PARTS[axis])


def presets(group: str) -> dict[str, str]:
    """The YAML presets of a config group, each with its one-line description."""
    return dict(_PRESETS[group])


def suggest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' where something is near, else the list of what there is."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def build(axis: str, node: Mapping[str, Any], **wires: Any) -> Any:
    """The part that ``node`` (``part`` and its keys) describes, its positional parameters taken from ``wires``."""
    keys: dict[str, Any] = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else dict(node)  # type: ignore[assignment]
    found = entry(axis, keys.pop("part"))
    positional = [p for p in inspect.signature(found.part).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    for p in positional:
        if p.name not in wires:
            raise UserError(
                f"{axis}={found.name}: nothing gives its positional parameter {p.name} (there are "
                f"{', '.join(wires) or 'none'}); a key of its configuration is keyword-only"
            )
    return found.part(*(wires[p.name] for p in positional), **{**found.defaults, **keys})


def store_presets(group: str, folder: Path) -> None:
    """Every YAML file of ``folder`` becomes ``group=NAME``; its first line is a comment that describes it."""
    for file in sorted(folder.glob("*.yaml")):
        text = file.read_text()
        ConfigStore.instance().store(group=group, name=file.stem, node=yaml.safe_load(text) or {}, package="_global_")
        _PRESETS[group][file.stem] = text.partition("\n")[0].lstrip("# ")


_loaded: dict[str, str] = {}  # package or plugin file -> the source that was read


def load_components(plugins: Iterable[str] = ()) -> None:
    """Import every package of the entry-point group ``rlfw.components`` once, then the plugin files."""
    for point in importlib.metadata.entry_points(group="rlfw.components"):
        if point.value not in _loaded:
            _loaded[point.value] = ""
            try:
                point.load()
            except Exception as error:
                raise UserError(
                    f"the component package {point.name} ({point.value}) fails to import: {error!r}"
                ) from error
    for plugin in plugins:
        path = Path(plugin).resolve()
        if not path.is_file():
            raise UserError(f"plugins: there is no file {plugin}")
        source = path.read_text()
        if str(path) in _loaded:
            if _loaded[str(path)] != source:
                raise UserError(f"the plugin {plugin} has changed since it was loaded: start Python anew")
            continue
        spec = importlib.util.spec_from_file_location(f"rlfw_plugin_{path.stem}", path)
        assert spec is not None
        assert spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except Exception as error:
            raise UserError(f"the plugin {plugin} fails to import: {error!r}") from error
        _loaded[str(path)] = source

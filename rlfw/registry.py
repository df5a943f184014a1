"""Parts by axis and name. One declaration registers a part, its configuration, its defaults and its help.

Positional parameters of a part are wired by name: gamma and streams for an env, env_spec and streams for a policy,
gamma, max_steps and streams for the algorithm's parts. Keyword-only parameters are its configuration and live under
``axis.part.key``. A part that cannot be one is refused where it is declared, with its place and the remedy.
"""

from __future__ import annotations

import difflib
import importlib.metadata
import importlib.util
import inspect
import itertools
import sys
import traceback
from contextlib import contextmanager
from dataclasses import MISSING, Field, dataclass, field, fields, make_dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import yaml
from hydra.core.config_store import ConfigStore
from omegaconf import DictConfig, OmegaConf

from rlfw import signature
from rlfw.errors import RunError, UserError
from rlfw.interfaces import Part, Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from types import ModuleType

# One part on each of these; any number, in order, on those.
SINGLE = ("env", "policy", "sampler", "baseline", "normalize", "ratio", "aggregation", "optimizer")
LISTS = ("reward", "regularizer", "weight", "controller")
AXES = SINGLE + LISTS
PRESETS = ("algorithm", "env")  # config groups filled from YAML files that lie beside the parts
NO_NAMES = ("nan", "inf", "true", "false", "null")  # no words on the command line

T = TypeVar("T")


@dataclass(frozen=True)
class Entry:
    """A registered part."""

    axis: str
    name: str
    part: Callable[..., Any]
    schema: type
    defaults: Mapping[str, Any]  # those that the registration puts in place of the signature's
    place: str  # file:line of the registration

    @property
    def wires(self) -> list[str]:
        """The positional parameters."""
        return signature.wires(self.part)

    def reads(self, name: str, keys: Mapping[str, Any]) -> bool:
        """Whether the part, set to ``keys``, reads its key or its wired parameter ``name``."""
        kinds = (Part, Policy)
        only_with = self.part.only_with if isinstance(self.part, type) and issubclass(self.part, kinds) else {}
        switch, value = only_with.get(name, ("part", self.name))
        return (name in self.keys or name in self.wires) and bool(keys[switch] == value)

    @property
    def imports(self) -> tuple[str, ...]:
        """The keys whose value may name a module to import."""
        return self.part.imports if isinstance(self.part, type) and issubclass(self.part, Part) else ()

    @property
    def files(self) -> tuple[str, ...]:
        """The keys whose value names a file, or a folder, that is read."""
        return self.part.files if isinstance(self.part, type) and issubclass(self.part, Part) else ()

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


@dataclass(frozen=True)
class Preset:
    """A YAML preset: the comment lines at its head, and what it sets."""

    summary: str  # the first line
    notes: tuple[str, ...]  # the others
    node: Mapping[str, Any]


_PARTS: dict[str, dict[str, Entry]] = {axis: {} for axis in AXES}
_ALIASES: dict[str, dict[str, list[str]]] = {axis: {} for axis in AXES}
_PRESETS: dict[str, dict[str, Preset]] = {group: {} for group in PRESETS}


def register(axis: str, name: str, **defaults: Any) -> Callable[[T], T]:
    """Register a part under ``axis=name``; ``defaults`` replace those of its signature."""
    caller = sys._getframe(1)
    place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
    if axis not in _PARTS:
        near = difflib.get_close_matches(axis, AXES, n=1)
        mean = f"did you mean {near[0]}?" if near else f"there are {', '.join(AXES)}"
        raise UserError(f"there is no axis {axis} for {name} ({place}); {mean}")
    if not name.isidentifier() or name.lower() in NO_NAMES:
        raise UserError(f"{axis}={name} ({place}): a part's name is made of letters, digits and _, and it is a word")

    def add(part: T) -> T:
        _check_name(axis, name, place)
        rows = signature.keys(f"{axis}={name} ({place})", axis, part, defaults)
        schema = make_dataclass(f"{axis}_{name}", [("part", str, field(default=name)), *rows])
        node = OmegaConf.structured(schema)
        for key, _, _ in rows:
            if isinstance(node._get_node(key), DictConfig):  # the names within a mapping are the user's own
                OmegaConf.set_struct(node._get_node(key), False)
        _PARTS[axis][name] = Entry(axis, name, part, schema, defaults, place)  # type: ignore[arg-type]
        ConfigStore.instance().store(group=axis, name=name, node=node, package=f"{axis}.{name}")
        return part

    return add


def _check_name(axis: str, name: str, place: str) -> None:
    if name in _PARTS[axis]:
        known = _PARTS[axis][name]
        raise UserError(
            f"{axis}={name} is registered twice: {known.part.__module__}.{known.part.__qualname__} ({known.place}) "
            f"bears the name, and so does the part at {place}; give one of them another name"
        )
    if name in _ALIASES[axis] or name in _PRESETS.get(axis, {}):
        what = f"stands for [{','.join(_ALIASES[axis][name])}]" if name in _ALIASES[axis] else "is a preset"
        raise UserError(f"{axis}={name} {what}; give the part at {place} another name")


def register_alias(axis: str, name: str, names: list[str], **keys: Mapping[str, Any]) -> None:
    """``axis=name`` stands for several parts of a list axis, or for one of any with some of its ``keys`` set."""
    _ALIASES[axis][name] = names
    ConfigStore.instance().store(group=axis, name=name, node={"defaults": [*names, "_self_"], **keys})


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
    return {name: found.summary for name, found in _PRESETS[group].items()}


def preset(group: str, name: str) -> Preset:
    """One of them, with the rest of its comment and what it sets."""
    return _PRESETS[group][name]


def suggest(name: str, known: Iterable[str]) -> str:
    """'; did you mean X?' where something is near, else the list of what there is."""
    known = list(known)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    return f"; did you mean {near[0]}?" if near else f"; there are {', '.join(known)}"


def build(axis: str, node: Mapping[str, Any], *, instance: str = "", **wires: Any) -> Any:
    """The part that ``node`` (``part`` and its keys) describes, its positional parameters taken from ``wires``.

    ``instance``: the name under which it is configured, axis.instance.key, where that is not the part's own.
    """
    keys: dict[str, Any] = OmegaConf.to_container(node, resolve=True) if isinstance(node, DictConfig) else dict(node)  # type: ignore[assignment]
    found = entry(axis, keys.pop("part"))
    where = f"{axis}={found.name}"
    for name in found.wires:
        if name not in wires:
            raise UserError(
                f"{where}: nothing gives its positional parameter {name} (this axis has {', '.join(wires) or 'none'})"
            )
    for key in keys:
        if key not in found.keys:
            raise UserError(f"{where} has no key {key}{suggest(key, found.keys) if found.keys else ''}")
    try:
        made = found.part(*(wires[name] for name in found.wires), **{**found.defaults, **keys})
    except UserError as error:  # it names its keys by its own name
        if instance in ("", found.name):
            raise
        raise UserError(str(error).replace(f"{axis}.{found.name}.", f"{axis}.{instance}.")) from error
    except RunError:
        raise
    except (Exception, SystemExit) as error:
        file = found.place.rpartition(":")[0]
        raise UserError(f"{where} cannot be made{_line(error, file)}: {_said(error)}") from error
    signature.check_base(where, axis, type(made))
    return made


def _line(error: BaseException, file: str) -> str:
    """' (FILE, line N)': where in ``file`` an error arose, or where it did if not there."""
    frames = traceback.extract_tb(error.__traceback__)
    if isinstance(error, SyntaxError) and error.filename == file:
        return f" ({file}, line {error.lineno})"
    inside = [frame for frame in frames if frame.filename == file] or frames
    return f" ({inside[-1].filename}, line {inside[-1].lineno})"


def _said(error: BaseException) -> str:
    """An error in one line."""
    if isinstance(error, UserError):
        return str(error)
    text = error.msg if isinstance(error, SyntaxError) else " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def store_presets(group: str, folder: Path) -> None:
    """Every YAML file of ``folder`` becomes ``group=NAME``; the comment at its head describes it, line by line."""
    for file in sorted(folder.glob("*.yaml")):
        text = file.read_text()
        node = yaml.safe_load(text) or {}
        head = itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())
        lines = [line.lstrip("# ") for line in head]
        found = Preset("".join(lines[:1]), tuple(lines[1:]), node)
        if _PRESETS[group].get(file.stem, found) != found or file.stem in _PARTS.get(group, {}):
            raise UserError(f"{group}={file.stem} is there already: give {file} another name")
        _PRESETS[group][file.stem] = found
        ConfigStore.instance().store(group=group, name=file.stem, node=node, package="_global_")


_loaded: dict[str, str] = {}  # package or plugin file -> the source that was read


def load_components(plugins: Iterable[str] = ()) -> None:
    """Import every package of the entry-point group ``rlfw.components`` once, then the plugin files."""
    for point in importlib.metadata.entry_points(group="rlfw.components"):
        if point.value not in _loaded:
            with _importing(f"the component package {point.name} ({point.value})", ""):
                _loaded[point.value] = ""  # before the import: it may ask for an entry itself
                point.load()
    for plugin in plugins:
        path = Path(plugin).resolve()
        if not path.is_file():
            raise UserError(f"plugins: there is no file {plugin}")
        try:
            source = path.read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise UserError(f"the plugin {plugin} is no text in UTF-8: {error.reason}") from error
        if str(path) in _loaded:
            if _loaded[str(path)] != source:
                raise UserError(f"the plugin {plugin} has changed since it was loaded: start Python anew")
            continue
        spec = importlib.util.spec_from_file_location(f"rlfw_plugin_{path.stem}", path)
        if spec is None or spec.loader is None:
            raise UserError(f"plugins: {plugin} is no Python file: its name ends in .py")
        module = importlib.util.module_from_spec(spec)
        with _importing(f"the plugin {plugin}", str(path)):
            sys.modules[spec.name] = module  # dataclasses and pickle look a class's module up there
            spec.loader.exec_module(module)
        _loaded[str(path)] = source


def plugins() -> list[str]:
    """The plugin files that are loaded."""
    return [name for name, source in _loaded.items() if source]


def plugin_modules() -> list[ModuleType]:
    """The modules that they are."""
    return [sys.modules[name] for name in dict.fromkeys(f"rlfw_plugin_{Path(plugin).stem}" for plugin in plugins())]


@contextmanager
def _importing(what: str, file: str) -> Iterator[None]:
    """UserError for whatever an import raises; what the file or the package had registered until then is forgotten."""
    loaded = set(_loaded)
    try:
        yield
    except (Exception, SystemExit) as error:
        for axis, found in _PARTS.items():
            _PARTS[axis] = {
                name: part
                for name, part in found.items()
                if part.place.rpartition(":")[0] != file and part.part.__module__ in sys.modules
            }
        for name in _loaded.keys() - loaded:
            del _loaded[name]
        where = "" if isinstance(error, UserError) else _line(error, file)
        raise UserError(f"{what} fails to import{where}: {_said(error)}") from error

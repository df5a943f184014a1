"""What a part's declaration says: its keys with their types and defaults, and what is wired into it.

Whatever cannot be a part is refused here, where it is declared. ``where`` is the part and its place, for messages.
"""

from __future__ import annotations

import inspect
import sys
from collections import ChainMap
from copy import deepcopy
from dataclasses import KW_ONLY, MISSING, field, make_dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException

from rlfw import interfaces
from rlfw.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

WIRES = ("gamma", "max_steps", "streams", "env_spec")  # positional parameters, given by name
BASES: dict[str, tuple[type, ...]] = {
    "env": (interfaces.Env,),
    "policy": (interfaces.Policy,),
    "sampler": (interfaces.Sampler,),
    "reward": (interfaces.Reward,),
    "baseline": (interfaces.Baseline,),
    "normalize": (interfaces.Normalize,),
    "ratio": (interfaces.Ratio,),
    "regularizer": (interfaces.Surrogate, interfaces.Penalty),
    "weight": (interfaces.Weight,),
    "aggregation": (interfaces.Aggregation,),
    "controller": (interfaces.Controller,),
    "optimizer": (interfaces.Optimizer,),
}


def wires(part: Any) -> list[str]:
    """The positional parameters of a part."""
    return [p.name for p in inspect.signature(part).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]


def keys(where: str, axis: str, part: Any, defaults: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """The keyword-only parameters as fields of a dataclass; ``defaults`` replace those of the signature."""
    check_class(where, axis, part)
    parameters = inspect.signature(part).parameters
    for unknown in defaults.keys() - parameters.keys():
        raise UserError(f"{where}: the default {unknown} is not a parameter of {part}")
    rows = []
    for key in parameters.values():
        if key.name in ("needs", "formula"):
            raise UserError(f"{where}: write {key.name} = ... without a type: with one it becomes a key")
        if key.kind is key.KEYWORD_ONLY:
            rows.append(_row(where, part, key, defaults.get(key.name, _default(part, key))))
        elif key.kind is key.POSITIONAL_OR_KEYWORD and key.name not in WIRES:
            raise UserError(
                f"{where}: nothing gives its positional parameter {key.name} (there are {', '.join(WIRES)}); a key "
                "of its configuration is keyword-only: put * before it, or _: KW_ONLY in a dataclass"
            )
    return rows


def check_class(where: str, axis: str, part: Any) -> None:
    """What is wrong with a class before any of it is made. A function is judged by what it returns."""
    if not isinstance(part, type):
        return
    own = vars(part)
    keyed = any(kind is KW_ONLY or str(kind).endswith("KW_ONLY") for kind in own.get("__annotations__", {}).values())
    if keyed and "__dataclass_fields__" not in own:
        raise UserError(f"{where}: its keys are those of a dataclass: write @dataclass between @register and the class")
    check_base(where, axis, part)
    missing = sorted(own.get("__abstractmethods__", ()))
    if missing:
        raise UserError(f"{where}: it does not define {', '.join(missing)}, which every {axis} has")
    if issubclass(part, interfaces.Part) and not isinstance(part.needs, set | frozenset | property):
        raise UserError(f"{where}: needs = {part.needs!r} is not a set: write needs = frozenset({{...}})")


def check_base(where: str, axis: str, kind: type) -> None:
    if not issubclass(kind, BASES[axis]):
        bases = " or ".join(f"rlfw.interfaces.{base.__name__}" for base in BASES[axis])
        raise UserError(f"{where}: {kind.__name__} is no {axis}: derive it from {bases}")


def _row(where: str, part: Any, key: inspect.Parameter, default: Any) -> tuple[str, Any, Any]:
    """A field of the configuration's dataclass."""
    if key.annotation is key.empty:
        raise UserError(f"{where}: its key {key.name} has no type: write {key.name}: float = ...")
    row = (key.name, _type(where, part, key), field(default_factory=partial(deepcopy, default)))
    try:
        OmegaConf.structured(make_dataclass("single", [row]))
    except OmegaConfBaseException as error:
        shown = inspect.formatannotation(row[1])
        if "Unexpected type annotation" in str(error) or "Unsupported value type" in str(error):
            remedy = "a configuration holds bool, int, float, str, lists and dicts of them, and X | None"
            remedy += "; for one of several words take str and check it with rlfw.checks.one_of"
        else:
            remedy = f"its default is {default!r}" + (f"; write {shown} | None" if default is None else "")
        raise UserError(f"{where}: its key {key.name} is a {shown}: {remedy}") from error
    return row


def _type(where: str, part: Any, key: inspect.Parameter) -> Any:
    """The type of a key; one that stands there as a string is looked up where the part and its bases are written."""
    if not isinstance(key.annotation, str):
        return key.annotation
    written = [sys.modules[kind.__module__] for kind in part.__mro__] if isinstance(part, type) else []
    scope = ChainMap(*map(vars, written)) if written else part.__globals__
    try:
        return eval(key.annotation, {}, scope)
    except Exception as error:
        raise UserError(
            f"{where}: the type of its key {key.name}, {key.annotation}, is not known while the file is imported "
            f"({error}): import it outside of TYPE_CHECKING, or take a plain type"
        ) from error


def _default(part: Any, key: inspect.Parameter) -> Any:
    if key.default is key.empty:
        return "???"
    made = getattr(part, "__dataclass_fields__", {}).get(
        key.name
    )  # a dataclass hides default_factory from its signature
    return made.default_factory() if made is not None and made.default_factory is not MISSING else key.default

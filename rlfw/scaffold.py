"""``rlfw new``: a part to start from, in a file of its own with its test beside it."""

from __future__ import annotations

import importlib.util
import keyword
import re
from dataclasses import dataclass
from pathlib import Path

from rlfw import registry
from rlfw.config import choices
from rlfw.errors import UserError

TEMPLATES = Path(__file__).with_name("templates")
KINDS = {"regularizer": ("penalty", "surrogate")}  # an axis of several kinds -> its templates, the first by default

# template -> what chooses the part in a composition that it fits
USES = {
    "env": "algorithm=grpo policy=causal_lm lr=1e-3 total_steps=5000 env={name}",
    "policy": "algorithm=ppo env=cartpole policy={name}",
    "sampler": "algorithm=grpo env=cartpole sampler={name}",
    "reward": "algorithm=grpo env=cartpole reward=[{name}]",
    "baseline": "algorithm=grpo env=cartpole baseline={name}",
    "normalize": "algorithm=ppo env=cartpole normalize={name}",
    "ratio": "algorithm=ppo env=cartpole ratio={name}",
    "penalty": "algorithm=grpo env=cartpole epochs=4 regularizer=[clip,{name}]",
    "surrogate": "algorithm=grpo env=cartpole epochs=4 regularizer={name}",
    "weight": "algorithm=ppo env=cartpole weight=[{name}]",
    "aggregation": "algorithm=grpo env=cartpole aggregation={name}",
    "controller": "algorithm=grpo env=cartpole controller=[{name}]",
    "optimizer": "algorithm=ppo env=cartpole optimizer={name}",
}


@dataclass(frozen=True)
class Written:
    """The two files, and what a person types next."""

    part: Path
    test: Path
    commands: tuple[str, ...]


def new_part(axis: str, name: str, kind: str | None = None, folder: Path = Path()) -> Written:
    """Write NAME.py and test_NAME.py into ``folder``; UserError for a name that cannot be, or a file that is there."""
    registry.load_components()
    template = _template(axis, kind)
    _check_name(axis, name)
    part, test = folder / f"{name}.py", folder / f"test_{name}.py"
    for path in (part, test):
        if path.exists():
            raise UserError(f"{path} is there already: choose another name, or move it away")
    if importlib.util.find_spec(name) is not None:
        raise UserError(f"{name} is a module that Python imports, which {part.name} would hide: choose another name")
    part.write_text(_named(name, f"{template}.py"))
    test.write_text(_named(name, f"test_{template}.py"))
    plugin = f"plugins=[{part}]"
    check, train = f"rlfw check {axis}/{name} {plugin}", f"rlfw train {plugin} {USES[template].format(name=name)}"
    return Written(part, test, (check, f"python -m pytest {test}", train))


def _template(axis: str, kind: str | None) -> str:
    if axis not in registry.AXES:
        raise UserError(f"no such axis: {axis}{registry.suggest(axis, registry.AXES)}")
    kinds = KINDS.get(axis, ())
    if kind is not None and kind not in kinds:
        there = f"choose one of {', '.join(kinds)}" if kinds else f"{axis} has one kind: leave --kind away"
        raise UserError(f"--kind {kind}: {there}")
    return kind or (kinds[0] if kinds else axis)


def _check_name(axis: str, name: str) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name) or name in registry.NO_NAMES:
        plain = re.sub(r"\W+", "_", re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name)).lower().strip("_")
        plain = (
            f"my_{plain}"
            if keyword.iskeyword(plain) or plain in registry.NO_NAMES or not plain[:1].isalpha()
            else plain
        )
        raise UserError(f"{name}: a part's name is made of a-z, 0-9 and _, and is no word of Python's: write {plain}")
    if name in choices(axis):
        raise UserError(f"{axis}={name} is there already: choose another name")


def _named(name: str, template: str) -> str:
    """The template with the part's name, and its class's, in place of my_part and MyPart."""
    text = (TEMPLATES / template).read_text()
    kind = "".join(word.capitalize() for word in name.split("_"))
    if keyword.iskeyword(kind) or re.search(rf"\b{kind}\b", text.replace("MyPart", "")):
        kind += "Part"
    return text.replace("MyPart", kind).replace("my_part", name)

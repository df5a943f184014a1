"""The part under test, and the plain composition that it is put into."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from omegaconf import OmegaConf

from rlfw import config, registry
from rlfw.composition import ALGORITHM_AXES, Composition
from rlfw.errors import RunError, UserError
from rlfw.interfaces import LearnedBaseline, Penalty, Surrogate
from rlfw.seeding import Streams

from .cases import Assembled, random_case, run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from .cases import Case

MAX_STEPS = 8  # the longest episode, for parts that ask for it
NEUTRAL: dict[str, dict[str, Any]] = {  # the plainest part on every axis that must have one
    "sampler": {"part": "episodes", "num_episodes": 12, "group_size": 4},
    "baseline": {"part": "none"},
    "normalize": {"part": "none"},
    "ratio": {"part": "token"},
    "aggregation": {"part": "token_mean"},
}
# Where the part refuses the plain neighbour: the first of these that it does not refuse.
NEIGHBOURS = {"baseline": ("none", "critic", "group_mean"), "ratio": ("token", "product", "none")}


@dataclass(frozen=True)
class Subject:
    """A registered part under its settings."""

    axis: str
    name: str
    node: Mapping[str, Any]  # part and its keys
    neighbours: Mapping[str, str]  # axis -> the part that stands there
    assembled: Assembled  # for its declarations: needs, scope, ...

    @property
    def part(self) -> Any:
        return self.assembled.part

    @property
    def title(self) -> str:
        """How a person writes it."""
        return f"{self.axis}={self.name}"

    @property
    def kind(self) -> str:
        """The axis; a regularizer is a surrogate or a penalty, a learned baseline a critic."""
        kinds = {Surrogate: "surrogate", Penalty: "penalty", LearnedBaseline: "critic"}
        return next((kind for base, kind in kinds.items() if isinstance(self.part, base)), self.axis)

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.part.needs)

    @property
    def formula(self) -> str:
        """With its settings filled in."""
        return str(self.part.formula.format_map(self.node))

    def compose(self, neighbours: Mapping[str, str] | None = None, *, seed: int = 0, gamma: float = 0.9) -> Assembled:
        """A fresh composition; ``neighbours`` replace the plain ones on their axes, but never the part itself."""
        others = {**self.neighbours, **(neighbours or {})}
        if "values" in self.needs:
            others["baseline"] = "critic"
        others.pop(self.axis, None)
        return assemble(self.axis, self.name, self.node, others, seed, gamma)

    def case(self, seed: int = 0, *, moved: bool = True) -> Case:
        """A batch that the part may get: with a row that the rollout cut, where it does not ask for whole episodes."""
        case = self._case(seed, moved)
        return case.with_(rewards=case.batch.rewards.abs()) if self.refuses_negative_rewards else case

    def _case(self, seed: int, moved: bool) -> Case:
        return random_case(seed, moved=moved, cut="whole_episodes" not in self.assembled.composition.needs)

    @cached_property
    def refuses_negative_rewards(self) -> bool:
        """It says so by an error: then it is checked on positive ones."""
        try:
            run(self.compose(), self._case(0, True))
        except (UserError, RunError):
            return True
        except Exception:  # any other fault is for the checks to name
            return False
        return False

    @cached_property
    def draws(self) -> bool:
        """It draws random numbers: two seeds of the run give two results."""
        case = self.case()
        one, two = (run(self.compose(seed=seed), case) for seed in (0, 1))
        return one.differs(two, case.cells)[0] > 0


def assemble(
    axis: str, name: str, node: Mapping[str, Any], neighbours: Mapping[str, str], seed: int, gamma: float
) -> Assembled:
    nodes: dict[str, dict[str, Any]] = {axis: {} for axis in ALGORITHM_AXES}
    for other in NEUTRAL:
        plain = NEUTRAL[other] if other not in neighbours else {"part": neighbours[other]}
        nodes[other] = {plain["part"]: {**defaults(other, plain["part"]), **plain}}
    nodes[axis] = {name: node}
    streams = Streams(seed)
    composition = Composition(nodes, gamma=gamma, max_steps=MAX_STEPS, streams=streams)
    composition.check_sampler()
    composition.check_scores("rlfw check", ["a", "b"])
    return Assembled(composition, streams, composition.parts[f"{axis}.{name}"])


def defaults(axis: str, name: str) -> dict[str, Any]:
    """``part`` and every key's default."""
    return {"part": name, **{key: default for key, (_, default) in registry.entry(axis, name).keys.items()}}


# Values for keys without a default, by their type; reward functions are called a and b here.
EXAMPLES = {"int": 2, "float": 0.5, "dict[str, float]": {"a": 1.0, "b": 0.5}}


def settings(axis: str, name: str, overrides: Sequence[str]) -> dict[str, Any]:
    """The part's node: its defaults, examples where a key has none, then what a person wrote."""
    found = registry.entry(axis, name)
    node = defaults(axis, name)
    for key, (kind, default) in found.keys.items():
        if default == "???" and kind in EXAMPLES:
            node[key] = EXAMPLES[kind]
    given = [(key, value) for key, value in config.typed_overrides(overrides) if key != "plugins"]
    for key, value in given:
        head, _, rest = key.rpartition(".")
        if head != f"{axis}.{name}":
            raise UserError(f"{key}={value}: check sets the keys of {axis}={name} alone: {axis}.{name}.KEY=VALUE")
        if rest not in found.keys:
            near = registry.suggest(rest, found.keys) if found.keys else "; it has none"
            raise UserError(f"{key}: no such key{near}")
    if given:
        chosen = f"{axis}={name}" if axis in registry.SINGLE else f"{axis}=[{name}]"
        filled = [f"{axis}.{name}.{key}={_written(value)}" for key, value in node.items() if _is_example(found, key)]
        cfg = config.compose([chosen, *filled, *overrides])
        node = {str(key): value for key, value in OmegaConf.to_container(cfg[axis][name], resolve=True).items()}  # type: ignore[union-attr]
    return node


def _is_example(found: registry.Entry, key: str) -> bool:
    return key != "part" and found.keys[key][1] == "???" and found.keys[key][0] in EXAMPLES


def _written(value: Any) -> str:
    return "{" + ",".join(f"{k}: {v}" for k, v in value.items()) + "}" if isinstance(value, dict) else str(value)


def subject(axis: str, name: str, overrides: Sequence[str] = ()) -> Subject:
    """The part among the plainest neighbours that it accepts."""
    node = settings(axis, name, overrides)
    first: UserError | None = None
    for levels in itertools.product(*NEIGHBOURS.values()):
        neighbours = {other: level for other, level in zip(NEIGHBOURS, levels, strict=True) if other != axis}
        for keys in (node, {**node, **_mappings(axis, name, node)}):
            try:
                found = assemble(axis, name, keys, neighbours, 0, 0.9)
            except (UserError, RunError) as error:
                first = first or UserError(str(error))
                continue
            return Subject(axis, name, keys, neighbours, found)
    assert first is not None
    raise first


def _mappings(axis: str, name: str, node: Mapping[str, Any]) -> dict[str, Any]:
    """Examples for mappings that a part refuses to find empty."""
    kinds = {key: kind for key, (kind, _) in registry.entry(axis, name).keys.items()}
    return {key: EXAMPLES[kind] for key, kind in kinds.items() if kind in EXAMPLES and node[key] == {}}

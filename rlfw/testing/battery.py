"""All checks on one part."""

from __future__ import annotations

import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfw import config, registry
from rlfw.composition import ALGORITHM_AXES
from rlfw.errors import RunError, UserError
from rlfw.seeding import Streams

from . import envs, gradients, invariance, machinery, oracles, policies, stages
from .cost import cost
from .machinery import Machine
from .report import FAILED, Report, Result, failed
from .subject import defaults, settings
from .subject import subject as make_subject

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from .subject import Subject

CREDIT = ("reward", "baseline", "critic", "normalize")
LOSS = ("ratio", "surrogate", "penalty", "critic")
LEARNING = (*CREDIT, "ratio", "surrogate", "weight", "aggregation")
EVERY = (*LEARNING, "penalty")

# In this order; each check beside the kinds of parts to which it says anything.
CHECKS: tuple[tuple[Callable[[Any], Result], tuple[str, ...]], ...] = (
    (invariance.needs, EVERY),
    (invariance.shapes, EVERY),
    (invariance.memory, EVERY),
    (invariance.padding, EVERY),
    (invariance.order, EVERY),
    (invariance.groups, CREDIT),
    (invariance.micro_batches, EVERY),
    (invariance.single_steps, EVERY),
    (invariance.determinism, EVERY),
    (invariance.untouched, EVERY),
    (gradients.first_minibatch, EVERY),
    (gradients.finite_differences, LOSS),
    (gradients.where_it_goes, LOSS),
    (gradients.critic, ("critic",)),
    (gradients.push, ("surrogate",)),
    (gradients.coefficient, ("penalty",)),
    (stages.levels, ("ratio",)),
    (stages.own_step, ("ratio",)),
    (stages.no_spread, ("normalize",)),
    (stages.ranks, ("normalize",)),
    (stages.coefficients, ("aggregation",)),
    (stages.weighs, ("weight",)),
    (oracles.bandit, LEARNING),
    (oracles.chain, LEARNING),
    (oracles.pull, ("penalty",)),
    (invariance.degenerate, EVERY),
    (cost, EVERY),
    (machinery.collected, ("sampler",)),
    (machinery.collects_again, ("sampler",)),
    (machinery.descends, ("optimizer",)),
    (machinery.moments, ("optimizer",)),
    (machinery.turns, ("controller",)),
    (machinery.stopping, ("controller",)),
    (machinery.remembers, ("controller",)),
    (policies.acts_and_scores, ("policy",)),
    (policies.rows_alone, ("policy",)),
    (policies.scores_again, ("policy",)),
    (policies.reference_stays, ("policy",)),
    (policies.critic_apart, ("policy",)),
    (envs.keeps_its_word, ("env",)),
    (envs.scored, ("env",)),
    (envs.seeded, ("env",)),
    (envs.goes_on, ("env",)),
    (envs.evaluates_aside, ("env",)),
)
CRASH = "The part raised an error on an ordinary batch, as it would in a run: there are no numbers to look at."
STOPS = ("needs", "shapes")  # behind a failure of these no other number means anything


def check(part: str, overrides: Sequence[str] = ()) -> Report:
    """Run the checks on ``axis/name``; UserError where there is no such part or a setting is wrong."""
    config.prepare_for(list(overrides))
    axis, name = split(part)
    start = time.perf_counter()
    under_test = _under_test(axis, name, overrides)
    results: list[Result] = []
    for function in (function for function, kinds in CHECKS if under_test.kind in kinds):
        result = _run(function, under_test)
        results.append(result)
        if result.verdict == FAILED and result.name in STOPS:
            break
    keys = {key: value for key, value in under_test.node.items() if key != "part"}
    return Report(
        axis,
        name,
        keys,
        tuple(sorted(under_test.needs)),
        under_test.formula,
        tuple(results),
        time.perf_counter() - start,
    )


def _under_test(axis: str, name: str, overrides: Sequence[str]) -> Subject | Machine:
    if axis in ALGORITHM_AXES and axis != "sampler":
        return make_subject(axis, name, overrides)
    if axis == "env":  # a part or a preset, with the policy that goes with it
        cfg = config.compose([f"env={name}", *overrides])
        ((_, node),) = cfg.env.items()
        env = registry.build("env", node, gamma=cfg.gamma, streams=Streams(0))
        wires = {"gamma": cfg.gamma, "policy": _policy_for(env.spec, next(iter(cfg.policy.values())))}
        return Machine(axis, name, {str(key): value for key, value in node.items()}, env.needs, "", wires)
    keys = settings(axis, name, overrides)
    if axis == "sampler" and keys.get("group_size") == 1:
        keys["group_size"] = 4  # groups of one show nothing
    if axis == "policy":
        return Machine(axis, name, keys, frozenset(), "")
    part = registry.build(axis, keys)
    return Machine(axis, name, keys, part.needs, part.formula.format_map(keys))


def _policy_for(spec: Any, preset: Any) -> Any:
    """The preset's policy, or the first one that accepts the env."""
    for node in (preset, *(defaults("policy", name) for name in registry.names("policy"))):
        try:
            registry.build("policy", node, env_spec=spec, streams=Streams(0))
        except UserError as error:
            refusal = error
            continue
        return node
    raise refusal


def _run(function: Callable[[Any], Result], under_test: Any) -> Result:
    try:
        result = function(under_test)
    except (UserError, RunError) as error:
        result = failed(f"it refuses an ordinary batch: {error}")
    except Exception as error:  # a fault of the part under test is what the battery looks for
        result = replace(failed(_crash(under_test, error)), why=CRASH)
        return replace(result, name=function.__name__)
    return replace(result, name=function.__name__, why=function.__doc__ or "")


def _crash(under_test: Any, error: Exception) -> str:
    """What was raised, and the line of the part's own file on the way there, or the last line of all."""
    frames = traceback.extract_tb(error.__traceback__)
    place = registry.entry(under_test.axis, str(under_test.node["part"])).place if "part" in under_test.node else ""
    own = [frame for frame in frames if frame.filename == place.rpartition(":")[0]]
    frame = own[-1] if own else frames[-1]
    return f"{type(error).__name__}: {error}; at `{frame.line}` ({frame.filename}, line {frame.lineno})"


def check_part(part: str, overrides: Sequence[str] = ()) -> Report:
    """Run the checks on ``axis/name`` and raise an AssertionError with the report if one fails.

    ``overrides`` as on the command line: keys of the part, and plugins=[FILE] for a file not yet imported.
    """
    report = check(part, overrides)
    assert report.sound, f"\n{report.text()}"
    return report


def split(part: str) -> tuple[str, str]:
    """axis/name or axis=name; UserError with the nearest names."""
    registry.load_components()
    axis, sign, name = part.replace("=", "/", 1).partition("/")
    if not sign or not name:
        raise UserError(f"check takes AXIS/NAME, e.g. regularizer/clip; got {part}{_meant(part)}")
    if axis == "algorithm":
        raise UserError(f"{part} is a recipe: rlfw explain algorithm={name} shows it; check takes its parts, AXIS/NAME")
    if axis not in registry.AXES:
        raise UserError(f"no such axis: {axis}{registry.suggest(axis, registry.AXES)}")
    if name not in registry.presets("env") or axis != "env":
        file = Path(f"{name}.py")
        if name not in registry.names(axis) and file.is_file():
            raise UserError(f"{axis}={name}: no such part; if {file} registers it, add plugins=[{file}]")
        registry.entry(axis, name)
    return axis, name


def _meant(word: str) -> str:
    """What a person may have meant by one word."""
    if word.endswith(".py"):
        return f": write plugins=[{word}]"
    if word in registry.presets("algorithm"):
        return f", a recipe: rlfw explain algorithm={word} shows it"
    found = [part for part in parts() if part.partition("/")[2] == word]
    return f": write {' or '.join(found)}" if found else ""


def parts() -> list[str]:
    """Every registered part, and every preset of an env."""
    registry.load_components()
    found = []
    for axis in (*ALGORITHM_AXES, "controller", "optimizer", "policy", "env"):
        names = [*registry.presets(axis), *registry.names(axis)] if axis in registry.PRESETS else registry.names(axis)
        found += [f"{axis}/{name}" for name in names]
    return found

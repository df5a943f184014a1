"""Random compositions of all registered parts on random batches: finite numbers, or a UserError; never anything else.

B rows   T steps. The parts come from the registry, so one that is registered later is drawn as well.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, Phase, event, given, settings
from hypothesis import strategies as st
from omegaconf import DictConfig
from torch import Tensor

import rlfw
from rlfw import registry
from rlfw.composition import Composition
from rlfw.config import compose
from rlfw.interfaces import Surrogate
from rlfw.probing import Probed
from rlfw.seeding import Streams

registry.load_components()

NEEDED = {  # keys without which a part does not stand
    "reward=weighted": ["reward.weighted.weights={a:1.0,b:-0.5}"],
    "aggregation=constant": ["aggregation.constant.length=8"],
    "reward=overlong": ["reward.overlong.length=6", "reward.overlong.cache=2"],
}
NAMED = {"reward=weighted", "reward=decoupled"}  # these read named reward functions
WORDS = {  # the words that a key takes
    "estimator": ["k1", "k2", "k3", "k3+", "abs"],
    "to": ["reference", "old"],
    "source": ["old", "behaviour"],
    "scope": ["rollout", "minibatch"],
    "level": ["token", "sequence", "geometric"],
    "network": ["own", "head"],
    "of": ["rewards", "advantages", "groups"],
}
NUMBERS: dict[str, list[float | str]] = {  # the numbers that a key takes, the ends of its range among them
    "coef": [0.0, 1e-3, 1.0, 100.0],
    "low": [0.0, 0.2, 0.999, 1.0],
    "high": [0.0, 0.28, 1.001, 5.0],
    "cap": [1.5, 3.0, 10.0],
    "max": [0.5, 1.0, 8.0],
    "min": [0.0, 0.4],
    "limit": [1e-6, 1.0, 10.0],
    "eps": [0.0, 1e-8, 1e-4, 1.0],
    "ddof": [0, 1],
    "fraction": [1e-9, 0.2, 1.0],
    "decay": [0.0, 0.9, 0.999],
    "initial": ["null", 0.0, 3.0],
    "value": [-1.0, 0.0, 1e6],
    "gae_lambda": [0.0, 0.95, 1.0],
    "value_lambda": ["null", 0.0, 1.0],
    "clip": ["null", 1e-6, 0.2],
    "delta": [0.0, 0.15, 1.0],
    "beta": [0.0, 1.0],
    "positive": [0.01, 1.0, 10.0],
    "negative": [0.01, 1.05, 10.0],
    "positive_k": [0.0, 2.0],
    "positive_lambda": [0.0, 3.0],
    "negative_k": [0.0, 3.0],
    "negative_lambda": [0.0, 2.0],
    "penalty": [0.0, 1.0],
    "alpha": [0.05, 1.0],
    "threshold": [-1.0, 0.0, 0.5],
}
REWARDS = ("zero", "equal", "a few", "normal", "tiny", "huge")
LOG_RATIOS = (0.0, 0.1, 3.0, 100.0, 1e4)


@dataclass(frozen=True)
class Case:
    """The words of a composition, and a batch for it."""

    words: list[str]
    batch: dict[str, Any]


@st.composite
def compositions(draw: st.DrawFn) -> list[str]:
    """One part on each axis of the algorithm, any on the lists, some of their keys set."""
    chosen = [f"{axis}={draw(st.sampled_from(registry.names(axis)))}" for axis in ("baseline", "normalize", "ratio")]
    chosen.append(f"aggregation={draw(st.sampled_from(registry.names('aggregation')))}")
    words = ["sampler=episodes", "sampler.episodes.group_size=4", *chosen]
    surrogates = [n for n in registry.names("regularizer") if _is_surrogate(n)]
    penalties = [n for n in registry.names("regularizer") if n not in surrogates]
    first = draw(st.lists(st.sampled_from(surrogates), max_size=1))
    lists = {
        "regularizer": first + draw(st.lists(st.sampled_from(penalties), max_size=2, unique=True)),
        "reward": sorted(
            draw(st.lists(st.sampled_from(registry.names("reward")), max_size=2, unique=True)),
            key=lambda name: f"reward={name}" not in NAMED,  # what replaces the rewards stands first
        ),
        "weight": draw(st.lists(st.sampled_from(registry.names("weight")), max_size=2, unique=True)),
    }
    for axis, names in lists.items():
        words.append(f"{axis}=[{','.join(names)}]")
        chosen += [f"{axis}={name}" for name in names]
    for part in chosen:
        words += NEEDED.get(part, [])
        axis, name = part.split("=")
        for key in registry.entry(axis, name).keys:
            values = NUMBERS.get(key) or WORDS.get(key)
            if values and draw(st.integers(0, 3)) == 0:
                words.append(f"{axis}.{name}.{key}={draw(st.sampled_from(values))}")
    return [*words, f"gamma={draw(st.sampled_from([0.0, 0.9, 1.0]))}"]


def _is_surrogate(name: str) -> bool:
    part = registry.entry("regularizer", name).part
    return isinstance(part, type) and issubclass(part, Surrogate)


@st.composite
def batches(draw: st.DrawFn, *, moderate: bool) -> dict[str, Any]:
    """``moderate``: float64 and numbers of everyday size, so that relations hold to many digits."""
    B, T = draw(st.integers(1, 8)), draw(st.integers(1, 7))
    lengths = draw(st.lists(st.integers(0, T), min_size=B, max_size=B))
    group = draw(st.sampled_from([[0] * B, [i // 2 for i in range(B)], list(range(B)), [i % 3 for i in range(B)]]))
    cut = torch.tensor(draw(st.lists(st.booleans(), min_size=B, max_size=B)))
    kind = draw(st.sampled_from(REWARDS[: 4 if moderate else None]))
    spread = draw(st.sampled_from(LOG_RATIOS[: 3 if moderate else None]))
    dtype = torch.float64 if moderate else draw(st.sampled_from([torch.float32, torch.float64]))
    random = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=random, dtype=torch.float64).to(dtype)

    def rewards(*shape: int) -> Tensor:
        if kind == "zero":
            return torch.zeros(shape, dtype=dtype)
        if kind == "equal":
            return torch.full(shape, 0.3, dtype=dtype)
        if kind == "a few":
            return torch.randint(0, 2, shape, generator=random).to(dtype)
        return normal(*shape) * {"normal": 1.0, "tiny": 1e-20, "huge": 1e12}[kind]

    old = -normal(B, T).abs()
    return {
        "rewards": rewards(B, T),
        "named": {"a": rewards(B), "b": rewards(B)},
        "mask": torch.arange(T) < torch.tensor(lengths)[:, None],
        "logprobs": old + spread * normal(B, T),
        "old_logprobs": old,
        "behaviour_logprobs": old + 0.1 * spread * normal(B, T),
        "ref_logprobs": old + spread * normal(B, T),
        "entropy": normal(B, T).abs(),
        "values": normal(B, T + 1),
        "new_values": normal(B, T),
        "greedy_returns": normal(B),
        "group": torch.tensor(group),
        "terminated": ~cut,
        "truncated": cut,
    }


@st.composite
def cases(draw: st.DrawFn, *, moderate: bool = False) -> Case:
    return Case(draw(compositions()), draw(batches(moderate=moderate)))


def composed(words: list[str]) -> DictConfig | None:
    """None where the composition is refused."""
    try:
        return compose(words)
    except rlfw.UserError as error:
        return refused(error)


def run(cfg: DictConfig | None, batch: dict[str, Any]) -> Probed | None:
    """None where the composition is refused."""
    if cfg is None:
        return None
    given = dict(batch)
    named = given.pop("named")
    if {f"reward={name}" for name in cfg.reward} & NAMED:
        given["rewards"] = named
    try:
        return rlfw.probe(Composition(cfg, gamma=cfg.gamma, max_steps=None, streams=Streams(0)), **given)
    except rlfw.UserError as error:
        return refused(error)


def refused(error: rlfw.UserError) -> None:
    assert "\n" not in str(error)
    event(f"refused: {str(error)[:60]}")


def check_finite(case: Case) -> None:
    found = run(composed(case.words), case.batch)
    event("refused" if found is None else "ran")
    if found is None:
        return
    for name in ("loss", "advantages", "gradient", "value_gradient", "returns"):
        tensor = getattr(found, name)
        assert tensor is None or bool(tensor.isfinite().all()), (name, tensor)
    off = ~case.batch["mask"]
    assert not bool(found.gradient[off].any())
    assert not bool(found.advantages[off].any())
    assert all(map(math.isfinite, found.metrics.values())), found.metrics


def wider(field: Any, mask: Tensor) -> Any:
    """Three more columns and a row without any step, NaN wherever the mask is False."""
    if isinstance(field, dict):
        return {name: wider(inner, mask) for name, inner in field.items()}
    if field.dim() == 1:
        return torch.cat([field, field[:1]])
    if field.dtype == torch.bool:
        return torch.nn.functional.pad(field, (0, 3, 0, 1))
    T = mask.shape[1]
    steps = [field[:, :T].masked_fill(~mask, torch.nan), field.new_full((len(mask), 3), torch.nan), field[:, T:]]
    return torch.nn.functional.pad(torch.cat(steps, 1), (0, 0, 0, 1), value=torch.nan)


def reordered(field: Any, order: Tensor) -> Any:
    if isinstance(field, dict):
        return {name: reordered(inner, order) for name, inner in field.items()}
    return field[order]


def check_padding_and_order(case: Case, seed: int) -> None:
    """Columns and a row without steps, and another order of the rows, change neither loss nor gradient."""
    cfg = composed(case.words)
    expected = run(cfg, case.batch)
    if expected is None:
        return
    mask = case.batch["mask"]
    B, T = mask.shape
    order = torch.randperm(B + 1, generator=torch.Generator().manual_seed(seed))
    changed = {name: reordered(wider(field, mask), order) for name, field in case.batch.items()}
    found = run(cfg, changed)
    assert found is not None
    for name in ("advantages", "gradient", "value_gradient"):
        one, two = getattr(found, name), getattr(expected, name)
        if two is not None:
            wide = torch.zeros_like(one)
            wide[order.argsort()[:B], :T] = two
            torch.testing.assert_close(one, wide, rtol=1e-6, atol=1e-9 * max(1.0, float(two.abs().max())))
    torch.testing.assert_close(found.loss, expected.loss, rtol=1e-6, atol=1e-9 * max(1.0, float(expected.loss.abs())))


many = settings(max_examples=2000, deadline=None, database=None, suppress_health_check=list(HealthCheck))
few = settings(many, max_examples=50, derandomize=True, phases=[Phase.generate])  # to shrink one takes minutes


@pytest.mark.medium
@few
@given(cases())
def test_a_random_composition_gives_finite_numbers_or_a_refusal(case: Case) -> None:
    check_finite(case)


@pytest.mark.medium
@settings(few, max_examples=25)
@given(cases(moderate=True), st.integers(0, 9))
def test_padding_and_the_order_of_rows_do_not_matter(case: Case, seed: int) -> None:
    check_padding_and_order(case, seed)


@pytest.mark.slow
@many
@given(cases())
def test_thousands_of_compositions_give_finite_numbers_or_a_refusal(case: Case) -> None:
    check_finite(case)


@pytest.mark.slow
@settings(many, max_examples=500)
@given(cases(moderate=True), st.integers(0, 9))
def test_padding_and_order_do_not_matter_to_hundreds_of_compositions(case: Case, seed: int) -> None:
    check_padding_and_order(case, seed)


def test_every_part_is_drawn() -> None:
    """Whatever is registered on an axis of the algorithm can come up, and its keys have values here."""
    known = {*NUMBERS, *WORDS, "weights", "length", "cache", "lr", "max_grad_norm"}
    for axis in ("baseline", "normalize", "ratio", "aggregation", "regularizer", "reward", "weight"):
        for name in registry.names(axis):
            numbers = {key for key, (kind, _) in registry.entry(axis, name).keys.items() if kind in ("float", "int")}
            assert not numbers - known, f"{axis}={name}: values for {numbers - known}"

"""Surrogates: their values step by step, where their gradient is cut and by how much, and on which sign of A."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

import rlfw
from rlfw import functional as F
from rlfw import registry
from rlfw.seeding import Streams

registry.load_components()


def probed(overrides: list[str], **given: object) -> rlfw.probe:
    words = ["baseline=none", "normalize=none", "aggregation=token_mean", *overrides]
    given = {"rewards": [0], "advantages": [[0]], "mask": [[1]], "group": [0], "old_logprobs": [[0]], **given}
    return rlfw.probe(words, **given)


def single_steps(overrides: list[str], ratios: Tensor, advantages: list[float], p_old: float = 1.0) -> rlfw.probe:
    """Rows of one step; the gradient is that of each step's objective."""
    B = len(ratios)
    given: dict[str, Any] = {"rewards": [0.0] * B, "mask": torch.ones(B, 1), "group": list(range(B))}
    old = torch.full((B, 1), math.log(p_old), dtype=torch.float64)
    words = ["baseline=none", "normalize=none", "aggregation=token_sum", *overrides]
    return rlfw.probe(
        words,
        **given,
        advantages=torch.tensor(advantages)[:, None],
        logprobs=old + ratios.log()[:, None],
        old_logprobs=old,
    )


RATIO = torch.tensor([1.5, 1, 0.7, 4], dtype=torch.float64)
LOGPROBS = torch.tensor([0.3, 0.5, 0.14, 0.8], dtype=torch.float64).log()
UNIT = torch.tensor([1, 1, 1, -1], dtype=torch.float64)
X = RATIO.log()


@pytest.mark.parametrize(
    ("found", "losses"),
    [
        (F.clip_surrogate(X, UNIT, 0.2, 0.2), (-1.2, -1, -0.7, 4)),
        (F.clip_surrogate(X, UNIT, 0.2, 0.28), (-1.28, -1, -0.7, 4)),
        (F.dual_clip_surrogate(X, UNIT, 0.2, 0.2, 3), (-1.2, -1, -0.7, 3)),
        (F.two_sided_surrogate(X, UNIT, 0.2, 0.2, 2), (-1.2, -1, -0.7, 2)),
        (F.exp_ratio(X) * UNIT, (-1.5, -1, -0.7, 4)),
        (LOGPROBS * UNIT, (1.203973, 0.693147, 1.966113, -0.223144)),
        (F.cispo_surrogate(X, LOGPROBS, UNIT, 0, 1.28), (1.541085, 0.693147, 1.376279, -0.285624)),
        (F.cispo_surrogate(X, LOGPROBS, UNIT, 0.8, 1.28), (1.541085, 0.693147, 1.572890, -0.285624)),
        (F.cispo_surrogate(X, LOGPROBS, UNIT, 0, 5), (1.805959, 0.693147, 1.376279, -0.892574)),
        (F.sapo_surrogate(X, UNIT, 1, 1.05), (-2.489837, -2, -1.702230, 3.652986)),
        (F.dro_surrogate(X, LOGPROBS, UNIT, 1), (1.286174, 0.693147, 2.029721, 0.737762)),
        (F.topr_surrogate(X, LOGPROBS, UNIT, 1), (1.203973, 0.693147, 1.966113, -0.223144)),
    ],
)
def test_losses_of_four_steps(found: Tensor, losses: tuple[float, ...]):
    """Probabilities .3, .5, .14, .8 after .2, .5, .2, .2; advantage 1 on the first three, -1 on the last."""
    torch.testing.assert_close(-found, torch.tensor(losses, dtype=torch.float64), rtol=0, atol=1e-6)


def test_kernel_of_vespo():
    """phi(1.05) with k, lambda = 2, 3 and phi(4) with 3, 2; 1 at 1, and largest at k / lambda."""

    def kernel(w: float, k: float, decay: float) -> float:
        return float(F.gamma_kernel(torch.tensor(w).double().log(), torch.tensor(k), torch.tensor(decay)))

    assert kernel(1.05, 2.0, 3.0) == pytest.approx(0.948931, abs=1e-6)
    assert kernel(4, 3.0, 2.0) == pytest.approx(0.158640, abs=1e-6)
    assert kernel(1, 2.0, 3.0) == 1
    assert kernel(2 / 3, 2.0, 3.0) > max(kernel(0.65, 2.0, 3.0), kernel(0.68, 2.0, 3.0))


SURROGATES = ["clip", "dual_clip", "two_sided", "cispo", "sapo", "dppo", "topr", "gmpo", "dro", "vespo"]


@pytest.mark.parametrize("part", SURROGATES)
def test_huge_ratios_leave_loss_and_gradient_finite(part: str):
    logprobs = torch.tensor([[-1e4], [-100], [0], [100], [1e4]] * 2)
    found = probed(
        [f"regularizer={part}"],
        **{"logprobs": logprobs, "advantages": [[1]] * 5 + [[-1]] * 5, "mask": torch.ones(10, 1)},
        **{"old_logprobs": torch.zeros(10, 1), "rewards": [0] * 10, "group": [0] * 10},
    )
    assert found.loss.dtype == torch.float32
    assert bool(found.loss.isfinite())
    assert bool(found.gradient.isfinite().all())
    assert all(math.isfinite(value) for value in found.metrics.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_clip_holds_a_huge_ratio_on_one_side(dtype: torch.dtype):
    huge = torch.tensor([[100.0]], dtype=dtype)
    good = probed(["regularizer=clip"], logprobs=huge, advantages=[[1]])
    assert float(good.loss) == pytest.approx(-1.2)
    assert float(good.gradient) == 0
    bad = probed(["regularizer=clip"], logprobs=huge, advantages=[[-1]])
    assert 1e6 < float(bad.loss) < math.inf


def test_clip_bounds_are_low_and_high():
    keys = ["regularizer=clip", "regularizer.clip.low=0.1", "regularizer.clip.high=0.3"]
    assert float(probed(keys, logprobs=[[math.log(2)]], advantages=[[1]]).loss) == pytest.approx(-1.3)
    assert float(probed(keys, logprobs=[[math.log(0.5)]], advantages=[[-1]]).loss) == pytest.approx(0.9)


EIGHT = torch.tensor([0.3, 1.0, 1.5, 6.0] * 2, dtype=torch.float64)
SIGNS = [1.0] * 4 + [-1.0] * 4
CUTS = {  # ratios .3, 1, 1.5, 6 with A = 1, then with A = -1: whose gradient is cut
    "clip": ("..xx x...", {"low": 1, "high": 2}),
    "dual_clip": ("..xx x..x", {"low": 1, "high": 2, "dual": 1}),
    "two_sided": ("..xx x..x", {"low": 1, "high": 2, "dual": 1}),
    "gmpo": ("..xx x...", {"low": 1, "high": 2}),
    "dppo": ("...x x...", {"low": 1, "high": 1}),  # probabilities -.084, .06 and .6 away from .12
}


@pytest.mark.parametrize("part", CUTS)
def test_clip_fractions_count_the_gradients_that_are_cut(part: str):
    """|r - 1| > eps holds on six of the eight steps, and says nothing."""
    expected, counts = CUTS[part]
    keys = ["regularizer.dppo.delta=0.08"] if part == "dppo" else []
    found = single_steps([f"regularizer={part}", *keys], EIGHT, SIGNS, p_old=0.12)
    cut = [not bool(g) for g in found.gradient[:, 0]]
    assert cut == [mark == "x" for mark in expected.replace(" ", "")]
    assert found.metrics["policy/clipfrac_avg"] == sum(cut) / 8
    for side, count in counts.items():
        assert found.metrics[f"policy/clipfrac_{side}"] == count / 8


@pytest.mark.parametrize(
    ("keys", "weights", "held"),
    [
        (["regularizer=cispo", "regularizer.cispo.max=1.28"], [0.3, 1, 1.28, 1.28] * 2, (4, 0)),
        (["regularizer=cispo", "regularizer.cispo.max=5"], [0.3, 1, 1.5, 5] * 2, (2, 0)),
        (["regularizer=cispo", "regularizer.cispo.min=0.8"], [0.8, 1, 1.5, 5] * 2, (2, 2)),
        (["regularizer=topr"], [1, 1, 1, 1, 0.3, 1, 1, 1], (2, 0)),
        (["regularizer=topr", "regularizer.topr.max=2"], [1, 1, 1, 1, 0.3, 1, 1.5, 2], (1, 0)),
    ],
)
def test_held_weights_have_no_gradient_of_their_own(keys: list[str], weights: list[float], held: tuple[int, int]):
    """d loss / d logprob is -w A, with the cap as an absolute ratio; the clip fractions count the weights held."""
    found = single_steps(keys, EIGHT, SIGNS)
    expected = -torch.tensor(weights, dtype=torch.float64) * torch.tensor(SIGNS, dtype=torch.float64)
    torch.testing.assert_close(found.gradient[:, 0], expected)
    assert found.metrics["policy/clipfrac_high"] == held[0] / 8
    assert found.metrics["policy/clipfrac_low"] == held[1] / 8
    assert found.metrics["policy/clipfrac_avg"] == sum(held) / 8


def test_sapo_has_a_temperature_for_each_sign():
    """slope r A 4 s (1 - s) with s = sigmoid(tau (r - 1)); at r = 1 it is A."""
    found = single_steps(["regularizer=sapo", "regularizer.sapo.negative=3"], EIGHT, SIGNS).gradient[:, 0].tolist()
    for gradient, ratio, sign in zip(found, EIGHT.tolist(), SIGNS, strict=True):
        s = 1 / (1 + math.exp(-(1 if sign > 0 else 3) * (ratio - 1)))
        assert gradient == pytest.approx(-sign * ratio * 4 * s * (1 - s))


def test_vespo_has_a_kernel_for_each_sign():
    found = single_steps(["regularizer=vespo", "regularizer.vespo.negative_k=1"], EIGHT, SIGNS).gradient[:, 0].tolist()
    for gradient, ratio, sign in zip(found, EIGHT.tolist(), SIGNS, strict=True):
        k, decay = (2, 3) if sign > 0 else (1, 2)
        assert gradient == pytest.approx(-sign * ratio**k * math.exp(decay * (1 - ratio)))


def test_dppo_takes_the_probability_of_the_ratios_source():
    """p = .3 is .2 above the old policy's .1 and .05 above the behaviour policy's .25."""
    given = {"logprobs": [[math.log(0.3)]], "old_logprobs": [[math.log(0.1)]], "advantages": [[1]]}
    behaviour = {"behaviour_logprobs": [[math.log(0.25)]]}
    keys = ["regularizer=dppo", "regularizer.dppo.delta=0.1"]
    assert float(probed(keys, **given, **behaviour).gradient) == 0
    found = probed([*keys, "ratio.token.source=behaviour"], **given, **behaviour)
    assert float(found.gradient) == pytest.approx(-1.2)


def test_gmpo_clips_before_it_averages():
    """Log-ratios .9, -.6, -.9 and A = 1: the first is held at .4; the row's ratio is e^((.4 - .6 - .9) / 3)."""
    x = torch.tensor([[0.9, -0.6, -0.9]], dtype=torch.float64)
    given = {"logprobs": x, "old_logprobs": torch.zeros(1, 3), "mask": [[1, 1, 1]], "advantages": [[1, 1, 1]]}
    found = probed(["regularizer=gmpo"], **given)
    ratio = math.exp((0.4 - 0.6 - 0.9) / 3)
    assert float(found.loss) == pytest.approx(-ratio)
    torch.testing.assert_close(found.gradient, torch.tensor([[0, -ratio / 3, -ratio / 3]], dtype=torch.float64))


@pytest.mark.parametrize("part", ["gmpo", "dppo"])
def test_a_ratio_of_the_row_is_refused_where_that_of_each_step_is_taken(part: str):
    with pytest.raises(rlfw.UserError, match=f"regularizer={part} takes the ratio of each step and ratio=sequence"):
        probed([f"regularizer={part}", "ratio=sequence"], logprobs=[[0.0]])


@pytest.mark.parametrize("part", SURROGATES)
def test_a_surrogate_of_a_ratio_is_refused_without_one(part: str):
    with pytest.raises(rlfw.UserError, match=f"regularizer={part} bounds a ratio and ratio=none has none"):
        probed([f"regularizer={part}", "ratio=none"], logprobs=[[0.0]])


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        *[(part, "low", -0.1) for part in ("clip", "dual_clip", "two_sided", "gmpo")],
        *[(part, "low", 1.1) for part in ("clip", "dual_clip", "two_sided")],
        *[(part, "high", -0.1) for part in ("clip", "dual_clip", "two_sided", "gmpo")],
        *[("dual_clip", "cap", 1), ("two_sided", "cap", 1.2), ("cispo", "max", 0), ("cispo", "min", -0.1)],
        *[("cispo", "min", 5.1), ("sapo", "positive", 0), ("sapo", "negative", 0), ("dppo", "delta", -0.1)],
        *[("dppo", "delta", 1.1), ("topr", "max", 0), ("dro", "beta", -1)],
        *[("vespo", key, -1) for key in ("positive_k", "positive_lambda", "negative_k", "negative_lambda")],
    ],
)
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"regularizer\.{part}\.{key}={value}"):
        rlfw.build("regularizer", {"part": part, key: value})


# ------------------------------------------------------------------------------------------------ formulas

LEFT = {"regularizer": ("S = ", "P = "), "ratio": ("x = ", "S = A ℓ"), "aggregation": ("c = ",)}
LEFT |= {"weight": ("w = ", "m ← m · ")}


@pytest.mark.parametrize("axis", LEFT)
def test_every_part_has_a_formula_with_its_own_keys(axis: str):
    for name in registry.names(axis):
        config = {key: default for key, (_, default) in registry.entry(axis, name).keys.items()}
        part = rlfw.build(axis, {"part": name, **config}, streams=Streams(0), max_steps=7)
        formula = part.formula.format_map(config)
        assert formula.startswith(LEFT[axis]), (name, formula)
        assert "\n" not in formula
        assert "None" not in formula

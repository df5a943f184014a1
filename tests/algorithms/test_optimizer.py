"""Optimizers: the first steps worked out by hand."""

import math

import pytest
import torch

import rlfw


def steps(part: str, gradients: list[float], **keys: float) -> list[float]:
    """A weight that starts at 1, under lr 0.1, after each of these gradients."""
    weight = torch.nn.Parameter(torch.ones(1))
    optimizer = rlfw.build("optimizer", {"part": part, **keys}).build([{"params": [weight], "lr": 0.1}])
    found = []
    for gradient in gradients:
        weight.grad = torch.tensor([float(gradient)])
        optimizer.step()
        found.append(float(weight.detach()))
    return found


def test_sgd():
    assert steps("sgd", [2, 2]) == pytest.approx([0.8, 0.6])
    assert steps("sgd", [2, 2], momentum=0.5) == pytest.approx([0.8, 0.5])


def test_adam_makes_steps_of_the_learning_rate():
    assert steps("adam", [2, 2]) == pytest.approx([0.9, 0.8], abs=1e-5)
    assert steps("adam", [2], eps=2.0) == pytest.approx([1 - 0.1 * 2 / (2 + 2)])


def test_weight_decay_is_decoupled_from_the_gradient():
    assert steps("adam", [0], weight_decay=0.5) == pytest.approx([1 - 0.1 * 0.5])


@pytest.mark.parametrize(
    ("part", "key", "without"),
    [
        ("adam", "weight_decay", "θ ← θ - lr m̂ / (√v̂ + {eps}), moments of decay {beta1} and {beta2}, unbiased"),
        ("rmsprop", "momentum", "θ ← θ - lr ∇ / (√v + {eps}), v ← {alpha} v + (1 - {alpha}) ∇²"),
        ("sgd", "momentum", "θ ← θ - lr ∇"),
    ],
)
def test_the_formula_has_no_term_that_is_zero(part: str, key: str, without: str):
    assert rlfw.build("optimizer", {"part": part}).formula == without
    assert f"{{{key}}}" in rlfw.build("optimizer", {"part": part, key: 0.5}).formula


def test_rmsprop():
    """v = 0.99 * 0 + 0.01 * 4; the step is lr * 2 / (sqrt(v) + eps)."""
    assert steps("rmsprop", [2], eps=0.1) == pytest.approx([1 - 0.1 * 2 / (math.sqrt(0.04) + 0.1)])


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        *[("adam", "beta1", 1.5), ("adam", "beta2", -1), ("adam", "eps", 0), ("adam", "weight_decay", -1)],
        *[("rmsprop", "alpha", 2), ("rmsprop", "eps", 0), ("rmsprop", "momentum", -1), ("sgd", "momentum", -1)],
    ],
)
def test_wrong_values_are_refused(part: str, key: str, value: float):
    with pytest.raises(rlfw.UserError, match=rf"optimizer\.{part}\.{key}={value}"):
        rlfw.build("optimizer", {"part": part, key: value})

"""Penalties: the KL's target, direction, estimator and sign; entropy; and those on chosen steps."""

import math
from typing import Any

import pytest
import torch

import rlfw


def probed(overrides: list[str], **given: object) -> rlfw.probe:
    words = ["baseline=none", "normalize=none", "aggregation=token_mean", *overrides]
    given = {"rewards": [0], "advantages": [[0]], "mask": [[1]], "group": [0], "old_logprobs": [[0]], **given}
    return rlfw.probe(words, **given)


# log pi - log q = 0.5: value and slope in log pi of the estimates of KL(pi || q), and of KL(q || pi)
KL = {
    ("kl", "k2"): (0.5 * 0.5**2, 0.5),
    ("kl", "k3"): (math.exp(-0.5) - 1 + 0.5, 1 - math.exp(-0.5)),
    ("kl", "k3+"): (math.exp(-0.5) - 1 + 0.5, 0.5),
    ("kl", "abs"): (0.5, 1),
    ("kl_old", "k2"): (0.5 * 0.5**2, 0.5),
    ("kl_old", "k3"): (math.exp(0.5) - 1 - 0.5, math.exp(0.5) - 1),
    ("kl_old", "abs"): (0.5, 1),
}


@pytest.mark.parametrize(("name", "estimator"), KL)
def test_kl_pulls_towards_its_target(name: str, estimator: str):
    """Coefficient 2: the gradient is positive, a step of descent lowers log pi."""
    value, slope = KL[name, estimator]
    other = {"kl": "ref_logprobs", "kl_old": "old_logprobs"}[name]
    keys = [f"regularizer={name}", f"regularizer.{name}.estimator={estimator}", f"regularizer.{name}.coef=2"]
    found = probed(["ratio=none", *keys], logprobs=[[-1.0]], **{"old_logprobs": [[9.0]], other: [[-1.5]]})
    assert float(found.loss) == pytest.approx(2 * value)
    assert float(found.gradient) == pytest.approx(2 * slope)
    assert found.metrics[f"loss/{name}_avg"] == pytest.approx(value)


@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_kl_has_the_ratio_and_its_gradient(estimator: str):
    """r = 1.5, d = .5: the loss is r k, its slope r (k + dk/dd)."""
    keys = [f"regularizer.kl.{key}" for key in ("unbiased=true", f"estimator={estimator}", "coef=2")]
    given = {"logprobs": [[-1.0]], "old_logprobs": [[-1 - math.log(1.5)]], "ref_logprobs": [[-1.5]]}
    found = probed(["ratio=none", "regularizer=kl", *keys], **given)
    value, slope = {"k1": (0.5, 1.0), "k3": KL["kl", "k3"]}[estimator]
    assert float(found.loss) == pytest.approx(2 * 1.5 * value)
    assert float(found.gradient) == pytest.approx(2 * 1.5 * (value + slope))
    assert found.metrics["loss/kl_avg"] == pytest.approx(1.5 * value)


def test_every_kl_penalty_is_reported_under_its_own_name():
    far = ["+regularizer@regularizer.far=kl", "regularizer.far.estimator=k2", "regularizer.far.coef=3"]
    found = probed(
        ["ratio=none", "regularizer=[kl,kl_old]", *far], logprobs=[[-1.0]], old_logprobs=[[-1.0]], ref_logprobs=[[-1.5]]
    )
    k2, k3 = KL["kl", "k2"][0], KL["kl", "k3"][0]
    assert found.metrics["loss/kl_avg"] == pytest.approx(k3)
    assert found.metrics["loss/kl_avg/far"] == pytest.approx(k2)
    assert found.metrics["loss/kl_old_avg"] == 0
    assert float(found.loss) == pytest.approx(0.04 * k3 + 3 * k2)


REFUSED: list[tuple[str, dict[str, Any], str]] = [
    ("kl", {"estimator": "k1"}, r"regularizer\.kl\.estimator=k1: its expected gradient .* zero.*kl\.unbiased=true"),
    ("kl", {"force": True}, r"regularizer\.kl\.force=true has no effect: k3 needs no force"),
    ("kl", {"estimator": "k1", "force": True, "unbiased": True}, r"regularizer\.kl\.force=true has no effect"),
    ("kl", {"estimator": "k3+", "unbiased": True}, r"regularizer\.kl\.unbiased=true .* write k3"),
    ("kl", {"to": "old", "force": True}, r"regularizer\.kl\.force=true has no effect: towards the old policy"),
    ("kl", {"to": "old", "unbiased": True}, r"regularizer\.kl\.unbiased=true has no use towards the old policy"),
    ("kl_old", {"force": True}, r"regularizer\.kl_old\.force=true has no effect: towards the old policy"),
    ("kl_old", {"unbiased": True}, r"regularizer\.kl_old\.unbiased=true has no use towards the old policy"),
    ("kl_old", {"estimator": "k3+"}, r"regularizer\.kl_old\.estimator=k3\+: .* write k3"),
    ("kl_old", {"to": "reference", "estimator": "k1"}, r"regularizer\.kl_old\.estimator=k1: its expected gradient"),
]


@pytest.mark.parametrize(("part", "keys", "message"), REFUSED)
def test_keys_of_the_kl_that_cannot_matter_are_refused(part: str, keys: dict[str, Any], message: str):
    with pytest.raises(rlfw.UserError, match=message):
        rlfw.build("regularizer", {"part": part, **keys})


@pytest.mark.parametrize(
    "keys", [{"part": "kl", "estimator": "k1", "unbiased": True}, {"part": "kl_old", "estimator": "k1"}]
)
def test_k1_is_taken_where_it_regularises(keys: dict[str, Any]):
    assert rlfw.build("regularizer", keys).estimator == "k1"


def test_entropy_bonus_rewards_entropy():
    found = probed(
        ["ratio=none", "regularizer=entropy", "regularizer.entropy.coef=0.5"], logprobs=[[-1.0]], entropy=[[2.0]]
    )
    assert float(found.loss) == -0.5 * 2
    assert found.metrics["loss/entropy_avg"] == 2


def test_penalties_are_left_out_where_the_mask_is_false():
    given = {"mask": [[1, 0]], "logprobs": [[-1, 50]], "old_logprobs": [[-1, 0]], "ref_logprobs": [[-1, 0]]}
    found = probed(["regularizer=[clip,kl,kl_cov,nll]"], **given, advantages=[[0, 0]])
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())


# ------------------------------------------------------------------------------------------------ chosen steps

STEPS = torch.tensor([[-0.1, -0.2], [-3.0, -1.0]], dtype=torch.float64)  # log pi
OLD = STEPS - torch.tensor([[0.3, -0.4], [0.5, 0.6]], dtype=torch.float64)
GIVEN: dict[str, Any] = {"mask": [[1, 1], [1, 1]], "group": [0, 0], "logprobs": STEPS, "old_logprobs": OLD}


@pytest.mark.parametrize(("fraction", "chosen"), [(1e-4, [1, 0]), (0.25, [1, 0]), (0.5, [1, 1]), (0.74, [1, 1])])
def test_kl_cov_takes_the_steps_of_largest_covariance(fraction: float, chosen: list[int]):
    """A = 1, 1, -1, -1 and mean log pi -1.075: the covariances are .975, .875, 1.925 and -.075."""
    keys = ["regularizer=kl_cov", f"regularizer.kl_cov.fraction={fraction}", "regularizer.kl_cov.coef=2"]
    advantages = torch.tensor([[1, 1], [-1, -1]], dtype=torch.float64)
    common = {**GIVEN, "rewards": [0, 0], "advantages": advantages}
    cov = probed([*keys, "aggregation=token_sum"], **common)
    plain = probed(["regularizer=none", "aggregation=token_sum"], **common)
    third, first = chosen
    expected = 2 * torch.tensor([[first, 0], [third, 0]], dtype=torch.float64)  # both moved up: |x| has slope 1
    torch.testing.assert_close(cov.gradient - plain.gradient, expected)
    assert float(cov.loss - plain.loss) == pytest.approx(2 * (third * 0.5 + first * 0.3))
    assert cov.metrics["loss/kl_cov_avg"] == pytest.approx((third * 0.5 + first * 0.3) / 4)


@pytest.mark.parametrize(("threshold", "rows"), [(0, [0, 1]), (1, [1]), (2, [])])
def test_nll_is_the_mean_over_the_steps_of_the_rows_that_paid(threshold: float, rows: list[int]):
    """Rows of 2, 1 and 3 steps with totals 1, 2 and -1."""
    mask = torch.tensor([[1, 1, 0], [1, 0, 0], [1, 1, 1]]).bool()
    logprobs = -torch.arange(1, 10, dtype=torch.float64).reshape(3, 3)
    keys = ["ratio=none", "regularizer=nll", f"regularizer.nll.threshold={threshold}", "regularizer.nll.coef=0.5"]
    found = probed(
        keys,
        **{"mask": mask, "group": [0, 0, 0], "logprobs": logprobs, "old_logprobs": logprobs},
        **{"rewards": [1, 2, -1], "advantages": torch.zeros(3, 3)},
    )
    paid = torch.zeros_like(mask)
    paid[rows] = mask[rows]
    expected = -float(logprobs[paid].mean()) if rows else 0.0
    assert float(found.loss) == pytest.approx(0.5 * expected)
    assert found.metrics["loss/nll_avg"] == pytest.approx(expected)
    torch.testing.assert_close(found.gradient, -0.5 * paid.double() / max(int(paid.sum()), 1))


def test_nll_keeps_float64():
    """N / N₊ = 7 / 3 is no number of float32."""
    given = {"rewards": [1.0] * 3 + [0.0] * 4, "mask": [[1]] * 7, "group": [0] * 7}
    logprobs = torch.full((7, 1), -1.0, dtype=torch.float64)
    given |= {"logprobs": logprobs, "old_logprobs": logprobs, "advantages": torch.zeros(7, 1, dtype=torch.float64)}
    found = probed(["ratio=none", "regularizer=nll", "regularizer.nll.coef=1"], **given)
    assert float(found.loss) == pytest.approx(1, abs=1e-15)


@pytest.mark.parametrize("part", ["kl_cov", "nll"])
def test_statistics_of_the_optimizer_batch_refuse_micro_batches(part: str):
    assert "whole_batch" in rlfw.build("regularizer", {"part": part}).needs


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        *[("kl", "coef", -1), ("kl", "estimator", "k4"), ("kl", "to", "future")],
        *[("kl_old", "coef", -1), ("kl_old", "estimator", "k4"), ("kl_old", "to", "future")],
        *[("kl_cov", "fraction", 0), ("kl_cov", "fraction", 1.1), ("kl_cov", "coef", -1), ("nll", "coef", -1)],
    ],
)
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"regularizer\.{part}\.{key}={value}"):
        rlfw.build("regularizer", {"part": part, key: value})

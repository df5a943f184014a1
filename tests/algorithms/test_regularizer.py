"""Regularizers: both sides of the clip, the KL's target, estimator and sign, the entropy bonus."""

import math

import pytest
import torch

import rlfw


def probed(overrides: list[str], **given: object) -> rlfw.probe:
    words = ["baseline=none", "normalize=none", "aggregation=token_mean", *overrides]
    given = {"rewards": [0], "advantages": [[0]], "mask": [[1]], "group": [0], "old_logprobs": [[0]], **given}
    return rlfw.probe(words, **given)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_huge_ratio_leaves_loss_and_gradient_finite(dtype: torch.dtype):
    huge = torch.tensor([[100.0]], dtype=dtype)
    good = probed(["regularizer=clip"], logprobs=huge, advantages=[[1]])
    assert float(good.loss) == pytest.approx(-1.2)
    assert float(good.gradient) == 0
    bad = probed(["regularizer=clip"], logprobs=huge, advantages=[[-1]])
    assert 1e6 < float(bad.loss) < math.inf
    assert bool(bad.gradient.isfinite().all())


def test_clip_bounds_are_low_and_high():
    keys = ["regularizer=clip", "regularizer.clip.low=0.1", "regularizer.clip.high=0.3"]
    assert float(probed(keys, logprobs=[[math.log(2)]], advantages=[[1]]).loss) == pytest.approx(-1.3)
    assert float(probed(keys, logprobs=[[math.log(0.5)]], advantages=[[-1]]).loss) == pytest.approx(0.9)


def test_clip_fraction_counts_the_gradients_that_were_cut():
    """|r - 1| > eps holds on all four steps; two of them have no gradient."""
    ratios = torch.tensor([[0.5, 1.5, 0.5, 1.5]], dtype=torch.float64)
    given = {"logprobs": ratios.log(), "old_logprobs": torch.zeros(1, 4), "mask": torch.ones(1, 4)}
    found = probed(["regularizer=clip"], **given, advantages=[[1, 1, -1, -1]])
    assert (found.gradient != 0).tolist() == [[True, False, False, True]]
    names = ("policy/clipfrac_avg", "policy/clipfrac_low", "policy/clipfrac_high")
    assert [found.metrics[name] for name in names] == [0.5, 0.25, 0.25]


KL = {"k2": 0.5 * 0.5**2, "k3": math.exp(-0.5) - 1 + 0.5, "abs": 0.5}
SLOPE = {"k2": 0.5, "k3": 1 - math.exp(-0.5), "abs": 1}


@pytest.mark.parametrize("estimator", KL)
@pytest.mark.parametrize(("name", "other"), [("kl", "ref_logprobs"), ("kl_old", "old_logprobs")])
def test_kl_pulls_towards_its_target(name: str, other: str, estimator: str):
    """log pi - log q = 0.5, coefficient 2: the gradient is positive, a step of descent lowers log pi."""
    keys = [f"regularizer={name}", f"regularizer.{name}.estimator={estimator}", f"regularizer.{name}.coef=2"]
    found = probed(["ratio=none", *keys], logprobs=[[-1.0]], **{"old_logprobs": [[9.0]], other: [[-1.5]]})
    assert float(found.loss) == pytest.approx(2 * KL[estimator])
    assert float(found.gradient) == pytest.approx(2 * SLOPE[estimator])
    assert found.metrics[f"loss/{name}_avg"] == pytest.approx(KL[estimator])


def test_every_kl_penalty_is_reported_under_its_own_name():
    far = ["+regularizer@regularizer.far=kl", "regularizer.far.estimator=k2", "regularizer.far.coef=3"]
    found = probed(
        ["ratio=none", "regularizer=[kl,kl_old]", *far], logprobs=[[-1.0]], old_logprobs=[[-1.0]], ref_logprobs=[[-1.5]]
    )
    assert found.metrics["loss/kl_avg"] == pytest.approx(KL["k3"])
    assert found.metrics["loss/kl_avg/far"] == pytest.approx(KL["k2"])
    assert found.metrics["loss/kl_old_avg"] == 0
    assert float(found.loss) == pytest.approx(0.04 * KL["k3"] + 3 * KL["k2"])


@pytest.mark.parametrize("name", ["kl", "kl_old"])
def test_k1_in_a_loss_is_refused_unless_forced(name: str):
    with pytest.raises(rlfw.UserError, match=rf"regularizer\.{name}\.estimator=k1: its expected gradient .* zero"):
        rlfw.build("regularizer", {"part": name, "to": "old" if name == "kl_old" else "reference", "estimator": "k1"})
    with pytest.raises(rlfw.UserError, match="force=true has no effect: k3 needs no force"):
        rlfw.build("regularizer", {"part": name, "force": True})


def test_entropy_bonus_rewards_entropy():
    found = probed(
        ["ratio=none", "regularizer=entropy", "regularizer.entropy.coef=0.5"], logprobs=[[-1.0]], entropy=[[2.0]]
    )
    assert float(found.loss) == -0.5 * 2
    assert found.metrics["loss/entropy_avg"] == 2


def test_penalties_are_left_out_where_the_mask_is_false():
    given = {"mask": [[1, 0]], "logprobs": [[-1, 50]], "old_logprobs": [[-1, 0]], "ref_logprobs": [[-1, 0]]}
    found = probed(["regularizer=[clip,kl]"], **given, advantages=[[0, 0]])
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())


@pytest.mark.parametrize(
    ("part", "key", "value"),
    [
        *[("clip", "low", -0.1), ("clip", "low", 1.1), ("clip", "high", -0.1)],
        *[("kl", "coef", -1), ("kl", "estimator", "k4"), ("kl", "to", "future")],
    ],
)
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"regularizer\.{part}\w*\.{key}={value}"):
        rlfw.build("regularizer", {"part": part, key: value})

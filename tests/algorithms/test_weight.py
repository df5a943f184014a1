"""Weights: what is left out leaves every sum and every denominator; what weighs less keeps its place there."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import rlfw
from rlfw import registry
from rlfw.rollout import ABSENT, Batch
from rlfw.seeding import Streams

registry.load_components()


def rows(mask: Any, **fields: Any) -> Batch:
    """A batch after credit, zeros wherever nothing is given."""
    mask = torch.as_tensor(mask).bool()
    zeros, no = torch.zeros(mask.shape, dtype=torch.float64), torch.zeros(len(mask), dtype=torch.bool)
    given = {name: torch.as_tensor(value, dtype=torch.float64) for name, value in fields.items()}
    return replace(
        Batch(
            **{"context": ABSENT, "actions": ABSENT, "logprobs": zeros, "rewards": zeros, "mask": mask},
            **{"terminated": ~no, "truncated": no, "group": no.long(), "episode": no.long()},
            **{"old_logprobs": zeros, "entropy": zeros, "advantages": zeros},
        ),
        **given,
    )


def built(name: str, seed: int = 0, **keys: object) -> Any:
    return rlfw.build("weight", {"part": name, **keys}, streams=Streams(seed))


def close(found: Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


@pytest.mark.parametrize(
    "aggregation", [n for n in registry.names("aggregation") if n not in ("constant", "token_sum")]
)
@pytest.mark.parametrize("weight", ["truncated", "sequence_mask"])
def test_rows_that_are_dropped_count_nowhere(weight: str, aggregation: str):
    """Rows of 2, 2 and 4 steps, the third dropped: loss and gradient are those of the first two alone."""
    credited = {"rewards": [1, 0, 7], "group": [0, 0, 0], "truncated": [False, False, True]}
    mask = torch.arange(4) < torch.tensor([2, 2, 4])[:, None]
    steps = torch.full((3, 4), -1.0).double()
    policies = {"logprobs": steps, "old_logprobs": steps, "ref_logprobs": steps - 0.5}
    policies["behaviour_logprobs"] = steps + torch.tensor([0, 0, 0.1])[:, None]
    common = ["baseline=none", "normalize=none", "ratio=none", "regularizer=kl", f"aggregation={aggregation}"]
    cut = rlfw.probe([*common, f"weight={weight}"], mask=mask, **credited, **policies)
    without = rlfw.probe(
        common,
        mask=mask[:2],
        **{name: value[:2] for name, value in credited.items()},
        **{name: value[:2] for name, value in policies.items()},
    )
    torch.testing.assert_close(cut.loss, without.loss)
    torch.testing.assert_close(cut.gradient[:2], without.gradient)
    assert not bool(cut.gradient[2].any())


def test_batch_with_everything_truncated_trains_nothing():
    mask = torch.ones(2, 3).bool()
    steps = torch.full((2, 3), -1.0).double()
    found = rlfw.probe(
        ["algorithm=ppo", "baseline=critic", "regularizer=[clip,kl,entropy]", "weight=truncated"],
        **{"rewards": torch.ones(2, 3), "mask": mask, "group": [0, 1], "truncated": [True, True]},
        **{"logprobs": steps + 0.5, "old_logprobs": steps, "ref_logprobs": steps - 1, "entropy": steps + 2},
        values=torch.ones(2, 4),
    )
    assert float(found.loss) == 0
    assert not bool(found.gradient.any())
    assert found.value_gradient is not None
    assert not bool(found.value_gradient.any())
    assert all(torch.tensor(value).isfinite() for value in found.metrics.values())


@pytest.mark.parametrize("name", registry.names("weight"))
def test_every_weight_survives_a_batch_without_any_step(name: str):
    part = built(name)
    assert bool(part(rows([[0, 0], [0, 0]])).isfinite().all())
    assert all(math.isfinite(value) for value in part.report().values())


# ------------------------------------------------------------------------------------------------ entropy

ENTROPIES = [[0.9, 0.1, 0.5], [0.2, 0.8, 0.3], [0.7, 5.0, 5.0]]  # the last two are off the mask
SEVEN = [[1, 1, 1], [1, 1, 1], [1, 0, 0]]


@pytest.mark.parametrize(
    ("fraction", "kept"),
    [(0.01, [0.9]), (0.29, [0.9, 0.8]), (0.43, [0.9, 0.8, 0.7]), (1, [0.9, 0.1, 0.5, 0.2, 0.8, 0.3, 0.7])],
)
def test_top_entropy_keeps_the_fraction_of_highest_entropy(fraction: float, kept: list[float]):
    found = built("top_entropy", fraction=fraction)(rows(SEVEN, entropy=ENTROPIES))
    expected = [
        [float(on and h in kept) for h, on in zip(*both, strict=True)] for both in zip(ENTROPIES, SEVEN, strict=True)
    ]
    close(found, expected)


def test_top_entropy_keeps_ties():
    found = built("top_entropy", fraction=0.25)(rows([[1, 1, 1, 1]], entropy=[[0.5, 0.5, 0.1, 0.5]]))
    close(found, [[1, 1, 0, 1]])


def test_top_entropy_leaves_the_denominator():
    """One of four steps is kept: the token mean still divides by four."""
    found = rlfw.probe(
        ["baseline=none", "normalize=none", "ratio=none", "regularizer=none", "weight=top_entropy"],
        **{"rewards": [1], "mask": [[1, 1, 1, 1]], "group": [0]},
        **{"logprobs": [[-1.0, -2, -3, -4]], "old_logprobs": [[-1.0, -2, -3, -4]], "entropy": [[0.1, 0.2, 0.9, 0.3]]},
    )
    assert float(found.loss) == pytest.approx(3 / 4)


# ------------------------------------------------------------------------------------------------ covariance

# A = 4 and -4 by turns, of mean 0, and log pi_old about its mean -1
ADVANTAGES = torch.tensor([[4.0, -4.0] * 5]).double()
OLD = -1 + 0.1 * torch.tensor([[1, 1, 2, 2, -3, -3, 4, 4, -4, -4]]).double()
COVARIANCES = [0.4, -0.4, 0.8, -0.8, -1.2, 1.2, 1.6, -1.6, -1.6, 1.6]
TEN = {"advantages": ADVANTAGES, "old_logprobs": OLD}


def dropped(found: Tensor) -> list[float]:
    return sorted(c for c, w in zip(COVARIANCES, found.flatten().tolist(), strict=True) if w == 0)


def test_clip_cov_drops_steps_between_its_bounds():
    for keys, expected in {
        (1.0, 5.0): [1.2, 1.6, 1.6],
        (1.0, 1.5): [1.2],
        (0.5, 1.5): [0.8, 1.2],
        (2.0, 5.0): [],
    }.items():
        low, high = keys
        assert dropped(built("clip_cov", fraction=1, low=low, high=high)(rows([[1] * 10], **TEN))) == expected


@pytest.mark.parametrize(("fraction", "count"), [(2e-4, 1), (0.1, 1), (0.2, 2), (0.5, 3)])
def test_clip_cov_drops_a_fraction_of_all_steps_and_one_at_least(fraction: float, count: int):
    found = dropped(built("clip_cov", fraction=fraction)(rows([[1] * 10], **TEN)))
    assert len(found) == count
    assert all(1 < c < 5 for c in found)


def test_clip_cov_draws_from_its_own_stream_whatever_the_order_of_the_rows():
    old = -(torch.arange(1, 13, dtype=torch.float64)[:, None] ** 2) / 20  # no two covariances are equal
    batch = {"advantages": torch.tensor([[3.0], [-3.0]] * 6).double(), "old_logprobs": old}
    order = torch.randperm(12, generator=torch.Generator().manual_seed(0))
    mixed = {name: value[order] for name, value in batch.items()}
    keys = {"fraction": 0.1, "low": 0.1}
    draws = set()
    for seed in range(20):
        found = built("clip_cov", seed, **keys)(rows([[1]] * 12, **batch))
        close(built("clip_cov", seed, **keys)(rows([[1]] * 12, **mixed)), found[order])
        draws.add(tuple(found.flatten().tolist()))
    assert len(draws) > 1, "twenty seeds draw the same step"
    part = built("clip_cov", **keys)
    assert len({tuple(part(rows([[1]] * 12, **batch)).flatten().tolist()) for _ in range(20)}) > 1


# ------------------------------------------------------------------------------------------------ the sampler

W = [[0.3, 1.0, 3.0]]  # pi_old / pi_behaviour: product .9, geometric mean .9^(1/3)
GEOMETRIC = 0.9 ** (1 / 3)


def by_sampler(part: Any, w: list[list[float]] = W, **fields: Any) -> Tensor:
    ratios = torch.tensor(w, dtype=torch.float64)
    return part(
        rows(torch.ones(ratios.shape), logprobs=-1 - ratios.log(), old_logprobs=-torch.ones(ratios.shape), **fields)
    )


@pytest.mark.parametrize(
    ("name", "keys", "expected"),
    [
        ("tis", {}, [0.3, 1, 2]),
        ("tis", {"cap": 0.5}, [0.3, 0.5, 0.5]),
        ("tis", {"level": "sequence"}, [0.9] * 3),
        ("tis", {"level": "sequence", "cap": 0.8}, [0.8] * 3),
        ("tis", {"level": "geometric"}, [0.965489] * 3),
        ("mis", {}, [0.3, 1, 0]),
        ("mis", {"cap": 3.1}, [0.3, 1, 3]),
        ("mis", {"level": "sequence", "cap": 0.8}, [0] * 3),
        ("mis", {"level": "geometric", "cap": 0.97}, [0.965489] * 3),
        ("icepop", {}, [0, 1, 0]),
        ("icepop", {"low": 0.2}, [0.3, 1, 0]),
        ("icepop", {"high": 4}, [0, 1, 3]),
    ],
)
def test_importance_weights(name: str, keys: dict[str, object], expected: list[float]):
    close(by_sampler(built(name, **keys)), [expected], 1e-6)


@pytest.mark.parametrize(("name", "mean"), [("tis", 1.1), ("mis", 1.3 / 3), ("icepop", 1 / 3)])
def test_importance_weights_report_their_sample_size_and_mean(name: str, mean: float):
    """ESS / n = (sum w)^2 / (n sum w^2) = 4.3^2 / (3 * 10.09), of w as it is."""
    part = built(name)
    by_sampler(part)
    assert part.report() == pytest.approx({"rollout_corr/ess": 0.610836, "rollout_corr/mean": mean}, abs=1e-6)
    by_sampler(part, [[1.0, 1, 1]])
    assert part.report() == pytest.approx({"rollout_corr/ess": 1, "rollout_corr/mean": 1})


def test_product_weight_of_a_long_row_stays_finite():
    found = by_sampler(built("tis", level="sequence", cap=1e12), [[math.e] * 500])
    close(found / math.exp(20), torch.ones(1, 500))


@pytest.mark.parametrize(("low", "high", "kept"), [(0.5, 2, True), (0.97, 2, False), (0.5, 0.96, False)])
def test_sequence_mask_goes_by_the_geometric_mean(low: float, high: float, kept: bool):
    found = by_sampler(built("sequence_mask", low=low, high=high))
    assert found.dtype == torch.bool
    assert found.tolist() == [[kept] * 3]


def test_off_policy_mask_drops_what_failed_and_has_become_unlikely():
    """Mean log(pi_beh / pi_old) of .6 and .4 on either sign of A, delta .5; the loss keeps its denominator."""
    w = [[math.exp(-0.6)] * 2, [math.exp(-0.6)] * 2, [math.exp(-0.4)] * 2, [math.exp(0.9)] * 2]
    advantages = torch.tensor([[-1.0] * 2, [1.0] * 2, [-1.0] * 2, [-1.0] * 2]).double()
    found = by_sampler(built("off_policy_mask"), w, advantages=advantages)
    close(found, [[0, 0], [1, 1], [1, 1], [1, 1]])
    found = by_sampler(built("off_policy_mask", delta=0.3), w, advantages=advantages)
    close(found, [[0, 0], [1, 1], [0, 0], [1, 1]])


def test_length_is_the_number_of_steps_of_the_row():
    close(built("length")(rows([[1, 1, 0], [1, 0, 0], [1, 1, 1]])), [[2, 2, 0], [1, 0, 0], [3, 3, 3]])


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        *[(name, "fraction", value) for name in ("top_entropy", "clip_cov") for value in (0, 1.1)],
        *[("clip_cov", "high", 0.5), ("tis", "cap", 0), ("mis", "cap", 0), ("tis", "level", "row")],
        *[("mis", "level", "row"), ("icepop", "low", -1), ("icepop", "high", 0.1), ("sequence_mask", "low", -1)],
        *[("sequence_mask", "high", 0.9), ("off_policy_mask", "delta", -1)],
    ],
)
def test_wrong_values_are_refused(name: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"weight\.{name}\.{key}={value}"):
        built(name, **{key: value})

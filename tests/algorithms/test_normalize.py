"""Scales of advantages: statistics over the mask alone, and over nothing at all."""

import math

import pytest
import torch

import rlfw
from rlfw import registry

registry.load_components()


def normalized(overrides: list[str], advantages: object, mask: object, **given: object) -> torch.Tensor:
    """Through a scope of the minibatch, which acts on advantages that are given."""
    mask = torch.as_tensor(mask).bool()
    zeros = torch.zeros(mask.shape).double()
    given = {"group": [0] * len(mask), "rewards": zeros, **given}
    words = ["baseline=none", "ratio=none", "regularizer=none", *overrides]
    return rlfw.probe(words, advantages=advantages, mask=mask, logprobs=zeros, old_logprobs=zeros, **given).advantages


MINIBATCH = ["normalize=whiten", "normalize.whiten.scope=minibatch"]


@pytest.mark.parametrize(("ddof", "expected"), [(0, 1), (1, math.sqrt(0.5))])
@pytest.mark.parametrize("garbage", [0, 100, math.nan])
def test_whitening_does_not_see_padding(ddof: int, expected: float, garbage: float):
    words = [*MINIBATCH, f"normalize.whiten.ddof={ddof}"]
    found = normalized(words, [[1, garbage], [3, garbage]], [[1, 0], [1, 0]])
    torch.testing.assert_close(found, torch.tensor([[-expected, 0], [expected, 0]]).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize(("ddof", "expected"), [(0, 1), (1, math.sqrt(0.5))])
def test_scales_differ_from_group_to_group(ddof: int, expected: float):
    """Rewards 0, 1 and 10, 30: -1 and 1 in each, where one scale for all would make the first group tiny."""
    keys = [f"normalize.group_std.ddof={ddof}", "normalize.group_std.eps=0"]
    zeros = torch.zeros(4, 1).double()
    found = rlfw.probe(
        ["baseline=group_mean", "normalize=group_std", "regularizer=none", *keys],
        **{"rewards": [0, 10, 1, 30], "mask": [[1]] * 4, "group": [0, 1, 0, 1]},
        **{"logprobs": zeros, "old_logprobs": zeros},
    ).advantages[:, 0]
    torch.testing.assert_close(found, expected * torch.tensor([-1, -1, 1, 1]).double(), rtol=0, atol=1e-6)


@pytest.mark.parametrize("part", ["group_std", "batch_std", "whiten"])
@pytest.mark.parametrize("ddof", [0, 1])
def test_single_step_has_no_spread(part: str, ddof: int):
    of = ["normalize.batch_std.of=advantages"] * (part == "batch_std")
    words = [f"normalize={part}", f"normalize.{part}.ddof={ddof}", f"normalize.{part}.scope=minibatch", *of]
    assert float(normalized(words, [[3]], [[1]])) == 0


@pytest.mark.parametrize("part", registry.names("normalize"))
def test_nothing_left_stays_nothing(part: str):
    scope = [f"normalize.{part}.scope=minibatch"] * (part != "none")
    assert not bool(normalized([f"normalize={part}", *scope], [[0, 0]], [[0, 0]]).any())


def test_batch_std_of_rewards_is_that_of_the_totals():
    """Totals 3 and 1: std 1 with ddof 0, whatever their steps."""
    words = ["normalize=batch_std", "normalize.batch_std.ddof=0", "normalize.batch_std.eps=0"]
    zeros = torch.zeros(2, 2).double()
    found = rlfw.probe(
        ["baseline=batch_mean", "regularizer=none", *words],
        **{"rewards": [[1, 2], [1, 50]], "mask": [[1, 1], [1, 0]], "group": [0, 0]},
        **{"logprobs": zeros, "old_logprobs": zeros},
    ).advantages
    torch.testing.assert_close(found, torch.tensor([[1, 1], [-1, 0]]).double())


@pytest.mark.parametrize("part", ["group_std", "batch_std", "whiten"])
@pytest.mark.parametrize(("key", "value"), [("ddof", 2), ("eps", -1), ("scope", "epoch")])
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"normalize\.{part}\.{key}={value}"):
        rlfw.build("normalize", {"part": part, key: value})


@pytest.mark.parametrize("part", ["group_std", "batch_std"])
def test_row_without_steps_is_in_no_statistics(part: str):
    """Advantages 1 and -1 have std 1 (ddof 0), which a third row with none would lower."""
    keys = [f"normalize.{part}.{key}" for key in ("ddof=0", "eps=0", "scope=minibatch")]
    of = ["normalize.batch_std.of=advantages"] * (part == "batch_std")
    found = normalized([f"normalize={part}", *keys, *of], [[1, 1], [-1, -1], [9, 9]], [[1, 1], [1, 0], [0, 0]])
    torch.testing.assert_close(found[:2], torch.tensor([[1, 1], [-1, -1]]).double())

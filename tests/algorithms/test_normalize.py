"""Scales of advantages: statistics over the mask alone, and over nothing at all."""

import math
from pathlib import Path

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


def credited(overrides: list[str], rewards: object, mask: object, group: object) -> torch.Tensor:
    """The row's total, as it comes out of the scope of the rollout."""
    zeros = torch.zeros(torch.as_tensor(mask).shape).double()
    words = ["baseline=constant", "ratio=none", "regularizer=none", *overrides]
    given = {"mask": mask, "group": group, "logprobs": zeros, "old_logprobs": zeros}
    return rlfw.probe(words, rewards=rewards, **given).advantages


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


@pytest.mark.parametrize("part", ["group_std", "batch_std", "whiten"])
def test_nothing_left_stays_nothing(part: str):
    assert not bool(normalized([f"normalize={part}", f"normalize.{part}.scope=minibatch"], [[0, 0]], [[0, 0]]).any())


@pytest.mark.parametrize("part", registry.names("normalize"))
def test_a_rollout_without_steps_stays_nothing(part: str):
    assert credited([f"normalize={part}"], [[5, 5], [5, 5]], [[0, 0], [0, 0]], [0, 0]).tolist() == [[0, 0], [0, 0]]


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


# ------------------------------------------------------------------------------------------------ means and shares


@pytest.mark.parametrize(("eps", "expected"), [(0, [4, 0, 2, 0, 0]), (1, [4 / 3, 0, 4 / 3, 0, 0])])
def test_totals_over_the_mean_of_their_group(eps: float, expected: list[float]):
    """Totals 2, 0, 0, 0 in one group, with mean 1/2; 4 and 0 in the other, with mean 2; alone and negative."""
    words = ["normalize=group_mean", f"normalize.group_mean.eps={eps}"]
    found = credited(words, [2, 4, 0, 0, -3, 0, 0], [[1]] * 7, [0, 1, 0, 0, 2, 0, 1])[:, 0]
    torch.testing.assert_close(found[[0, 2, 1, 6, 4]], torch.tensor(expected).double())


@pytest.mark.parametrize("rewards", [[0, 0], [-1, 1], [-3, 1]])
def test_a_group_whose_mean_is_not_positive_has_no_signal(rewards: list[float]):
    words = ["normalize=group_mean", "normalize.group_mean.eps=0.5"]
    assert credited(words, rewards, [[1], [1]], [0, 0]).tolist() == [[0], [0]]


def test_a_row_without_steps_is_in_no_group_mean():
    found = credited(["normalize=group_mean"], [1, 3, 9], [[1, 1], [1, 0], [0, 0]], [0, 0, 0])
    torch.testing.assert_close(found, torch.tensor([[0.5, 0.5], [1.5, 0], [0, 0]]).double())


GROUPS_OF_TWO = {"mask": [[1]] * 6, "group": [0, 0, 1, 1, 2, 2]}


@pytest.mark.parametrize(("of", "factor"), [("groups", 6 / 2), ("rewards", 6 / 3)])
def test_rows_that_carry_a_signal(of: str, factor: float):
    """A mixed group, one all right and one all wrong: 2 of 6 rows lie in a group that differs, 3 have a reward."""
    words = ["normalize=signal", f"normalize.signal.of={of}"]
    found = credited(words, [1, 0, 1, 1, 0, 0], **GROUPS_OF_TWO)[:, 0]
    torch.testing.assert_close(found, factor * torch.tensor([1, 0, 1, 1, 0, 0]).double())


@pytest.mark.parametrize(("of", "rewards"), [("groups", [1, 1, 0.1, 0.1, 0, 0]), ("rewards", [0] * 6)])
def test_no_signal_at_all_is_zero(of: str, rewards: list[float]):
    assert not bool(credited(["normalize=signal", f"normalize.signal.of={of}"], rewards, **GROUPS_OF_TWO).any())


def test_a_row_alone_or_without_steps_carries_no_signal():
    """Of the 3 rows with steps 2 are compared with each other."""
    found = credited(["normalize=signal"], [1, 0, 7, 7], [[1], [1], [1], [0]], [0, 0, 1, 0])
    torch.testing.assert_close(found[:2, 0], 3 / 2 * torch.tensor([1, 0]).double())


def test_a_near_tie_is_a_signal():
    found = credited(["normalize=signal"], [1, 1.00001, 1, 1], [[1]] * 4, [0, 0, 1, 1])[:, 0]
    torch.testing.assert_close(found, 2 * torch.tensor([1, 1.00001, 1, 1]).double())


@pytest.mark.parametrize(("part", "key", "value"), [("group_mean", "eps", -1), ("signal", "of", "rows")])
def test_wrong_values_of_means_and_shares_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"normalize\.{part}\.{key}={value}"):
        rlfw.build("normalize", {"part": part, key: value})


@pytest.mark.parametrize("words", [["group_mean"], ["signal"], ["signal", "normalize.signal.of=groups"]])
def test_groups_are_asked_for(words: list[str], tmp_path: Path):
    base = ["algorithm=ppo", "env=cartpole", "sampler=episodes", "baseline=batch_mean", f"out={tmp_path / 'run'}"]
    with pytest.raises(rlfw.UserError, match=f"normalize={words[0]} compares samples within a group"):
        rlfw.train([*base, f"normalize={words[0]}", *words[1:]])


@pytest.mark.parametrize("more", [{}, {"of": "advantages"}, {"of": "rewards"}, {"shift": False}, {"eps": 0.125}])
@pytest.mark.parametrize("name", registry.names("normalize"))
def test_every_formula_can_be_filled(name: str, more: dict[str, object]):
    keys = {key: default for key, (_, default) in registry.entry("normalize", name).keys.items()}
    keys |= {key: value for key, value in more.items() if key in keys and (name, value) != ("signal", "advantages")}
    formula = rlfw.build("normalize", {"part": name, **keys}).formula.format_map(keys)
    assert formula.startswith("A ← A") or formula.startswith("A ← (A")
    assert ("0.125" in formula) == (keys.get("eps") == 0.125)

"""Aggregations: what each name stands for, denominators after masking, and splits that add up."""

import pytest
import torch
from torch import Tensor

from rlfw import UserError, build, registry

registry.load_components()


def aggregate(name: str, losses: Tensor, mask: Tensor, group: Tensor | None = None) -> float:
    group = torch.arange(len(mask)) if group is None else group
    return float((coefficients(name, mask, group) * losses).sum())


def coefficients(name: str, mask: Tensor, group: Tensor) -> Tensor:
    node = {"part": name, **({"length": 8} if name == "constant" else {})}
    return build("aggregation", node, max_steps=None)(mask, group, torch.float64)


LONG_AND_SHORT = torch.tensor([[1, 1, 1, 1], [1, 0, 0, 0]]).bool()  # four steps of loss 3, one of loss 8
EXPECTED = {
    "token_mean": 20 / 5,
    "sequence_mean": (3 + 8) / 2,
    "sequence_sum": 20 / 2,
    "constant": 20 / (2 * 8),
    "prompt_mean": 20 / 5,  # both rows answer one prompt
    "token_sum": 20,
}


def test_every_aggregation_is_expected_here():
    assert set(EXPECTED) == set(registry.names("aggregation"))


@pytest.mark.parametrize("name", EXPECTED)
def test_aggregations_are_what_their_names_say(name: str):
    losses = torch.tensor([[3.0] * 4, [8.0] * 4]).double()
    assert aggregate(name, losses, LONG_AND_SHORT, torch.tensor([5, 5])) == pytest.approx(EXPECTED[name])


def test_prompt_mean_weighs_prompts_alike():
    """Prompt 0 has 5 steps in two rows, prompt 1 has 1: (20 / 5 + 2) / 2."""
    losses = torch.tensor([[3.0] * 4, [8.0] * 4, [2.0] * 4]).double()
    mask = torch.cat([LONG_AND_SHORT, LONG_AND_SHORT[1:]])
    assert aggregate("prompt_mean", losses, mask, torch.tensor([0, 0, 1])) == pytest.approx((20 / 5 + 2) / 2)


@pytest.mark.parametrize("name", [name for name in EXPECTED if name not in ("token_sum", "constant", "sequence_sum")])
def test_masked_rows_leave_the_denominator(name: str):
    """Rows of 2, 2 and 4 steps of loss 1, the third masked out: the mean stays 1."""
    mask = torch.tensor([[1, 1, 0, 0], [1, 1, 0, 0], [0, 0, 0, 0]]).bool()
    assert aggregate(name, torch.ones(3, 4), mask, torch.tensor([0, 0, 1])) == pytest.approx(1)


@pytest.mark.parametrize("name", EXPECTED)
def test_micro_batches_add_up(name: str):
    """Coefficients are those of the whole batch; the mean of 4 | 1, 1, 1 is 7/4, never the mean of means 2.5."""
    losses = torch.tensor([[4.0, 0, 0], [1, 1, 1]]).double()
    mask = torch.tensor([[1, 0, 0], [1, 1, 1]]).bool()
    whole = coefficients(name, mask, torch.tensor([0, 0]))
    parts = [float((rows * part).sum()) for rows, part in zip(whole.split(1), losses.split(1), strict=True)]
    assert sum(parts) == pytest.approx(float((whole * losses).sum()))
    if name == "token_mean":
        assert sum(parts) == pytest.approx(7 / 4)


def test_constant_takes_the_envs_longest_episode():
    mask = torch.ones(2, 4).bool()
    found = build("aggregation", {"part": "constant"}, max_steps=10)(mask, torch.arange(2), torch.float64)
    torch.testing.assert_close(found, torch.full((2, 4), 1 / 20).double())
    with pytest.raises(UserError, match=r"no longest episode; set aggregation\.constant\.length=N"):
        build("aggregation", {"part": "constant"}, max_steps=None)


def test_constant_writes_the_length_that_it_takes_into_its_formula():
    assert build("aggregation", {"part": "constant"}, max_steps=10).formula == "c = m / (B 10)"
    given = build("aggregation", {"part": "constant", "length": 8}, max_steps=10)
    assert given.formula.format_map({"length": 8}) == "c = m / (B 8)"


def test_coefficients_have_the_dtype_asked_for():
    for name in EXPECTED:
        node = {"part": name, **({"length": 8} if name == "constant" else {})}
        aggregation = build("aggregation", node, max_steps=None)
        assert aggregation(LONG_AND_SHORT, torch.arange(2), torch.float32).dtype == torch.float32

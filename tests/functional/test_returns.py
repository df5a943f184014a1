"""Discounts that differ from row to row, against loops written here."""

import pytest
import torch
from torch import Tensor

from rlfw import functional as F

# Rows with gaps, as observation tokens leave them; right-padded rows; a row without any step.
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 0, 0, 1], [1, 0, 1, 1, 0], [1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]).bool()


def close(found: Tensor, expected: object, tolerance: float = 1e-12) -> None:
    torch.testing.assert_close(found.double(), torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def test_a_discount_a_row():
    x, discount = random(5, 5), torch.tensor([0.9, 0.5, 0.0, 1.0, 0.3]).double()
    expected = torch.zeros(5, 5).double()
    for row in range(5):
        following = 0.0
        for t in reversed(range(5)):
            if MASK[row, t]:
                following = float(x[row, t] + discount[row] * following)
                expected[row, t] = following
    close(F.discounted_sum(x, MASK, discount), expected)


@pytest.mark.parametrize("T", [1, 2, 7, 64, 600])
def test_one_discount_for_all_is_the_same_for_each(T: int):
    x, mask = random(3, T), torch.ones(3, T).bool()
    for discount in (0.0, 0.95, 1.0):
        each = F.discounted_sum(x, mask, torch.full((3,), discount, dtype=torch.float64))
        close(each, F.discounted_sum(x, mask, discount), 1e-9)


def test_gae_with_a_lambda_a_row_is_gae_of_each_row():
    rewards, values, bootstrap = random(5, 5), random(5, 6, seed=1), torch.tensor([True, False, True, False, True])
    lambdas = torch.tensor([0.0, 0.5, 0.9, 1.0, 0.7]).double()
    found = F.gae(rewards, values, MASK, bootstrap, 0.9, lambdas)
    for row in range(5):
        one = slice(row, row + 1)
        alone = F.gae(rewards[one], values[one], MASK[one], bootstrap[one], 0.9, float(lambdas[row]))
        close(found[one], alone)


@pytest.mark.parametrize(("n", "expected"), [(40, 0.5), (100, 0.8), (1000, 0.98), (20, 0), (10, 0), (1, 0), (0, 0)])
def test_lambda_grows_with_the_length(n: int, expected: float):
    close(F.adaptive_lambda(torch.tensor([n]).double(), 0.05), [expected])


def test_powers_of_lambda_sum_to_a_share_of_the_row():
    """sum_k lambda^k = 1 / (1 - lambda) = alpha n."""
    lam = F.adaptive_lambda(torch.tensor([200.0]).double(), 0.05)
    close((lam ** torch.arange(5000)).sum(), 0.05 * 200, 1e-9)

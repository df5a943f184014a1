"""Entropies and log-probs against published values and torch.distributions; samples against probabilities."""

import math

import numpy as np
import pytest
import torch
from gymnasium import spaces
from torch import distributions as td

from rlfw.errors import UserError
from rlfw.policies.distributions import Bernoulli, Categorical, DiagGaussian, MultiCategorical, distribution


def gaussian(log_std):
    made = DiagGaussian(len(log_std))
    made.log_std.data = torch.tensor(log_std)
    return made


def twin(made, outputs):
    """The same distribution as torch has it, with log-probs summed over the action's dimensions."""
    if isinstance(made, Categorical):
        return [td.Categorical(logits=outputs)]
    if isinstance(made, MultiCategorical):
        return [td.Categorical(logits=part) for part in outputs.split(made.sizes, -1)]
    if isinstance(made, Bernoulli):
        return [td.Bernoulli(logits=outputs[..., a]) for a in range(made.width)]
    return [td.Normal(outputs[..., a], made.log_std[a].exp()) for a in range(made.width)]


ALL = [Categorical(5), MultiCategorical([2, 3, 4]), Bernoulli(3), gaussian([0.3, -1.0, 0.0])]


@pytest.mark.parametrize("made", ALL, ids=lambda made: type(made).__name__)
def test_logprobs_and_entropy_are_torchs(made):
    rng = np.random.default_rng(0)
    outputs = torch.from_numpy(rng.normal(0, 2, size=(7, 4, made.width)).astype(np.float32))  # [K, N, W]
    actions = torch.from_numpy(made.mode(outputs.numpy() + made.noise(rng, (7, 4))))
    logprobs, entropy = made.score(outputs, actions, True)
    columns = [actions] if isinstance(made, Categorical) else actions.unbind(-1)
    twins = twin(made, outputs)
    expected = sum(
        t.log_prob(a.float() if isinstance(made, Bernoulli) else a) for t, a in zip(twins, columns, strict=True)
    )
    torch.testing.assert_close(logprobs, expected, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(entropy, sum(t.entropy() for t in twins).expand(7, 4), rtol=1e-5, atol=1e-5)


def test_published_numbers():
    for made, shape, nats in [
        (Categorical(2), (1,), 0.693147),
        (Categorical(3), (1,), 1.098612),
        (DiagGaussian(1), (1, 1), 1.418939),
        (DiagGaussian(3), (1, 3), 3 * 1.418939),
        (Bernoulli(2), (1, 2), 2 * 0.693147),
        (MultiCategorical([2, 3]), (1, 2), 0.693147 + 1.098612),
    ]:
        actions = torch.zeros(shape, dtype=torch.float32 if isinstance(made, DiagGaussian) else torch.int64)
        entropy = made.score(torch.zeros(1, made.width), actions, True)[1].item()
        assert entropy == pytest.approx(nats, abs=3e-6)
    logprob, _ = DiagGaussian(3).score(torch.zeros(1, 3), torch.zeros(1, 3))
    assert logprob.item() == pytest.approx(-2.756816, abs=1e-6)


def test_an_impossible_action_costs_no_nan():
    outputs = torch.tensor([[0.0, -1e8]], requires_grad=True)
    logprob, entropy = Categorical(2).score(outputs, torch.tensor([0]), True)
    (logprob + entropy).sum().backward()
    assert float(logprob) == 0
    assert float(entropy) == 0
    assert bool(outputs.grad.isfinite().all())


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_large_outputs_give_finite_bits(size):
    logprob, entropy = Bernoulli(1).score(torch.full((1, 1), size), torch.tensor([[1]]), True)
    assert float(logprob) == (0 if size > 0 else size)
    assert float(entropy) == 0


@pytest.mark.parametrize("made", ALL[:3], ids=lambda made: type(made).__name__)
def test_samples_come_as_often_as_their_probability(made):
    n, rng = 40_000, np.random.default_rng(3)
    outputs = rng.normal(0, 1, made.width).astype(np.float32)
    actions = made.mode(outputs + made.noise(rng, (n,)))
    columns = [actions] if isinstance(made, Categorical) else list(actions.T)
    for column, t in zip(columns, twin(made, torch.from_numpy(outputs)), strict=True):
        probs = t.probs.reshape(-1).numpy()
        probs = np.array([1 - probs[0], probs[0]]) if isinstance(made, Bernoulli) else probs
        found = np.bincount(column, minlength=len(probs)) / n
        assert np.abs(found - probs).max() < 4 * 0.5 / math.sqrt(n)  # four standard errors at most


def test_gaussian_samples_have_the_right_moments():
    made, n = gaussian([0.5, -0.5]), 40_000
    actions = made.mode(np.array([1.0, -2.0], np.float32) + made.noise(np.random.default_rng(4), (n,)))
    assert actions.dtype == np.float32
    std = np.exp([0.5, -0.5])
    assert np.abs(actions.mean(0) - [1, -2]).max() < 4 * std.max() / math.sqrt(n)
    np.testing.assert_allclose(actions.std(0), std, rtol=4 / math.sqrt(2 * n))


def test_modes():
    assert Categorical(3).mode(np.array([[0.0, 2.0, 1.0]])).tolist() == [1]
    assert MultiCategorical([2, 3]).mode(np.array([[0.0, 1.0, 5.0, 4.0, 3.0]])).tolist() == [[1, 0]]
    assert Bernoulli(2).mode(np.array([[-0.1, 0.1]])).tolist() == [[0, 1]]
    assert DiagGaussian(2).mode(np.array([[-0.1, 0.1]], np.float32)).tolist() == [[np.float32(-0.1), np.float32(0.1)]]


def test_the_space_chooses():
    assert isinstance(distribution(spaces.Discrete(3, start=1), ""), Categorical)
    assert distribution(spaces.MultiDiscrete([[2, 3], [4, 5]]), "").width == 14
    assert distribution(spaces.MultiBinary([2, 3]), "").width == 6
    assert distribution(spaces.Box(-1, 1, ()), "").width == 1
    assert distribution(spaces.Box(-1, 1, (2, 3)), "").width == 6
    with pytest.raises(UserError, match=r"policy=mlp: actions in Tuple.* are not supported"):
        distribution(spaces.Tuple([spaces.Discrete(2)]), "policy=mlp")

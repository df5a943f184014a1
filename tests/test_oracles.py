"""Expected gradients, exact: every outcome is enumerated, nothing is sampled.

A bandit's outcome is a row of one step. A batch that holds each arm as often as its probability says makes a mean over
rows an expectation; d loss / d logits follows from the probed d loss / d log-probs.
"""

import itertools
import math

import pytest
import torch
from torch import Tensor

import rlfw


def close(found: Tensor, expected: object, tolerance: float = 1e-6) -> None:
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=torch.float64), rtol=0, atol=tolerance)


def expected_gradient(
    overrides: list[str], policy: list[float], reference: list[float], old: list[float] | None = None
) -> tuple[Tensor, dict]:
    """E[d loss / d logits] of a softmax policy under zero rewards, and the metrics. Tenths are exact.

    The samples come from the ``old`` policy; without one, from the policy itself.
    """
    old = policy if old is None else old
    arms = torch.tensor([arm for arm, p in enumerate(old) for _ in range(round(10 * p))])  # ten rows
    p, q = torch.tensor(policy).double(), torch.tensor(reference).double()
    logprobs = p.log()[arms][:, None]
    probed = rlfw.probe(
        ["algorithm=reinforce", "aggregation=token_mean", *overrides],
        **{"rewards": [0.0] * 10, "mask": torch.ones(10, 1), "group": [0] * 10},
        **{"logprobs": logprobs, "old_logprobs": torch.tensor(old).double().log()[arms][:, None]},
        ref_logprobs=q.log()[arms][:, None],
    )
    score = torch.eye(len(policy)).double()[arms] - p  # [10, arms] d log p(arm) / d logits
    return (probed.gradient * score).sum(0), probed.metrics


def kl_in_loss(estimator: str, coef: float = 1) -> list[str]:
    force = ["regularizer.kl.force=true"] * (estimator == "k1")
    return ["regularizer=kl", f"regularizer.kl.coef={coef}", f"regularizer.kl.estimator={estimator}", *force]


def unbiased(estimator: str) -> list[str]:
    return ["regularizer=kl", "regularizer.kl.coef=1", f"regularizer.kl.estimator={estimator}", UNBIASED]


UNBIASED = "regularizer.kl.unbiased=true"
KL_IN_REWARD = ["reward=kl", "reward.kl.coef=1"]


@pytest.mark.parametrize(
    ("overrides", "gradient"),
    [
        (KL_IN_REWARD, (0.177933, -0.177933)),
        (kl_in_loss("k1"), (0, 0)),
        (kl_in_loss("k2"), (0.177933, -0.177933)),
        (kl_in_loss("k3"), (0.2, -0.2)),
        (kl_in_loss("abs"), (0.42, -0.42)),
        (kl_in_loss("k3+"), (0.177933, -0.177933)),
        (unbiased("k1"), (0.177933, -0.177933)),
        (unbiased("k3"), (0.177933, -0.177933)),
        ([*KL_IN_REWARD, "reward.kl.coef=3"], (0.533798, -0.533798)),
        (kl_in_loss("k2", 3), (0.533798, -0.533798)),
    ],
)
def test_kl_gradient_of_two_arms(overrides: list[str], gradient: tuple[float, ...]):
    """KL(pi || ref) has the gradient (.177933, -.177933).

    k1 as reward, k2 and k3+ as loss give it, and k1 and k3 with the ratio's gradient; the others do not.
    """
    close(expected_gradient(overrides, [0.7, 0.3], [0.5, 0.5])[0], gradient)


@pytest.mark.parametrize(
    ("overrides", "gradient"),
    [
        (KL_IN_REWARD, (0.320702, -0.082466, -0.238236)),
        (kl_in_loss("k1"), (0, 0, 0)),
        (kl_in_loss("k2"), (0.320702, -0.082466, -0.238236)),
        (kl_in_loss("k3"), (0.3, 0, -0.3)),
        (kl_in_loss("k3+"), (0.320702, -0.082466, -0.238236)),
        (unbiased("k1"), (0.320702, -0.082466, -0.238236)),
        (unbiased("k3"), (0.320702, -0.082466, -0.238236)),
    ],
)
def test_kl_gradient_of_three_arms(overrides: list[str], gradient: tuple[float, ...]):
    close(expected_gradient(overrides, [0.5, 0.3, 0.2], [0.2, 0.3, 0.5])[0], gradient)


@pytest.mark.parametrize("old", [[0.7, 0.3], [0.5, 0.5], [0.2, 0.8]])
@pytest.mark.parametrize("estimator", ["k1", "k3"])
def test_unbiased_kl_is_exact_off_policy_too(estimator: str, old: list[float]):
    gradient, metrics = expected_gradient(unbiased(estimator), [0.7, 0.3], [0.5, 0.5], old)
    close(gradient, [0.177933, -0.177933])
    assert metrics["loss/kl_avg"] == pytest.approx(0.082283, abs=1e-6)


@pytest.mark.parametrize("estimator", ["k2", "k3", "k3+"])
def test_kl_without_the_ratio_is_biased_off_policy(estimator: str):
    gradient, _ = expected_gradient(kl_in_loss(estimator), [0.7, 0.3], [0.5, 0.5], [0.2, 0.8])
    assert abs(float(gradient[0]) - 0.177933) > 0.05


@pytest.mark.parametrize(
    ("estimator", "gradient"),
    [
        ("k1", -0.2),  # that of KL(old || pi), pi - old, exactly
        ("k3", -0.2),
        ("k2", 0.5 * (0.7 * math.log(5 / 7) - 0.3 * math.log(5 / 3))),  # E_old[log(pi / old) grad log pi]
        ("abs", -0.5),
    ],
)
def test_kl_to_the_old_policy_has_the_gradient_of_the_forward_kl(estimator: str, gradient: float):
    """Samples from old = (.7, .3), pi = (.5, .5); k1 needs no force, for its gradient is no expectation under pi."""
    overrides = ["regularizer=kl_old", f"regularizer.kl_old.estimator={estimator}"]
    found, metrics = expected_gradient(overrides, [0.5, 0.5], [0.9, 0.1], [0.7, 0.3])
    close(found, [gradient, -gradient])
    if estimator in ("k1", "k3"):
        kl = 0.7 * math.log(0.7 / 0.5) + 0.3 * math.log(0.3 / 0.5)
        assert metrics["loss/kl_old_avg"] == pytest.approx(kl)
        assert metrics["policy/approxkl_avg"] == pytest.approx(kl)


@pytest.mark.parametrize(
    ("policy", "reference", "expected"),
    [
        ([0.7, 0.3], [0.5, 0.5], {"k1": 0.082283, "k2": 0.078766, "k3": 0.082283, "k3+": 0.082283, "abs": 0.388778}),
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5], {"k1": 0.274887, "k2": 0.293856, "k3": 0.274887}),
    ],
)
def test_expected_values_of_kl_estimators(policy: list[float], reference: list[float], expected: dict[str, float]):
    for estimator, value in expected.items():
        _, metrics = expected_gradient(kl_in_loss(estimator), policy, reference)
        assert metrics["loss/kl_avg"] == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize(
    "overrides", [KL_IN_REWARD, *(kl_in_loss(estimator) for estimator in ("k2", "k3", "k3+", "abs"))]
)
def test_kl_to_itself_has_no_gradient(overrides: list[str]):
    close(expected_gradient(overrides, [0.7, 0.3], [0.7, 0.3])[0], [0, 0], 1e-15)


# ------------------------------------------------------------------------------------------------ group baselines


def expected_policy_gradient(
    overrides: list[str], size: int, p: float = 0.3, shift: float = 0, **given: object
) -> float:
    """E[gradient of the objective] in the logit of a two-armed bandit with rewards 1 + shift and shift.

    All outcomes of a group of ``size`` lie in one batch, a group each, weighted by their probability afterwards.
    """
    outcomes = torch.tensor(list(itertools.product([0.0, 1.0], repeat=size))).double()  # [2^G, G] successes
    probability = (outcomes * p + (1 - outcomes) * (1 - p)).prod(1)  # [2^G]
    flat = outcomes.reshape(-1)
    logprobs = (flat * math.log(p) + (1 - flat) * math.log(1 - p))[:, None]
    probed = rlfw.probe(
        ["algorithm=reinforce", "aggregation=token_sum", *overrides],
        **{"rewards": flat + shift, "mask": torch.ones(len(flat), 1), "logprobs": logprobs, "old_logprobs": logprobs},
        group=torch.arange(len(outcomes)).repeat_interleave(size),
        **given,
    )
    score = flat - p  # d log p(outcome) / d logit
    rows = (-probed.gradient[:, 0] * score).reshape(outcomes.shape)
    return float((probability * rows.mean(1)).sum())


def group_std(ddof: int) -> list[str]:
    return [
        "baseline=group_mean",
        "normalize=group_std",
        f"normalize.group_std.ddof={ddof}",
        "normalize.group_std.eps=0",
    ]


MAX_RL = ["baseline=group_mean", "normalize=group_mean"]
UNCENTRED_MAX_RL = ["baseline=constant", "normalize=group_mean"]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["baseline=none"], {2: 0.21, 4: 0.21, 8: 0.21}),
        (["baseline=constant", "baseline.constant.value=0.4"], {2: 0.21, 4: 0.21, 8: 0.21}),
        (["baseline=leave_one_out"], {2: 0.21, 4: 0.21, 8: 0.21}),
        (["baseline=group_mean"], {2: 0.105, 4: 0.1575, 8: 0.18375}),
        (["baseline=length_weighted"], {2: 0.105, 4: 0.1575, 8: 0.18375}),
        (group_std(1), {2: 0.148492, 4: 0.297275, 8: 0.385551}),
        (group_std(0), {2: 0.21, 4: 0.343264, 8: 0.412172}),
        (MAX_RL, {2: 0.21, 4: 0.459900, 8: 0.642352}),
        (UNCENTRED_MAX_RL, {2: 0.357, 4: 0.531930, 8: 0.659646}),
    ],
)
def test_policy_gradient_of_group_baselines(overrides: list[str], expected: dict[int, float]):
    """dJ/dlogit = p (1 - p) = .21. Leave-one-out is unbiased, the group's mean scales by (G-1)/G, its std differs."""
    for size, value in expected.items():
        assert expected_policy_gradient(overrides, size) == pytest.approx(value, abs=1e-6)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
@pytest.mark.parametrize(("overrides", "lost"), [(MAX_RL, 1), (UNCENTRED_MAX_RL, 0)])
def test_max_rl_follows_the_logarithm_up_to_the_order_of_the_group(overrides: list[str], lost: int, p: float):
    """d log p / dlogit = (1 - p) sum_k (1 - p)^k p, cut off after T = G - 1 terms, or after G without the centre."""
    for size in (2, 5):
        expected = (1 - (1 - p) ** (size - lost)) / p * p * (1 - p)
        assert expected_policy_gradient(overrides, size, p) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_the_best_of_a_group_follows_pass_at_the_groups_size(p: float):
    """d(1 - (1 - p)^G) / dlogit is G (1 - p)^(G - 1) p (1 - p); each row carries a G-th of it."""
    for size in (2, 5):
        found = expected_policy_gradient(["baseline=best_of_group"], size, p)
        assert found == pytest.approx(p * (1 - p) ** size, abs=1e-12)


@pytest.mark.parametrize("greedy", [0.0, 1.0])
def test_a_greedy_return_leaves_the_expected_gradient(greedy: float):
    found = expected_policy_gradient(["baseline=greedy"], 4, greedy_returns=[greedy] * 64)
    assert found == pytest.approx(0.21, abs=1e-12)


@pytest.mark.parametrize("p", [0.1, 0.5, 0.8])
def test_group_mean_scales_the_true_gradient(p: float):
    for size in (2, 5):
        assert expected_policy_gradient(["baseline=leave_one_out"], size, p) == pytest.approx(p * (1 - p), abs=1e-12)
        found = expected_policy_gradient(["baseline=group_mean"], size, p)
        assert found == pytest.approx(p * (1 - p) * (size - 1) / size, abs=1e-12)


@pytest.mark.parametrize(
    "overrides",
    [
        *[["baseline=none"], ["baseline=leave_one_out"], ["baseline=group_mean"], ["baseline=best_of_group"]],
        *[["baseline=ema"], group_std(1)],
    ],
)
def test_constant_added_to_rewards_leaves_the_expected_gradient(overrides: list[str]):
    found = expected_policy_gradient(overrides, 4, shift=5)
    assert found == pytest.approx(expected_policy_gradient(overrides, 4), abs=1e-12)


# ------------------------------------------------------------------------------------------------ REINFORCE


def test_reinforce_is_the_log_prob_gradient_times_the_return_to_go():
    generator = torch.Generator().manual_seed(0)
    rewards = torch.randn(3, 4, generator=generator, dtype=torch.float64)
    logprobs = -torch.rand(3, 4, generator=generator, dtype=torch.float64)
    lengths, gamma = [4, 2, 1], 0.9
    mask = torch.arange(4) < torch.tensor(lengths)[:, None]
    expected = torch.zeros(3, 4).double()
    for row, length in enumerate(lengths):
        for t in range(length):
            G = sum(gamma ** (k - t) * float(rewards[row, k]) for k in range(t, length))
            expected[row, t] = -G / 3  # three rows; -grad of (1/B) sum_t log pi_t G_t
    steps = {"rewards": rewards, "mask": mask, "group": [0, 1, 2]}
    probed = rlfw.probe(["algorithm=reinforce", f"gamma={gamma}"], logprobs=logprobs, old_logprobs=logprobs, **steps)
    close(probed.gradient, expected, 1e-12)
    close(probed.loss, (expected * logprobs).sum(), 1e-12)


def test_clip_stops_the_weights_where_the_plain_ratio_runs_on():
    """A bandit, one sample of each of two arms, advantages +1 and -1, lr 1, four epochs from equal logits.

    With d the difference of the logits: the clip holds it at 1 from the first epoch on; the plain ratios 2 p and
    2 (1 - p) give d + 4 p (1 - p), and the log-probs of REINFORCE d + 1 every time.
    """

    def train(overrides: list[str]) -> list[float]:
        logits, found = torch.zeros(2).double(), []
        old = logits.log_softmax(0)[:, None]
        for _ in range(4):
            p = logits.softmax(0)
            probed = rlfw.probe(
                ["algorithm=ppo", "baseline=none", "normalize=none", *overrides],
                **{"rewards": [1, -1], "mask": [[1], [1]], "group": [0, 0]},
                **{"logprobs": p.log()[:, None], "old_logprobs": old},
            )
            logits = logits - (probed.gradient * (torch.eye(2).double() - p)).sum(0)
            found.append(float(logits.softmax(0)[0]))
        return found

    def sigmoid(d: float) -> float:
        return 1 / (1 + math.exp(-d))

    plain = [0.0]
    for _ in range(4):
        plain.append(plain[-1] + 4 * sigmoid(plain[-1]) * (1 - sigmoid(plain[-1])))
    assert train(["regularizer=clip"]) == pytest.approx([sigmoid(1)] * 4)
    assert train(["regularizer=none"]) == pytest.approx([sigmoid(d) for d in plain[1:]])
    assert train(["regularizer=none", "ratio=none"]) == pytest.approx([sigmoid(d) for d in (1, 2, 3, 4)])

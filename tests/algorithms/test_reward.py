"""The reward pipeline: KL per step, clipping, weights of named reward functions, and their order."""

import pytest
import torch

import rlfw

MASK = torch.tensor([[1, 1, 1], [1, 0, 0]]).bool()
ZEROS = torch.zeros(2, 3).double()


def returns(overrides: list[str], rewards: object, **given: object) -> torch.Tensor:
    """Each step's reward, as the return to go at gamma 0 says it."""
    words = ["baseline=none", "normalize=none", "ratio=none", "regularizer=none", "gamma=0", *overrides]
    found = rlfw.probe(
        words, rewards=rewards, mask=MASK, group=[0, 0], **{"logprobs": ZEROS, "old_logprobs": ZEROS, **given}
    )
    return found.advantages


def expect(found: torch.Tensor, expected: object) -> None:
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64))


GAP = {  # old - reference = 0, -1, -2 and 2; the behaviour policy is another one
    "old_logprobs": [[-1.0, -2, -3], [-1, 9, 9]],
    "ref_logprobs": [[-1.0, -1, -1], [-3, 0, 0]],
    "behaviour_logprobs": [[-5.0, -6, -7], [-8, 0, 0]],
}


@pytest.mark.parametrize(("estimator", "kl"), [("k1", [[0, -1, -2], [2, 0, 0]]), ("k2", [[0, 0.5, 2], [2, 0, 0]])])
def test_kl_comes_off_every_step(estimator: str, kl: list[list[float]]):
    words = ["reward=kl", "reward.kl.coef=0.1", f"reward.kl.estimator={estimator}"]
    rewards = torch.tensor([0.0, 7]).double()  # on each row's last step
    expect(returns(words, rewards, **GAP), (torch.tensor([[0, 0, 0], [7, 0, 0]]) - 0.1 * torch.tensor(kl)).tolist())


def test_shaped_reward_is_reported_apart_from_the_score():
    found = rlfw.probe(
        ["baseline=none", "normalize=none", "regularizer=none", "reward=kl", "reward.kl.coef=0.5"],
        **{"rewards": [1.0], "mask": [[1, 1]], "group": [0], "logprobs": [[0.0, 0]]},
        **{"old_logprobs": [[0.0, 0]], "ref_logprobs": [[-1.0, -1]]},
    ).metrics
    assert found["objective/rlhf_reward"] == pytest.approx(1 - 0.5 * 2)
    assert found["objective/non_score_reward"] == pytest.approx(-0.5 * 2)
    assert found["objective/kl"] == pytest.approx(2)  # nats a sequence


def test_clip_holds_every_step_within_the_limit():
    words = ["reward=clip", "reward.clip.limit=2"]
    expect(returns(words, [[3, -5, 1], [2.5, 9, 9]]), [[2, -2, 1], [2, 0, 0]])


def test_stages_act_in_the_order_listed():
    """3 clipped to 2 and 1 taken off, or 1 taken off and then clipped."""
    given = {"old_logprobs": ZEROS, "ref_logprobs": ZEROS - 1}
    keys = ["reward.clip.limit=2", "reward.kl.coef=1"]
    assert float(returns(["reward=[clip,kl]", *keys], [[0, 0, 3], [3, 0, 0]], **given)[0, 2]) == 1
    assert float(returns(["reward=[kl,clip]", *keys], [[0, 0, 3], [3, 0, 0]], **given)[0, 2]) == 2


def test_weights_of_named_reward_functions():
    scores = {"right": [1.0, 0.0], "short": [0.5, 4.0], "unused": [9.0, 9.0]}
    words = ["reward=weighted", "reward.weighted.weights={right: 2, short: -1}"]
    expect(returns(words, scores), [[0, 0, 1.5], [-4, 0, 0]])
    expect(returns(["reward=none"], scores), [[0, 0, 10.5], [13, 0, 0]])  # the sum of all


def test_unknown_and_missing_weights_are_refused():
    with pytest.raises(rlfw.UserError, match="no reward function wrong; there are right"):
        returns(["reward=weighted", "reward.weighted.weights={wrong: 1}"], {"right": [1, 0]})
    with pytest.raises(rlfw.UserError, match="it scores nothing by name"):
        returns(["reward=weighted", "reward.weighted.weights={wrong: 1}"], [1, 0])
    with pytest.raises(rlfw.UserError, match=r"reward\.weighted\.weights is empty"):
        returns(["reward=weighted"], {"right": [1, 0]})


@pytest.mark.parametrize(
    ("part", "key", "value"), [("kl", "coef", -1), ("kl", "estimator", "k4"), ("clip", "limit", 0)]
)
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"reward\.{part}\.{key}={value}"):
        rlfw.build("reward", {"part": part, key: value})

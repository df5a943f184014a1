"""The reward pipeline: per step, on the last step, from named reward functions, with memory; and its order."""

import json
import math
from typing import Any

import pytest
import torch

import rlfw
from rlfw import registry
from rlfw.rollout import Batch

registry.load_components()

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
    ("part", "key", "value"),
    [
        *[("kl", "coef", -1), ("kl", "estimator", "k4"), ("clip", "limit", 0)],
        *[("overlong", "coef", -1), ("overlong", "cache", 0), ("overlong", "length", 0), ("overlong", "cache", 101)],
        *[("missing_eos", "penalty", -1), ("running_scale", "eps", -1)],
        *[("decoupled", "ddof", 2), ("decoupled", "eps", -1)],
    ],
)
def test_wrong_values_are_refused(part: str, key: str, value: object):
    with pytest.raises(rlfw.UserError, match=rf"reward\.{part}\.{key}={value}"):
        rlfw.build("reward", {"part": part, key: value}, max_steps=100)


# ------------------------------------------------------------------------------------------------ on the last step


def row_rewards(overrides: list[str], lengths: list[int], **given: object) -> list[float]:
    """What a row's last step gets; all other steps stay as they are, 0."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    zeros = torch.zeros(mask.shape).double()
    words = ["baseline=none", "normalize=none", "ratio=none", "regularizer=none", "gamma=0", *overrides]
    given = {"rewards": [0.0] * len(lengths), "group": [0] * len(lengths), **given}
    found = rlfw.probe(words, mask=mask, logprobs=zeros, old_logprobs=zeros, **given).advantages
    last = [found[row, length - 1].item() if length else 0 for row, length in enumerate(lengths)]
    assert float(found.abs().sum()) == pytest.approx(sum(map(abs, last)))
    return last


LENGTHS = [80, 85, 90, 100, 110, 1, 0]


@pytest.mark.parametrize("cache", [["reward.overlong.cache=20"], []])
@pytest.mark.parametrize("coef", [1.0, 0.5])
def test_overlong_rows_lose_ever_more_and_then_no_more(cache: list[str], coef: float):
    """L 100 and C 20, which is the default too: 0 up to 80, then linear, -1 from 100 on."""
    words = ["reward=overlong", "reward.overlong.length=100", f"reward.overlong.coef={coef}", *cache]
    expected = [coef * penalty for penalty in (0, -0.25, -0.5, -1, -1, 0, 0)]
    assert row_rewards(words, LENGTHS) == pytest.approx(expected)


def test_overlong_length_is_the_longest_row_that_the_env_allows():
    part = rlfw.build("reward", {"part": "overlong", "cache": 4}, max_steps=10)
    assert part.formula.format_map({"coef": 1.0}) == "ρ_T ← ρ_T - 1.0 clip((n - 6) / 4, 0, 1)"
    with pytest.raises(rlfw.UserError, match=r"no longest episode; set reward\.overlong\.length=N"):
        rlfw.build("reward", {"part": "overlong"}, max_steps=None)


def test_rows_that_do_not_end_by_themselves_lose_the_penalty():
    words = ["reward=missing_eos", "reward.missing_eos.penalty=2"]
    ends = {"truncated": [True, False, False, True], "terminated": [False, True, False, False]}
    assert row_rewards(words, [3, 3, 2, 0], rewards=[1.0, 1, 1, 1], **ends) == [-1, 1, 1, 0]


# ------------------------------------------------------------------------------------------------ named functions

NO_EPS = ["reward=decoupled", "reward.decoupled.eps=0"]
TWO = {"right": [1.0, 0, 0, 0], "long": [0.0, 10, 10, 0]}  # of quite different scale


def test_every_function_counts_by_its_own_spread():
    """z-scores 1.5, -.5, -.5, -.5 and -.866, .866, .866, -.866; the sum of the raw rewards would favour the long."""
    expected = [0.633975, 0.366025, 0.366025, -1.366025]
    assert row_rewards(NO_EPS, [1] * 4, rewards=TWO) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (
            [*NO_EPS, "baseline=constant", "normalize=whiten", "normalize.whiten.eps=0"],
            [0.689551, 0.398113, 0.398113, -1.485776],
        ),
        (
            [*NO_EPS, "baseline=batch_mean", "normalize=batch_std", "normalize.batch_std.of=advantages"],
            [0.689551, 0.398113, 0.398113, -1.485776],
        ),
        (
            ["baseline=group_mean", "normalize=group_std", "normalize.group_std.eps=0"],
            [-0.772727, 0.863636, 0.863636, -0.954545],
        ),
    ],
)
def test_normalising_before_the_sum_turns_the_sign(words: list[str], expected: list[float]):
    """The only right answer is pushed up where each function is standardised first, and down where the sum is."""
    eps = ["normalize.batch_std.eps=0"] * ("normalize=batch_std" in words)
    assert row_rewards([*words, *eps], [1] * 4, rewards=TWO) == pytest.approx(expected, abs=1e-6)


def test_named_functions_alone_count_with_their_weights():
    words = [*NO_EPS, "reward.decoupled.weights={long: -2}"]
    expected = [2 * 0.866025, -2 * 0.866025, -2 * 0.866025, 2 * 0.866025]
    assert row_rewards(words, [1] * 4, rewards=TWO) == pytest.approx(expected, abs=1e-5)


@pytest.mark.parametrize(("ddof", "expected"), [(0, 1), (1, math.sqrt(0.5))])
def test_the_groups_of_a_function_are_apart(ddof: int, expected: float):
    words = [*NO_EPS, f"reward.decoupled.ddof={ddof}"]
    found = row_rewards(words, [1, 2, 3, 1], rewards={"a": [0, 100, 1, 300]}, group=[0, 1, 0, 1])
    assert found == pytest.approx([-expected, -expected, expected, expected])


def test_a_function_without_an_opinion_leaves_the_row_out():
    """Of a's opinions 3 and 1 remain, of b's one alone: nothing to compare."""
    nan = math.nan
    words = [*NO_EPS, "reward.decoupled.ddof=0"]
    scores = {"a": [3.0, nan, 1, nan], "b": [nan, 5.0, nan, nan]}
    assert row_rewards(words, [1] * 4, rewards=scores) == pytest.approx([1, 0, -1, 0])


def test_a_row_without_steps_has_no_opinion():
    words = [*NO_EPS, "reward.decoupled.ddof=0"]
    assert row_rewards(words, [1, 2, 0], rewards={"a": [3.0, 1, 50]}) == pytest.approx([1, -1, 0])


def test_equal_opinions_are_no_signal():
    words = [*NO_EPS, "reward.decoupled.eps=1e-6"]
    assert row_rewards(words, [1] * 3, rewards={"a": [0.1, 0.1, 0.1]}) == [0, 0, 0]


def test_functions_that_are_not_there_are_refused():
    with pytest.raises(rlfw.UserError, match="reward=decoupled: env=probe has no reward function wrong"):
        row_rewards(["reward=decoupled", "reward.decoupled.weights={wrong: 1}"], [1] * 4, rewards=TWO)
    with pytest.raises(rlfw.UserError, match="reward=decoupled reads reward functions by name and env=probe has none"):
        row_rewards(["reward=decoupled"], [1] * 4)
    with pytest.raises(rlfw.UserError, match="reward=decoupled replaces the rewards"):
        row_rewards(["reward=[clip,decoupled]"], [1] * 4, rewards=TWO)


# ------------------------------------------------------------------------------------------------ memory


def rollout(rewards: list[list[float]]) -> Batch:
    """Rows as long as the longest."""
    given = torch.tensor(rewards, dtype=torch.float64)
    rows, no = torch.arange(len(given)), torch.zeros(len(given), dtype=torch.bool)
    return Batch(
        **{"context": None, "actions": None, "logprobs": torch.zeros_like(given), "rewards": given},
        **{"mask": torch.ones_like(given).bool(), "terminated": ~no, "truncated": no, "group": rows, "episode": rows},
    )


def scaled(part: Any, rewards: list[list[float]]) -> list[list[float]]:
    return part(rollout(rewards)).tolist()


def test_rewards_are_divided_by_the_deviation_of_all_totals_so_far():
    """Totals 1 and 3 have the deviation 1; with 5 and 7 it is that of 1, 3, 5, 7: sqrt(5)."""
    part = rlfw.build("reward", {"part": "running_scale", "eps": 0.0})
    assert scaled(part, [[0, 1], [2, 1]]) == [[0, 1], [2, 1]]
    assert part.report() == {"reward/scale": 1}
    second = scaled(part, [[5, 0], [3, 4]])
    assert second[0] == pytest.approx([5 / math.sqrt(5), 0])
    assert second[1] == pytest.approx([3 / math.sqrt(5), 4 / math.sqrt(5)])
    assert part.report() == {"reward/scale": pytest.approx(math.sqrt(5))}


def test_eps_is_added_to_the_deviation():
    assert scaled(rlfw.build("reward", {"part": "running_scale", "eps": 1.0}), [[1], [3]]) == [[0.5], [1.5]]


@pytest.mark.parametrize("value", [0.0, 0.1, 1 / 3])
def test_rewards_stay_as_they_are_until_two_totals_differ(value: float):
    part = rlfw.build("reward", {"part": "running_scale"})
    for rows in (3, 1, 7):
        assert scaled(part, [[value]] * rows) == [[value]] * rows


def test_rows_without_steps_are_not_counted():
    words = ["reward=running_scale", "reward.running_scale.eps=0"]
    assert row_rewards(words, [1, 1, 0], rewards=[1.0, 5.0, 0.0]) == [0.5, 2.5, 0]


def test_the_scale_goes_on_from_a_checkpoint():
    one, two = (rlfw.build("reward", {"part": "running_scale"}) for _ in range(2))
    scaled(one, [[0.1], [0.7], [0.2]])
    two.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert two.report() == one.report() != {"reward/scale": 1}
    assert scaled(two, [[0.3], [9]]) == scaled(one, [[0.3], [9]])


@pytest.mark.parametrize("name", registry.names("reward"))
def test_every_formula_can_be_filled(name: str):
    keys = {key: default for key, (_, default) in registry.entry("reward", name).keys.items()}
    keys |= {"weights": {"a": 0.125}} if "weights" in keys else {}
    formula = rlfw.build("reward", {"part": name, **keys}, max_steps=10).formula.format_map(keys)
    assert formula.startswith(("ρ_t ← ", "ρ_T ← "))
    assert "None" not in formula
    assert ("0.125" in formula) == ("weights" in keys)

"""What reward functions are given and how often they are called; what is said of one that fails or takes too long."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import pytest
import torch

from rlfw.context import Prompts
from rlfw.envs.reward_functions import RewardFunctions
from rlfw.envs.text import Example
from rlfw.errors import RunError, UserError
from rlfw.interfaces import Completions

EXAMPLES = [Example("p0", "a0", {"level": 5}), Example("p1", "a1", {"level": 6}), Example("p2", "a2", {"level": 7})]
WRITTEN = Completions(
    context=Prompts(torch.zeros(3, 1, dtype=torch.long), torch.ones(3, dtype=torch.long), torch.arange(3)),
    ids=torch.tensor([[7, 8, 1], [9, 1, 0], [7, 7, 7]]),
    logprobs=torch.zeros(3, 3),
    mask=torch.tensor([[1, 1, 1], [1, 1, 0], [1, 1, 1]], dtype=torch.bool),
    ended=torch.tensor([True, True, False]),
    texts=["xy", "z", "xxx"],
)


def score(functions, workers=1, timeout=None, weights=None):
    rewards = RewardFunctions(functions, weights or {}, EXAMPLES[0], "env=toy", workers, timeout)
    try:
        scores, total = rewards(EXAMPLES, WRITTEN)
    finally:
        rewards.close()
    return {name: values.tolist() for name, values in scores.items()}, total.tolist()


def test_a_function_of_one_completion_is_called_with_the_values_of_its_row():
    seen = []

    def one(prompt, completion, answer, ids, finish, level):
        seen.append((prompt, completion, answer, ids, finish, level))
        return level

    assert score(one) == ({"one": [5.0, 6.0, 7.0]}, [5.0, 6.0, 7.0])
    assert seen == [
        ("p0", "xy", "a0", [7, 8, 1], "stop", 5),
        ("p1", "z", "a1", [9, 1], "stop", 6),
        ("p2", "xxx", "a2", [7, 7, 7], "length", 7),
    ]


def test_a_function_of_all_completions_is_called_once_with_lists():
    seen = []

    def every(prompts, completions, answers, ids, finish, level):
        seen.append((prompts, completions, answers, ids, finish, level))
        return level

    assert score(every)[1] == [5.0, 6.0, 7.0]
    assert seen == [
        (
            ["p0", "p1", "p2"],
            ["xy", "z", "xxx"],
            ["a0", "a1", "a2"],
            [[7, 8, 1], [9, 1], [7, 7, 7]],
            ["stop", "stop", "length"],
            [5, 6, 7],
        )
    ]


def test_a_function_with_any_keyword_gets_all_of_its_kind():
    seen = {}

    def one(completion, **more):
        seen["one"] = {*more}
        return 0

    def every(**more):
        seen["every"] = {*more}
        return [0, 0, 0]

    score([one, every])
    assert seen == {
        "one": {"prompt", "answer", "ids", "finish", "level"},
        "every": {"prompts", "completions", "answers", "ids", "finish", "level"},
    }


async def soon(completion, level):
    """The later rows are done first."""
    await asyncio.sleep(0.01 * (8 - level))
    return len(completion)


async def soon_together(completions):
    await asyncio.sleep(0)
    return [None, 1, 2]


def plain(completion):
    return None if completion == "z" else 10


@pytest.mark.parametrize(("workers", "timeout"), [(1, None), (2, None), (16, 20.0)])
def test_threads_and_limits_change_no_value(workers, timeout):
    scores, total = score([soon, soon_together, plain], workers, timeout, {"plain": 0.5})
    assert scores["soon"] == [2, 1, 3]
    assert scores["soon_together"][1:] == [1, 2]
    assert scores["plain"][::2] == [10, 10]
    assert total == [2 + 5, 1 + 1, 3 + 2 + 5]


def fails(completion):
    return 1 / (completion != "z")


async def fails_soon(completion):
    await asyncio.sleep(0)
    return fails(completion)


def fails_somewhere(completions):
    return [fails(completion) for completion in completions]


@pytest.mark.parametrize("function", [fails, fails_soon, fails_somewhere])
@pytest.mark.parametrize("workers", [1, 4])
def test_a_failure_names_function_and_sample(function, workers):
    with pytest.raises(RunError) as error:
        score([plain, function], workers)
    name = function.__name__
    assert str(error.value) == (
        f"env=toy: the reward function {name} raised ZeroDivisionError('division by zero') for the completion 'z' of "
        "the prompt 'p1'"
    )


@pytest.mark.parametrize("workers", [1, 4])
def test_a_call_that_takes_too_long_names_function_and_sample(workers):
    forever = threading.Event()

    def judge(completion):
        return float(completion != "z" or forever.wait(60))

    with pytest.raises(RunError) as error:
        score([plain, judge], workers, 0.5)
    assert str(error.value) == (
        "env=toy: the reward function judge took longer than timeout=0.5 s for the completion 'z' of the prompt 'p1'"
    )
    forever.set()


def test_a_call_of_all_completions_that_takes_too_long_says_the_remedy():
    async def judge(completions):
        await asyncio.sleep(60)

    with pytest.raises(RunError, match=r"judge took longer .* for 3 completions together; one that takes prompt and"):
        score(judge, 1, 0.1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda completion, answers: 0, "asks for completion and answers: it is called once a completion with prompt"),
        (lambda prompt, completions: 0, "asks for prompt and completions"),
        (lambda completion, colour: 0, "asks for colour; there are prompt, completion, ids, finish, answer, level"),
        (lambda completions, colour: 0, "asks for colour; there are prompts, completions, ids, finish, answers, level"),
        (lambda completion, /: 0, "takes completion by position; it is called by keyword: take the / away"),
        (lambda: 0, "asks for nothing that there is: name completion, completions or others"),
        (lambda *everything: 0, "asks for nothing that there is"),
        (lambda colour=3: 0, "asks for nothing that there is"),
        (lambda completion: (yield 1), "yields; it returns its number, or the list of them"),
        (max, "has no signature to be called by: wrap it"),
    ],
)
def test_a_signature_that_cannot_be_met_is_refused(function, message):
    with pytest.raises(UserError, match=r"the reward function (reward|max)") as error:
        score(function)
    assert message in str(error.value)


async def asynchronous(completion):
    yield 1


class Judge:
    async def __call__(self, completions):
        yield [1]


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (asynchronous, "asynchronous yields"),
        (Judge(), "Judge yields"),
        (partial(asynchronous), "partial yields"),
        (Judge, r"Judge is a class: give an object of it, Judge\(\)"),
    ],
)
def test_generators_and_classes_are_no_reward_functions(function, message):
    with pytest.raises(UserError, match=f"the reward function {message}"):
        score(function)


@pytest.mark.parametrize(
    ("limits", "message"),
    [((0, None), "workers=0: it must be at least 1"), ((1, 0.0), "timeout=0.0"), ((1, float("inf")), "timeout=inf")],
)
def test_limits_that_cannot_be_are_refused(limits, message):
    with pytest.raises(UserError, match=message):
        score(plain, *limits)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("1", "gave '1' for the completion 'xy'"),
        (float("inf"), "gave inf for the completion 'xy'"),
        ([1], r"gave \[1\]"),
    ],
)
def test_what_is_no_number_is_named_with_its_sample(value, message):
    with pytest.raises(RunError, match=message):
        score(lambda completion: value)

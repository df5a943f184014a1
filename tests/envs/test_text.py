"""Text tasks: what reward functions see, what their values become, which rows form a group."""

import math

import numpy as np
import pytest
import torch

from rlfw import functional as F
from rlfw.envs.text import Example, TextEnv, TextTask
from rlfw.errors import RunError, UserError
from rlfw.interfaces import EpisodeGroups, Steps
from rlfw.policies.causal_lm import CausalLM
from rlfw.registry import build, load_components, register
from rlfw.rollout import Batch
from rlfw.seeding import Streams


def make(streams=None, **task) -> tuple[TextEnv, CausalLM]:
    """An env of these prompts and rewards with a small random policy."""
    task = {"prompts": ["ab", "ba", "abab"], "rewards": zero, "max_new_tokens": 5} | task
    streams = streams or Streams(0)
    env = TextEnv(streams, TextTask(**task), name="toy")
    config = {"initializer_range": 0.3}
    return env, CausalLM(env.spec, streams, hidden_size=16, num_layers=1, num_heads=2, config=config)


def collect(env: TextEnv, policy: CausalLM, num=8, size=4):
    return env.collect(EpisodeGroups(num, size), policy.actor(Streams(1))).check("toy")


def zero(completions):
    return [0.0] * len(completions)


def fixed(*values):
    """A reward function that gives these values, whatever was written."""

    def f(completions):
        return list(values)

    return f


# ---------------------------------------------------------------------------------------------------- rollouts


def test_a_rollout_has_one_row_a_completion_and_its_reward_on_the_last_step():
    env, policy = make(rewards=lambda completions: [1.0 + len(c) for c in completions])
    rollout = collect(env, policy)
    lengths = rollout.mask.sum(1)
    for b, sample in enumerate(rollout.samples):
        last = int(lengths[b]) - 1
        assert rollout.rewards[b, last] == 1.0 + len(sample["completion"]) == sample["reward"]
        assert rollout.rewards[b].sum() == rollout.rewards[b, last]
        assert sample["finish"] == ("stop" if rollout.terminated[b] else "length")
        assert (rollout.actions[b, last] == 1) == rollout.terminated[b]
    assert torch.equal(rollout.truncated, ~rollout.terminated)
    assert torch.equal(rollout.episodes.returns, rollout.rewards.sum(1))
    assert torch.equal(rollout.episodes.lengths, lengths)
    assert rollout.spent == 8
    assert env.unit == "completions"


def test_every_prompt_asked_is_a_group_whatever_its_text():
    env, policy = make(prompts=["ab", "ab"], answers=["a", "b"])
    first, second = collect(env, policy), collect(env, policy)
    assert first.group.tolist() == [0] * 4 + [1] * 4
    assert second.group.tolist() == [2] * 4 + [3] * 4
    assert torch.cat([first.episode, second.episode]).tolist() == list(range(16))
    assert len(first.context.ids) == 1  # computed once all the same


def test_steps_are_refused_with_the_remedy():
    env, policy = make()
    with pytest.raises(UserError, match="sampler=episodes"):
        env.collect(Steps(2, 2), policy.actor(Streams(0)))


def test_prompts_stay_with_their_answers_over_epochs_groups_and_a_resume():
    letters = "abcdefghij"
    seen = []

    def reward(prompts, completions, answers, number):
        seen.extend(zip(prompts, answers, number, strict=True))
        return [0.0] * len(completions)

    task = {"prompts": list(letters), "answers": list(letters), "columns": {"number": list(range(10))}}
    env, policy = make(rewards=reward, **task)
    for _ in range(3):
        collect(env, policy, num=16)
    state = env.state_dict()
    for _ in range(5):
        collect(env, policy, num=16)
    assert all(p == a == letters[n] for p, a, n in seen)
    asked = [p for p, _, _ in seen][::4]
    assert all(asked[i // 4] == p for i, (p, _, _) in enumerate(seen))
    for epoch in range(3):  # 32 prompts: three epochs and a bit
        assert sorted(asked[10 * epoch : 10 * epoch + 10]) == list(letters)
    assert len({tuple(asked[10 * epoch : 10 * epoch + 10]) for epoch in range(3)}) == 3

    again, _ = make(rewards=reward, **task)
    again.load_state_dict(state)
    seen.clear()
    for _ in range(5):
        collect(again, policy, num=16)
    assert [p for p, _, _ in seen][::4] == asked[12:]


def test_prompts_do_not_depend_on_the_size_of_the_rollouts():
    one, policy = make()
    other, _ = make()
    small = [s["prompt"] for _ in range(3) for s in collect(one, policy, num=8).samples]
    assert small == [s["prompt"] for s in collect(other, policy, num=24).samples]


def test_drawn_prompts_are_a_function_of_seed_and_number():
    class Drawn(TextTask):
        def draw(self, rng):
            return Example("ab" * int(rng.integers(1, 4)), "a", {"n": 1})

    def build_env():
        return TextEnv(Streams(5), Drawn(rewards=zero, alphabet="ab", max_prompt_chars=6, max_new_tokens=3))

    env, again = build_env(), build_env()
    policy = CausalLM(env.spec, Streams(0), hidden_size=16, num_layers=1, num_heads=2)
    first = [s["prompt"] for _ in range(4) for s in collect(env, policy).samples]
    assert len(set(first)) == 3
    again.load_state_dict({"num_asked": 4})
    assert [s["prompt"] for _ in range(2) for s in collect(again, policy).samples] == first[16:]


def test_evaluation_changes_nothing_in_training():
    env, policy = make(rewards={"one": lambda completions: [1.0] * len(completions), "zero": zero})
    undisturbed, _ = make()
    found = env.evaluate(policy.actor(Streams(7)), 5, Streams(8))
    assert list(found) == ["score", "one", "zero", "length"]
    assert found["score"] == found["one"] == [1.0] * 5
    assert all(1 <= n <= 5 for n in found["length"])
    assert found == env.evaluate(policy.actor(Streams(9)), 5, Streams(8))  # greedy: no luck involved
    assert [s["prompt"] for s in collect(env, policy).samples] == [
        s["prompt"] for s in collect(undisturbed, policy).samples
    ]


# ---------------------------------------------------------------------------------------------------- greedy


def greedily(policy: CausalLM, prompt: str, room: int) -> str:
    """The most likely characters one after the other, each from a pass over all that stands before it."""
    context, _, _ = policy.encode([(prompt, "")])
    ids = context.ids[0, : int(context.length[0])].tolist()
    start = len(ids)
    for _ in range(room):
        with torch.no_grad():
            token = int(policy.model(input_ids=torch.tensor([ids])).logits[0, -1].argmax())
        if token in policy.eos.tolist():
            break
        ids.append(token)
    return policy.tokenizer.decode(ids[start:], skip_special_tokens=True)


def code(completions):
    """A number that tells completions apart."""
    return [sum((i + 1) * ord(c) for i, c in enumerate(text)) for text in completions]


@pytest.mark.parametrize("seed", [1, 7])  # of these policies the greedy completions differ, in text and in length
def test_the_greedy_return_is_the_reward_of_the_most_likely_completion(seed):
    env, policy = make(Streams(seed), rewards=code)
    rollout = env.collect(EpisodeGroups(6, 2, True), policy.actor(Streams(1))).check("toy")
    prompts = [sample["prompt"] for sample in rollout.samples]
    expected = code([greedily(policy, prompt, 5) for prompt in prompts])
    assert len(set(expected)) > 1
    assert rollout.greedy_returns.tolist() == expected
    assert (rollout.spent, rollout.num_generated, len(rollout.mask)) == (6 + 3, 6, 6)


def test_greedy_completions_leave_the_sampled_ones_as_they_are():
    found = []
    for greedy in (False, True):
        env, policy = make(rewards=code)
        actor = policy.actor(Streams(1))
        found.append([env.collect(EpisodeGroups(4, 2, greedy), actor).check("toy") for _ in range(3)])
    for plain, beside in zip(*found, strict=True):
        assert plain.samples == beside.samples
        for name in ("actions", "logprobs", "rewards", "mask", "group", "episode"):
            assert torch.equal(getattr(plain, name), getattr(beside, name)), name
        assert plain.greedy_returns is None


def test_a_group_whose_greedy_completion_nobody_scores_is_left_out():
    calls = []

    def scorer(completions):
        """The sampled ones get 0, 1, 2, 3, ...; of the greedy ones the first gets nothing, the second 7."""
        calls.append(len(completions))
        return [None, 7.0] if len(completions) == 2 else list(range(len(completions)))

    env, policy = make(rewards=scorer)
    rollout = env.collect(EpisodeGroups(6, 3, True), policy.actor(Streams(1))).check("toy")
    assert calls == [6, 2]
    assert rollout.rewards.sum(1).tolist() == [3, 4, 5]
    assert rollout.greedy_returns.tolist() == [7, 7, 7]
    assert (rollout.spent, rollout.num_generated) == (8, 6)


# ---------------------------------------------------------------------------------------------------- rewards


def test_a_completion_that_nobody_scores_leaves_its_group():
    env, policy = make(rewards=fixed(1, None, 0, math.nan))
    rollout = collect(env, policy, num=4)
    assert rollout.num_generated - len(rollout.mask) == 2
    assert rollout.spent == 4
    assert rollout.group.tolist() == [0, 0]
    assert rollout.episode.tolist() == [0, 2]
    assert F.group_center(rollout.rewards.sum(1), rollout.group).tolist() == [0.5, -0.5]
    assert [s["reward"] for s in rollout.samples] == [1.0, 0.0]


def test_a_function_without_an_opinion_leaves_the_others_weights_alone():
    env, policy = make(rewards={"f": fixed(1, None, 2, None), "g": fixed(0, 1, None, math.nan)})
    rollout = collect(env, policy, num=4)
    assert rollout.rewards.sum(1).tolist() == [1, 1, 2]
    assert rollout.num_generated - len(rollout.mask) == 1
    assert rollout.scores["f"].nan_to_num(-1).tolist() == [1, -1, 2]
    assert rollout.samples[1]["scores"] == {"f": None, "g": 1.0}


def test_weights_multiply_by_name():
    env, policy = make(rewards={"f": fixed(1, 2, 3, 4), "g": fixed(1, 1, 1, 1)}, weights={"f": 0.5})
    assert collect(env, policy, num=4).rewards.sum(1).tolist() == [1.5, 2, 2.5, 3]


@pytest.mark.parametrize(
    "values",
    [
        (1, 0.5, True, np.float32(2)),
        (np.bool_(True), np.int64(1), torch.tensor(0.25), torch.tensor([1.0])),
    ],
)
def test_any_kind_of_number_is_a_reward(values):
    env, policy = make(rewards=fixed(*values))
    assert collect(env, policy, num=4).rewards.sum(1).tolist() == [float(v) for v in values]


@pytest.mark.parametrize("convert", [np.array, torch.tensor, tuple])
def test_any_kind_of_row_of_numbers_is_taken(convert):
    env, policy = make(rewards=lambda completions: convert([1.0, 2.0, 3.0, math.nan]))
    assert collect(env, policy, num=4).rewards.sum(1).tolist() == [1, 2, 3]


def raises(completions):
    return [1 / (c != "") for c in completions]


@pytest.mark.parametrize(
    ("reward", "message"),
    [
        (lambda completions: None, r"returned None; it must return a list of 4 numbers"),
        (lambda completions: "1111", r"returned str '1111'"),
        (lambda completions: 1.0, r"returned float 1.0"),
        (fixed(1, 2, 3), r"returned 3 values for 4 completions"),
        (fixed(1, "1", 0, 0), r"gave '1' for the completion '.*' of the prompt '\w+'"),
        (fixed(1, [1.0], 0, 0), r"gave \[1.0\] for the completion"),
        (fixed(1, 2, math.inf, 0), r"gave inf for the completion"),
        (fixed(None, None, math.nan, None), r"no reward function gave a number for any of 4 completions"),
    ],
)
def test_what_is_no_reward_ends_the_run_and_names_function_and_sample(reward, message):
    env, policy = make(rewards={"mine": reward})
    with pytest.raises(RunError, match=message) as error:
        collect(env, policy, num=4)
    assert "env=toy" in str(error.value)
    assert "mine" in str(error.value) or "no reward function" in str(error.value)


def test_an_exception_names_the_sample_that_raised_it():
    def picky(prompts, completions):
        if "abab" in prompts:
            raise ValueError("too long")
        return [0.0] * len(prompts)

    env, policy = make(rewards=picky)
    with pytest.raises(RunError, match=r"picky raised ValueError\('too long'\) for .* of the prompt 'abab'"):
        collect(env, policy, num=12)


def test_a_constant_reward_gives_exactly_no_advantage():
    load_components()
    normalize = build("normalize", {"part": "group_std"})
    for constant in (0.3, 0.1, 0.35, 0.7, 1 / 3):
        env, policy = make(rewards=lambda completions, c=constant: [c] * len(completions))
        batch = Batch.of(collect(env, policy, num=16, size=8))
        advantages, _ = build("baseline", {"part": "group_mean"}, gamma=1.0)(batch)
        assert (normalize(advantages, batch) == 0).all()


def test_functions_get_what_their_signature_names():
    seen = {}

    def everything(**kwargs):
        seen.update(kwargs)
        return [0.0] * len(kwargs["prompts"])

    def one(completions, flavour, missing=3):
        assert missing == 3
        return [0.0] * len(flavour)

    env, policy = make(rewards=[everything, one], answers=["a", "b", "c"], columns={"flavour": [1, 2, 3]})
    collect(env, policy, num=8)
    assert set(seen) == {"prompts", "completions", "answers", "ids", "finish", "flavour"}
    assert all(len(column) == 8 for column in seen.values())
    assert not any(
        c.startswith(p) and c for p, c in zip(seen["prompts"], seen["completions"], strict=True) if len(p) > 3
    )


def test_completions_hold_no_special_tokens():
    texts = []
    env, policy = make(rewards=lambda completions: [texts.append(c) or 0.0 for c in completions])
    rollout = collect(env, policy, num=64)
    assert len(texts) == 64
    assert rollout.terminated.any()
    assert all(set(text) <= set("ab") for text in texts)


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ({"prompts": []}, "no prompts"),
        ({"prompts": ["a", 3]}, "a prompt is 3"),
        ({"rewards": {"f": 3}}, "cannot be called"),
        ({"rewards": {"score": zero}}, "cannot be called score"),
        ({"rewards": [zero, zero]}, "share a name"),
        ({"rewards": lambda completions, labels: []}, "asks for labels; there are prompts, completions"),
        ({"rewards": lambda completions, answers: []}, "asks for answers; there are prompts, completions"),
        ({"weights": {"zreo": 1.0}}, "did you mean zero"),
        ({"answers": ["a"]}, "1 answers for 3 prompts"),
        ({"columns": {"x": [1]}}, "1 x for 3 prompts"),
        ({"columns": {"prompts": [1, 2, 3]}}, "called prompts"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
    ],
)
def test_a_task_that_cannot_work_is_refused(task, message):
    with pytest.raises(UserError, match=message):
        make(**task)


def test_without_rewards_there_is_a_warm_start_and_no_training():
    env, policy = make(rewards=(), answers=["b", "a", "ab"])
    assert env.fixed_pairs() == list(zip(env.task.prompts, ["b", "a", "ab"], strict=True))
    assert env.samples(policy.actor(Streams(0)), 1, Streams(1))[0].keys() == {
        "prompt",
        "completion",
        "finish",
        "length",
    }
    for asked in (env.check_training, lambda: collect(env, policy)):
        with pytest.raises(UserError, match="has no reward function"):
            asked()


def test_an_env_of_ones_own_is_a_function_of_a_few_lines():
    @register("env", "shout_in_a_test")
    def shout(streams: Streams, *, max_new_tokens: int = 8) -> TextEnv:
        """Prompts that want capitals."""

        def loud(completions: list[str]) -> list[float]:
            return [float(text.isupper()) for text in completions]

        task = TextTask(prompts=["say a", "say b"], rewards=loud, alphabet="AB", max_new_tokens=max_new_tokens)
        return TextEnv(streams, task, name="shout")

    env = build("env", {"part": "shout_in_a_test", "max_new_tokens": 3}, streams=Streams(0))
    assert env.spec.max_steps == 3
    assert set("ABsay ab") == set(env.spec.alphabet)
    policy = CausalLM(env.spec, Streams(0), hidden_size=16, num_layers=1, num_heads=2)
    assert set(collect(env, policy, num=32).scores) == {"loud"}
    assert env.warmup_pairs(4, np.random.default_rng(0)) is None

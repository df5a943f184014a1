"""Whole runs of language models from folders, a GPT-2 (absolute positions, dropout) and a Llama: what must not matter,
and what must be so at the first step, read from what a run writes.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import rlfw
from rlfw.interfaces import TextSpec
from rlfw.policies.causal_lm import CausalLM
from rlfw.seeding import Streams

pytestmark = pytest.mark.medium

LETTERS = "abcdefghij"
EOS = 1
REWARDS = """
import json

def letters(completion):
    return len(set(completion)) / 8

def constant(completion):
    return 0.3

def of_the_prompt(prompt):
    return float("abcdefghij".index(prompt[0]))

def of_the_answer(prompt, answer):
    return float("abcdefghij".index(answer))

def size(completion):
    return float(len(completion))

def stopped(finish):
    return [float(how == "stop") for how in finish]

def asked(prompts, completions, answers, number):
    with open("asked.jsonl", "a") as file:
        for row in zip(prompts, answers, number, completions):
            file.write(json.dumps(row) + "\\n")
    return [float(len(completion)) for completion in completions]
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with prompts of different lengths and reward functions."""
    monkeypatch.chdir(tmp_path)
    write("data.jsonl", ["ab", "cde", "fghijab"])
    Path("text_run_rewards.py").write_text(REWARDS)
    return tmp_path


@pytest.fixture(params=["llama", "gpt2"])
def model(request: pytest.FixtureRequest, here: Path) -> str:
    """A model's folder, its embeddings untied, GPT-2 with its dropout of 0.1."""
    config = {"initializer_range": 0.3, "tie_word_embeddings": False}
    sizes = {"hidden_size": 16, "num_layers": 2, "num_heads": 2}
    CausalLM(TextSpec(LETTERS, 12, 12), Streams(0), architecture=request.param, config=config, **sizes).save(
        here / "model"
    )
    return str(here / "model")


def write(file: str, prompts: list[str], **columns: list[object]) -> None:
    rows = [{"prompt": p, **{name: column[i] for name, column in columns.items()}} for i, p in enumerate(prompts)]
    Path(file).write_text("".join(json.dumps(row) + "\n" for row in rows))


def train(model: str, out: str, *words: str) -> list[dict[str, float]]:
    """The metrics of a run, an iteration each, without those that measure time."""
    given = {
        "algorithm": "grpo",
        "env": "prompts",
        "env.prompts.file": "data.jsonl",
        "env.prompts.rewards": "[letters]",
        "env.prompts.max_new_tokens": "6",
        "plugins": "[text_run_rewards.py]",
        "policy": "causal_lm",
        "policy.causal_lm.path": model,
        "sampler.episodes.num_episodes": "12",
        "sampler.episodes.group_size": "4",
        "optimizer": "sgd",
        "lr": "0.1",
        "iterations": "2",
        "tensorboard": "false",
        "progress": "false",
    } | dict(word.split("=", 1) for word in words)
    rlfw.train([*(f"{key}={value}" for key, value in given.items()), f"out={out}"])
    rows = [json.loads(line) for line in (Path(out) / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in row.items() if not k.startswith(("time", "timing_s", "perf"))} for row in rows]


def samples(out: str) -> list[dict[str, object]]:
    return [json.loads(line) for line in (Path(out) / "samples.jsonl").read_text().splitlines()]


def weights(out: str, iteration: int = -1) -> dict[str, torch.Tensor]:
    folders = sorted((Path(out) / "checkpoints").iterdir())
    return load_file(folders[iteration] / "policy" / "model.safetensors")


def change(model: str, out: str, head: float) -> str:
    """A copy of the model with its head multiplied."""
    found = AutoModelForCausalLM.from_pretrained(model)
    with torch.no_grad():
        found.get_output_embeddings().weight.mul_(head)
    found.save_pretrained(out)
    AutoTokenizer.from_pretrained(model).save_pretrained(out)
    return out


def biased(model: str, eos_logit: float) -> str:
    """A copy that gives the end-of-sequence token ``eos_logit`` and every other one 0, whatever stands before."""
    found = AutoModelForCausalLM.from_pretrained(model)
    named = dict(found.named_parameters())
    with torch.no_grad():
        if found.config.model_type == "gpt2":  # the last norm's bias alone: a hidden state of (1, 0, 0, ...)
            named["transformer.ln_f.weight"].zero_()
            named["transformer.ln_f.bias"].zero_()[0] = 1
        else:  # embeddings (1, 0, 0, ...) that no layer changes, which the last norm makes (4, 0, 0, ...)
            found.get_input_embeddings().weight.zero_()[:, 0] = 1
            for name, weight in named.items():
                if name.endswith(("o_proj.weight", "down_proj.weight")):
                    weight.zero_()
            eos_logit /= 4
        found.get_output_embeddings().weight.zero_()[EOS, 0] = eos_logit
    found.save_pretrained("biased")
    AutoTokenizer.from_pretrained(model).save_pretrained("biased")
    return "biased"


# ------------------------------------------------------------------------------------------------ the first step


@pytest.mark.parametrize("temperature", [0.5, 1.7])
def test_the_first_step_is_on_policy_at_any_temperature(model: str, temperature: float):
    """Ratio 1, KL 0, nothing clipped, reference = policy, and the sampler's log-probs are the update's."""
    row = train(model, "run", f"policy.causal_lm.temperature={temperature}", "iterations=1", "regularizer=[clip,kl]")[0]
    assert row["val/ratio_first_gap"] < 1e-5
    assert row["val/ratio_min"] == pytest.approx(1, abs=1e-5)
    assert row["val/ratio_max"] == pytest.approx(1, abs=1e-5)
    assert row["policy/approxkl_avg"] == pytest.approx(0, abs=1e-9)
    assert row["policy/clipfrac_avg"] == 0
    assert row["objective/kl"] == pytest.approx(0, abs=1e-5)
    assert row["sampling/logp_difference_max"] < 1e-5
    assert row["optim/grad_norm"] > 1e-3


def test_a_temperature_is_a_scaled_head(model: str):
    """T = 0.5, and T = 1 under a head of twice the weights: the same text, loss, entropy, and step of the trunk."""
    scaled = change(model, "scaled", head=2.0)
    words = ["iterations=1", "max_grad_norm=1e9", "regularizer=[clip,kl,entropy]"]
    cold = train(model, "cold", "policy.causal_lm.temperature=0.5", *words)[0]
    plain = train(scaled, "plain", *words)[0]
    assert samples("cold") == samples("plain")
    for name in ("loss/total", "objective/entropy", "objective/kl", "loss/entropy_avg", "response_length/mean"):
        assert cold[name] == pytest.approx(plain[name], abs=1e-5), name
    one, two = weights("cold"), weights("plain")
    start = weights("cold", 0)
    moved = {name: (one[name] - start[name]).abs().max() for name in one if not name.startswith("lm_head")}
    assert max(moved.values()) > 1e-4
    for name in moved:
        torch.testing.assert_close(one[name], two[name], rtol=0, atol=1e-5)


# ------------------------------------------------------------------------------------------------ signals


@pytest.mark.parametrize("rewards", ["constant", "of_the_prompt"])
def test_rewards_that_are_equal_within_a_group_move_nothing(model: str, rewards: str):
    rows = train(model, "run", f"env.prompts.rewards=[{rewards}]", "regularizer=clip", "lr=1")
    assert [row["optim/grad_norm"] for row in rows] == [0, 0]
    start = weights("run", 0)
    assert all(torch.equal(start[name], weight) for name, weight in weights("run").items())


def test_one_prompt_with_two_answers_is_two_groups(model: str):
    """Rewards depend on the answer alone: merged into one group they would give advantages."""
    write("data.jsonl", ["ab", "ab", "ab"], answer=["a", "d", "j"])
    rows = train(model, "run", "env.prompts.rewards=[of_the_answer]", "regularizer=clip")
    assert [row["optim/grad_norm"] for row in rows] == [0, 0]
    assert rows[0]["objective/scores_std"] > 1


@pytest.mark.parametrize("model", ["gpt2"], indirect=True)
def test_micro_batches_do_not_matter(model: str):
    """Under plain SGD, the last one smaller than the others."""
    words = ["num_minibatches=2", "epochs=2", "regularizer=[clip,kl,entropy]", "baseline=critic", "normalize=whiten"]
    whole = train(model, "whole", *words)
    for one, two in zip(whole, train(model, "by4", *words, "micro_batch_rows=4"), strict=True):
        for name in ("loss/total", "optim/grad_norm", "optim/critic_grad_norm", "objective/entropy"):
            assert one[name] == pytest.approx(two[name], abs=1e-5), name
    for name, weight in weights("whole").items():
        torch.testing.assert_close(weights("by4")[name], weight, rtol=0, atol=1e-5)


@pytest.mark.parametrize("keys", [[], ["policy.causal_lm.lora_rank=2"]])
def test_the_reference_is_the_model_that_the_run_began_with(model: str, keys: list[str]):
    """In the third update each row's log-probs under it are those of a plain forward of the folder's model."""
    words = ["iterations=3", "dump=3", "lr=1", "regularizer=[clip,kl,entropy]", "regularizer.entropy.coef=1", *keys]
    rows = train(model, "run", *words)
    assert rows[-1]["objective/kl"] > 1e-3
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(model).eval(), AutoTokenizer.from_pretrained(model)
    expected = []
    for sample in samples("run"):
        if sample["iteration"] == 3 and len(sample["completion"]) == 6:  # cut, and no special token among the six
            prompt, completion = (tokenizer(sample[key])["input_ids"] for key in ("prompt", "completion"))
            ids = torch.tensor([prompt + completion])
            logprobs = plain(ids).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
            expected.append(logprobs.gather(1, ids[0, len(prompt) :, None]).sum().item())
    assert len(expected) > 2
    found = load_file("run/minibatch.safetensors")
    sums = found["ref_logprobs"].sum(1).tolist()
    for row in expected:
        assert min(abs(row - other) for other in sums) < 1e-4


# ------------------------------------------------------------------------------------------------ ends


def test_which_token_pads_does_not_matter(model: str):
    """A token of its own, the one that ends a text, none: the same run."""
    words = ["env.prompts.rewards=[letters,stopped]"]
    found = [train(model, "own", *words)]
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert tokenizer.pad_token_id != tokenizer.eos_token_id
    for name, pad in (("eos", tokenizer.eos_token), ("none", None)):
        tokenizer.pad_token = pad
        tokenizer.save_pretrained(model)
        found.append(train(model, name, *words))
    assert found[0] == found[1] == found[2]
    assert 0 < found[0][-1]["response_length/clip_ratio"] < 1


@pytest.mark.parametrize("model", ["gpt2"], indirect=True)
def test_a_model_whose_end_also_pads_learns_when_to_stop(model: str):
    """Ending is paid for, then length: the first makes completions short, the second long again."""
    tokenizer = AutoTokenizer.from_pretrained(model)
    tokenizer.pad_token = tokenizer.eos_token
    tokenizer.save_pretrained(model)
    words = ["iterations=25", "optimizer=adam", "lr=0.02", "regularizer=clip", "sampler.episodes.num_episodes=24"]
    short = train(model, "short", *words, "env.prompts.rewards=[stopped]", "env.prompts.max_new_tokens=3")
    assert short[0]["response_length/clip_ratio"] > 0.5
    assert short[-1]["response_length/clip_ratio"] < 0.1
    long = train(biased(model, 3.0), "long", *words, "env.prompts.rewards=[size]")
    assert long[0]["response_length/mean"] < 3
    assert long[-1]["response_length/mean"] > 5


def test_completions_of_the_end_alone_have_one_step(model: str):
    rows = train(biased(model, 50.0), "run", "iterations=3", "env.prompts.rewards=[stopped]", "lr=1")
    for row in rows:
        assert row["response_length/min"] == row["response_length/max"] == 1
        assert row["response_length/clip_ratio"] == 0
        assert row["objective/scores"] == 1
        assert all(torch.tensor(value).isfinite() for value in row.values())
    assert {sample["completion"] for sample in samples("run")} == {""}


def test_where_all_is_cut_and_left_out_nothing_is_learned(model: str):
    """No end is put where none was sampled, and a batch without a step left is no update and no NaN."""
    words = ["iterations=3", "weight=[truncated]", "lr=1", "regularizer=clip"]
    rows = train(biased(model, -50.0), "run", *words)
    for row in rows:
        assert row["response_length/clip_ratio"] == 1
        assert row["response_length/min"] == row["response_length/max"] == 6
        assert row["objective/scores_std"] > 0.05
        assert all(torch.tensor(value).isfinite() for value in row.values())
    start = weights("run", 0)
    assert all(torch.equal(start[name], weight) for name, weight in weights("run").items())


# ------------------------------------------------------------------------------------------------ data


def test_every_prompt_keeps_its_answer_over_epochs_and_a_resume(model: str):
    """Ten prompts, three at a time in groups of four, in shuffled minibatches: three epochs and a bit."""
    write("data.jsonl", list(LETTERS), answer=list(LETTERS), number=list(range(10)))
    words = ["env.prompts.rewards=[asked]", "epochs=2", "num_minibatches=2", "env.prompts.max_new_tokens=3"]
    train(model, "run", *words, "iterations=4")
    rlfw.train(["resume=run", "iterations=11", "plugins=[text_run_rewards.py]"])
    asked = [json.loads(line) for line in Path("asked.jsonl").read_text().splitlines()]
    assert len(asked) == 11 * 12
    assert all(prompt == answer == LETTERS[number] for prompt, answer, number, _ in asked)
    prompts = [prompt for prompt, *_ in asked]
    assert all(len(set(prompts[i : i + 4])) == 1 for i in range(0, len(prompts), 4))
    epochs = ["".join(prompts[::4][i : i + 10]) for i in range(0, 30, 10)]
    assert [sorted(epoch) for epoch in epochs] == [list(LETTERS)] * 3
    assert len({LETTERS, *epochs}) == 4  # in another order each time
    written = [(sample["prompt"], sample["completion"], sample["reward"]) for sample in samples("run")]
    assert written == [(prompt, completion, len(completion)) for prompt, _, _, completion in asked]
    assert all(set(completion) <= set(LETTERS) for *_, completion in asked)

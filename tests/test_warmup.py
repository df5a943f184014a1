"""rlfw warmup: the loss is that of the answers, the folder is a model, and what cannot be learned is refused."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

import rlfw
from rlfw import supervised
from rlfw.cli import main
from rlfw.policies.language_models import loaded

pytestmark = pytest.mark.medium

SIZES = ["policy.causal_lm.hidden_size=16", "policy.causal_lm.num_layers=1", "policy.causal_lm.num_heads=2"]
SMALL = ["env=reverse", *SIZES, "progress=false", "warmup.batch_size=8"]
PAIRS = [{"prompt": "2+2=", "answer": "4"}, {"prompt": "say ab", "answer": "ab ab"}, {"prompt": "b?", "answer": "a"}]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write("pairs.jsonl", PAIRS)
    return tmp_path


def write(name: str, rows: list[dict[str, str]]) -> None:
    Path(name).write_text("".join(json.dumps(row) + "\n" for row in rows))


def of_file(name: str, *more: str) -> list[str]:
    words = ["env=prompts", f"env.prompts.file={name}", "env.prompts.max_new_tokens=8", "policy=causal_lm"]
    return [*words, *SIZES, "progress=false", "warmup.steps=2", *more]


def losses(folder: Path) -> list[float]:
    return [json.loads(line)["loss"] for line in (folder / "metrics.jsonl").read_text().splitlines()]


def weights(folder: Path) -> dict[str, Any]:
    return loaded(str(folder))[0].state_dict()


# ------------------------------------------------------------------------------------------------ what it learns


@pytest.mark.usefixtures("here")
def test_it_is_the_warm_start_of_a_run() -> None:
    """The same words give the very weights that rlfw train has before its first iteration."""
    warm = rlfw.warmup([*SMALL, "seed=3", "warmup.steps=4", "out=warm"])
    words = ["algorithm=grpo", "sampler.episodes.num_episodes=8", "iterations=1", "out=run"]
    run = rlfw.train([*SMALL, *words, "seed=3", "warmup.steps=4"])
    one, other = weights(warm), weights(run / "warmup")
    assert one.keys() == other.keys()
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_the_loss_is_that_of_the_completion_alone(here: Path) -> None:
    """In transformers' own words: labels on the answer and its end, -100 on the prompt; the mean in nats a token."""
    write("one.jsonl", PAIRS[1:2])
    warm = rlfw.warmup(of_file("one.jsonl", "warmup.batch_size=1", "warmup.steps=1", "warmup.lr=1e-12", "out=warm"))
    model, tokenizer = loaded(str(warm))
    prompt = tokenizer(PAIRS[1]["prompt"])["input_ids"]
    answer = [*tokenizer(PAIRS[1]["answer"])["input_ids"], tokenizer.eos_token_id]
    ids = torch.tensor([[*prompt, *answer]])
    labels = ids.clone()
    labels[0, : len(prompt)] = -100
    with torch.no_grad():
        expected = model(input_ids=ids, labels=labels).loss.item()
    assert losses(warm) == [pytest.approx(expected, rel=1e-5)]
    assert model.config.vocab_size == 3 + len(set("say ab"))


@pytest.mark.usefixtures("here")
def test_pieces_of_a_batch_have_its_gradient() -> None:
    """A batch of 3 pairs as 2 + 1 is one step of the same loss: answers of 2, 6 and 2 tokens, weighed by tokens."""
    found = [
        rlfw.warmup(of_file("pairs.jsonl", "warmup.batch_size=3", "warmup.steps=3", *more, f"out={name}"))
        for name, more in (("whole", []), ("pieces", ["micro_batch_rows=2"]))
    ]
    assert losses(found[0]) == pytest.approx(losses(found[1]), rel=1e-4)
    whole, pieces = (weights(folder) for folder in found)
    for name in whole:
        torch.testing.assert_close(whole[name], pieces[name], rtol=1e-3, atol=1e-4)


@pytest.mark.usefixtures("here")
def test_a_few_pairs_are_learned_by_heart(capsys: pytest.CaptureFixture[str]) -> None:
    more = ["warmup.steps=120", "warmup.lr=1e-2", "out=warm"]
    assert main(["warmup", *of_file("pairs.jsonl", *more)]) == 0
    printed = capsys.readouterr()
    assert printed.out == "warm\n"
    found = losses(Path("warm"))
    vocabulary = 3 + len(set("2+=4say b?"))
    assert found[0] == pytest.approx(math.log(vocabulary), rel=0.1)  # random weights say nothing
    assert found[-1] < 0.05
    said = rlfw.sample("warm", [pair["prompt"] for pair in PAIRS], greedy=True)
    assert [record["completion"] for record in said] == [pair["answer"] for pair in PAIRS]
    assert {record["finish"] for record in said} == {"stop"}


# ------------------------------------------------------------------------------------------------ the folder


@pytest.mark.usefixtures("here")
def test_the_folder_is_a_model_that_transformers_loads_and_a_run_starts_from() -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    warm = rlfw.warmup([*SMALL, "warmup.steps=3", "seed=5", "out=warm"])
    model, tokenizer = AutoModelForCausalLM.from_pretrained(warm), AutoTokenizer.from_pretrained(warm)
    assert tokenizer.decode(tokenizer("r:abc=")["input_ids"]) == "r:abc="
    run = rlfw.train(
        ["algorithm=grpo", "env=reverse", "policy.causal_lm.path=warm", "warmup.steps=0", "lr=0", "progress=false"]
        + ["sampler.episodes.num_episodes=8", "iterations=1", "out=run"]
    )
    after = weights(run / "checkpoints" / "00000001" / "policy")
    assert all(torch.equal(tensor, after[name]) for name, tensor in model.state_dict().items())
    assert json.loads((warm / "status.json").read_text())["state"] == "done"
    assert "overrides" in json.loads((warm / "provenance.json").read_text())
    cfg = OmegaConf.load(warm / "warmup.yaml")
    assert (cfg.seed, cfg.warmup.steps, cfg.overrides[-1]) == (5, 3, "out=warm")
    assert not (warm / ".partial").exists()


@pytest.mark.usefixtures("here")
def test_an_adapter_is_merged_into_the_model() -> None:
    pytest.importorskip("peft")
    rlfw.warmup([*SMALL, "warmup.steps=2", "out=warm"])
    words = ["env=reverse", "policy.causal_lm.path=warm", "policy.causal_lm.lora_rank=2", "progress=false"]
    tuned = rlfw.warmup([*words, "warmup.steps=3", "warmup.lr=0.05", "out=tuned"])
    before, after = weights(Path("warm")), weights(tuned)
    assert before.keys() == after.keys()
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    assert moved
    assert all("proj" in name for name in moved)
    assert rlfw.sample(tuned, ["r:abc="])  # from the adapter, on the model that it was trained on


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupt_saves_what_was_learned(number: signal.Signals, code: int, here: Path) -> None:
    words = [*SMALL, "warmup.steps=1000000", "out=warm"]
    process = subprocess.Popen([sys.executable, "-m", "rlfw.cli", "warmup", *words], stderr=subprocess.PIPE, text=True)
    metrics = here / "warm" / "metrics.jsonl"
    until = time.monotonic() + 60
    while not (metrics.is_file() and metrics.read_text().count("\n") >= 3) and time.monotonic() < until:
        time.sleep(0.05)
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=60)
    assert process.returncode == code
    assert "of 1000000 steps and saved" in err
    status = json.loads((here / "warm" / "status.json").read_text())
    assert (status["state"], status["signal"]) == ("interrupted", number)
    assert status["steps"] == len(losses(here / "warm")) >= 3
    assert len(rlfw.sample(here / "warm", ["r:abc="])) == 1


def test_a_loss_that_is_no_number_ends_it_and_names_what_is_kept(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    backward = supervised._backward
    calls = iter(range(10))

    def failing(*given: Any) -> float:
        return math.nan if next(calls) == 3 else backward(*given)

    monkeypatch.setattr(supervised, "_backward", failing)
    assert main(["warmup", *SMALL, "warmup.steps=6", "out=warm"]) == 1
    err = capsys.readouterr().err
    assert "the loss of step 4 of the warm start is nan: lower warmup.lr; warm holds the model of step 3" in err
    assert len(losses(here / "warm")) == 3
    assert json.loads((here / "warm" / "status.json").read_text())["state"] == "failed"


# ------------------------------------------------------------------------------------------------ what is refused


@pytest.mark.parametrize(
    ("rows", "words", "message"),
    [
        ([{"prompt": "a"}], [], "has no answers to learn from"),
        ([{"prompt": "a", "answer": "b" * 9}], [], "or raise max_new_tokens"),
        ([{"prompt": "a", "answer": "b<eos>a"}], [], "has the token that ends a completion within"),
        (PAIRS, ["warmup.steps=0"], "there is nothing to do: give warmup.steps=N"),
        (PAIRS, ["warmup.lr=-1"], "warmup.lr=-1.0: it must be greater than 0"),
        (PAIRS, ["algorithm=grpo"], "algorithm has no effect on a warm start"),
        (PAIRS, ["regularizer.clip.high=0.2"], "regularizer has no effect on a warm start"),
        (PAIRS, ["resume=x"], "resume has no effect on a warm start"),
        (PAIRS, ["policy=mlp"], "policy=causal_lm is not chosen"),
        (PAIRS, ["policy.causal_lm.path=nowhere"], "hidden_size has no effect"),
        (PAIRS, ["warmup.step=3"], "did you mean steps?"),
        (PAIRS, ["out=pairs.jsonl"], "is not empty"),
    ],
)
def test_wrong_input_is_refused_before_anything_is_written(
    rows: list[dict[str, str]], words: list[str], message: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write("given.jsonl", rows)
    typed = {word.partition("=")[0] for word in words}
    given = [word for word in of_file("given.jsonl", "out=warm") if word.partition("=")[0] not in typed]
    before = sorted(here.rglob("*"))
    assert main(["warmup", *given, *words]) == 2
    assert message in capsys.readouterr().err
    assert sorted(here.rglob("*")) == before


@pytest.mark.usefixtures("here")
def test_an_env_without_text_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["warmup", "env=cartpole", "warmup.steps=1", "out=warm"]) == 2
    assert "env=CartPole-v1 has no answers to learn from" in capsys.readouterr().err


@pytest.mark.usefixtures("here")
def test_each_pair_needs_room_for_its_own_answer_alone() -> None:
    """12 + 9 tokens and 1 + 9 fit into 12 + 9, and so do 1 + 8 and 12 + 1 in one batch."""
    write("ragged.jsonl", [{"prompt": "a" * 12, "answer": "b"}, {"prompt": "a", "answer": "b" * 8}])
    warm = rlfw.warmup(of_file("ragged.jsonl", "env.prompts.max_new_tokens=9", "warmup.batch_size=6", "out=warm"))
    write("ragged.jsonl", [{"prompt": "a" * 12, "answer": "b"}, {"prompt": "a", "answer": "b" * 18}])
    words = [word for word in of_file("ragged.jsonl", "out=more") if "hidden" not in word and "num_" not in word]
    rlfw.warmup([*words, f"policy.causal_lm.path={warm}"])


@pytest.mark.usefixtures("here")
def test_answers_that_a_run_would_cut_are_said(capsys: pytest.CaptureFixture[str]) -> None:
    write("cut.jsonl", [*PAIRS, {"prompt": "a longer prompt", "answer": "a"}])
    warm = of_file("cut.jsonl", "env.prompts.max_new_tokens=5", "out=warm")
    assert main(["warmup", *warm]) == 0
    assert "note: 1 of 4 answers have, with their end, more tokens than the env's max_new_tokens=5" in (
        capsys.readouterr().err
    )


@pytest.mark.usefixtures("here")
def test_the_next_commands_work(capsys: pytest.CaptureFixture[str]) -> None:
    import shlex

    assert main(["warmup", *SMALL, "warmup.steps=1", "out=a model"]) == 0
    line = capsys.readouterr().err.splitlines()[-1]
    sample, train = line.removeprefix("rlfw: next: ").split("  |  ")
    assert main(shlex.split(sample)[1:]) == 0
    small = ["sampler.episodes.num_episodes=8", "iterations=1", "progress=false", "out=run"]
    assert main([*shlex.split(train)[1:], *small]) == 0

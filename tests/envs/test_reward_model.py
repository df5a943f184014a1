"""A reward model: its loss, what it scores, and that training it on preferences ranks pairs it never saw."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

import pytest
import torch

from rlfw.envs.reward_model import RewardModel
from rlfw.envs.train_reward_model import bradley_terry, main
from rlfw.errors import UserError
from rlfw.policies.tokenizer import character_tokenizer


def classifier(folder: Path, outputs: int = 1, layers: int = 1, **config) -> Path:
    """A Llama over the letters of the tests, untrained."""
    from transformers import LlamaConfig, LlamaForSequenceClassification

    tokenizer = character_tokenizer("abcdefgh:=")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_attention_heads": 2, "num_hidden_layers": layers}
    keys = {"vocab_size": len(tokenizer), "max_position_embeddings": 24, "pad_token_id": 0, "num_labels": outputs}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = LlamaForSequenceClassification(LlamaConfig(**sizes, **keys, initializer_range=0.2, **config))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def scores_alone(folder: Path, texts: list[str]) -> list[float]:
    """By transformers itself, a text at a time, without padding."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    with torch.no_grad():
        return [model(torch.tensor([tokenizer(text)["input_ids"]])).logits.item() for text in texts]


def test_the_loss_is_that_of_bradley_and_terry():
    chosen, rejected = torch.tensor([0.0, 2.0, -1.0]), torch.tensor([0.0, 0.0, 1.0])
    expected = [
        math.log(2),
        -math.log(math.exp(2) / (math.exp(2) + 1)),
        -math.log(math.exp(-1) / (math.exp(-1) + math.e)),
    ]
    assert bradley_terry(chosen, rejected).tolist() == pytest.approx(expected)
    assert bradley_terry(torch.tensor([-1e4]), torch.tensor([0.0])).item() == 1e4


def test_padding_batches_and_order_change_no_score(tmp_path: Path):
    folder = classifier(tmp_path / "rm")
    prompts = ["r:ab=", "c:hgfedc=", "r:ab=", "s:a="] * 3
    completions = ["ba", "h", "ba", "aaaaaaaa"] * 3
    expected = scores_alone(folder, [p + c for p, c in zip(prompts, completions, strict=True)])
    assert len({round(score, 4) for score in expected}) == 3
    for size in (1, 2, 64):
        assert RewardModel(folder, batch_size=size)(prompts, completions) == pytest.approx(expected, abs=1e-5)


def test_equal_completions_have_equal_scores_to_the_last_bit(tmp_path: Path):
    scores = RewardModel(classifier(tmp_path / "rm"), batch_size=2)(["ab="] * 5, ["a", "h", "a", "abcdefgh", "a"])
    assert scores[0] == scores[2] == scores[4]


def test_what_is_too_long_loses_its_beginning(tmp_path: Path):
    folder = classifier(tmp_path / "rm")
    model = RewardModel(folder)
    long = "abcdefgh" * 5
    assert model([long], ["ab"]) == pytest.approx(scores_alone(folder, [(long + "ab")[-24:]]), abs=1e-5)


def preferences(file: Path, num: int, seed: int) -> Path:
    """The completion with more a is preferred."""
    rng = random.Random(seed)
    with file.open("w") as out:
        while num:
            texts = ["".join(rng.choices("abcd", k=rng.randint(4, 8))) for _ in range(2)]
            counts = [text.count("a") for text in texts]
            if counts[0] == counts[1]:
                continue
            better, worse = texts if counts[0] > counts[1] else texts[::-1]
            out.write(json.dumps({"prompt": "r:ab=", "chosen": better, "rejected": worse}) + "\n")
            num -= 1
    return file


@pytest.mark.medium
def test_after_training_it_ranks_pairs_that_it_never_saw(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    base = classifier(tmp_path / "base")
    before = (base / "model.safetensors").read_bytes()
    pairs, others = preferences(tmp_path / "pairs.jsonl", 400, 0), preferences(tmp_path / "others.jsonl", 200, 1)
    words = [str(pairs), "--model", str(base), "--lr", "3e-3", "--epochs", "5", "--batch-size", "32"]
    assert main([*words, "--eval", str(others), "--out", str(tmp_path / "rm")]) == 0
    found = json.loads((tmp_path / "rm" / "training.json").read_text())
    assert found["losses"][0] > 0.6
    assert found["accuracy"] > 0.95
    assert f"accuracy {found['accuracy']:.4g}" in capsys.readouterr().out
    assert (base / "model.safetensors").read_bytes() == before

    model = RewardModel(tmp_path / "rm")  # from its folder, as a reward
    rows = [json.loads(line) for line in others.read_text().splitlines()]
    right = [
        a > b
        for a, b in zip(
            model([row["prompt"] for row in rows], [row["chosen"] for row in rows]),
            model([row["prompt"] for row in rows], [row["rejected"] for row in rows]),
            strict=True,
        )
    ]
    assert sum(right) / len(right) == pytest.approx(found["accuracy"], abs=0.006)

    assert main([*words, "--out", str(tmp_path / "again")]) == 0  # the same words, the same model
    assert (tmp_path / "again" / "model.safetensors").read_bytes() == (
        tmp_path / "rm" / "model.safetensors"
    ).read_bytes()


def test_a_causal_model_gets_a_head(tmp_path: Path):
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = character_tokenizer("abcdefgh:=")
    keys = {"vocab_size": len(tokenizer), "hidden_size": 8, "intermediate_size": 8, "num_attention_heads": 1}
    LlamaForCausalLM(LlamaConfig(**keys, num_hidden_layers=1, pad_token_id=0)).save_pretrained(tmp_path / "lm")
    tokenizer.save_pretrained(tmp_path / "lm")
    pairs = preferences(tmp_path / "pairs.jsonl", 2, 0)
    assert main([str(pairs), "--model", str(tmp_path / "lm"), "--out", str(tmp_path / "rm")]) == 0
    assert len(RewardModel(tmp_path / "rm")(["ab"], ["c"])) == 1
    with pytest.raises(UserError, match=r"is no trained reward model: weights are missing, e.g. score.weight"):
        RewardModel(tmp_path / "lm")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": "a", "chosen": "b"}', "has no column rejected; there are prompt, chosen"),
        ('{"prompt": "a", "chosen": "b", "rejected": "b"}', "line 1: chosen and rejected are the same"),
        ('{"prompt": "a", "chosen": "b", "rejected": 3}', "line 1: the rejected is 3; it must be text"),
        ("", "has no rows"),
    ],
)
def test_pairs_that_cannot_be_are_refused(
    content: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    (tmp_path / "pairs.jsonl").write_text(content + "\n")
    assert main([str(tmp_path / "pairs.jsonl"), "--model", "x", "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_is_no_reward_model_is_refused(tmp_path: Path):
    with pytest.raises(UserError, match="there is no such folder; models are read from disk, never downloaded"):
        RewardModel("someone/model")
    with pytest.raises(UserError, match="has 3 outputs; a reward model has one"):
        RewardModel(classifier(tmp_path / "three", outputs=3))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match="cannot load it as a sequence classifier"):
        RewardModel(tmp_path / "empty")


def test_a_folder_that_holds_something_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    pairs = preferences(tmp_path / "pairs.jsonl", 2, 0)
    assert main([str(pairs), "--model", "x", "--out", str(tmp_path)]) == 2
    assert "is not empty: name another folder" in capsys.readouterr().err

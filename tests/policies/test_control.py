"""mlp and cnn: what acts is what scores, for every action and observation space; initialisation, critic, files."""

import json
import math

import numpy as np
import pytest
import torch
from gymnasium import spaces

from rlfw.context import Observations
from rlfw.errors import UserError
from rlfw.interfaces import ControlSpec, TextSpec
from rlfw.policies.cnn import CNNPolicy
from rlfw.policies.mlp import MLPPolicy, TanhLayers
from rlfw.seeding import Streams

N, K = 3, 5
ACTIONS = {
    "discrete": spaces.Discrete(4),
    "multidiscrete": spaces.MultiDiscrete([2, 3, 4]),
    "multibinary": spaces.MultiBinary(5),
    "box": spaces.Box(-1, 1, (2, 3)),
    "box0": spaces.Box(-1, 1, ()),
}
OBSERVATIONS = {
    "flat": ((6,), "float32"),
    "number": ((), "float32"),
    "matrix": ((2, 3), "float32"),
    "image": ((8, 8, 1), "uint8"),
}
IMAGES = [(8, 8, 1), (8, 8), (3, 3, 2), (1, 1, 1), (20, 30, 3), (36, 36, 3), (84, 84, 4), (4, 84, 84)]


def make(cls=MLPPolicy, observations="flat", actions="discrete", seed=0, **keys):
    shape, dtype = OBSERVATIONS.get(observations, (observations, "uint8"))
    return cls(ControlSpec(shape, dtype, ACTIONS[actions], None), Streams(seed), **keys)


def roused(policy, critic="own"):
    """The policy with a critic, and outputs and biases that are far from their small start."""
    policy.add_critic(critic)
    torch.manual_seed(0)
    for name, parameter in policy.named_parameters():
        if name.endswith("bias") or "weight" not in name or parameter is policy.output.weight:
            parameter.data += 0.3 * torch.randn_like(parameter)
    return policy


def observed(policy, size, seed=0):
    rng = np.random.default_rng(seed)
    shape = (size, *policy.env_spec.observation_shape)
    if policy.env_spec.observation_dtype == "uint8":
        return rng.integers(256, size=shape, dtype=np.uint8)
    return rng.normal(size=shape).astype(np.float32)


def ragged(policy, lengths=(4, 1, 3), seed=0):
    """Observations, actions [B, T(, A)] and mask of rows of these lengths."""
    mask = torch.arange(max(lengths)) < torch.tensor(lengths)[:, None]
    context = Observations(
        torch.from_numpy(observed(policy, sum(lengths), seed)),
        torch.from_numpy(observed(policy, len(lengths), seed + 1)),
        mask,
    )
    actor = policy.actor(Streams(seed))
    flat = torch.from_numpy(np.concatenate([actor.act(x[None].numpy()) for x in context.flat]))
    actions = torch.zeros(*mask.shape, *flat.shape[1:], dtype=flat.dtype)
    actions[mask] = flat
    return context, actions, mask


CASES = [(MLPPolicy, o) for o in OBSERVATIONS] + [(CNNPolicy, "image")]


@pytest.mark.parametrize("actions", ACTIONS)
@pytest.mark.parametrize(("cls", "observations"), CASES)
def test_acting_and_scoring_agree(cls, observations, actions):
    policy = roused(make(cls, observations, actions))
    actor = policy.actor(Streams(1))
    seen = observed(policy, K * N).reshape(K, N, *policy.env_spec.observation_shape)
    taken = np.stack([actor.act(x) for x in seen])
    logprobs = actor.logprobs()
    assert logprobs.shape == (K, N)
    assert logprobs.dtype == np.float32
    space = ACTIONS[actions]
    assert taken.shape == ((K, N) if actions == "discrete" else (K, N, math.prod(space.shape)))
    assert taken.dtype == (np.float32 if actions.startswith("box") else np.int64)
    context = Observations(
        torch.from_numpy(seen.swapaxes(0, 1).reshape(N * K, *seen.shape[2:])), None, torch.ones(N, K) > 0
    )
    scored = policy.score(context, torch.from_numpy(taken.swapaxes(0, 1)), context.mask)
    np.testing.assert_allclose(scored.logprobs.detach().numpy(), logprobs.T, atol=1e-6, rtol=1e-6)


@pytest.mark.parametrize("actions", ACTIONS)
def test_a_tall_policy_samples_its_mode(actions):
    """Sampling and greedy acting agree where the distribution leaves no choice."""
    policy = make(actions=actions)
    policy.output.bias.data = 50.0 * torch.randn(policy.output.bias.shape, generator=torch.Generator().manual_seed(0))
    if actions.startswith("box"):
        policy.distribution.log_std.data.fill_(-20)
    actor, seen = policy.actor(Streams(0)), observed(policy, 7)
    np.testing.assert_allclose(actor.act(seen), actor.act(seen, greedy=True), atol=1e-6)


def test_actions_of_a_seed_depend_on_nothing_else():
    policy, seen = make(), observed(make(), 4)
    torch.manual_seed(1), np.random.seed(1)
    one = [policy.actor(Streams(3)).act(seen).tolist() for _ in range(2)]
    torch.manual_seed(2), np.random.seed(2)
    assert one == [policy.actor(Streams(3)).act(seen).tolist() for _ in range(2)]
    streams = Streams(3)
    long = [policy.actor(streams).act(seen).tolist() for _ in range(20)]
    assert len({tuple(actions) for actions in long}) > 5  # the stream goes on from actor to actor


@pytest.mark.parametrize("cls", [MLPPolicy, CNNPolicy])
def test_an_actor_keeps_the_weights_it_was_made_with(cls):
    policy = roused(make(cls, "image", "box"))
    actor, seen = policy.actor(Streams(0)), observed(policy, 4)
    before = actor.act(seen, greedy=True)
    for parameter in policy.parameters():
        parameter.data.mul_(2)  # in place, as an optimizer over a flat buffer does
    np.testing.assert_array_equal(actor.act(seen, greedy=True), before)
    assert not np.array_equal(policy.actor(Streams(0)).act(seen, greedy=True), before)


# ------------------------------------------------------------------------------------------------ scoring


@pytest.mark.parametrize("critic", ["own", "head"])
@pytest.mark.parametrize(("cls", "observations"), [(MLPPolicy, "flat"), (CNNPolicy, "image")])
def test_padding_and_layout_change_nothing(cls, observations, critic):
    policy = roused(make(cls, observations, "multidiscrete"), critic)
    context, actions, mask = ragged(policy)
    scored = policy.score(context, actions, mask, entropy=True, values=True)
    values = policy.values(context, actions, mask)
    assert values.shape == (3, 5)
    torch.testing.assert_close(values[:, :4], scored.values)
    for x in (scored.logprobs, scored.entropy, scored.values):
        assert bool((x[~mask] == 0).all())
    row, step = mask.nonzero(as_tuple=True)
    alone = policy.score(
        context.steps(row, step), actions[row, step][:, None], torch.ones(8, 1) > 0, entropy=True, values=True
    )
    for name in ("logprobs", "entropy", "values"):
        torch.testing.assert_close(getattr(alone, name)[:, 0], getattr(scored, name)[mask])
    final = policy.values(Observations(context.final, context.final, torch.ones(3, 1) > 0), actions, mask)
    torch.testing.assert_close(final[:, 0], values[:, -1])  # column T is V of the row's own final observation


def test_what_is_not_asked_for_is_not_computed():
    policy = make()
    context, actions, mask = ragged(policy)
    scored = policy.score(context, actions, mask)
    assert scored.entropy is None
    assert scored.values is None


def test_bytes_are_converted_before_any_arithmetic():
    policy = make(MLPPolicy, "image", hidden_sizes=[])
    policy.output.weight.data.fill_(1.0)
    seen = np.full((1, 8, 8, 1), 200, np.uint8)
    expected = 64 * 200 / 255
    assert policy.outputs(torch.from_numpy(seen))[0, 0].item() == pytest.approx(expected, rel=1e-5)
    assert policy.numpy_outputs()(seen)[0, 0] == pytest.approx(expected, rel=1e-5)


# ------------------------------------------------------------------------------------------------ initialisation


def test_initial_weights_are_orthogonal_with_their_gains():
    policy = make(hidden_sizes=[32, 16])
    policy.add_critic("own")
    for body in (policy.body, policy.critic["body"]):
        first, second = (layer.weight for layer in body if isinstance(layer, torch.nn.Linear))
        torch.testing.assert_close(first.T @ first, 2 * torch.eye(6), atol=1e-5, rtol=0)
        torch.testing.assert_close(second @ second.T, 2 * torch.eye(16), atol=1e-5, rtol=0)
    torch.testing.assert_close(policy.output.weight.norm(dim=1), torch.full((4,), 0.01))
    torch.testing.assert_close(policy.critic["output"].weight.norm(), torch.tensor(1.0))
    assert all(bool((p == 0).all()) for name, p in policy.named_parameters() if name.endswith("bias"))


@pytest.mark.parametrize(
    ("actions", "nats"), [("discrete", math.log(4)), ("multidiscrete", math.log(24)), ("box", 6 * 1.418939)]
)
def test_the_first_policy_is_nearly_uniform(actions, nats):
    policy = make(actions=actions)
    context, taken, mask = ragged(policy)
    entropy = policy.score(context, taken, mask, entropy=True).entropy
    assert (entropy[mask] - nats).abs().max() < 1e-3


@pytest.mark.parametrize("cls", [MLPPolicy, CNNPolicy])
def test_the_seed_alone_decides_the_weights(cls):
    state = torch.get_rng_state()
    one, two, other = (make(cls, "image", seed=seed) for seed in (1, 1, 2))
    for policy in (one, two, other):
        policy.add_critic("own")
    assert torch.equal(state, torch.get_rng_state())
    for left, right in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(left, right)
    assert not torch.equal(one.output.weight, other.output.weight)
    assert not torch.equal(one.body[-2].weight, one.critic["body"][-2].weight)


# ------------------------------------------------------------------------------------------------ critic, reference


@pytest.mark.parametrize("critic", ["own", "head"])
@pytest.mark.parametrize("cls", [MLPPolicy, CNNPolicy])
def test_the_critics_parameters_are_its_own(cls, critic):
    policy = make(cls, "image")
    before = set(policy.parameters())
    policy.add_critic(critic)
    mine = list(policy.critic_parameters())
    assert set(mine) == set(policy.parameters()) - before
    body = sum(p.numel() for p in policy.body.parameters())
    width = policy.output.in_features
    assert sum(p.numel() for p in mine) == width + 1 + (body if critic == "own" else 0)
    context, actions, mask = ragged(policy)
    policy.score(context, actions, mask, values=True).values.sum().backward()
    touched = {p for p in before if p.grad is not None}
    assert touched == (set() if critic == "own" else set(policy.body.parameters()))


def test_a_reference_is_frozen_and_stays():
    policy = roused(make(actions="box"))
    context, actions, mask = ragged(policy)
    before = policy.score(context, actions, mask).logprobs.detach()
    reference = policy.reference()
    for parameter in policy.parameters():
        parameter.data.add_(0.1)
    assert torch.equal(reference.score(context, actions, mask).logprobs, before)
    assert not any(p.requires_grad for p in reference.parameters())
    assert list(reference.critic_parameters()) == []
    assert policy.critic is not None


# ------------------------------------------------------------------------------------------------ files


@pytest.mark.parametrize("critic", ["own", "head"])
@pytest.mark.parametrize(("cls", "actions"), [(MLPPolicy, "box"), (CNNPolicy, "discrete")])
def test_saved_and_loaded_policies_are_bit_equal(cls, actions, critic, tmp_path):
    policy = roused(make(cls, "image", actions), critic)
    flat = torch.nn.utils.parameters_to_vector(policy.parameters()).detach()
    for p, piece in zip(policy.parameters(), flat.split([p.numel() for p in policy.parameters()]), strict=True):
        p.data = piece.view_as(p)  # views of one buffer, as the trainer has them
    policy.save(tmp_path / "policy")
    other = make(cls, "image", actions, seed=5)
    other.add_critic(critic)
    addresses = [p.data_ptr() for p in other.parameters()]
    other.load(tmp_path / "policy")
    assert addresses == [p.data_ptr() for p in other.parameters()]  # in place
    for (name, left), (_, right) in zip(policy.named_parameters(), other.named_parameters(), strict=True):
        assert torch.equal(left, right), name
    alone = make(cls, "image", actions, seed=5)
    alone.load(tmp_path / "policy")  # without the critic
    seen = observed(policy, 4)
    np.testing.assert_array_equal(
        alone.actor(Streams(0)).act(seen, greedy=True), policy.actor(Streams(0)).act(seen, greedy=True)
    )
    card = json.loads((tmp_path / "policy" / "policy.json").read_text())
    assert card["policy"] == cls.name
    assert card["critic"] == critic
    assert card["observation_shape"] == [8, 8, 1]


def test_weights_of_another_network_are_refused(tmp_path):
    make(hidden_sizes=[8]).save(tmp_path)
    with pytest.raises(UserError, match=r"policy.safetensors is of another network than this policy: .*body.0.weight"):
        make(hidden_sizes=[9]).load(tmp_path)
    with_critic = make(hidden_sizes=[8])
    with_critic.add_critic("head")
    with pytest.raises(UserError, match=r"critic.output.weight"):
        with_critic.load(tmp_path)


# ------------------------------------------------------------------------------------------------ shapes and keys


@pytest.mark.parametrize("shape", IMAGES, ids=str)
def test_images_of_every_size(shape):
    policy = make(CNNPolicy, shape, channels=[4, 8, 8], hidden_size=16)
    actor = policy.actor(Streams(0))
    assert actor.act(observed(policy, 2)).shape == (2,)
    channels = 1 if len(shape) == 2 else shape[0] if shape == (4, 84, 84) else shape[2]
    assert policy.body[0].in_channels == channels


def test_large_images_meet_the_layers_of_the_paper():
    policy = make(CNNPolicy, (84, 84, 4))
    layers = [m for m in policy.body if isinstance(m, torch.nn.Conv2d)]
    assert [(m.kernel_size[0], m.stride[0], m.out_channels) for m in layers] == [(8, 4, 32), (4, 2, 64), (3, 1, 64)]
    assert policy.body[-2].in_features == 3136


def test_channels_first_and_last_are_the_same_image():
    last, first = make(CNNPolicy, (9, 9, 2)), make(CNNPolicy, (2, 9, 9))
    seen = observed(last, 3)
    torch.testing.assert_close(
        last.outputs(torch.from_numpy(seen)), first.outputs(torch.from_numpy(seen.transpose(0, 3, 1, 2).copy()))
    )


def test_a_linear_policy_has_no_hidden_layer():
    policy = make(hidden_sizes=[])
    policy.add_critic("own")
    seen = observed(policy, 4)
    expected = seen @ policy.output.weight.detach().numpy().T
    np.testing.assert_allclose(policy.numpy_outputs()(seen), expected, rtol=1e-5, atol=1e-7)


def test_bad_settings_are_refused():
    with pytest.raises(UserError, match=r"policy.mlp.activation=gelu: choose one of tanh, relu"):
        make(activation="gelu")
    with pytest.raises(UserError, match=r"policy.mlp.hidden_sizes=0: it must be at least 1"):
        make(hidden_sizes=[64, 0])
    with pytest.raises(UserError, match=r"policy=cnn sees images, .* shape \(6,\): write policy=mlp"):
        make(CNNPolicy)
    with pytest.raises(UserError, match=r"policy=mlp acts on arrays .* write policy=causal_lm"):
        MLPPolicy(TextSpec("ab", 4, 4), Streams(0))


@pytest.mark.parametrize("into_input", [False, True])
def test_tanh_layers_are_their_layers_one_after_the_other(into_input: bool) -> None:
    """Values and gradients, also that of the input, are those of the plain modules."""
    torch.manual_seed(0)
    sizes = [(3, 8), (8, 8), (8, 5)]
    body = TanhLayers(*(m for size in sizes for m in (torch.nn.Linear(*size), torch.nn.Tanh())))
    found = []
    for network in (body, torch.nn.Sequential(*body)):
        x = torch.linspace(-3, 3, 12).reshape(4, 3).requires_grad_(into_input)
        y = network(x)
        inputs = [*body.parameters(), *([x] if into_input else [])]
        found.append([y, *torch.autograd.grad(y.square().sum(), inputs)])
    for one, two in zip(*found, strict=True):
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-6)

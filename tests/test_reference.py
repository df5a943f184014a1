"""The reference: a frozen twin, and how it follows the policy."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import rlfw
from rlfw.interfaces import ControlSpec, Policy, TextSpec
from rlfw.knobs import Controls, Knobs
from rlfw.optim import FlatOptimizer, ParameterGroup
from rlfw.reference import Reference
from rlfw.seeding import Streams


def mlp() -> Policy:
    from gymnasium.spaces import Discrete

    spec = ControlSpec((4,), "float32", Discrete(2), None)
    return rlfw.build("policy", {"part": "mlp", "hidden_sizes": [8]}, env_spec=spec, streams=Streams(0))


def causal_lm() -> Policy:
    spec = TextSpec(alphabet="ab", max_prompt_chars=4, max_steps=4)
    keys = {"part": "causal_lm", "hidden_size": 8, "num_layers": 1, "num_heads": 1}
    return rlfw.build("policy", keys, env_spec=spec, streams=Streams(0))


def moved(make: Callable[[], Policy]) -> tuple[Policy, Reference, dict[str, torch.Tensor]]:
    """A policy with a critic, moved away from its reference; the reference's weights as they were."""
    policy = make()
    reference = Reference(policy)
    policy.add_critic("own")
    FlatOptimizer(rlfw.build("optimizer", {"part": "sgd"}), [ParameterGroup("policy", list(policy.parameters()), 1, 1)])
    start = {name: weight.clone() for name, weight in reference.frozen.named_parameters()}
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for weight in policy.parameters():
            weight += torch.randn(weight.shape, generator=generator)
    return policy, reference, start


@pytest.mark.parametrize("make", [mlp, causal_lm])
@pytest.mark.parametrize("rate", [0.6, 1.0])
def test_the_reference_follows_weight_by_weight(make: Callable[[], Policy], rate: float):
    """Two steps of ref <- rate policy + (1 - rate) ref."""
    policy, reference, start = moved(make)
    for name, weight in reference.frozen.named_parameters():
        assert torch.equal(weight, start[name])
    now = {name: weight.detach().clone() for name, weight in policy.named_parameters()}
    for _ in range(2):
        reference.follow(rate)
    for name, weight in reference.frozen.named_parameters():
        expected = rate * now[name] + (1 - rate) * (rate * now[name] + (1 - rate) * start[name])
        torch.testing.assert_close(weight.detach(), expected, atol=1e-6, rtol=0)
        assert not weight.requires_grad
    for name, weight in policy.named_parameters():
        assert torch.equal(weight.detach(), now[name])


def test_ref_sync_moves_it_every_so_often_and_goes_on_from_its_state():
    policy, reference, start = moved(mlp)
    (name, now), *_ = ((name, weight.detach().clone()) for name, weight in policy.named_parameters())
    controls = Controls(Knobs(), reference)
    first, second = (rlfw.build("controller", {"part": "ref_sync", "rate": 0.6, "every": 3}) for _ in "ab")
    syncs = []
    for i in range(7):
        if i == 4:
            second.load_state_dict(first.state_dict())
        controller = first if i < 4 else second
        controller.start(controls)
        syncs.append(controller.report()["ref_sync/syncs"])
        controller.after_iteration({})
        weight = dict(reference.frozen.named_parameters())[name]
        share = 0.4 ** ((i + 1) // 3)  # of the start that is left
        torch.testing.assert_close(weight.detach(), share * start[name] + (1 - share) * now, atol=1e-6, rtol=0)
    assert syncs == [0, 0, 0, 1, 1, 1, 2]

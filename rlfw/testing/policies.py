"""A policy by itself: what it acted is what it scores."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor

from rlfw.context import Observations
from rlfw.errors import UserError
from rlfw.interfaces import ControlSpec, EnvSpec, TextSpec
from rlfw.seeding import Streams

from .report import Result, failed, passed

if TYPE_CHECKING:
    from rlfw.interfaces import Policy

    from .machinery import Machine

SPECS: dict[str, EnvSpec] = {
    "discrete actions": ControlSpec((3,), "float32", spaces.Discrete(4), 10),
    "continuous actions": ControlSpec((3,), "float32", spaces.Box(-1, 1, (2,)), 10),
    "images": ControlSpec((1, 36, 36), "uint8", spaces.Discrete(4), 10),
    "text": TextSpec("abcdefgh=", 6, 8),
}
TOLERANCE = 1e-4  # nats, in float32


class Acted:
    """A policy with weights far from uniform, and a rectangle of what it did: rows of 1 to 6 steps."""

    def __init__(self, subject: Machine, spec: EnvSpec) -> None:
        self.spec = spec
        self.policy: Policy = subject.build(env_spec=spec, streams=Streams(0))
        stir(self.policy, 1)
        actor = self.policy.actor(Streams(3))
        if isinstance(spec, TextSpec):
            written = actor.complete(["abc=", "a=", "hgfed="], group_size=2, max_new_tokens=spec.max_steps)
            self.context: Any = written.context
            self.actions, self.logprobs, self.mask = written.ids, written.logprobs, written.mask
            return
        N, K = 6, 6
        rng = np.random.default_rng(0)
        shape = (K, N, *spec.observation_shape)
        seen = rng.integers(0, 256, shape, np.uint8) if spec.observation_dtype == "uint8" else rng.normal(size=shape)
        seen = seen.astype(spec.observation_dtype)
        actions = np.stack([actor.act(seen[k]) for k in range(K)])
        self.mask = torch.arange(K) < torch.tensor([6, 1, 3, 5, 2, 4])[:, None]  # [N, K]
        self.logprobs = torch.from_numpy(actor.logprobs()).T * self.mask
        self.actions = torch.from_numpy(actions).transpose(0, 1).contiguous()
        flat = torch.from_numpy(seen).transpose(0, 1)[self.mask]
        self.context = Observations(flat, torch.from_numpy(seen[0]), self.mask)

    def score(self, policy: Policy | None = None, **asked: bool) -> Any:
        with torch.no_grad():
            return (policy or self.policy).score(self.context, self.actions, self.mask, **asked)

    def gap(self, one: Tensor, two: Tensor) -> float:
        """The largest difference on the mask."""
        return float((one - two)[self.mask].abs().max())


def stir(policy: Policy, seed: int) -> None:
    """Fresh networks are close to uniform, where many a fault is invisible."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in policy.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=generator) / max(parameter.shape[-1], 1) ** 0.5)
            if parameter.dim() == 2 and parameter.shape[0] <= 16:
                parameter.mul_(3)


def accepted(subject: Machine) -> dict[str, Acted]:
    """What the policy did, for every kind of env that it accepts."""
    found = {}
    for name, spec in SPECS.items():
        try:
            found[name] = Acted(subject, spec)
        except UserError:
            continue
    return found


def acts_and_scores(subject: Machine) -> Result:
    """The log-probs of acting and of scoring are one distribution. Temperature or a filter on one side alone, dropout,
    positions shifted by padding: the first ratio is not 1, and every update starts from that error."""
    words = []
    for name, acted in accepted(subject).items():
        gap = acted.gap(acted.score().logprobs, acted.logprobs)
        if not gap <= TOLERANCE:
            return failed(
                f"{name}: acting and scoring are up to {gap:.3g} nats apart; temperature or dropout on one side?"
            )
        words.append(f"{name} {gap:.1g}")
    if not words:
        return failed(f"it accepts none of {', '.join(SPECS)}")
    return passed(f"acting and scoring agree, in nats: {', '.join(words)}")


def rows_alone(subject: Machine) -> Result:
    """A row is scored as if it were alone. Left padding without positions, a normalisation over the batch or a shared
    cache make its log-probs depend on its company."""
    worst = 0.0
    for name, acted in accepted(subject).items():
        whole = acted.score(entropy=True)
        for row in range(len(acted.mask)):
            index = torch.tensor([row])
            with torch.no_grad():
                alone = acted.policy.score(
                    acted.context.rows(index), acted.actions[index], acted.mask[index], entropy=True
                )
            on = acted.mask[row]
            for what in ("logprobs", "entropy"):
                gap = float((getattr(alone, what) - getattr(whole, what)[index])[0][on].abs().max())
                if not gap <= TOLERANCE:
                    return failed(f"{name}: the {what} of row {row} change by {gap:.3g} nats if it is scored alone")
                worst = max(worst, gap)
        if bool(whole.logprobs[~acted.mask].any()):
            return failed(f"{name}: off the mask the log-probs are not 0")
    return passed(f"a row scored alone and in the batch agree within {worst:.1g} nats; off the mask stands 0")


def scores_again(subject: Machine) -> Result:
    """Scored twice, in training mode too: dropout off. Saved and loaded into a policy of another seed: the same."""
    for name, acted in accepted(subject).items():
        first = acted.score().logprobs
        acted.policy.train()
        gap = acted.gap(acted.score().logprobs, first)
        if gap > 0:
            return failed(f"{name}: scored twice, the log-probs are {gap:.3g} apart")
        with tempfile.TemporaryDirectory() as folder:
            acted.policy.save(Path(folder))
            other: Policy = subject.build(env_spec=acted.spec, streams=Streams(9))
            other.load(Path(folder))
        gap = acted.gap(acted.score(other).logprobs, first)
        if not gap <= 1e-6:
            return failed(f"{name}: saved and loaded, the log-probs are {gap:.3g} apart")
    return passed("scored twice, and after a save and a load, the log-probs are the same")


def reference_stays(subject: Machine) -> Result:
    """The reference is a frozen copy. One that shares its weights follows the policy, and the KL to it stays 0."""
    for name, acted in accepted(subject).items():
        before = acted.score().logprobs
        frozen = acted.policy.reference()
        if acted.gap(acted.score(frozen).logprobs, before) > 1e-6:
            return failed(f"{name}: the reference scores other log-probs than the policy that it was taken from")
        stir(acted.policy, 2)
        if acted.gap(acted.score(frozen).logprobs, before) > 1e-6:
            return failed(f"{name}: the policy is trained, and the reference moves along")
        if any(parameter.requires_grad for parameter in frozen.parameters()):
            return failed(f"{name}: the reference's weights take gradients")
    return passed("the reference scores what the policy scored, and stays there when the policy moves")


def critic_apart(subject: Machine) -> Result:
    """A critic joins without moving the policy, and values [B, T + 1] end with the row's own final observation."""
    for name, acted in accepted(subject).items():
        for network in ("own", "head"):
            fresh = Acted(subject, acted.spec)
            before = fresh.score().logprobs
            fresh.policy.add_critic(network)
            if fresh.gap(fresh.score().logprobs, before) > 0:
                return failed(f"{name}: add_critic({network}) changes the policy's log-probs")
            if not list(fresh.policy.critic_parameters()):
                return failed(f"{name}: add_critic({network}) brings no parameters of its own")
            B, T = fresh.mask.shape
            with torch.no_grad():
                values = fresh.policy.values(fresh.context, fresh.actions, fresh.mask)
            if tuple(values.shape) != (B, T + 1):
                return failed(f"{name}: values have shape {list(values.shape)}, expected [B, T + 1] = {[B, T + 1]}")
            gap = fresh.gap(fresh.score(values=True).values, values[:, :-1])
            if not gap <= TOLERANCE:
                return failed(f"{name}: values() and score(values=True) are {gap:.3g} apart")
    return passed("own and head: the policy stays as it was; values() and score() agree, [B, T + 1] and [B, T]")

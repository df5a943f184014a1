"""The policy that the KL leash is tied to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from pathlib import Path

    from torch import Tensor

    from rlfw.interfaces import Policy
    from rlfw.rollout import Batch


class Reference:
    """A frozen twin of the policy as it was when training began; under an adapter it shares the model beneath."""

    def __init__(self, policy: Policy) -> None:
        self.policy, self.frozen = policy, policy.reference()
        self.moved = False  # since training began

    @torch.no_grad()
    def logprobs(self, rows: Batch) -> Tensor:
        """[B, T] of the actions taken, nats."""
        return self.frozen.score(rows.context, rows.actions, rows.mask).logprobs

    @torch.no_grad()
    def follow(self, rate: float) -> None:
        """reference <- rate * policy + (1 - rate) * reference, weight by weight (arXiv:2404.09656)."""
        now = dict(self.policy.named_parameters())
        for name, weight in self.frozen.named_parameters():
            if weight is not now[name]:  # the weights under an adapter are shared
                weight.lerp_(now[name], rate)
        self.moved = True

    def save(self, folder: Path) -> None:
        self.frozen.save(folder)

    def load(self, folder: Path) -> None:
        self.frozen.load(folder)

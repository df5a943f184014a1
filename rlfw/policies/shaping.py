"""How logits become the distribution that is sampled from, and scored: one function for both.

N positions   V tokens of the vocabulary
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from rlfw.checks import above, at_least, at_most, finite


@dataclass(frozen=True)
class Shaping:
    """Temperature, then top-k, then top-p (the smallest set of likely tokens that holds ``top_p`` of the mass)."""

    temperature: float = 1.0
    top_k: int | None = None
    top_p: float = 1.0

    def check(self, prefix: str) -> Shaping:
        """UserError for a value out of range; ``prefix`` names the keys."""
        above(f"{prefix}.temperature", self.temperature, 0)
        finite(f"{prefix}.temperature", self.temperature)
        at_least(f"{prefix}.top_k", self.top_k, 1)
        above(f"{prefix}.top_p", self.top_p, 0)
        at_most(f"{prefix}.top_p", self.top_p, 1)
        return self

    def __call__(self, logits: Tensor, taken: Tensor | None = None) -> Tensor:
        """Logits [N, V] -> shaped logits [N, V], -inf where the filter closes.

        ``taken`` [N]: tokens that stay open whatever the filter says. A token that was sampled and has since left the
        filter's set is scored in that set and itself, so its log-prob stays finite.
        """
        shaped = logits.float() / self.temperature
        if self.top_k is None and self.top_p == 1:
            return shaped
        closed = self._closed(shaped.detach())
        if taken is not None:
            closed.scatter_(1, taken[:, None], False)
        return shaped.masked_fill(closed, -torch.inf)

    def _closed(self, logits: Tensor) -> Tensor:
        closed = torch.zeros_like(logits, dtype=torch.bool)
        if self.top_k is not None and self.top_k < logits.shape[1]:
            closed = logits < logits.topk(self.top_k).values[:, -1:]
        if self.top_p < 1:
            probs, order = logits.masked_fill(closed, -torch.inf).softmax(-1).sort(descending=True, stable=True)
            closed = closed | torch.zeros_like(closed).scatter(1, order, probs.cumsum(-1) - probs >= self.top_p)
        return closed


def selected_logprobs(logits: Tensor, tokens: Tensor) -> Tensor:
    """log softmax(logits)[tokens]: [N, V], [N] -> [N], without an [N, V] of log-probs."""
    return logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(-1)


def entropy(logits: Tensor) -> Tensor:
    """H(softmax(logits)) in nats, [N, V] -> [N]; closed tokens (-inf) add nothing, to the gradient neither."""
    logprobs = logits.log_softmax(-1)
    return -(logprobs.exp() * logprobs.masked_fill(logprobs == -torch.inf, 0)).sum(-1)


def sample(logits: Tensor, uniform: Tensor) -> Tensor:
    """Tokens [N] of softmax(logits) [N, V] by inversion: ``uniform`` [N] in [0, 1), float64, picks each row's own.

    A row's token depends on its own logits and number alone, whichever rows stand beside it.
    """
    mass = logits.double().softmax(-1).cumsum(-1)  # [N, V]
    token = torch.searchsorted(mass, (uniform * mass[:, -1])[:, None], right=True)[:, 0]
    return token.clamp(max=logits.shape[1] - 1)

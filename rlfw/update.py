"""What an update went through: the losses of its optimizer steps, kept for one reduction at the end."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import torch

from rlfw import metrics
from rlfw.rollout import Batch

if TYPE_CHECKING:
    from rlfw.composition import Composition, Loss


@dataclass
class Trace:
    """The micro-batches of every optimizer step that was taken."""

    losses: list[list[Loss]] = field(default_factory=list)  # one list a step
    norms: list[dict[str, float]] = field(default_factory=list)  # gradient norm of each group before clipping

    def add(self, losses: list[Loss], norms: dict[str, float]) -> None:
        self.losses.append(losses)
        self.norms.append(norms)

    def metrics(self, composition: Composition) -> dict[str, float]:
        """Sums over all steps of the update divided by their number; losses and norms averaged over the steps taken."""
        found: dict[str, float] = {"optim/num_steps": len(self.losses)}
        if not self.losses:
            return found
        count = len(self.losses)
        flat = [loss for step in self.losses for loss in step]
        found["loss/total"] = torch.stack([loss.total for loss in flat]).sum().item() / count
        found["loss/policy_avg"] = torch.stack([loss.policy for loss in flat]).sum().item() / count
        new = metrics.side_by_side([loss.new for loss in flat])
        found.update(metrics.update_metrics(composition, new, Batch.cat([loss.batch for loss in flat])))
        first = metrics.side_by_side([loss.new for loss in self.losses[0]])
        found.update(metrics.first_step_metrics(first, Batch.cat([loss.batch for loss in self.losses[0]])))
        for name in self.norms[0]:
            key = "optim/grad_norm" if name == "policy" else f"optim/{name}_grad_norm"
            found[key] = sum(norms[name] for norms in self.norms) / count
        return found

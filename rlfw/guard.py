"""No step is taken on a loss or a gradient that is not finite."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from rlfw.errors import RunError
from rlfw.probing import dump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from torch import Tensor

    from rlfw.composition import Composition, Loss
    from rlfw.rollout import Batch
    from rlfw.run import RunFolder

PATIENCE = 3  # steps in a row whose gradient may fail before the run ends


class Guard:
    """Skips a step whose loss or gradient is not finite and keeps its batch; ends a run that does not recover."""

    def __init__(self, composition: Composition, folder: RunFolder) -> None:
        self.composition, self.folder = composition, folder
        self.in_a_row = 0
        self.skipped = 0  # steps of the iteration under way

    def start(self) -> None:
        """An iteration begins."""
        self.skipped = 0

    def lets_pass(self, norms: Mapping[str, float], iteration: int, minibatch: Batch, losses: list[Loss]) -> bool:
        """Whether loss and gradient norms are finite numbers; RunError after PATIENCE steps in a row that were not."""
        bad = [f"the gradient of the {name}" for name, norm in norms.items() if not math.isfinite(norm)]
        if not math.isfinite(sum(loss.total.item() for loss in losses)):
            bad.insert(0, "the loss")
        if not bad:
            self.in_a_row = 0
            return True
        self.skipped += 1
        self.in_a_row += 1
        if self.skipped == 1:
            dump(self.folder.path, self.composition, minibatch, losses, f"nonfinite-{iteration}")
        if self.in_a_row >= PATIENCE:
            raise RunError(
                f"iteration {iteration}: {' and '.join(bad)} {'was' if len(bad) == 1 else 'were'} not finite "
                f"{PATIENCE} times in a row, and no such step was taken; {diagnosis(self.composition, losses)}; lower "
                f"lr, or look at {self.folder.path}/nonfinite-{iteration}.safetensors, which rlfw.probe takes"
            )
        return False


@torch.no_grad()
def diagnosis(composition: Composition, losses: list[Loss]) -> str:
    """Where the first number that is not finite stands: a field of the batch, or what a part makes of it."""
    start = 0
    for loss in losses:
        for name, per_step in composition.terms(loss.new, loss.batch).items():
            if name_rows := _bad_rows(per_step, loss.batch.mask, start):
                return f"{name} is not finite in {name_rows}"
        start += len(loss.batch.mask)
    return "every number of the loss is finite and its derivative is not"


def _bad_rows(x: Tensor, mask: Tensor, start: int) -> str:
    rows = [start + row for row in (mask & ~x.isfinite()).any(1).nonzero()[:, 0].tolist()]
    if not rows:
        return ""
    named = ", ".join(map(str, rows[:5]))
    return f"row{'s' if len(rows) > 1 else ''} {named}{' and others' if len(rows) > 5 else ''} of the minibatch"

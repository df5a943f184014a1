"""What each axis promises beyond what all of them do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

from .call import call
from .cases import distance, run
from .report import Result, failed, passed, skipped
from .subject import subject as plain

if TYPE_CHECKING:
    from torch import Tensor

    from .cases import Case
    from .subject import Subject


def no_spread(subject: Subject) -> Result:
    """In float32 the mean of equal numbers is off by one unit in the last place; divided by their standard deviation,
    that rounding error becomes an advantage of order 1 for a group in which nobody was better than anybody."""
    found = {}
    for baseline, centred in (("none", False), ("group_mean", True)):
        for value in (0.3, 0.35, 0.4, 0.7, 1 / 3):
            for dtype in (torch.float32, torch.float64):
                outcome = run(subject.compose({"baseline": baseline}), _all_paid(subject, value).to(dtype))
                found[dtype] = outcome.advantages.double()
            gap = distance(found[torch.float32], found[torch.float64])
            if not gap <= 1e-3:
                return failed(
                    f"every row is paid {value:.3g}, and the advantages in float32 and float64 are {gap:.3g} apart"
                )
        left = float(found[torch.float32].abs().max())
        if centred and not left <= 1e-3:
            return failed(
                f"every row is paid the same, its group's mean is taken off, and advantages of {left:.3g} come out"
            )
    return passed("every row paid the same, in groups of 5 and 7: float32 and float64 agree; what is centred stays 0")


def _all_paid(subject: Subject, value: float) -> Case:
    """Rows of one step in groups of 5 and 7, so that a mean in float32 is off by a last place."""
    case = subject.case()
    first = torch.zeros_like(case.batch.mask)
    first[:, 0] = True
    group = torch.tensor([5] * 5 + [7] * 7)
    return case.with_(mask=first, group=group, rewards=torch.where(first, value, 0.0).double())


def ranks(subject: Subject) -> Result:
    """A rescaling keeps who was better: one that reorders the rows of a group rewards the wrong ones."""
    case = subject.case()
    paid = case.with_(rewards=case.batch.rewards.abs())
    before = _before(paid)
    after = run(subject.compose({"baseline": "group_mean"}), paid).advantages
    context: Any = paid.batch.context
    for label in paid.batch.group.unique().tolist():
        cells = context.index[paid.batch.mask & (paid.batch.group == label)[:, None]]
        x, y = before[cells], after[cells]
        turned = (x[:, None] - x > 1e-9) & (y[:, None] - y < -1e-9)
        if bool(turned.any()):
            i, j = turned.nonzero()[0].tolist()
            return failed(
                f"in one group {float(x[i]):.3g} and {float(x[j]):.3g} become {float(y[i]):.3g}, {float(y[j]):.3g}"
            )
    scale = float(after.abs().max() / before.abs().max())
    return passed(f"within a group the better stays the better; the largest advantage is scaled by {scale:.3g}")


def _before(case: Case) -> Tensor:
    """[C] the advantages before the part under test."""
    return run(plain("normalize", "none").compose({"baseline": "group_mean"}), case).advantages


def levels(subject: Subject) -> Result:
    """On a row of one step every level of the ratio is the same number: log pi - log pi_old. A ratio that reads the
    current log-probs for the old ones is 1 for ever, and no clip behind it ever acts."""
    if subject.part.absent:
        return skipped("it is no ratio: the surrogate is A log pi")
    assembled, case = subject.compose(), subject.case()
    batch = case.batch
    found = call(subject, assembled, case)["the log-ratio"].detach()
    context: Any = batch.context
    now = case.logprobs[context.index]
    sources = {"old": batch.old_logprobs, "behaviour": batch.logprobs}
    single = (batch.mask.sum(1) == 1).nonzero()[:, 0]
    gaps = {name: float((found - now + x)[single, 0].abs().max()) for name, x in sources.items()}
    source = min(gaps, key=lambda name: gaps[name])
    if not gaps[source] <= 1e-9:
        return failed(
            f"rows of one step: the log-ratio is {float(found[single[0], 0]):.4f}, and log pi - log pi_old is "
            f"{float((now - batch.old_logprobs)[single[0], 0]):.4f}"
        )
    return passed(f"rows of one step: the log-ratio is log pi - log pi_{source}, within {gaps[source]:.1g}")


def own_step(subject: Subject) -> Result:
    """of_steps tells other parts whether a ratio belongs to its step alone; DPPO's mask and GMPO's mean rely on it."""
    if subject.part.absent:
        return skipped("it is no ratio: the surrogate is A log pi")
    case = subject.case()
    moved = case.logprobs.clone()
    context: Any = case.batch.context
    moved[context.index[0, 0]] += 0.1  # one step of a row of five
    shifted = type(case)(case.batch, moved, case.entropy, case.values)
    one, two = (call(subject, subject.compose(), c)["the log-ratio"].detach() for c in (case, shifted))
    others = float((two - one)[0, 1:].abs().max())
    if subject.part.of_steps and others > 1e-12:
        return failed(f"of_steps is True, and one step's log-prob moves the ratio of the next by {others:.2g}")
    if not subject.part.of_steps and others <= 1e-12:
        return failed("of_steps is False, and each step's ratio is its own")
    elsewhere = float((two - one)[1:][case.batch.mask[1:]].abs().max())
    if elsewhere > 1e-12:
        return failed(f"one row's log-prob moves the ratio of another row by {elsewhere:.2g}")
    return passed("each step has a ratio of its own" if subject.part.of_steps else "one ratio a row, as of_steps says")


def coefficients(subject: Subject) -> Result:
    """Coefficients add the steps up to one number. One off the mask counts padding; a zero on it loses a step; a
    negative one trains it backwards."""
    case = subject.case()
    mask, group = case.batch.mask.clone(), case.batch.group
    mask[3] = False
    assembled = subject.compose()
    for dtype in (torch.float32, torch.float64):
        found = assembled.part(mask, group, dtype)
        if found.dtype != dtype:
            return failed(f"asked for {dtype}, it gives {found.dtype}")
    if bool(found[~mask].any()):
        return failed(f"off the mask stands {float(found[~mask].abs().max()):.3g} in place of 0")
    if not bool((found[mask] > 0).all()):
        return failed(f"on the mask stands {float(found[mask].min()):.3g}; it must be positive")
    if bool(assembled.part(torch.zeros_like(mask), group, dtype).any()):
        return failed("a batch without any step gets coefficients other than 0")
    twice = assembled.part(torch.cat([mask, mask]), torch.cat([group, group + 100]), dtype)
    growth = float(twice.sum() / found.sum())
    kind = "a mean" if abs(growth - 1) < 1e-9 else "a sum" if abs(growth - 2) < 1e-9 else f"{growth:.3g} times as much"
    return passed(
        f"positive on the mask, 0 off it; they add up to {float(found.sum()):.4g} for {int(mask.sum())} steps in "
        f"{int(mask.any(1).sum())} rows; twice the batch: {kind}"
    )


def weighs(subject: Subject) -> Result:
    """Weights have no gradient and are not negative. One that corrects the sampler's log-probs by the trainer's has
    nothing to correct where the two agree, and is 1 there."""
    assembled, case = subject.compose(), subject.case()
    outcome = run(assembled, case)
    found = call(subject, subject.compose(), case)["the weight"]
    if found.requires_grad:
        return failed("the weight carries a gradient: detach it")
    if not (found.dtype == torch.bool or found.is_floating_point()):
        return failed(f"the weight is {found.dtype}; floats multiply the surrogate, bools take steps out")
    cells = case.cells
    if bool((outcome.weights[cells] < 0).any()):
        return failed(f"a weight is {float(outcome.weights[cells].min()):.3g}; a negative one trains backwards")
    reads = case.batch.reads[subject.title]
    corrects = {"logprobs", "old_logprobs"} <= reads
    if corrects:
        same = subject.case(moved=False)
        agreed = run(subject.compose(), same).weights[same.cells]
        if not subject.draws and float((agreed - 1).abs().max()) > 1e-9:
            return failed(f"sampler and trainer agree, and a weight is {float(agreed.min()):.3g} in place of 1")
    kind = "bool: steps leave the loss" if found.dtype == torch.bool else "float: it multiplies the surrogate"
    mean = float(outcome.weights[cells].mean())
    return passed(f"{kind}; mean {mean:.3g} over the steps here" + "; 1 where sampler and trainer agree" * corrects)

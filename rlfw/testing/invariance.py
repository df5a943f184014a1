"""What must change nothing: padding, order, the split of a batch, a second run, a save and a load.

Each check takes the part under test and says what it found; its docstring is the reason that a person reads.
"""

from __future__ import annotations

import copy
import dataclasses
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from rlfw.checkpoint import load_state, save_state
from rlfw.errors import RunError, UserError
from rlfw.rollout import ON_DEMAND, Batch

from .call import call
from .cases import Watched, distance, run
from .report import Result, failed, passed, skipped

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .cases import Case, Outcome
    from .subject import Subject

TOLERANCE = 1e-9  # relative, in float64: two orders of summation differ by 1e-15 or so


def needs(subject: Subject) -> Result:
    """What a part declares is what the trainer computes for it. A field that is read undeclared is there by the luck
    of another part; swap that one, and the run dies or trains on something else."""
    assembled, case = subject.compose(), subject.case()
    reads = case.batch.reads
    try:
        outcome = run(assembled, case)
        loss = outcome.losses[0]
        assembled.composition.metrics(loss.new.detach(), loss.batch)
    except AttributeError as error:
        undeclared = str(error) if "does not declare it" in str(error) else _undeclared(subject)
        return failed(undeclared) if undeclared else skipped("it does not run: see shapes")
    except Exception:  # any other fault of a part is for the next check to name
        undeclared = _undeclared(subject)
        return failed(undeclared) if undeclared else skipped("it does not run: see shapes")
    undeclared = _undeclared(subject, {"ratio": "none"}) if subject.axis == "regularizer" else ""
    if undeclared:
        return failed(undeclared)
    read = {"values" if name == "old_values" else name for name in reads.get(subject.title, set())}
    idle = sorted((subject.needs & ON_DEMAND) - read - {"entropy"})  # a loss takes it from `new`
    if subject.kind in ("critic", "ratio"):  # the critic's loss reads it there too; old_logprobs is the composition's
        idle = []
    words = f"it declares {listed(sorted(subject.needs))} and reads {listed(sorted(read & ON_DEMAND))} on demand"
    if idle:
        words += f"; {listed(idle)} stayed unread under these settings, and the trainer computes it all the same"
    return passed(words)


def _undeclared(subject: Subject, neighbours: Mapping[str, str] | None = None) -> str:
    """The field of ``new`` that a regularizer reads without its word, and cannot do without; else nothing."""
    if subject.axis != "regularizer":
        return ""
    reads: set[str] = set()
    try:
        call(subject, subject.compose(neighbours), subject.case(), reads)
    except (UserError, RunError):
        return ""
    except Exception:  # None where the part took a number for granted
        for name, words in {
            "log_ratio": ("ratio", "step_ratio"),
            "entropy": ("entropy",),
            "values": ("values",),
        }.items():
            if name in reads and subject.needs.isdisjoint(words):
                return (
                    f'{subject.title} reads new.{name} but does not declare it: add "{words[0]}" to needs '
                    f"(without the word it is None{', e.g. under ratio=none' if name == 'log_ratio' else ''})"
                )
    return ""


def shapes(subject: Subject) -> Result:
    """Broadcasting forgives: [B] minus [B, 1] is [B, B], and [B, 1] spreads over the row, without any error. A part
    that makes float64 of float32 doubles the memory of everything behind it."""
    sizes = []
    for dtype in (torch.float32, torch.float64):
        case = subject.case().to(dtype)
        B, T = case.batch.mask.shape
        answer = call(subject, subject.compose(), case)
        for name, tensor in answer.items():
            if tuple(tensor.shape) != (B, T):
                less = (
                    "; return a number for each step: aggregation sums them up" if subject.axis == "regularizer" else ""
                )
                return failed(f"{name} has shape {list(tensor.shape)}, expected [B, T] = {[B, T]}{less}")
            if tensor.is_floating_point() and tensor.dtype != dtype:
                return failed(f"{name} is {tensor.dtype} for a batch of {dtype}")
            bad = case.batch.mask & ~tensor.isfinite()
            if bool(bad.any()):
                row, step = (int(i) for i in bad.nonzero()[0])
                return failed(f"{name} of row {row}, step {step} is {float(tensor[row, step])}")
            sizes.append(name)
        outcome = run(subject.compose(), case)
        for name, gradient in outcome.gradient.items():
            if not bool(gradient.isfinite().all()):
                return failed(f"the loss is {float(outcome.loss):.4g} and its gradient in {name} is not finite")
    steps = int(subject.case().batch.mask.sum())
    names = listed(list(dict.fromkeys(sizes)))
    return passed(f"{names} [B, T] = [12, 5], float32 and float64 as given, finite on all {steps} steps")


def padding(subject: Subject) -> Result:
    """Rows are padded to the longest of the batch, so a mean or a maximum that counts padding depends on which other
    rows happen to be there. Off the mask stand numbers here that mean nothing, such as -30 nats."""
    if subject.draws:
        return skipped("it draws random numbers, one for each place of the rectangle")
    case = subject.case()
    # A row without steps exists only behind a weight that took a whole row out.
    empty = subject.axis in ("normalize", "ratio", "regularizer", "aggregation")
    gap, where = run(subject.compose(), case.padded(empty_row=empty)).differs(run(subject.compose(), case), case.cells)
    what = "3 more columns" + " and a row without any step" * empty
    if not gap <= TOLERANCE:
        return failed(f"{what} move {where} by {gap:.2g}: padding is counted as if it were steps")
    return passed(f"{what}, with nonsense off the mask, move nothing (largest change {gap:.1g})")


def order(subject: Subject) -> Result:
    """Rows carry their group's label. A reshape to [groups, size] takes neighbours for a group, and is wrong as soon
    as a row is dropped, resampled or sorted by its length."""
    if subject.draws:
        return skipped("it draws random numbers row after row")
    case = subject.case()
    shuffled = case.permuted(torch.tensor([4, 8, 0, 11, 6, 1, 10, 7, 2, 5, 9, 3]))
    labels = {7: 40, 3: 55, 11: -2}
    relabelled = shuffled.with_(group=torch.tensor([labels[g] for g in shuffled.batch.group.tolist()]))
    gap, where = run(subject.compose(), relabelled).differs(run(subject.compose(), case), case.cells)
    if not gap <= TOLERANCE:
        return failed(f"rows in another order, groups under other labels: that moves {where} by {gap:.2g}")
    return passed(f"rows in another order and groups under other labels move nothing (largest change {gap:.1g})")


def micro_batches(subject: Subject) -> Result:
    """A batch too large for the memory goes through in pieces. A mean over the piece in hand, or any other number
    taken from it, makes the update depend on micro_batch_rows: the mean of means is not the mean."""
    if "whole_batch" in subject.needs:
        return skipped("it declares whole_batch, so the trainer refuses to split")
    if subject.draws:
        return skipped("it draws random numbers")
    case = subject.case()
    whole = run(subject.compose(), case)
    for sizes in ([5, 4, 3], [1] * 12):
        gap, where = run(subject.compose(), case, sizes=sizes).differs(whole, case.cells)
        if not gap <= TOLERANCE:
            return failed(
                f"micro-batches of {max(sizes)} rows or fewer move {where} by {gap:.2g}; if the part compares the "
                "steps of the whole batch, declare whole_batch"
            )
    return passed("the batch in one piece, in three and row by row: the same loss and gradient")


def single_steps(subject: Subject) -> Result:
    """For a policy without memory the trainer shuffles single steps, [S, 1] instead of [B, T]. A part that looks along
    the row sees rows of one step there, and must say so."""
    whole = subject.assembled.composition.needs
    if "whole_rows" in subject.needs:
        return skipped("it declares whole_rows, so rows are never cut into steps")
    if "whole_rows" in whole or subject.draws:
        return skipped("a neighbour needs whole rows" if "whole_rows" in whole else "it draws random numbers")
    case = subject.case()
    gap, where = run(subject.compose(), case, by_steps=True).differs(run(subject.compose(), case), case.cells)
    if not gap <= TOLERANCE:
        return failed(f"single steps in place of rows move {where} by {gap:.2g}; declare whole_rows")
    return passed(f"cut into single steps the batch gives the same loss and gradient (largest change {gap:.1g})")


def determinism(subject: Subject) -> Result:
    """A run is repeatable, and goes on exactly from a checkpoint, only if every random number comes from the run's own
    streams: take ``streams`` as a positional parameter and draw from streams.torch("AXIS.NAME")."""
    case, found = subject.case(), []
    for seed in (1, 2):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            found.append(run(subject.compose(), case))
    gap, where = found[0].differs(found[1], case.cells)
    if gap != 0:
        return failed(
            f"two runs of one seed differ: {where} by {gap:.2g}; it draws from a generator that is not the run's"
        )
    drawn = "it draws from the run's streams, and repeats" if subject.draws else "no random numbers: it repeats"
    return passed(f"{drawn} bit for bit under another global seed")


def untouched(subject: Subject) -> Result:
    """The batch is shared by all parts and by every epoch. One that is edited in place changes what the others see,
    and the second epoch is not the first."""
    case, assembled = subject.case(), subject.compose()
    stages = [case.batch]
    for batch in stages:
        before = _tensors(batch)
        copies = {name: tensor.clone() for name, tensor in before.items()}
        call(subject, assembled, dataclasses.replace(case, batch=Watched(**_fields(batch))))
        if batch is case.batch:
            stages.append(Watched(**_fields(assembled.composition.credit(batch))))
        for name, tensor in before.items():
            if not torch.equal(tensor, copies[name]):
                return failed(f"it writes into batch.{name}: work on a copy")
    context: Any = case.batch.context
    if not torch.equal(run(assembled, case).losses[0].new.logprobs.detach(), case.logprobs[context.index]):
        return failed("it writes into the policy's log-probs: work on a copy")
    return passed("the batch holds what it held before")


def memory(subject: Subject) -> Result:
    """A run that is killed goes on from its checkpoint. What a part remembers and does not save starts anew there, and
    the curve has a kink that nobody can explain."""
    first, second = subject.case(0), subject.case(1)
    lived = subject.compose()
    run(lived, first)
    try:
        state = through_checkpoint(lived.part.state_dict())
    except TypeError as error:
        return failed(f"state_dict() holds what a checkpoint cannot: {error}; it takes JSON and tensors")
    streams = copy.deepcopy(lived.streams.state_dict())
    expected = run(lived, second)
    loaded, fresh = subject.compose(), subject.compose()
    loaded.part.load_state_dict(state)
    for assembled in (loaded, fresh):
        assembled.streams.load_state_dict(copy.deepcopy(streams))
    gap, where = run(loaded, second).differs(expected, second.cells)
    alone, _ = run(fresh, second).differs(expected, second.cells)
    if gap != 0:
        kept = f"state_dict() holds {listed(list(state))}" if state else "state_dict() is empty"
        born = vars(subject.compose().part)
        moved = [f"self.{key}" for key, value in vars(lived.part).items() if not _same(value, born.get(key))]
        kept += f", and its calls change {listed(moved)}" * bool(moved)
        return failed(f"a save and a load move {where} of the next batch by {gap:.2g}; {kept}")
    if not state:
        return passed("it has no memory: a fresh one goes on as well")
    what = "and without it the second batch would differ" if alone else "though this batch would not have shown it"
    return passed(f"saved and loaded, it goes on exactly; it keeps {listed(list(state))}, {what}")


def _same(one: Any, two: Any) -> bool:
    """Equal as far as it can be told; what is neither plain nor a tensor, such as streams, is taken for equal."""
    if isinstance(one, Tensor) or isinstance(two, Tensor):
        return isinstance(one, Tensor) and isinstance(two, Tensor) and torch.equal(one, two)
    plain = (bool, int, float, str, list, tuple, dict, set, type(None))
    return not (isinstance(one, plain) and isinstance(two, plain)) or repr(one) == repr(two)


def groups(subject: Subject) -> Result:
    """The rows of a group share their start, and are compared with each other alone. A mean over all of the batch
    rewards a row for having an easy prompt."""
    if "groups" not in subject.needs:
        return skipped("it does not compare within groups")
    neighbour = {} if subject.axis == "baseline" else {"baseline": "group_mean"}
    case = subject.case()
    batch, chosen = case.batch, case.batch.group == 7
    other = torch.where(chosen[:, None], batch.rewards, 3 * batch.rewards + 0.5 * batch.mask)
    scores = {name: torch.where(chosen, x, 3 * x + 0.5) for name, x in batch.scores.items()}
    changed = case.with_(rewards=other, scores=scores)
    index: Any = batch.context
    cells = index.index[batch.mask & chosen[:, None]]
    one, two = (run(subject.compose(neighbour), c) for c in (case, changed))
    gap = max(distance(one.advantages[cells], two.advantages[cells]), distance(one.rewards[cells], two.rewards[cells]))
    if not gap <= TOLERANCE:
        return failed(f"other rewards in two groups move the advantages of the third by {gap:.2g}")
    return passed("other rewards in two groups leave the advantages of the third as they are")


def degenerate(subject: Subject) -> Result:
    """Such batches come: every answer alike, a group of which one row is left, all steps masked, a policy that ran
    away. One NaN in a gradient is a NaN in every weight."""
    refused: dict[str, str] = {}
    cases = _extremes(subject.case())
    neighbour = {"baseline": "group_mean"} if subject.axis == "normalize" else {}
    for name, case in cases.items():
        try:
            outcome = run(subject.compose(neighbour), case)
        except (UserError, RunError) as error:
            refused[name] = str(error)
            continue
        for what, tensor in _numbers(outcome).items():
            bad = ~tensor.isfinite()
            if bool(bad.any()):
                return failed(
                    f"{name}: {what} is {float(tensor[bad][0])}; it must be finite, or refused by a UserError"
                )
    words = f"finite loss and gradient in float32 with {listed([name for name in cases if name not in refused])}"
    return passed(words + "".join(f"; {name} refused: {error}" for name, error in refused.items()))


def _numbers(outcome: Outcome) -> dict[str, Tensor]:
    found = {"the advantage": outcome.advantages, "the loss": outcome.loss}
    return {**found, **{f"the gradient in {name}": gradient for name, gradient in outcome.gradient.items()}}


def _extremes(case: Case) -> dict[str, Case]:
    case = case.to(torch.float32)
    batch = case.batch
    B, T = batch.mask.shape
    one = torch.zeros_like(batch.mask)
    one[:, 0] = True
    runaway = torch.tensor([100.0, -100.0, 0.0, -1e4, 50.0]).repeat(B)
    equal = torch.zeros_like(batch.rewards).masked_scatter(one, torch.full((B,), 0.3))

    def masked(mask: Tensor) -> Case:
        return case.with_(mask=mask, rewards=torch.where(mask, batch.rewards, 0))

    return {
        "no step at all": masked(torch.zeros_like(batch.mask)),
        "rows of one step": masked(one),
        "groups of one row": case.with_(group=torch.arange(B)),
        "equal rewards": case.with_(rewards=equal, scores={name: 0 * x + 0.3 for name, x in batch.scores.items()}),
        "rewards of 1e6": case.with_(rewards=1e6 * batch.rewards),
        "log-ratios up to 1e4": dataclasses.replace(
            case.with_(ref_logprobs=batch.ref_logprobs - 1e3), logprobs=case.logprobs + runaway
        ),
        "log-ratios of the sampler up to 1e4": case.with_(
            logprobs=batch.logprobs + torch.where(batch.mask, runaway.reshape(B, T), 0)
        ),
    }


def through_checkpoint(state: dict[str, Any]) -> dict[str, Any]:
    """Written to a file and read again; TypeError for what neither JSON nor safetensors holds."""
    with tempfile.TemporaryDirectory() as folder:
        save_state(Path(folder), "state", state)
        return load_state(Path(folder), "state")


def _tensors(batch: Batch) -> dict[str, Tensor]:
    found = {name: value for name, value in _fields(batch).items() if isinstance(value, Tensor)}
    return {**found, **{f"scores[{name}]": value for name, value in batch.scores.items()}}


def _fields(batch: Batch) -> dict[str, Any]:
    return {f.name: getattr(batch, f.name) for f in dataclasses.fields(Batch)}


def listed(names: list[str]) -> str:
    """a, b and c."""
    if not names:
        return "nothing"
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"

"""What the gradient is, and where it goes."""

from __future__ import annotations

import copy
import dataclasses
import itertools
import math
from contextlib import nullcontext
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlfw import metrics
from rlfw.notation import SYMBOLS

from .cases import Said, distance, run
from .frozen import Held, differences
from .report import Result, failed, passed, skipped

if TYPE_CHECKING:
    from collections.abc import Callable

    from .cases import Assembled, Case, Outcome
    from .subject import Subject


def first_minibatch(subject: Subject) -> Result:
    """Before the first step the policy IS the old one: ratio 1, approx_kl 0, nothing clipped. If not, the two were
    computed differently (temperature on one side, dropout, another precision), and every clip acts on that error."""
    case = subject.case(moved=False)
    assembled = subject.compose()
    outcome = run(assembled, case)
    if outcome.share.sum() == 0:
        return skipped("it leaves no step in the loss")
    loss = outcome.losses[0]
    found = metrics.update_metrics(assembled.composition, loss.new.detach(), loss.batch)
    kl, ratios = (
        found["policy/approxkl_avg"],
        [found[key] for key in ("val/ratio_min", "val/ratio_max") if key in found],
    )
    clipped = {name: value for name, value in found.items() if "clipfrac" in name and name.startswith("policy/")}
    for value in ratios:
        if not abs(value - 1) <= 1e-9:
            return failed(f"the policy has not moved, and its ratio is {value:.4f} in place of 1")
    for name, value in {"policy/approxkl_avg": kl, **clipped}.items():
        if not abs(value) <= 1e-9:
            return failed(f"the policy has not moved, and {name} is {value:.4f} in place of 0")
    ratio = "ratio 1, " if ratios else "no ratio, "
    return passed(f"the policy has not moved: {ratio}approx_kl 0" + ", clip_frac 0" * bool(clipped))


def finite_differences(subject: Subject) -> Result:
    """A gradient that is not that of the value optimises something else than the number in the plot: a detach at the
    wrong place, a backward written by hand, an edit in place. A formula says sg(...) where that is meant."""
    assembled, case = subject.compose(), subject.case()
    outcome = run(assembled, case)
    plain = held = 0.0
    for name, gradient in outcome.gradient.items():
        x = getattr(case, name)
        plain = max(plain, distance(differences(_loss_of(assembled, outcome, case, name), x, case.cells), gradient))
        f = _loss_of(assembled, outcome, case, name, Held())
        f(x)  # the first pass records
        held = max(held, distance(differences(f, x, case.cells), gradient))
    if plain <= 1e-6:
        return passed(f"the gradient is that of the value, within {plain:.1g} of finite differences in every step")
    if not held <= 1e-6:
        return failed(f"gradient and finite differences are {plain:.2g} apart, {held:.2g} with detached numbers held")
    if not _says_so(subject.formula):
        return failed(
            f"the part detaches something that moves with the policy, so its gradient is {plain:.2g} off that of its "
            "value; if that is meant, say so with sg(...) in its formula"
        )
    return passed(f"with what its formula holds by sg(...) held, within {held:.1g} of finite differences")


def _says_so(formula: str) -> bool:
    """The formula holds a symbol by which a value and its gradient part."""
    parting = [symbol.rstrip("·d)") for symbol, meaning in SYMBOLS.items() if "gradient" in meaning]
    return any(symbol in formula for symbol in parting)


def _loss_of(
    assembled: Assembled, outcome: Outcome, case: Case, name: str, held: Held | None = None
) -> Callable[[Tensor], float]:
    """The loss of the minibatch as a function of one of the policy's numbers [C]."""
    composition, streams = assembled.composition, copy.deepcopy(assembled.streams.state_dict())

    def f(x: Tensor) -> float:
        assembled.streams.load_state_dict(copy.deepcopy(streams))
        scored = Said.of(case.saying(name, x), composition).score(outcome.minibatch)
        with nullcontext() if held is None else held:
            loss = composition.loss(scored, outcome.minibatch, outcome.share)
        return float(loss.total.detach())

    return f


def where_it_goes(subject: Subject) -> Result:
    """The policy's loss moves the policy, the critic's loss the critic. A critic that the policy's loss reaches learns
    to flatter the policy, not to foresee the return; and a step off the mask must move nobody."""
    assembled, case = subject.compose({"baseline": "critic"}), subject.case()
    policy, critic = (_gradient(assembled, case, share) for share in ("policy", "critic"))
    padded = case.padded(empty_row=False)
    beyond = _gradient(subject.compose({"baseline": "critic"}), padded, "policy")["logprobs"][-1]
    leak = float(policy["values"].abs().max())
    if leak > 0:
        return failed(f"the policy's loss pulls at the critic's values, by up to {leak:.2g}: detach them")
    back = float(critic["logprobs"].abs().max())
    if back > 0:
        return failed(f"the critic's loss pulls at the policy, by up to {back:.2g}")
    if float(beyond.abs()) > 0:
        return failed(f"steps off the mask get a gradient of {float(beyond):.2g}")
    strength = max(float(gradient.abs().max()) for gradient in policy.values())
    if strength == 0 and subject.kind != "critic":
        return failed("the loss has no gradient at all: everything is detached")
    return passed("the policy's loss moves the policy alone, the critic's the critic; nothing goes off the mask")


def _gradient(assembled: Assembled, case: Case, share: str) -> dict[str, Tensor]:
    """The gradient of one share of the loss in everything that was said."""
    outcome = run(assembled, case, backward=False)
    said = Said.of(case, assembled.composition)
    loss = assembled.composition.loss(said.score(outcome.minibatch), outcome.minibatch, outcome.share)
    scalar = {"policy": loss.policy, "critic": loss.critic}[share]
    if scalar is not None and scalar.requires_grad:
        scalar.backward()
    return said.gradient()


def push(subject: Subject) -> Result:
    """A surrogate raises what was better than expected and lowers what was worse. Where the policy has gone astray it
    must lead back: with min and max swapped in a clip, wrong steps are never undone and right ones run on for ever."""
    start, astray, ahead = (_push(subject, factor) for factor in (1.0, 1.5, 1 / 1.5))
    for sign, word in ((1, "A > 0"), (-1, "A < 0")):
        if not start[sign] > 0:
            held = "; the push is linear in log pi, so what multiplies it carries a gradient: detach it"
            return failed(
                f"{word}, and the policy has not moved: the step is pushed by {start[sign]:.3g} A, not by A"
                + held * _weighs_by_itself(subject)
            )
        led, goes_on = astray[sign], ahead[sign]
        if led < 0 or (led == 0 and goes_on > 0):
            return failed(
                f"{word}, and the ratio is {1.5**-sign:.2f}, gone the wrong way: the step is pushed by {led:.3g} A; at "
                f"{1.5**sign:.2f}, gone far enough, by {goes_on:.3g} A"
            )
    nothing = _push_without_signal(subject)
    if nothing > 1e-12:
        return failed(
            f"advantages of 0, and the policy has not moved: the loss pulls by {nothing:.2g} all the same; detach what "
            "enters the advantage, and leave what pulls without a signal to a penalty"
        )
    return passed(
        f"before any step by {start[1]:.3g} A where A > 0 and {start[-1]:.3g} A where A < 0 (REINFORCE: 1 A); gone the "
        f"wrong way by a factor of 1.5: {astray[1]:.3g} A and {astray[-1]:.3g} A; the right way: {ahead[1]:.3g} A and "
        f"{ahead[-1]:.3g} A; without a signal not at all"
    )


def _weighs_by_itself(subject: Subject) -> bool:
    """Before any step push / A is a + b log pi: a ratio beside log pi that is not detached."""
    assembled, case = subject.compose({"baseline": "group_mean"}), subject.case(moved=False)
    credited = run(assembled, case, backward=False)
    gradient = _gradient(assembled, case, "policy")["logprobs"]
    slope = (-gradient / (credited.coefficients * credited.advantages))[case.cells]
    line = torch.stack([torch.ones_like(slope), case.logprobs[case.cells]], 1)
    fit = torch.linalg.lstsq(line, slope[:, None]).solution
    return bool(fit[1].abs() > 1e-3) and bool(((line @ fit)[:, 0] - slope).abs().max() < 1e-6)


def _push(subject: Subject, astray: float) -> dict[int, float]:
    """Sign of A -> the smallest push / A, all steps gone the wrong way by ``astray`` (below 1: the right way)."""
    assembled, case = subject.compose({"baseline": "group_mean"}), subject.case(moved=False)
    credited = run(assembled, case, backward=False)
    sign = credited.advantages.sign()
    moved = case.saying("logprobs", case.logprobs - sign * math.log(astray))
    gradient = _gradient(subject.compose({"baseline": "group_mean"}), moved, "policy")["logprobs"]
    slope = -gradient / (credited.coefficients * credited.advantages)
    return {s: float(slope[case.cells][sign[case.cells] == s].min()) + 0.0 for s in (1, -1)}  # -0 reads 0


def _push_without_signal(subject: Subject) -> float:
    case = subject.case(moved=False)
    nothing = torch.zeros_like(case.batch.rewards), torch.zeros_like(case.batch.values)
    silent = case.with_(rewards=nothing[0], values=nothing[1]).saying("values", nothing[0].reshape(-1))
    gradient = _gradient(subject.compose({"baseline": "none"}), silent, "policy")
    return max(float(g[case.cells].abs().max()) for g in gradient.values())


def coefficient(subject: Subject) -> Result:
    """A coefficient that is read nowhere, or applied twice, makes a sweep over it a sweep over nothing."""
    if not isinstance(subject.node.get("coef"), float):
        return skipped("it has no coef")
    case, found = subject.case(), []
    coef = subject.node["coef"] or 0.5
    for factor in (1, 2, 3):
        at = dataclasses.replace(subject, node={**subject.node, "coef": factor * coef})
        found.append(_gradient(at.compose(), case, "policy"))
    more, as_much = ({name: b[name] - a[name] for name in a} for a, b in itertools.pairwise(found))
    if not any(bool(gradient.any()) for gradient in more.values()):
        return failed(f"coef={coef} and coef={2 * coef} give the same gradient: it is not read")
    gap = max(distance(as_much[name], more[name]) for name in more)
    if not gap <= 1e-9:
        return failed(f"the gradient is not linear in coef: {gap:.2g} off")
    return passed("twice the coef is twice the penalty's gradient")


def critic(subject: Subject) -> Result:
    """The critic's loss pulls V towards the return. A target that moves along with V, or a sign, sends it elsewhere."""
    assembled, case = subject.compose(), subject.case()
    credited = run(assembled, case, backward=False).minibatch
    for offset in (0.05, -0.05, 3.0, -3.0):
        index = case.batch.context.index  # type: ignore[attr-defined]
        there = torch.zeros_like(case.values).index_put((index,), credited.returns + offset)
        gradient = _gradient(assembled, case.saying("values", there), "critic")["values"][case.cells]
        pulled = gradient * offset  # a clip of values may hold some of them for a while
        if bool((pulled < 0).any()) or not bool((pulled > 0).any()):
            return failed(
                f"V is {abs(offset)} {'above' if offset > 0 else 'below'} the return, and not pulled towards it"
            )
    at_home = torch.zeros_like(case.values).index_put((index,), credited.returns)
    rest = _gradient(assembled, case.saying("values", at_home), "critic")["values"][case.cells]
    if not float(rest.abs().max()) <= 1e-9:
        return failed(f"V equals the return, and is pulled by {float(rest.abs().max()):.2g}")
    return passed("V is pulled towards the return from either side, never away, and rests there")

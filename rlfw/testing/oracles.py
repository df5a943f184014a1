"""Tasks so small that every outcome is enumerated: expected gradients are exact, and nothing is sampled.

S states   A actions   G rows of a group   L steps of a row
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from rlfw.errors import RunError, UserError
from rlfw.interfaces import Scored
from rlfw.rollout import ABSENT, Current

from .cases import Cells, Watched
from .report import Result, failed, passed, skipped

if TYPE_CHECKING:
    from .cases import Assembled
    from .subject import Subject


@dataclass(frozen=True)
class World:
    """A task with all of its outcomes, and a softmax policy."""

    name: str
    states: Tensor  # [K, L] of each outcome
    actions: Tensor  # [K, L]
    rewards: Tensor  # [K, L]
    logits: Tensor  # [S, A]
    group_size: int

    def logprobs(self, logits: Tensor) -> Tensor:
        """[K, L] of the actions taken."""
        return logits.log_softmax(1)[self.states, self.actions]

    def probability(self, logits: Tensor) -> Tensor:
        """[K]"""
        return self.logprobs(logits).sum(1).exp()

    def totals(self, shift: float, scale: float) -> Tensor:
        """[K] the return of each outcome."""
        return scale * self.rewards.sum(1) + shift

    def truth(self, shift: float, scale: float) -> Tensor:
        """[S, A] the gradient of the expected return."""
        logits = self.logits.clone().requires_grad_()
        (self.probability(logits) * self.totals(shift, scale)).sum().backward()
        assert logits.grad is not None
        return logits.grad

    def values(self, shift: float, scale: float) -> Tensor:
        """[K, L + 1] the true value of the state before each step; 0 after the last."""
        K, L = self.states.shape
        p, totals = self.probability(self.logits), self.totals(shift, scale)
        found = torch.zeros(K, L + 1, dtype=torch.float64)
        for step in range(L):
            for state in self.states[:, step].unique():
                here = self.states[:, step] == state
                found[here, step] = (p * totals)[here].sum() / p[here].sum()
        return found


def _world(name: str, states: list, actions: list, rewards: list, logits: list, group_size: int) -> World:
    paid, policy = (torch.tensor(x, dtype=torch.float64) for x in (rewards, logits))
    return World(name, torch.tensor(states), torch.tensor(actions), paid, policy, group_size)


# The second arm pays 1 and is chosen with probability .3.
BANDIT = _world("bandit", [[0], [0]], [[0], [1]], [[0], [1]], [[0.0, -0.8472978603872034]], 4)
# The first action leads to state 1 or 2, the second one ends the episode; only 1 and then 1 pays, at the end.
CHAIN = _world(
    "chain",
    [[0, 1], [0, 1], [0, 2], [0, 2]],
    [[0, 0], [0, 1], [1, 0], [1, 1]],
    [[0, 0], [0, 0], [0, 0], [0, 1]],
    [[0.0, -0.5], [0.3, 0.0], [0.4, 0.0]],
    2,
)
# Returns are scale * reward + shift: as they are, all positive, all negative.
PAYMENTS = {"0 and 1": (0.0, 1.0), "1 and 2, all positive": (1.0, 1.0), "-2 and -1, all negative": (-2.0, 1.0)}


def expected_gradient(subject: Subject, world: World, shift: float, scale: float, neighbour: dict[str, str]) -> Tensor:
    """[S, A] the expectation, over all groups of rows, of the gradient that ascends the objective."""
    total = torch.zeros_like(world.logits)
    assembled: Assembled | None = None
    probability, values = world.probability(world.logits), world.values(shift, scale)
    paid = world.rewards * scale
    paid[:, -1] += shift
    best = world.logits.argmax(1)  # the greedy episode
    greedy = int((world.actions == best[world.states]).all(1).nonzero()[0])
    for outcome in itertools.product(range(len(probability)), repeat=world.group_size):
        if assembled is None or assembled.part.state_dict() or subject.draws:
            assembled = subject.compose(neighbour, gamma=1.0)
        rows = torch.tensor(outcome)
        logits = world.logits.clone().requires_grad_()
        table = logits.log_softmax(1)
        states = world.states[rows]
        logprobs = table[states, world.actions[rows]]
        entropy = -(table * table.exp()).sum(1)[states]
        G = len(rows)
        now, returns = logprobs.detach(), paid[rows].sum(1)
        batch = Watched(
            context=Cells(torch.arange(states.numel()).reshape(states.shape)),
            actions=world.actions[rows],
            logprobs=now,
            rewards=paid[rows],
            mask=torch.ones(states.shape, dtype=torch.bool),
            terminated=torch.ones(G, dtype=torch.bool),
            truncated=torch.zeros(G, dtype=torch.bool),
            group=torch.zeros(G, dtype=torch.int64),
            episode=torch.arange(G),
            scores={"a": returns, "b": returns},
            values=values[rows],
            old_logprobs=now,
            ref_logprobs=now,
            entropy=entropy.detach(),
            greedy_returns=paid[greedy].sum().expand(G),
        )
        composition = assembled.composition
        with torch.no_grad():
            minibatch, share = composition.prepare(composition.credit(batch))
        loss = composition.loss(
            Scored(
                logprobs,
                entropy if "entropy" in composition.needs else ABSENT,
                values[rows][:, :-1] if composition.critic is not None else ABSENT,
            ),
            minibatch,
            share,
        ).policy
        if loss.requires_grad:
            (gradient,) = torch.autograd.grad(loss, logits)
            total -= probability[rows].prod() * gradient
    return total


def _learns(subject: Subject, world: World, what: str) -> Result:
    neighbour = {"aggregation": "sequence_sum"}
    if subject.axis in ("reward", "normalize"):
        neighbour["baseline"] = "group_mean"
    factors, refused = {}, []
    for name, (shift, scale) in PAYMENTS.items():
        truth = world.truth(shift, scale)
        try:
            found = expected_gradient(subject, world, shift, scale, neighbour)
        except (UserError, RunError) as error:
            refused.append(f"; rewards {name} are refused: {error}")
            continue
        along = float((found * truth).sum() / (truth * truth).sum())
        wrong = (found * truth < -1e-9).nonzero().tolist()
        idle = ((found.abs() < 1e-9) & (truth.abs() > 1e-6)).nonzero().tolist()
        if subject.axis == "weight" or not bool(found.any()):  # a weight chooses steps; see below for nothing at all
            idle = []
        if not bool(found.isfinite().all()) or along < -1e-9 or wrong or idle:
            words = f"{what}, rewards {name}: the expected update is {along:.3g} times the true gradient"
            if wrong:
                words += f"; in state {wrong[0][0]} it moves action {wrong[0][1]} the wrong way"
            elif idle:
                words += f"; in state {idle[0][0]} it moves nothing"
            return failed(words)
        if subject.axis == "baseline" and subject.part.unbiased:
            gap = float((found - truth).abs().max())
            if not gap <= 1e-9:
                return failed(
                    f"{what}, rewards {name}: it claims to be unbiased, and the expected update is {along:.4f} times "
                    f"the true gradient, off by {gap:.2g}"
                )
        factors[name] = along
    if not factors:
        return skipped("".join(refused).removeprefix("; "))
    if not any(along > 1e-9 for along in factors.values()):
        return failed(f"{what}: the expected update is 0 whatever is paid; it learns nothing")
    numbers = ", ".join(f"{along:.3g} ({name})" for name, along in factors.items())
    return passed(f"{what}: the expected update is the true gradient times {numbers}{''.join(refused)}")


def bandit(subject: Subject) -> Result:
    """Two arms, the better one chosen with probability .3; all groups enumerated. A sign, a baseline that eats its own
    reward, or advantages that lean on the rewards' sign show here within milliseconds, and in no loss curve."""
    return _learns(subject, BANDIT, "two arms")


def chain(subject: Subject) -> Result:
    """Two steps, the reward at the end depends on both. Credit that stays on the last step, or is spread to the wrong
    one, leaves the first action where it was."""
    return _learns(subject, CHAIN, "two steps, paid at the end")


def pull(subject: Subject) -> Result:
    """A KL penalty draws the policy to another one. k1 = log pi - log q in a loss has an expected gradient of zero and
    regularises nothing; a swapped sign drives the two apart; the plot of the penalty shows neither."""
    if subject.node.get("coef") == 0:
        return skipped("coef is 0")
    other = next((name for name in ("ref_logprobs", "old_logprobs") if name in subject.needs), None)
    if other is None:
        found = _pull(subject, [0.7, 0.3], [0.7, 0.3], "ref_logprobs")[0]
        up = "raises" if float(found @ _entropy_gradient([0.7, 0.3])) < 0 else "lowers"
        if float(found.abs().max()) < 1e-12:
            return failed("two arms: the penalty has no expected gradient, so it regularises nothing")
        return passed(f"it is tied to no other policy; on two arms (.7, .3) a step {up} the entropy")
    name = {"ref_logprobs": "reference", "old_logprobs": "old policy"}[other]
    home, _ = _pull(subject, [0.7, 0.3], [0.7, 0.3], other)
    shares = []
    for policy, target in (([0.7, 0.3], [0.5, 0.5]), ([0.2, 0.8], [0.6, 0.4])):
        gradient, kl = _pull(subject, policy, target, other)
        share = float(gradient @ kl / (kl @ kl))
        if not share > 1e-9:
            what = "no expected gradient: it regularises nothing" if abs(share) <= 1e-9 else f"a pull of {share:.3g}"
            return failed(
                f"two arms {policy}, the {name} at {target}: {what}; a step must lower KL(policy || {name})"
                + (", it raises it" if share < -1e-9 else "")
            )
        shares.append(share)
    if float(home.abs().max()) > 1e-9:
        return failed(f"policy and {name} are the same, and it pulls by {float(home.abs().max()):.2g}")
    numbers = " and ".join(f"{share:.3g}" for share in shares)
    return passed(f"two arms: it pulls to the {name} by {numbers} times the gradient of KL, and not at all once there")


def _pull(subject: Subject, policy: list[float], target: list[float], other: str) -> tuple[Tensor, Tensor]:
    """[2] the penalty's expected gradient in the logits, and that of KL(policy || target).

    The rows are drawn by the policy, or by the old one where that is the target: each arm as often as it is likely.
    """
    sampler = policy if other == "ref_logprobs" else target
    arms = torch.tensor([arm for arm, p in enumerate(sampler) for _ in range(round(10 * p))])
    assembled = subject.compose(gamma=1.0)
    composition = assembled.composition
    logits = torch.tensor(policy, dtype=torch.float64).log().requires_grad_()
    table, goal = logits.log_softmax(0), torch.tensor(target, dtype=torch.float64).log()
    now = table[arms][:, None]
    there = now.detach() if policy == target else goal[arms][:, None]  # the same to the last bit
    old = now.detach() if other == "ref_logprobs" else there
    entropy = -(table * table.exp()).sum().expand(10, 1)
    ten = torch.ones(10, dtype=torch.bool)
    batch = Watched(
        context=Cells(torch.arange(10)[:, None]),
        actions=arms[:, None],
        logprobs=old,
        rewards=arms[:, None].double(),
        mask=ten[:, None],
        terminated=ten,
        truncated=~ten,
        group=torch.zeros(10, dtype=torch.int64),
        episode=torch.arange(10),
        scores={"a": arms.double(), "b": arms.double()},
        values=torch.zeros(10, 2, dtype=torch.float64),
        old_logprobs=old,
        ref_logprobs=there,
        entropy=entropy.detach(),
        greedy_returns=torch.zeros(10, dtype=torch.float64),
    )
    with torch.no_grad():
        minibatch, share = composition.prepare(composition.credit(batch))
    log_ratio = composition.ratio(now, composition._seen(minibatch, composition.ratio))
    new = Current(now, ABSENT if log_ratio is None else log_ratio, entropy, ABSENT)
    penalty = assembled.part(new, composition._seen(minibatch, assembled.part))
    loss = (share * penalty).sum()
    gradient = torch.autograd.grad(loss, logits, retain_graph=True)[0] if loss.requires_grad else 0 * logits.detach()
    (kl,) = torch.autograd.grad((table.exp() * (table - goal)).sum(), logits)
    return gradient, kl


def _entropy_gradient(policy: list[float]) -> Tensor:
    logits = torch.tensor(policy, dtype=torch.float64).log().requires_grad_()
    table = logits.log_softmax(0)
    (gradient,) = torch.autograd.grad(-(table * table.exp()).sum(), logits)
    return gradient

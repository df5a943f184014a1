"""The next point of a search, by optuna: a function of what was tried, so that a search can be cut anywhere."""

from __future__ import annotations

from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np

from rlfw.errors import UserError
from rlfw.study.space import Range, words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.study.space import Space

SEED = 5  # with a proposal's number: the sampler's random stream, apart from any run's
PATIENCE = 20  # points in a row that were tried before, after which one is drawn at random
EMPTY = 2000  # the same, after which there is none


@dataclass(frozen=True)
class Tried:
    """A point that was proposed before."""

    params: dict[str, Any]
    state: str  # told, refused, or pending: its batch has not ended
    value: float | None = None  # of one that was told; None where all of its runs failed


def require() -> None:
    """UserError where the extra is missing."""
    if find_spec("optuna") is None:
        raise UserError("mode: search needs optuna: pip install 'rlfw[search]'")


def propose(space: Space, sampler: str, tried: Sequence[Tried], *, higher_is_better: bool) -> dict[str, Any] | None:
    """A point of ``space`` that was not proposed before; None where there is none left.

    tpe is optuna's: ten points at random, then the tree-structured Parzen estimator of good points and of all others
    (Bergstra et al. 2011), over all keys together. What is pending counts among the others, so that a batch spreads
    out; so does what was refused. The random stream begins anew with each proposal.
    """
    from optuna.samplers import RandomSampler, TPESampler

    seed = int(np.random.SeedSequence([SEED, len(tried)]).generate_state(1)[0])
    by_chance = RandomSampler(seed)
    study = _study(space, tried, higher_is_better)
    study.sampler = TPESampler(seed=seed) if sampler == "tpe" else by_chance
    known = [words(point.params) for point in tried]
    takes = distributions(space)
    for attempt in range(EMPTY):
        if attempt == PATIENCE:
            study.sampler = by_chance
        drawn = study.ask(takes).params
        point = {key: x.rounded(drawn[key]) if isinstance(x, Range) else drawn[key] for key, x in space.items()}
        if words(point) not in known:
            return point
    return None


def importance(space: Space, tried: Sequence[Tried], *, higher_is_better: bool) -> dict[str, float]:
    """key -> its share of what sets good points apart (PED-ANOVA, arXiv:2304.10255); empty for too few points."""
    import optuna

    told = [point for point in tried if point.state == "told" and point.value is not None]
    varied = [key for key in space if len({str(point.params[key]) for point in told}) > 1]
    if len(told) < 2 * len(space) + 2 or len({point.value for point in told}) < 2 or not varied:
        return {}
    found = optuna.importance.get_param_importances(_study(space, told, higher_is_better), params=varied)
    return {key: round(float(share), 4) for key, share in found.items()}


def distributions(space: Space) -> dict[str, Any]:
    """The space as optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    found: dict[str, Any] = {}
    for key, x in space.items():
        if not isinstance(x, Range):
            found[key] = CategoricalDistribution(x)
        elif x.whole:
            found[key] = IntDistribution(int(x.low), int(x.high), log=x.log, step=int(x.step or 1))
        else:
            found[key] = FloatDistribution(x.low, x.high, log=x.log, step=x.step)
    return found


def _study(space: Space, tried: Sequence[Tried], higher_is_better: bool) -> Any:
    import optuna
    from optuna.trial import TrialState, create_trial

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize" if higher_is_better else "minimize")
    takes = distributions(space)
    for point in tried:
        state = TrialState.RUNNING if point.state == "pending" else TrialState.PRUNED
        value = point.value if point.state == "told" else None
        study.add_trial(
            create_trial(
                state=state if value is None else TrialState.COMPLETE,
                value=value,
                params=point.params,
                distributions=takes,
            )
        )
    return study

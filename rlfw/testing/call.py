"""The part called by itself, on the stage of the pipeline where it stands."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlfw.rollout import ABSENT, Current

from .cases import Said

if TYPE_CHECKING:
    from torch import Tensor

    from .cases import Assembled, Case
    from .subject import Subject


class Heard(Current):
    """What the policy says now, with a memory of which of its fields were read."""

    def __init__(self, reads: set[str], *fields: Any) -> None:
        super().__init__(*fields)
        object.__setattr__(self, "reads", reads)

    def __getattribute__(self, name: str) -> Any:
        if name in ("log_ratio", "entropy", "values"):
            object.__getattribute__(self, "reads").add(name)
        return object.__getattribute__(self, name)


Heard.__name__ = Current.__name__  # for the error that a slip in a field's name raises


def call(subject: Subject, assembled: Assembled, case: Case, reads: set[str] | None = None) -> dict[str, Tensor]:
    """What the part returns, by name; ``case`` may be credited or not.

    ``reads`` gets the names of what a regularizer reads of ``new``.
    """
    composition, part = assembled.composition, assembled.part
    batch = case.batch
    if subject.axis not in ("reward", "baseline") and batch.advantages is None:
        batch = composition.credit(batch)
    seen = composition._seen(batch, part)
    if subject.axis in ("reward", "weight"):
        return {{"reward": "the reward", "weight": "the weight"}[subject.axis]: part(seen)}
    if subject.axis == "baseline":
        advantages, returns = part(seen)
        found = {"the advantage": advantages, "the return": returns}
        if subject.kind == "critic":
            credited = composition.credit(batch)
            new = Current(batch.logprobs, values=Said.of(case, composition).score(batch).values)
            found["the critic's loss"] = part.loss(new, composition._seen(credited, part))
        return found
    if subject.axis == "normalize":
        return {"the advantage": part(batch.advantages, seen)}
    if subject.axis == "aggregation":
        return {"the coefficient": part(batch.mask, batch.group, batch.advantages.dtype)}
    scored = Said.of(case, composition).score(batch)
    if subject.axis == "ratio":
        found = part(scored.logprobs, seen)
        return {} if found is None else {"the log-ratio": found}
    log_ratio = composition.ratio(scored.logprobs, composition._seen(batch, composition.ratio))
    fields = scored.logprobs, ABSENT if log_ratio is None else log_ratio, scored.entropy, scored.values
    new = Heard(set() if reads is None else reads, *fields)
    return {"the objective" if subject.kind == "surrogate" else "the penalty": part(new, seen)}

"""A composition in formulas: its loss with each part's in place, its rewards and its advantages."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlfw import registry
from rlfw.explain.formulas import Line, added, clauses, filled, product, right, sentence

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from omegaconf import DictConfig

    from rlfw.composition import Composition
    from rlfw.interfaces import Controller, Part, Penalty

UNCHANGED = "A ← A"


class Formulas:
    """What the parts of one composition write."""

    def __init__(self, cfg: DictConfig, composition: Composition) -> None:
        self.cfg, self.composition = cfg, composition
        self.controllers: Mapping[str, Controller] = {
            name: registry.build("controller", node, instance=name) for name, node in cfg.controller.items()
        }
        (self.optimizer,) = (registry.build("optimizer", node) for node in cfg.optimizer.values())

    def keys(self, axis: str, name: str) -> dict[str, Any]:
        return {str(key): value for key, value in self.cfg[axis][name].items() if key != "part"}

    def formula(self, part: Part) -> str:
        """With the numbers of the configuration; empty where the part has none."""
        axis, name = self._place(part).split(".", 1)
        return filled(part.formula, self.keys(axis, name))

    def _place(self, part: Part) -> str:
        return next(place for place, found in self.places() if found is part)

    def places(self) -> Iterator[tuple[str, Part]]:
        """axis.name and part, all of them."""
        yield from self.composition.parts.items()
        yield from ((f"controller.{name}", part) for name, part in self.controllers.items())
        yield from ((f"optimizer.{name}", self.optimizer) for name in self.cfg.optimizer)

    def name(self, part: Part) -> str:
        """As a person writes it."""
        axis, name = self._place(part).split(".", 1)
        kind = self.cfg[axis][name].part
        return f"{axis}={kind}" if kind == name else f"{axis}.{name} ({kind})"

    def objective(self) -> Iterator[Line]:
        """The loss with each part's formula in its place, then what stands in them."""
        composition = self.composition
        where: list[Line] = []
        surrogate = composition.surrogate
        if surrogate is None:
            plain, by = ("A ℓ" if composition.ratio.absent else "r A"), self.name(composition.ratio)
        else:
            plain, by = self._own("S", surrogate, where)
        weighed = any(self._weighs(part) for part in composition.weights)
        lines = [Line(f"loss = Σᵢₜ c · [ {product('- w · ' if weighed else '- ', plain)}", by)]
        for penalty in composition.penalties:
            lines.append(Line(" " * 15 + added(self._penalty(penalty, where)), self.name(penalty)))
        lines[-1] = Line(f"{lines[-1].text} ]", lines[-1].by)
        if composition.critic is not None:
            loss = [clause for clause in clauses(self.formula(composition.critic)) if clause.startswith("loss + ")]
            text = loss[0].removeprefix("loss + ") if loss else "the critic's loss"
            lines.append(Line(f"     + Σᵢₜ c · {text}", self.name(composition.critic)))
        yield from lines
        yield Line("")
        yield self._definition("c", composition.aggregation)
        yield from (self._definition("w", weight) for weight in composition.weights)
        if sum(map(self._weighs, composition.weights)) > 1:
            yield Line("w is the product of these")
        yield from where
        if not composition.ratio.absent:
            found = self._definition("x", composition.ratio)
            yield Line(f"r = e^x, {found.text}", found.by)

    def credit(self) -> Iterator[Line]:
        """Rewards and advantages."""
        composition = self.composition
        yield from (self._definition("ρ", reward) for reward in composition.rewards)
        for clause in clauses(self._definition("A", composition.baseline).text):
            if not clause.startswith("loss + "):
                yield Line(clause, self.name(composition.baseline))
        if self.formula(composition.normalize) != UNCHANGED:
            yield self._definition("A", composition.normalize)

    def _own(self, left: str, part: Part, where: list[Line]) -> tuple[str, str]:
        """A part's term of the loss; its further clauses join ``where``."""
        formula = self.formula(part)
        if not formula:
            where.append(self._definition(left, part))
            return left, self.name(part)
        where += [Line(clause, self.name(part)) for clause in clauses(formula)[1:]]
        return right(formula, left), self.name(part)

    def _penalty(self, penalty: Penalty, where: list[Line]) -> str:
        left = "P" if len(self.composition.penalties) == 1 else f"P_{self._place(penalty).split('.')[1]}"
        return self._own(left if not self.formula(penalty) else "P", penalty, where)[0]

    def _weighs(self, weight: Part) -> bool:
        return not self.formula(weight).startswith("m ←")

    def _definition(self, left: str, part: Part) -> Line:
        """A part's formula, or its sentence as that of the symbol ``left``."""
        return Line(self.formula(part) or f"{left}: {sentence(part)}", self.name(part))

    def short(self, part: Part) -> str:
        """A part's formula without its term of the loss, or its sentence."""
        if self.formula(part) == UNCHANGED:
            return "advantages as they are"
        return "; ".join(c for c in clauses(self.formula(part)) if not c.startswith("loss + ")) or sentence(part)

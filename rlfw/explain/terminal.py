"""``rlfw explain``: a composition as mathematics, as a pipeline, and beside the nearest published algorithm."""

from __future__ import annotations

import textwrap
import unicodedata
from typing import TYPE_CHECKING

from rlfw import config, effects, notes, registry
from rlfw.composition import Composition
from rlfw.explain import recipes
from rlfw.explain.formulas import Line, symbols
from rlfw.explain.objective import Formulas
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from omegaconf import DictConfig

    from rlfw.interfaces import Env, Part

WIDTH = 100
NAMES = 28  # of which for the part that wrote a line


def explain(words: Sequence[str]) -> str:
    """The composition of these overrides; UserError where one is wrong or the composition impossible."""
    cfg = config.compose(words)
    effects.check(cfg, words)
    (env_node,) = cfg.env.values()
    streams = Streams(cfg.seed)
    env: Env = registry.build("env", env_node, gamma=cfg.gamma, streams=streams)
    try:
        composition = Composition(cfg, gamma=cfg.gamma, max_steps=env.spec.max_steps, streams=streams)
        composition.check_env(env)
    finally:
        env.close()
    return Explanation(cfg, composition, words).text()


class Explanation(Formulas):
    """What there is to say of one composition on one env."""

    def __init__(self, cfg: DictConfig, composition: Composition, words: Sequence[str]) -> None:
        super().__init__(cfg, composition)
        overrides = config.typed_overrides(words)
        typed = dict(overrides)
        self.typed = [word for word, (key, _) in zip(words, overrides, strict=True) if key not in ("algorithm", "env")]
        self.algorithm, self.preset = recipes.chosen("algorithm", typed), recipes.chosen("env", typed)
        own = recipes.composed(cfg)
        leaves = {leaf for key, value in typed.items() for leaf in config.leaves(key, value)}
        ignored = recipes.env_owned(self.preset) - leaves  # what the env decides, unless a person did
        self.near = recipes.nearest(own, recipes.recipes(), ignored, self.algorithm)
        self.differences = recipes.differences(self.near, own, ignored)

    def text(self) -> str:
        said = [*self.objective(), Line(""), *self.credit()]
        stages = list(self.pipeline())
        meanings = symbols([line.text for line in said] + [text for _, text, _ in stages])
        sections = [
            ("", self.title()),
            ("Loss of an optimizer batch, to be minimised", _beside(said)),
            ("Symbols", _table([(symbol, meaning) for symbol, meaning in meanings.items()])),
            ("An iteration", _stages(stages)),
            ("What the parts ask for", _table(list(self.needs())) or ["  nothing beyond the rollout"]),
            (f"From the nearest recipe, {self.near.name}", self.relatives()),
            ("Notes", [line for note in self.notes() for line in _wrapped(f"- {note}", 2, 4)]),
        ]
        return "\n\n".join("\n".join([title] * bool(title) + lines) for title, lines in sections if lines)

    def title(self) -> list[str]:
        words = [f"algorithm={self.algorithm}", f"env={self.preset}", *self.typed]
        return [*_wrapped(" ".join(words), 0, 2), "", *_wrapped(self.summary, 0, 0)]

    @property
    def summary(self) -> str:
        return registry.preset("algorithm", self.algorithm).summary

    # ------------------------------------------------------------------------------------------------ the pipeline

    def pipeline(self) -> Iterator[tuple[str, str, str]]:
        """(stage, what happens, by which part) in the order of an iteration."""
        cfg, composition = self.cfg, self.composition
        yield "sample", self.short(composition.sampler), self.name(composition.sampler)
        yield "", f"from env={self.preset}", ""
        if "greedy_returns" in composition.needs:
            yield "", "beside each group one greedy episode from its start", self._asking("greedy_returns")
        yield from (("score" if i == 0 else "", *row) for i, row in enumerate(self.scoring()))
        yield from self._each("reward", composition.rewards, "as the env gives them")
        discount = f"; γ = {recipes.shown(cfg.gamma)}" if "gamma" in self._entry("baseline").wires else ""
        yield "baseline", self.short(composition.baseline) + discount, self.name(composition.baseline)
        late = composition.normalize.scope == "minibatch"
        if not late:
            yield "normalize", self.short(composition.normalize), self.name(composition.normalize)
        yield from self._each("weights", composition.weights, "none: every step counts once")
        yield "update", self.steps(), ""
        yield "", f"minibatches of {self.layout()}", ""
        if late:
            yield "", f"{self.short(composition.normalize)}, in each minibatch", self.name(composition.normalize)
        yield "", self.short(self.optimizer), self.name(self.optimizer)
        clip = f"gradient scaled down to a norm of {recipes.shown(cfg.max_grad_norm)}"
        lr = f"lr = {recipes.shown(cfg.lr)}"
        if composition.critic is not None:
            clip += f", the critic's to {recipes.shown(composition.critic.max_grad_norm)}"
            lr += "" if composition.critic.lr is None else f", the critic's {recipes.shown(composition.critic.lr)}"
        yield "", f"{clip}; {lr}", ""
        yield from self._each("control", list(self.controllers.values()), "nothing turns a knob")

    def _each(self, stage: str, parts: Sequence[Part], none: str) -> Iterator[tuple[str, str, str]]:
        for i, part in enumerate(parts):
            yield stage if i == 0 else "", self.short(part), self.name(part)
        if not parts:
            yield stage, none, ""

    def scoring(self) -> Iterator[tuple[str, str]]:
        """What the pass between rollout and credit computes, and who asked."""
        composition = self.composition
        asked = composition.needs_before_update.union(*(part.needs for part in self.controllers.values()))
        single = self.cfg.epochs * self.cfg.num_minibatches == 1
        if not single or asked & {"old_logprobs", "entropy"}:
            both = "ℓ_old and H" if "entropy" in composition.needs else "ℓ_old"
            yield f"{both}, before the policy moves", self._asking("old_logprobs", "entropy")
        else:
            yield "ℓ_old is ℓ itself: the update is a single step", ""
        if composition.critic is not None:
            yield "V of every step and of each row's end", self.name(composition.critic)
        if "ref_logprobs" in composition.needs:
            yield "ℓ_ref under the reference, the policy of the run's start", self._asking("ref_logprobs")

    def _asking(self, *needs: str) -> str:
        return ", ".join(self.name(part) for _, part in self.places() if not part.needs.isdisjoint(needs))

    def steps(self) -> str:
        epochs, minibatches = self.cfg.epochs, self.cfg.num_minibatches
        return f"{_count(epochs, 'epoch')} of {_count(minibatches, 'minibatch', 'minibatches')}: " + _count(
            epochs * minibatches, "optimizer step"
        )

    def layout(self) -> str:
        if "whole_rows" in self.composition.needs:
            return f"whole rows, for {self._asking('whole_rows')}"
        policy = self._entry("policy")
        if not isinstance(policy.part, type):
            return f"single steps, or whole rows where policy={policy.name} reads what came before"
        steps: bool = policy.part.memoryless  # type: ignore[attr-defined]
        return "single steps, shuffled" if steps else f"whole rows: policy={policy.name} reads what came before"

    def _entry(self, axis: str) -> registry.Entry:
        (node,) = self.cfg[axis].values()
        return registry.entry(axis, node.part)

    def needs(self) -> Iterator[tuple[str, str]]:
        for need in sorted(frozenset().union(*(part.needs for _, part in self.places()))):
            yield need, self._asking(need)

    def relatives(self) -> list[str]:
        lines = [f"  {line}" for line in self.differences] or ["  no difference"]
        for text in self.near.differs:
            lines += _wrapped(f"{self.near.name} differs from its paper: {text}", 2, 4)
        for text in self.near.remarks:
            lines += _wrapped(f"{self.near.name}: {text}", 2, 4)
        return lines

    def notes(self) -> list[str]:
        return notes.idle(self.cfg, self.composition, self.controllers.values())


def _count(number: int, one: str, many: str = "") -> str:
    return f"{number} {one if number == 1 else many or one + 's'}"


def _wrapped(text: str, first: int, then: int, width: int = WIDTH) -> list[str]:
    """Lines of at most ``width`` columns; a closing bracket stays with what it closes."""
    glued = text.replace(" ]", "\u00a0]")
    wrapper = textwrap.TextWrapper(width, " " * first, " " * then, break_long_words=False, break_on_hyphens=False)
    return [line.replace("\u00a0", " ") for line in wrapper.wrap(glued)]


def _beside(lines: Sequence[Line]) -> list[str]:
    """Formulas at the left, who wrote them at the right."""
    found = []
    for line in lines:
        indent = len(line.text) - len(line.text.lstrip())
        hang = line.text.find("[ - ") + 4 if "[ - " in line.text else indent + 4
        text = _wrapped(line.text.strip(), indent + 2, hang + 2, WIDTH - NAMES - 2) or [""]
        found += [f"{_padded(text[0], WIDTH - NAMES)}{line.by}".rstrip(), *text[1:]]
    return found


def _padded(text: str, width: int) -> str:
    """``text`` in ``width`` columns; a combining mark takes none."""
    return text + " " * (width - sum(not unicodedata.combining(c) for c in text))


def _stages(stages: Sequence[tuple[str, str, str]]) -> list[str]:
    found, number = [], 0
    for stage, what, by in stages:
        number += bool(stage)
        head = f"  {f'{number} {stage}' if stage else '':<13}"
        text = _wrapped(what, 0, 2, WIDTH - NAMES - len(head) - 2) or [""]
        names = _wrapped(by, 0, 0, NAMES) or [""]
        for i in range(max(len(text), len(names))):
            left = head if i == 0 else " " * len(head)
            middle, end = (column[i] if i < len(column) else "" for column in (text, names))
            found.append(f"{left}{_padded(middle, WIDTH - NAMES - len(head))}{end}".rstrip())
    return found


def _table(rows: Sequence[tuple[str, str]]) -> list[str]:
    width = max((len(name) for name, _ in rows), default=0) + 4
    lines = []
    for name, text in rows:
        wrapped = _wrapped(text, 0, 0, WIDTH - width) or [""]
        lines += [f"{f'  {name}':<{width}}{wrapped[0]}", *(" " * width + line for line in wrapped[1:])]
    return lines

"""docs/algorithms.md: every part with its formula, every recipe with what sets it apart."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING, Any

from rlfw import config, registry
from rlfw.composition import Composition
from rlfw.explain.objective import Formulas
from rlfw.explain.recipes import AXES, Recipe, differences, nearest, recipes, shown
from rlfw.interfaces import Part, Penalty, Surrogate
from rlfw.notation import SYMBOLS
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from collections.abc import Iterator

WIDTH = 100  # columns of a block of formulas
LONGEST = 100  # steps of the env's longest row, where a formula holds a number of it

HEAD = f"""\
# Algorithms

Generated from the parts and the recipes by `make docs`; change those, not this page. `rlfw explain algorithm=NAME`
prints the same for one composition, with its overrides and its env.

An algorithm is one part on each axis. The loss of an optimizer batch is

```
loss = Σᵢₜ c · [ - w · S + P ]  +  Σᵢₜ c · the critic's
```

with the surrogate S, any number of penalties P, the weights w and the coefficients c, computed once for the whole
optimizer batch. Without a surrogate S is `r A`, or `A ℓ` where there is no ratio. The pipeline of an iteration: the
env's rewards, one pass that scores what the parts ask for, `reward` in its order, `baseline`, `normalize`, `weight`,
and for each minibatch `aggregation`, `ratio`, `regularizer` and a step of the `optimizer`; then the `controller`s.
Log-probs and entropies are in nats. `{{key}}` in a formula is a key of its part; where it holds the env's longest row,
that is {LONGEST} steps here.
"""

AXIS = {
    "sampler": "How much is collected before an update, and in which groups.",
    "reward": "Stages between the env's rewards and the learner's, in the order listed. Any number.",
    "baseline": "What the return is compared with: rewards to advantages A, and returns R for a critic to learn.",
    "normalize": "The scale of the advantages, over the rollout or over each minibatch.",
    "ratio": "Where the current policy meets the old one: the log-ratio x, and r = e^x.",
    "regularizer": "At most one surrogate S, which replaces the plain objective, and any number of penalties P.",
    "weight": "Steps that count less (w, on the surrogate alone) or not at all (m). No gradient passes. Any number.",
    "aggregation": "How the losses of the steps become one number: the coefficients c.",
    "controller": "What turns a knob while training. Any number.",
    "optimizer": "The rule of a step.",
}

TAIL = """\
## What does not factor

An axis is worth having if its parts can be exchanged without asking what stands on the others. Some ideas cannot.

- **GMPO** clips each step's ratio before it takes the geometric mean of the row, so the level of the ratio and the
  trust region cannot be chosen apart. It is one surrogate, `gmpo`, which takes the ratio of each step and makes the
  row's.
- **VAPO and VC-PPO** pretrain the critic on a fixed policy. That is a phase of the run, not a term of the loss: here
  the controller `critic_warmup` holds the policy still for the first iterations. Their other ideas are parts:
  `adaptive_critic` and `nll`.
- **Dynamic sampling** (DAPO) is control flow: the sampler goes on until enough groups carry a signal. It is a key of
  the sampler (`sampler.episodes.no_signal=resample`), judged on the env's rewards; what it costs is counted in the
  budget and reported (`group/n_generated`, `group/n_used`, `group/rounds`).
- **KL-Cov and the positive-example loss of VAPO** take their statistics over a whole optimizer batch, so they refuse
  micro-batches; Clip-Cov and the 80/20 rule take theirs over the rollout.
- **TRPO** (arXiv:1502.05477) is not here. Its step is not the gradient of a loss of this form: it solves for the
  natural gradient by conjugate gradients on Fisher-vector products, then searches along that line until the objective
  rises and the KL divergence stays within its bound, with as many forward passes as that takes. That is another
  optimizer and another loop around it at once; the nearest compositions are PPO's clip, the penalty `kl_old` with
  `doubling_kl`, and `target_kl`.
- **Losses with a target instead of a return** (DPO, distillation from a teacher's logits) have no advantage; `dro` is
  as near as this loss comes.
"""


def page() -> str:
    """The Markdown."""
    registry.load_components()
    blocks = [HEAD, *_symbols(), "## Parts\n", *(block for axis in AXES for block in _axis(axis)), *_recipes(), TAIL]
    return _linked("\n".join(blocks))


def _linked(text: str) -> str:
    return re.sub(r"arXiv:(\d{4}\.\d{4,5})", r"[arXiv:\1](https://arxiv.org/abs/\1)", text)


def _symbols() -> Iterator[str]:
    yield "## Symbols\n\n| | |\n|---|---|"
    yield "\n".join(f"| {_cell(symbol)} | {_escaped(meaning)} |" for symbol, meaning in SYMBOLS.items())
    yield ""


def _cell(code: str) -> str:
    return "`" + code.replace("|", "\\|") + "`"


def _escaped(text: str) -> str:
    return text.replace("|", "\\|")


# ------------------------------------------------------------------------------------------------ parts


def _axis(axis: str) -> Iterator[str]:
    yield f"### {axis}\n\n{AXIS[axis]}\n"
    for title, names in _kinds(axis):
        if title:
            yield f"{title}:\n"
        yield "\n".join(_part(axis, name) for name in names)
        yield ""
    for word, several in registry.aliases(axis).items():
        yield f"`{axis}={word}` stands for `[{','.join(several)}]`.\n"


def _kinds(axis: str) -> list[tuple[str, list[str]]]:
    names = [name for name in registry.names(axis) if _class(axis, name).__module__.startswith("rlfw.")]  # no plugins
    if axis != "regularizer":
        return [("", names)]
    kinds: dict[str, type] = {"Surrogates": Surrogate, "Penalties": Penalty}
    return [(title, [n for n in names if issubclass(_class(axis, n), kind)]) for title, kind in kinds.items()]


def _class(axis: str, name: str) -> Any:
    return registry.entry(axis, name).part


def _part(axis: str, name: str) -> str:
    entry = registry.entry(axis, name)
    part = example(axis, name)
    formula = part.formula.format_map({key: f"{{{key}}}" for key in entry.keys})
    head = f"- **`{name}`**" + (f"  `{formula}`" if formula else "")
    keys = [f"`{key}`" if default == "???" else f"`{key}={shown(default)}`" for key, (_, default) in entry.keys.items()]
    told = [entry.summary] + ([f"*Keys:* {', '.join(keys)}."] if keys else [])
    if part.needs:
        told.append(f"*Needs:* {', '.join(sorted(part.needs))}.")
    return f"{head}<br>\n  {' '.join(told)}"


# What must be given to make a part at all, or to see all of its formula; nothing of it is printed.
GIVEN: dict[str, Any] = {
    "reward.weighted.weights": {"": 1.0},
    "controller.adaptive_entropy.target": 1.0,
    "controller.adaptive_kl.target": 1.0,
    "controller.critic_warmup.iterations": 1,
    "optimizer.adam.weight_decay": 0.01,
    "optimizer.rmsprop.momentum": 0.9,
    "optimizer.sgd.momentum": 0.9,
}


def example(axis: str, name: str) -> Part:
    """The part as it is registered, with its defaults."""
    defaults = {key: default for key, (_, default) in registry.entry(axis, name).keys.items()}
    keys = {key: GIVEN.get(f"{axis}.{name}.{key}", default) for key, default in defaults.items()}
    wires: dict[str, Any] = {"gamma": 1.0, "max_steps": LONGEST, "streams": Streams(0)}
    part: Part = registry.build(axis, {"part": name, **keys}, **wires)
    return part


# ------------------------------------------------------------------------------------------------ recipes

COLUMNS = ("reward", "baseline", "normalize", "ratio", "regularizer", "weight", "aggregation")


def _recipes() -> Iterator[str]:
    known = recipes()
    yield "## Recipes\n"
    yield "The published algorithms as compositions, the oldest first. A recipe owns its parts, their coefficients,"
    yield "epochs, minibatches and the size of a group; policy, learning rate, gamma and volume are the env's."
    yield "Groups are of 8 rows, of 4 for RLOO; some papers take more (GRPO 64, DAPO 16).\n"
    yield "| | " + " | ".join(COLUMNS) + " | steps |"
    yield "|---" * (len(COLUMNS) + 2) + "|"
    yield from (_row(recipe) for recipe in known)
    yield "\n`steps`: epochs × minibatches of a rollout.\n"
    for i, recipe in enumerate(known):
        yield from _recipe(recipe, known[:i])


def _row(recipe: Recipe) -> str:
    cells = [", ".join(recipe.axes[axis]) for axis in COLUMNS]
    cells = ["" if cell == "none" else cell for cell in cells]
    steps = f"{recipe.root['epochs']}×{recipe.root['num_minibatches']}"
    return f"| [{recipe.name}](#{recipe.name}) | {' | '.join(cells)} | {steps} |"


def _recipe(recipe: Recipe, older: list[Recipe]) -> Iterator[str]:
    yield f"### {recipe.name}\n\n{recipe.summary}.\n"
    yield "```"
    cfg = config.compose([f"algorithm={recipe.name}"])
    composition = Composition(cfg, gamma=cfg.gamma, max_steps=LONGEST, streams=Streams(0))
    formulas = Formulas(cfg, composition)
    lines = [line.text for line in (*formulas.objective(), *formulas.credit())]
    for line in [*lines, *(formulas.short(part) for part in formulas.controllers.values())]:
        yield (
            line if len(line) <= WIDTH else textwrap.fill(line, WIDTH, subsequent_indent="    ", break_on_hyphens=False)
        )
    yield "```\n"
    if older:
        near = nearest(recipe, older)
        changes = ", ".join(f"`{line}`" for line in differences(near, recipe))
        yield f"From [{near.name}](#{near.name}): {changes}.\n"
    if recipe.differs:
        yield "Differs from the paper:\n"
        yield "\n".join(f"- {text}." for text in recipe.differs) + "\n"
    if recipe.remarks:
        yield " ".join(recipe.remarks) + "\n"

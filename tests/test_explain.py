"""rlfw explain, and the page of all parts and recipes: what is said is what is composed."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import rlfw
from rlfw import registry
from rlfw.cli import main
from rlfw.errors import UserError
from rlfw.explain import explain, page
from rlfw.explain.formulas import clauses, filled, product, symbols
from rlfw.explain.page import example
from rlfw.explain.recipes import AXES, differences, recipe, recipes
from rlfw.notation import SYMBOLS

pytestmark = pytest.mark.medium
registry.load_components()
ROOT = Path(__file__).parents[1]
PARTS = [(axis, name) for axis in AXES for name in registry.names(axis)]


def section(text: str, title: str) -> list[str]:
    """The lines of a section, without those that wrap."""
    found = re.search(rf"^{title}.*\n((?:.+\n?|\n(?=  ))*)", text, re.MULTILINE)
    assert found is not None, text
    return [" ".join(line.split()) for line in found[1].splitlines()]


# ------------------------------------------------------------------------------------------------ the mathematics


def test_the_loss_stands_with_its_numbers_and_its_parts() -> None:
    loss = section(explain(["algorithm=grpo", "regularizer.clip.high=0.28", "regularizer.kl.coef=0.1"]), "Loss")
    assert loss[0] == "loss = Σᵢₜ c · [ - min(r A, clip(r, 1 - 0.2, 1 + 0.28) A) regularizer=clip"
    assert loss[1] == "+ 0.1 k3(ℓ - ℓ_ref) ] regularizer=kl"
    assert "c = m / (B n) aggregation=sequence_mean" in loss
    assert "r = e^x, x = ℓ - ℓ_old ratio=token" in loss
    assert "A = R - mean_g(R) baseline=group_mean" in loss
    assert "A ← A / (std_g(A; ddof 1) + 1e-6) normalize=group_std" in loss


def test_the_critics_loss_is_a_term_of_its_own() -> None:
    loss = section(explain(["algorithm=ppo", "baseline.critic.coef=0.7"]), "Loss")
    assert "+ Σᵢₜ c · 0.7 (V - R)²/2 baseline=critic" in loss
    assert "A = δ_t + γ 0.95 A_{t+1} baseline=critic" in loss
    assert "- 0.01 H ] regularizer=entropy" in loss  # a bonus lowers the loss


def test_without_a_surrogate_the_objective_is_the_plain_one() -> None:
    assert section(explain(["algorithm=reinforce"]), "Loss")[0] == "loss = Σᵢₜ c · [ - A ℓ ] ratio=none"
    plain = section(explain(["algorithm=reinforce", "ratio=token"]), "Loss")
    assert plain[0] == "loss = Σᵢₜ c · [ - r A ] ratio=token"


def test_a_weight_multiplies_the_surrogate_and_a_mask_does_not() -> None:
    weighed = section(explain(["algorithm=grpo", "weight=length"]), "Loss")
    assert weighed[0].startswith("loss = Σᵢₜ c · [ - w · min(r A")
    assert "w = n weight=length" in weighed
    both = section(explain(["algorithm=grpo", "weight=[length,tis]"]), "Loss")
    assert "w is the product of these" in both
    masked = section(explain(["algorithm=grpo", "weight=truncated"]), "Loss")
    assert masked[0].startswith("loss = Σᵢₜ c · [ - min(r A")


def test_only_the_symbols_that_occur_are_explained() -> None:
    def explained(*words: str) -> set[str]:
        return {line.split()[0] for line in section(explain(list(words)), "Symbols") if line.split()[0] in SYMBOLS}

    assert {"ℓ", "ℓ_ref", "A", "k3(d)", "B"} <= explained("algorithm=grpo")
    assert not {"V", "δ", "γ", "w", "H", "k2(d)", "N", "sg(·)"} & explained("algorithm=grpo")
    assert {"V", "δ", "γ", "ρ", "H", "N"} <= explained("algorithm=ppo")  # δ is explained by ρ


def test_symbols_are_found_within_indices_and_functions() -> None:
    assert list(symbols(["c = m / (K Σ_{i in g} n)"])) == ["i, t", "m", "n", "K", "g", "c"]
    assert list(symbols(["m̂ / √v̂, aggregation=sequence_mean"])) == []
    assert list(symbols(["V_old + k3+(ℓ - ℓ_ref)"])) == ["ℓ", "ℓ_ref", "V_old", "k3+(d)"]


def test_a_formula_comes_apart_into_its_statements() -> None:
    assert clauses("S = min(a, b) c, h = 2 if A > 0, 3 if A < 0; loss + 4") == [
        "S = min(a, b) c",
        "h = 2 if A > 0, 3 if A < 0",
        "loss + 4",
    ]
    assert clauses("S = k λ, k, λ = 2, 3") == ["S = k λ", "k, λ = 2, 3"]


def test_brackets_where_a_sum_is_negated() -> None:
    assert product("- ", "min(a - b, c)") == "- min(a - b, c)"
    assert product("- ", "A ℓ - x²") == "- (A ℓ - x²)"
    assert product("- ", "a if A > 0, b if A < 0") == "- (a if A > 0, b if A < 0)"


# ------------------------------------------------------------------------------------------------ the parts' formulas


@pytest.mark.parametrize(("axis", "name"), PARTS)
def test_every_symbol_of_a_formula_is_explained_or_made_there(axis: str, name: str) -> None:
    """Greek letters, ℓ and single capitals: they stand in the notation, or at the left of an = in this formula."""
    text = (ROOT / "docs" / "algorithms.md").read_text()
    block = text.split(f"### {axis}\n")[1].split("\n### ")[0]
    found = re.search(rf"^- \*\*`{name}`\*\*  `(.*)`<br>$", block, re.MULTILINE)
    assert found is not None, f"{axis}={name} has no formula on the page"
    keys = registry.entry(axis, name).keys
    letters = set(re.findall(r"(?<!\w)(?:[α-ω]|[A-Z]|ℓ)(?!\w)", found[1])) - set(keys)
    made = {letter for letter in letters if re.search(rf"(?:^|[,;] |, k, ){letter} [=←]|[,;] {letter} rows", found[1])}
    known = {head for entry in SYMBOLS for head in re.sub(r"[(\[].*", "", entry).split(", ")}
    parameters = {"θ"} if axis == "optimizer" else set()
    assert letters <= known | made | parameters


@pytest.mark.parametrize("recipe_name", sorted(registry.presets("algorithm")))
def test_every_key_in_a_formula_is_filled(recipe_name: str) -> None:
    for axis, choice in recipe(recipe_name).axes.items():
        for name, keys in choice.items():
            kind = registry.entry(axis, name).part
            text = filled(kind.formula, {key: value for key, value in keys.items() if key != "part"})
            assert not re.search(r"\{[a-z]+(_[a-z]+)+\}", text)


# ------------------------------------------------------------------------------------------------ the pipeline


def test_the_pipeline_in_its_order() -> None:
    text = explain(["algorithm=rloo", "env=reverse", "weight=truncated", "epochs=2", "num_minibatches=3"])
    stages = [line for line in section(text, "An iteration") if re.match(r"\d \w", line)]
    assert [line.split()[1] for line in stages] == [
        *("sample", "score", "reward", "baseline", "normalize", "weights", "update", "control")
    ]
    assert "2 epochs of 3 minibatches: 6 optimizer steps" in text
    assert "ρ_t ← ρ_t - 0.05 k1(ℓ_old - ℓ_ref)" in text


def test_the_env_goes_by_the_name_that_was_typed() -> None:
    assert "from env=reverse\n" in explain(["algorithm=grpo", "env=reverse"])
    assert "from env=cartpole\n" in explain(["algorithm=grpo", "env=cartpole"])


def test_a_single_step_is_its_own_old_policy() -> None:
    assert "ℓ_old is ℓ itself" in explain(["algorithm=dr_grpo"])
    assert "ℓ_old is ℓ itself" not in explain(["algorithm=dr_grpo", "epochs=2"])
    assert "ℓ_old is ℓ itself" not in explain(["algorithm=dr_grpo", "reward=[kl]"])  # it reads them before the update


def test_a_normalisation_stands_where_it_acts() -> None:
    once = section(explain(["algorithm=grpo"]), "An iteration")
    assert any(line.startswith("5 normalize") for line in once)
    each = section(explain(["algorithm=grpo", "normalize.group_std.scope=minibatch"]), "An iteration")
    assert not any("normalize" in line.split()[:2] for line in each)
    assert any("in each minibatch" in line for line in each)


# ------------------------------------------------------------------------------------------------ relatives


def test_differences_from_the_recipe_are_listed() -> None:
    text = explain(["algorithm=grpo", "baseline=none", "regularizer.clip.high=0.28", "epochs=2"])
    assert section(text, "From the nearest recipe, grpo") == [
        "baseline: group_mean -> none",
        "regularizer.clip.high: 0.2 -> 0.28",
        "epochs: 1 -> 2",
    ]


def test_a_recipe_is_recognised_from_its_parts() -> None:
    words = ["algorithm=grpo", "normalize=none", "regularizer=[clip]", "aggregation=constant"]
    assert section(explain(words), "From the nearest recipe, dr_grpo")[0] == "no difference"


def test_what_the_env_decides_is_no_difference_unless_it_is_typed() -> None:
    text = explain(["algorithm=ppo", "env=reverse"])
    assert section(text, "From the nearest recipe, ppo")[0] == "no difference"
    typed = explain(["algorithm=ppo", "env=reverse", "baseline.critic.bootstrap_truncated=true"])
    assert section(typed, "From the nearest recipe, ppo")[0] == "no difference"  # it is the recipe's own
    text = explain(["algorithm=ppo", "baseline.critic.bootstrap_truncated=false"])
    assert section(text, "From the nearest recipe, ppo")[0] == "baseline.critic.bootstrap_truncated: true -> false"


def test_every_recipe_is_its_own_nearest() -> None:
    for one in recipes():
        assert not differences(one, one)
        for other in recipes():
            assert one.name == other.name or differences(one, other), f"{one.name} and {other.name} are the same"


# ------------------------------------------------------------------------------------------------ plugins and refusals

PLUGIN = '''
from dataclasses import KW_ONLY, dataclass

from rlfw import register
from rlfw.interfaces import Baseline, Penalty, Surrogate


@register("regularizer", "explained_plain")
@dataclass
class Plain(Surrogate):
    """The ratio as it is.

    Nothing more.
    """

    needs = frozenset({"ratio"})

    def __call__(self, new, batch):
        return new.log_ratio.exp() * batch.advantages


@register("baseline", "explained_zero")
@dataclass
class Zero(Baseline):
    """No credit at all."""

    def __call__(self, batch):
        return batch.rewards * 0, batch.rewards


@register("regularizer", "explained_cubic")
@dataclass
class Cubic(Penalty):
    """A cube."""

    _: KW_ONLY
    strength: float = 3.0
    formula = "P = {strength} |x|³"

    def __call__(self, new, batch):
        return self.strength * new.log_ratio.abs() ** 3
'''


@pytest.fixture(scope="module")
def plugin(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Its parts are forgotten at the end."""
    path = tmp_path_factory.mktemp("plugins") / "explained.py"
    path.write_text(PLUGIN)
    before = {axis: dict(found) for axis, found in registry._PARTS.items()}
    yield f"plugins=[{path}]"
    registry._PARTS.update(before)


def test_a_plugin_is_explained_like_any_part(plugin: str) -> None:
    words = [plugin, "algorithm=grpo", "regularizer=[clip,explained_cubic]", "regularizer.explained_cubic.strength=5"]
    assert "+ 5 |x|³ ] regularizer=explained_cubic" in section(explain(words), "Loss")


def test_a_part_without_a_formula_is_explained_by_its_sentence(plugin: str) -> None:
    text = explain([plugin, "algorithm=grpo", "regularizer=explained_plain", "baseline=explained_zero"])
    loss = section(text, "Loss")
    assert loss[0] == "loss = Σᵢₜ c · [ - S ] regularizer=explained_plain"
    assert "S: The ratio as it is. regularizer=explained_plain" in loss
    assert "A: No credit at all. baseline=explained_zero" in loss
    assert "4 baseline No credit at all. baseline=explained_zero" in section(text, "An iteration")


def test_a_further_instance_goes_by_its_own_name() -> None:
    words = ["algorithm=grpo", "+regularizer@regularizer.far=kl", "regularizer.far.coef=9"]
    text = explain(words)
    assert text.startswith("algorithm=grpo env=cartpole +regularizer@regularizer.far=kl regularizer.far.coef=9\n")
    loss = section(text, "Loss")
    assert "+ 0.04 k3(ℓ - ℓ_ref) regularizer=kl" in loss
    assert "+ 9 k3(ℓ - ℓ_ref) ] regularizer.far (kl)" in loss


def test_an_impossible_composition_is_refused() -> None:
    with pytest.raises(UserError, match="baseline=group_mean compares samples within a group"):
        explain(["algorithm=ppo", "baseline=group_mean"])
    with pytest.raises(UserError, match="env=tasks gives whole episodes alone: set sampler=episodes"):
        explain(["algorithm=ppo", "env=reverse", "sampler=steps"])


def test_the_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["explain", "algorithm=grpo"]) == 0
    assert capsys.readouterr().out.startswith("algorithm=grpo env=cartpole\n\nGroup relative policy optimisation")
    assert main(["explain", "algorithm=grpp"]) == 2
    assert "did you mean grpo?" in capsys.readouterr().err


def test_an_experiment_is_explained_by_its_own_algorithm(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text("defaults:\n  - override /algorithm: rloo\n  - override /env: reverse\nepochs: 3\n")
    text = explain([f"experiment={path}"])
    assert text.split()[:2] == ["algorithm=rloo", "env=reverse"]
    assert section(text, "From the nearest recipe, rloo") == ["epochs: 1 -> 3"]


# ------------------------------------------------------------------------------------------------ notes


def test_what_cannot_act_is_noted() -> None:
    note = " ".join(section(explain(["algorithm=grpo"]), "Notes"))
    assert note == ("- regularizer=clip cannot act within a single optimizer step: set epochs or num_minibatches >= 2")
    both = " ".join(section(explain(["algorithm=grpo", "regularizer=[clip,kl_old]"]), "Notes"))
    assert both.startswith("- regularizer=clip, regularizer=kl_old cannot act")


@pytest.mark.parametrize("more", ["epochs=2", "num_minibatches=2", "ratio.token.source=behaviour", "regularizer=[kl]"])
def test_what_can_act_is_not_noted(more: str) -> None:
    assert "Notes" not in explain(["algorithm=grpo", more])


def test_a_policy_that_is_held_still_to_the_end_is_noted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    held = "controller=critic_warmup holds the policy still for 5 iterations and the run has"
    assert f"{held} 5: it never moves" in " ".join(section(explain(["algorithm=vapo", "iterations=5"]), "Notes"))
    assert "Notes" not in explain(["algorithm=vapo", "iterations=6"])
    words = ["train", "algorithm=vapo", "env=cartpole", "sampler.episodes.num_episodes=8", "progress=false"]
    assert main([*words, "total_steps=1", f"out={tmp_path / 'run'}"]) == 0  # how many iterations shows in the end
    assert f"rlfw: {held} 1: it never moves" in capsys.readouterr().err


IDLE = [(axis, name) for axis, name in PARTS if axis == "regularizer" and example(axis, name).acts_off_policy]


@pytest.mark.parametrize("name", [name for _, name in IDLE])
def test_what_is_said_to_wait_has_the_plain_gradient_while_the_policy_is_the_old_one(name: str) -> None:
    on_policy = torch.tensor([[0.3, 0.5, 0.9], [0.8, 0.1, 0.4]]).double().log()
    rows = {"rewards": [1, 0], "mask": torch.ones(2, 3), "group": [0, 0], "advantages": torch.ones(2, 3)}
    given = {**rows, "logprobs": on_policy, "old_logprobs": on_policy}
    plain = rlfw.probe(["algorithm=grpo", "regularizer=[]"], **given).gradient
    found = rlfw.probe(["algorithm=grpo", f"regularizer={name}"], **given).gradient
    torch.testing.assert_close(found, plain)


def test_training_says_the_same_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["algorithm=grpo", "env=cartpole", "sampler.episodes.num_episodes=8", "iterations=2", "progress=false"]
    assert main(["train", *words, f"out={tmp_path / 'one'}"]) == 0
    assert capsys.readouterr().err.count("regularizer=clip cannot act") == 1
    assert main(["train", *words, "epochs=2", f"out={tmp_path / 'two'}"]) == 0
    assert "cannot act" not in capsys.readouterr().err


# ------------------------------------------------------------------------------------------------ pages


@pytest.mark.parametrize("name", sorted(registry.presets("algorithm")))
def test_every_recipe_reads_within_a_hundred_columns(name: str) -> None:
    text = explain([f"algorithm={name}", "env=reverse"])
    assert max(map(len, text.splitlines())) <= 100
    assert not re.search(r"\{[a-z_]{3,}\}|None|True", text)  # no key left open, no Python


def test_the_page_is_that_of_the_parts_and_recipes() -> None:
    """Otherwise: make docs."""
    assert (ROOT / "docs" / "algorithms.md").read_text() == page()


def test_what_the_readme_explains_is_there() -> None:
    for command in re.findall(r"^rlfw (explain .*?)(?: *#.*)?$", (ROOT / "README.md").read_text(), re.MULTILINE):
        assert main(command.split()) == 0

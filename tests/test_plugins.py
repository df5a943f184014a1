"""Parts from outside: an installed package, a file; and what is said of one that cannot be a part."""

from __future__ import annotations

import copy
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hydra.core.config_store import ConfigStore

from rlfw import registry
from rlfw.cli import main
from rlfw.config import compose

pytestmark = pytest.mark.medium

PACKAGE = Path(__file__).parent / "fixtures" / "plugin_package"


# ------------------------------------------------------------------------------------------------ a package


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package installed in it."""
    source = shutil.copytree(PACKAGE, tmp_path_factory.mktemp("source") / "package")
    target = tmp_path_factory.mktemp("site")
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--no-build-isolation"]
    done = subprocess.run([*pip, "--target", target, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return target


def rlfw(site: Path, *words: str, cwd: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-m", "rlfw.cli", *words],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(site)},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_an_installed_package_adds_a_part_a_recipe_and_envs(site: Path, tmp_path: Path):
    found = {
        (row["axis"], row["name"]): row["summary"] for row in json.loads(rlfw(site, "list", "--json", cwd=tmp_path))
    }
    assert found["regularizer", "sharp"] == "The plain objective, sharpened."
    assert found["algorithm", "sharp_grpo"] == "GRPO with a sharpened objective"
    assert found["env", "corridor"] == "Corridor-v0: five steps, each to the right pays 1"
    assert found["env", "vowels"] == "Vowels pay."

    rlfw(site, "train", "algorithm=sharp_grpo", "env=corridor", "progress=false", "out=run", cwd=tmp_path)
    config = (tmp_path / "run" / "config.yaml").read_text()
    assert "factor: 3.0" in config
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert rows[-1]["objective/scores"] > rows[0]["objective/scores"] + 1  # of 5 at best

    words = ["env=vowels", "policy=causal_lm", "policy.causal_lm.hidden_size=8", "policy.causal_lm.num_heads=1"]
    small = ["sampler.episodes.num_episodes=8", "iterations=1", "progress=false", "out=text"]
    rlfw(site, "train", "algorithm=sharp_grpo", *words, *small, cwd=tmp_path)
    assert (tmp_path / "text" / "samples.jsonl").is_file()


def test_without_the_package_its_parts_are_not_there(tmp_path: Path):
    assert "sharp" not in rlfw(tmp_path, "list", cwd=tmp_path)


def test_a_package_that_does_not_import_is_named(site: Path, tmp_path: Path):
    broken = Path(shutil.copytree(site, tmp_path / "broken"))
    (broken / "rlfw_sharp" / "env.py").write_text("import nothing_of_this_name\n")
    done = subprocess.run(
        [sys.executable, "-m", "rlfw.cli", "list"],
        env={**os.environ, "PYTHONPATH": str(broken)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 2
    assert "the component package sharp (rlfw_sharp) fails to import (" in done.stderr
    assert "env.py, line 1): ModuleNotFoundError" in done.stderr
    assert len(done.stderr.splitlines()) == 1


# ------------------------------------------------------------------------------------------------ a file


@pytest.fixture
def forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is gone after it."""
    compose([])  # Hydra's own configuration is in the store from here on
    monkeypatch.setattr(registry, "_PARTS", {axis: dict(found) for axis, found in registry._PARTS.items()})
    monkeypatch.setattr(registry, "_loaded", dict(registry._loaded))
    monkeypatch.setattr(ConfigStore.instance(), "repo", copy.deepcopy(ConfigStore.instance().repo))


HEAD = """\
from __future__ import annotations
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Literal
from rlfw import register
from rlfw.interfaces import Baseline, Penalty, Surrogate
if TYPE_CHECKING:
    from torch import Tensor
    from rlfw.rollout import Batch, Current
    from rlfw.seeding import Streams
"""
PENALTY = """
@register("regularizer", "mine")
@dataclass
class Mine(Penalty):
    "Nothing."
    _: KW_ONLY
    coef: float = 0.5
    needs = frozenset()
    def __call__(self, new: Current, batch: Batch) -> Tensor:
        return 0 * new.logprobs
"""
SMALL = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_envs=2", "sampler.steps.num_steps=8", "iterations=1"]


def train(folder: Path, source: str, *words: str) -> int:
    file = folder / "mine.py"
    file.write_text(HEAD + source)
    return main(["train", *SMALL, "progress=false", f"plugins=[{file}]", f"out={folder / 'run'}", *words])


@pytest.mark.usefixtures("forgotten")
def test_a_file_with_types_for_the_checker_alone_trains(tmp_path: Path):
    wired = PENALTY.replace("    _: KW_ONLY", "    streams: Streams\n    _: KW_ONLY")
    assert train(tmp_path, wired, "regularizer=[clip,mine]", "regularizer.mine.coef=2") == 0
    assert (tmp_path / "run" / "plugins" / "mine.py").is_file()


@pytest.mark.usefixtures("forgotten")
def test_the_parts_of_a_file_are_listed(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "mine.py").write_text(HEAD + PENALTY)
    assert main(["list", "regularizer", f"plugins=[{tmp_path / 'mine.py'}]"]) == 0
    assert "regularizer=mine\n    Nothing.\n    regularizer.mine.coef = 0.5  (float)" in capsys.readouterr().out


# source -> what is typed, and what is said
BAD: dict[str, tuple[str, list[str], str]] = {
    "registered twice": (
        PENALTY.replace('"mine"', '"kl"'),
        [],
        "regularizer=kl is registered twice: rlfw.algorithms.",
    ),
    "twice in one file": (
        PENALTY + PENALTY.replace("Mine", "Second"),
        [],
        "regularizer=mine is registered twice: rlfw_plugin_mine.Mine (",
    ),
    "a positional key": (
        PENALTY.replace("    _: KW_ONLY\n", ""),
        [],
        "nothing gives its positional parameter coef (there are gamma, max_steps, streams, env_spec); a key of its "
        "configuration is keyword-only: put * before it, or _: KW_ONLY in a dataclass",
    ),
    "a positional parameter with a default": (
        PENALTY.replace("@dataclass\n", "").replace(
            "    _: KW_ONLY\n    coef: float = 0.5\n", "    def __init__(self, coef=0.1):\n        self.coef = coef\n"
        ),
        [],
        "nothing gives its positional parameter coef",
    ),
    "no dataclass": (PENALTY.replace("@dataclass\n", ""), [], "write @dataclass between @register and the class"),
    "does not import": ("import nothing_of_this_name", [], "mine.py, line 10): ModuleNotFoundError: No module named"),
    "no Python": ("def f(:", [], "mine.py, line 10): SyntaxError: invalid syntax"),
    "raises at its end": ("def f():\n    raise OSError('no such disk')\nf()", [], "line 11): OSError: no such disk"),
    "a type for the checker alone": (
        PENALTY.replace("coef: float = 0.5", "coef: Tensor | None = None"),
        [],
        "the type of its key coef, Tensor | None, is not known while the file is imported (name 'Tensor' is not "
        "defined): import it outside of TYPE_CHECKING, or take a plain type",
    ),
    "a literal": (
        PENALTY.replace("coef: float = 0.5", 'coef: Literal["a", "b"] = "a"'),
        [],
        "its key coef is a Literal['a', 'b']: a configuration holds bool, int, float, str, lists and dicts of them, "
        "and X | None; for one of several words take str and check it with rlfw.checks.one_of",
    ),
    "a default of another type": (
        PENALTY.replace("coef: float = 0.5", "coef: float = None"),
        [],
        "its key coef is a float: its default is None; write float | None",
    ),
    "a value of another type": (
        PENALTY,
        ["regularizer=[mine]", "regularizer.mine.coef=much"],
        "regularizer.mine.coef: Value 'much' of type 'str' could not be converted to Float",
    ),
    "two surrogates": (
        PENALTY.replace("(Penalty)", "(Surrogate)"),
        ["regularizer=[clip,mine]"],
        "regularizer=clip and regularizer=mine both replace the objective; choose one",
    ),
    "needs that nothing gives": (
        PENALTY.replace("frozenset()", 'frozenset({"values"})'),
        ["regularizer=[mine]", "baseline=none"],
        "regularizer=mine reads values, which a critic gives: set baseline=critic",
    ),
    "a need that does not exist": (
        PENALTY.replace("frozenset()", 'frozenset({"entropi"})'),
        ["regularizer=[mine]"],
        "regularizer=mine needs entropi; did you mean entropy?",
    ),
    "of no axis's class": (
        PENALTY.replace("(Penalty)", ""),
        [],
        "Mine is no regularizer: derive it from rlfw.interfaces.Surrogate or rlfw.interfaces.Penalty",
    ),
    "of another axis's class": (
        PENALTY.replace("(Penalty)", "(Baseline)"),
        [],
        "Mine is no regularizer: derive it from",
    ),
    "no such axis": (
        PENALTY.replace('"regularizer"', '"penalty"'),
        [],
        "there is no axis penalty for mine (",
    ),
    "no method": (
        PENALTY.replace("__call__", "call"),
        [],
        "it does not define __call__, which every regularizer has",
    ),
    "a constructor that raises": (
        PENALTY + "    def __post_init__(self):\n        self.third = 1 / (self.coef - 0.5)\n",
        ["regularizer=[mine]"],
        "mine.py, line 21): ZeroDivisionError: float division by zero",
    ),
}


@pytest.mark.usefixtures("forgotten")
@pytest.mark.parametrize("name", BAD)
def test_a_part_that_cannot_be_one_is_refused_in_one_sentence(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    source, words, message = BAD[name]
    assert train(tmp_path, source, *words) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert "mine" in err
    assert not (tmp_path / "run").exists()


@pytest.mark.usefixtures("forgotten")
def test_a_file_that_was_mended_is_read_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    """What it registered before it failed is forgotten."""
    assert train(tmp_path, PENALTY + "1 / 0\n") == 2
    assert "ZeroDivisionError" in capsys.readouterr().err
    assert "mine" not in registry.names("regularizer")
    assert train(tmp_path, PENALTY, "regularizer=[mine]") == 0

"""rlfw new: a part that works at once, its test beside it, and no file overwritten."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from rlfw import registry
from rlfw.cli import main
from rlfw.scaffold import TEMPLATES, USES

AXES = {"penalty": "regularizer", "surrogate": "regularizer"}  # a template is named after its axis but for these


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def new(template: str, name: str) -> list[str]:
    axis = AXES.get(template, template)
    return ["new", axis, name, *(["--kind", template] if template in AXES else [])]


def python(*words: str) -> str:
    """In a Python of its own, for the parts that it registers."""
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_every_axis_has_a_template_and_a_use():
    assert {AXES.get(template, template) for template in USES} == set(registry.AXES)
    files = {path.name for path in TEMPLATES.glob("*.py")} - {"__init__.py"}
    assert files == {f"{start}{template}.py" for template in USES for start in ("", "test_")}


@pytest.mark.parametrize("template", USES)
def test_a_part_is_short_and_names_itself(template: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    assert main(new(template, "own_thing")) == 0
    text, test = (folder / "own_thing.py").read_text(), (folder / "test_own_thing.py").read_text()
    assert f'@register("{AXES.get(template, template)}", "own_thing")' in text
    assert "fill in" in text
    assert len(text.splitlines()) <= 48
    for left in ("my_part", "MyPart"):
        assert left not in text + test
    first, *commands = capsys.readouterr().out.splitlines()
    assert first == "wrote own_thing.py and test_own_thing.py; next:"
    assert 'check_part("' in test
    check, ran, train = commands
    assert check == f"  rlfw check {AXES.get(template, template)}/own_thing plugins=[own_thing.py]"
    assert ran == "  python -m pytest test_own_thing.py"
    assert train.startswith("  rlfw train plugins=[own_thing.py] algorithm=")


def test_a_penalty_is_what_a_regularizer_is_by_default(folder: Path):
    assert main(["new", "regularizer", "one"]) == 0
    assert main(["new", "regularizer", "two", "--kind", "surrogate"]) == 0
    assert "class One(Penalty)" in (folder / "one.py").read_text()
    assert "class Two(Surrogate)" in (folder / "two.py").read_text()


def test_a_class_keeps_clear_of_the_names_it_uses(folder: Path):
    for name in ("tensor", "penalty", "none_true", "batch"):
        assert main(["new", "regularizer", name]) == 0
    assert "class TensorPart(Penalty)" in (folder / "tensor.py").read_text()
    assert "class PenaltyPart(Penalty)" in (folder / "penalty.py").read_text()
    assert "class NoneTrue(Penalty)" in (folder / "none_true.py").read_text()
    assert "class BatchPart(Penalty)" in (folder / "batch.py").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["regulariser", "mine"], "no such axis: regulariser; did you mean regularizer?"),
        (["penalty", "mine"], "no such axis: penalty; there are env, policy"),
        (["regularizer", "clip"], "regularizer=clip is there already: choose another name"),
        (["regularizer", "both"], "regularizer=both is there already"),
        (["regularizer", "none"], "regularizer=none is there already"),
        (["env", "cartpole"], "env=cartpole is there already"),
        (
            ["reward", "my-part"],
            "my-part: a part's name is made of a-z, 0-9 and _, and is no word of Python's: write my_p",
        ),
        (
            ["reward", "MyPart"],
            "MyPart: a part's name is made of a-z, 0-9 and _, and is no word of Python's: write my_pa",
        ),
        (["reward", "2nd"], "write my_2nd"),
        (["reward", "lambda"], "write my_lambda"),
        (["reward", "nan"], "write my_nan"),
        (["reward", "torch"], "torch is a module that Python imports, which torch.py would hide"),
        (["reward", "mine", "--kind", "penalty"], "--kind penalty: reward has one kind: leave --kind away"),
        (["regularizer", "mine", "--kind", "loss"], "--kind loss: choose one of penalty, surrogate"),
    ],
)
def test_what_cannot_be_is_refused_and_nothing_written(
    words: list[str], message: str, folder: Path, capsys: pytest.CaptureFixture[str]
):
    assert main(["new", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert len(err.splitlines()) == 1
    assert not list(folder.iterdir())


@pytest.mark.parametrize("file", ["mine.py", "test_mine.py"])
def test_nothing_is_overwritten(file: str, folder: Path, capsys: pytest.CaptureFixture[str]):
    (folder / file).write_text("precious")
    assert main(["new", "reward", "mine"]) == 2
    assert f"{file} is there already" in capsys.readouterr().err
    assert [path.name for path in folder.iterdir()] == [file]
    assert (folder / file).read_text() == "precious"


@pytest.mark.medium
def test_what_is_written_passes_its_own_tests_and_linters(folder: Path):
    for template in USES:
        assert main(new(template, f"own_{template}")) == 0
    ran = python("-m", "pytest", "-q", "-p", "no:cacheprovider", ".")
    assert f"{2 * len(USES)} passed" in ran  # the promises of its axis, and a value by hand
    python("-m", "ruff", "check", "--isolated", ".")
    python("-m", "mypy", "--ignore-missing-imports", "--cache-dir", str(folder / "cache"), ".")


@pytest.mark.medium
def test_the_commands_of_the_guide_run(folder: Path):
    """For an iteration each, with the part as it was written."""
    assert main(["new", "regularizer", "my_kl"]) == 0
    guide = (Path(__file__).parents[1] / "docs" / "your_own_part.md").read_text()
    commands = [line.split() for line in re.findall(r"^rlfw (train .*)$", guide, re.M)]
    assert len(commands) == 3
    small = ["iterations=1", "progress=false", "tensorboard=false", "sampler.episodes.num_episodes=8"]
    script = (
        f"from rlfw.cli import main\nfor words in {[[*c, *small] for c in commands]!r}:\n    assert main(words) == 0"
    )
    python("-c", script)
    assert len(list(folder.rglob("metrics.jsonl"))) == 2 + 4  # the last of them is a sweep of two by two


@pytest.mark.medium
def test_the_printed_commands_train(folder: Path, capsys: pytest.CaptureFixture[str]):
    """For an iteration each, in one Python."""
    commands = []
    for template in USES:
        capsys.readouterr()
        assert main(new(template, f"own_{template}")) == 0
        (train,) = re.findall(r"^  rlfw (train .*)$", capsys.readouterr().out, re.M)
        words = [word for word in train.split() if not word.startswith("total_steps=")]
        commands.append([*words, "iterations=1", "progress=false", "tensorboard=false", f"out=runs/{template}"])
    script = f"from rlfw.cli import main\nfor words in {commands!r}:\n    assert main(words) == 0, words"
    python("-c", script)
    assert len(list(folder.rglob("metrics.jsonl"))) == len(USES)

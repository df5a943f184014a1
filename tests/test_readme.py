"""What the README shows does what it says."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import rlfw
from rlfw.cli import main

README = (Path(__file__).parents[1] / "README.md").read_text()
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = [line.split("#")[0].split() for line in re.findall(r"^rlfw train .*$", README, re.MULTILINE)]
TINY = [
    "policy.causal_lm.hidden_size=8",
    "policy.causal_lm.num_layers=1",
    "policy.causal_lm.num_heads=1",
    "warmup.steps=1",
]


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the files that the README names."""
    monkeypatch.chdir(tmp_path)
    for block in PYTHON:
        if name := re.match(r"# (\w+\.py)\n", block):
            (tmp_path / name[1]).write_text(block)
    return tmp_path


@pytest.mark.medium
@pytest.mark.parametrize("command", [c for c in COMMANDS if "-m" not in c and "resume=" not in c[2]], ids=" ".join)
def test_every_command_runs(command: list[str], here: Path) -> None:
    text = any(word in command for word in ("env=reverse", "env=shout"))
    words = [word for word in command[2:] if not word.startswith(("total_steps=", "out="))]
    small = (
        ["sampler.episodes.num_episodes=8"] if text or "algorithm=grpo" in command else ["sampler.steps.num_steps=16"]
    )
    warm = TINY if "env=reverse" in command else TINY[:3] if text else []
    assert main(["train", *words, *small, *warm, "iterations=1", "progress=false", f"out={here / 'run'}"]) == 0


def test_the_refusal_reads_as_shown(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = re.search(r"\$ rlfw (train .*)\n(rlfw: .*)\n", README)
    assert shown is not None
    assert main(shown[1].split()) == 2
    assert capsys.readouterr().err.strip() == shown[2]


def test_the_probe_example(here: Path) -> None:
    (block,) = (block for block in PYTHON if "rlfw.probe" in block)
    scope: dict[str, object] = {}
    exec(compile(block, "README.md", "exec"), scope)
    assert abs(float(scope["found"].advantages[0, 0]) - 0.5**0.5) < 1e-4  # two rewards 1 and 0, ddof 1: +-1/sqrt 2


def test_every_logged_metric_is_in_the_table(tmp_path: Path) -> None:
    """Names in the table stand as `a/b`, `c`, `_d`: a name may go on from the one before it."""
    import json

    table = README.split("## Metrics")[1]
    known = set()
    for row in re.findall(r"^\| (`.*?) \|", table, re.MULTILINE):
        stem = ""
        for name in re.findall(r"`([^`]+)`", row):
            if "/" in name:
                stem = name
            known |= {name, stem + name, stem.rsplit("/", 1)[0] + "/" + name}
            known.add(stem.rsplit("_", 1)[0] + name)
    words = ["algorithm=ppo", "env=cartpole", "sampler.steps.num_steps=32", "iterations=2", "evaluation.every=1"]
    words += [
        "regularizer=[clip,kl,kl_old,entropy]",
        "baseline.critic.clip=0.2",
        "progress=false",
        "evaluation.episodes=2",
    ]
    run = rlfw.train([*words, f"out={tmp_path / 'run'}"])
    logged = set(json.loads((run / "metrics.jsonl").read_text().splitlines()[-1]))
    missing = {name for name in logged if name not in known and not name.startswith(("eval/", "rewards/"))}
    assert not missing

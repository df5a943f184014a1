"""`rlfw check` catches planted faults: those of tests/mutants, each by the check that its docstring names."""

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

from rlfw.testing.battery import CHECKS

pytestmark = pytest.mark.medium

MUTANTS = Path(__file__).parent / "mutants" / "parts.py"


def planted() -> dict[str, str]:
    """axis/name -> the check that catches it, from the file's own text."""
    found = {}
    for node in ast.parse(MUTANTS.read_text()).body:
        if isinstance(node, ast.ClassDef) and node.decorator_list:
            axis, name = (word.value for word in node.decorator_list[0].args)
            found[f"{axis}/{name}"] = ast.get_docstring(node).partition(":")[0]
    return found


PLANTED = planted()


def test_every_check_has_a_fault_to_catch():
    """The cost is told and not judged."""
    assert set(PLANTED.values()) == {check.__name__ for check, _ in CHECKS} - {"cost"}


@pytest.fixture(scope="module")
def reports() -> dict[str, dict]:
    """What the command says of every part of the file, in a process of its own: no other test sees the mutants."""
    command = [sys.executable, "-m", "rlfw.cli", "check", f"plugins=['{MUTANTS}']", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return {f"{report['axis']}/{report['name']}": report for report in json.loads(done.stdout)}


def test_there_is_a_report_on_each_and_none_is_sound(reports: dict[str, dict]):
    assert reports.keys() == PLANTED.keys()
    assert [name for name, report in reports.items() if report["sound"]] == []


@pytest.mark.parametrize("name", PLANTED)
def test_fault_is_caught_by_its_check(name: str, reports: dict[str, dict]):
    failed = {result["name"]: result["words"] for result in reports[name]["results"] if result["verdict"] == "failed"}
    assert PLANTED[name] in failed, failed
    assert "Error:" not in failed[PLANTED[name]], "it is the check's own words that count, not a crash"

"""A study's folder: the declaration and its arms written down, the index brought up to them, a run tried anew."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import yaml

from rlfw.errors import UserError
from rlfw.run import load_config
from rlfw.study import index
from rlfw.study.records import read_index, run_state
from rlfw.study.settings import identity

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from rlfw.study.declaration import Study
    from rlfw.study.plan import Plan, Run

EXPERIMENT = "base.yaml"  # what stands beside study: in the declaration
GOES_ON = ("running", "interrupted")


@dataclass(frozen=True)
class Folder:
    """Where a study lives."""

    path: Path

    def open(self) -> None:
        """Make it; UserError where the path is taken by something else."""
        if self.path.exists() and not self.path.is_dir():
            raise UserError(f"--out {self.path} is a file: name a folder")
        if self.path.is_dir() and any(self.path.iterdir()) and not (self.path / "claims").is_dir():
            raise UserError(f"--out {self.path} holds something that is no study: name a fresh folder, or a study's")
        for name in ("claims", "runs", "logs"):
            (self.path / name).mkdir(parents=True, exist_ok=True)

    def experiment(self, study: Study) -> str | None:
        """The word that names the declaration's own experiment, which is written down for the runs to read."""
        return write_experiment(study, self.path)

    def declare(self, file: Path, plan: Plan, runs: Iterable[Run]) -> int:
        """Write the declaration, its arms, and an entry a run; how many runs of earlier declarations are left over.

        Seeds beyond those that are asked for, once they were begun, stay in the study.
        """
        if file.resolve() != (self.path / "study.yaml").resolve():
            index.write(self.path / "study.yaml", file.read_text(encoding="utf-8"))
        index.write(self.path / "arms.json", json.dumps([asdict(arm) for arm in plan.arms], indent=1) + "\n")
        with index.changing(self.path) as entries:
            known = {entry["run"]: entry for entry in entries}
            now = {run.name: index.entry(run.name, run.arm, run.env, run.seed) for run in runs}
            for name in now.keys() & known.keys():
                now[name] |= {key: known[name][key] for key in ("attempts", "seconds", "error")}
            for seed in {entry["seed"] for entry in entries}:
                for run in (cell.run(seed) for cell in plan.cells):
                    if run.name not in now and run.name in known and known[run.name]["attempts"]:
                        now[run.name] = known[run.name] | {"arm": run.arm, "env": run.env}
            entries[:] = now.values()
        return sum(path.is_dir() and path.name not in now for path in (self.path / "runs").iterdir())

    def states(self) -> dict[str, str]:
        """What became of every run."""
        return {entry["run"]: run_state(self.path, entry) for entry in read_index(self.path)}

    def attempts(self) -> dict[str, int]:
        """How often every run was tried."""
        return {entry["run"]: entry["attempts"] for entry in read_index(self.path)}

    def state(self, run: Run) -> tuple[str, int]:
        """What became of a run, and how often it was tried."""
        entry = index.find(read_index(self.path), run.name)
        return run_state(self.path, entry), entry["attempts"]

    def begin(self, run: Run, threads: int) -> list[str]:
        """The words that start a run, or go on with it; one attempt more."""
        path = self.path / "runs" / run.name
        with index.changing(self.path) as entries:
            entry = index.find(entries, run.name)
            going = run_state(self.path, entry) in GOES_ON and (path / "config.yaml").is_file()
            entry["attempts"] += 1
            entry["error"] = None
        if going:
            return [f"resume={path}", *run.again]
        shutil.rmtree(path, ignore_errors=True)
        return [*run.words, f"threads={threads}", f"out={path}"]

    def end(self, run: Run, seconds: float, error: str | None) -> str:
        """Write down how an attempt ended; the run's state. ``error``: of one that failed."""
        path = self.path / "runs" / run.name
        if error is None and (path / "config.yaml").is_file() and identity(load_config(path)) != run.name:
            error = "an experiment, a preset or a plugin changed while the study ran: call it again"
        with index.changing(self.path) as entries:
            entry = index.find(entries, run.name)
            entry["seconds"] += round(seconds, 2)
            entry["error"] = error
            return run_state(self.path, entry)


def write_experiment(study: Study, folder: Path) -> str | None:
    """Write the declaration's own experiment into ``folder``; the word that names it, None where there is none."""
    if not study.experiment:
        return None
    index.write(folder / EXPERIMENT, yaml.safe_dump(study.experiment, sort_keys=False))
    return f"experiment={folder / EXPERIMENT}"

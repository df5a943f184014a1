"""rlfw study with mode: search: batches of trials, each an arm like any other, until there are enough."""

from __future__ import annotations

import shlex
from pathlib import Path  # noqa: TC003
from typing import TYPE_CHECKING, Any

import yaml
from filelock import FileLock

from rlfw import config
from rlfw.errors import RunError, UserError, printable
from rlfw.report import results as outcomes
from rlfw.report.text import number
from rlfw.study import declaration, index, records, sampler, space
from rlfw.study.estimate import Estimate, clock
from rlfw.study.runner import Runner
from rlfw.study.table import said, table
from rlfw.study.trials import BASE, FIRST_SEED, Trials

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.study.declaration import Study
    from rlfw.study.folder import Folder
    from rlfw.study.launcher import Launcher
    from rlfw.study.records import Trial
    from rlfw.study.table import Table

SAME = ("base", "experiment", "envs", "coupled", "skip", "metric")  # of a declaration, while a search goes on
CONFIRMING = 10  # seeds
TRIES = 2  # of a batch whose runs were cut, by something other than the runner


class Session:
    """A call: it goes on with the search in a folder until it has ``trials`` trials."""

    def __init__(
        self, study: Study, declared: Study, folder: Folder, file: Path, words: Sequence[str], seeds: int
    ) -> None:
        self.folder, self.file, self.seeds = folder, file, seeds
        self.study, self.declared = study, declared
        check(study)
        self._check_same()
        folder.open()
        first = folder.experiment(study)
        self.trials = Trials(study, [] if first is None else [first], list(words))
        self.runner: Runner | None = None
        self.failed: dict[str, str] = {}  # runs that failed in this call: they are not tried again in it
        self.errors: dict[str, str] = {}

    def run(self, launcher: Launcher, threads: int) -> None:
        """Until there are enough trials, or until something cuts it."""
        self._extend()
        if self._open():
            launcher.open(self.folder.path)
        shown = _Kept(table())
        try:
            while self._batch(launcher, threads, shown):
                self._tell()
                print(_progress(self.trials), flush=True)
                if not self._extend():
                    return
            self._tell()
        except OSError as error:
            path = self.folder.path
            raise RunError(f"cannot write to {path}: {error.strerror}; free space, and call it again") from error
        finally:
            shown.close(self.runner)
            launcher.close()

    def _open(self) -> bool:
        """Whether there is anything to train."""
        assert self.study.search is not None
        states = self.folder.states()
        done = [run for run in self.trials.runs(self.seeds) if states[run.name] == "done"]
        return len(done) < len(states) or len(self.trials.running) < self.study.search.trials

    def _check_same(self) -> None:
        """UserError where the folder holds a search that was declared otherwise."""
        file = self.folder.path / "study.yaml"
        if not file.is_file() or file.resolve() == self.file.resolve():
            return
        before, now = declaration.read(file), self.declared
        if before.search is None or now.search is None:
            raise UserError(f"--out {self.folder.path} holds a study of mode: {before.mode}; name a fresh folder")
        changed = [name for name in SAME if getattr(before, name) != getattr(now, name)]
        changed += [
            name for name in ("space", "batch", "sampler") if vars(before.search)[name] != vars(now.search)[name]
        ]
        if changed:
            raise UserError(
                f"--out {self.folder.path} holds a search with another {changed[0]}: what it tried says nothing of "
                "this one; name a fresh folder"
            )

    def _extend(self) -> bool:
        """Propose a batch, unless there is one that was written down by others; whether there is anything to run."""
        path, trials = self.folder.path, self.trials
        assert self.study.search is not None
        with FileLock(path / ".search.lock"):  # two runners on one folder propose one batch
            known = len(trials.found)
            trials.read(path)
            more = len(trials.found) > known
            if not more:
                more = trials.extend(self.study.search.trials)
            trials.write(path)
            self.folder.declare(self.file, trials.plan(), trials.runs(self.seeds))
        for trial in trials.found[known:]:
            if trial.refused is not None:
                print(f"refused     {trial.arm}: {trial.refused}", flush=True)
        return more

    def _batch(self, launcher: Launcher, threads: int, shown: Table) -> bool:
        """Train what is not done; whether all of it has ended."""
        for _ in range(TRIES):
            runs = self.trials.runs(self.seeds)
            self.runner = runner = Runner(self.folder, runs, launcher.workers, threads, shown, launcher)
            runner.ended |= self.failed
            runner.errors |= self.errors
            runner.run()
            self.failed = {run: state for run, state in runner.ended.items() if state == "failed"}
            self.errors = {run: error for run, error in runner.errors.items() if run in self.failed}
            if runner.stopping is not None:
                return False
            if len(runner.ended) == len(runner.runs) and "interrupted" not in runner.ended.values():
                return True
        return False

    def _tell(self) -> None:
        found = records.load(self.folder.path)
        self.trials.tell(outcomes.read(found), self.seeds)
        with FileLock(self.folder.path / ".search.lock"):
            self.trials.read(self.folder.path)
            self.trials.write(self.folder.path)
        best = self.trials.best()
        if best is not None:
            index.write(self.folder.path / records.BEST, confirmation(self.trials, self.declared, best, self.seeds))

    @property
    def code(self) -> int:
        """The exit code, once it has run."""
        assert self.runner is not None
        if self.runner.stopping is not None:
            return 128 + self.runner.stopping
        return int(list(self.runner.ended.values()).count("done") < len(self.runner.runs))

    # ------------------------------------------------------------------------------------------------ what is said

    def summary(self, call: str) -> list[str]:
        """What is done, what is not and why; the best words, and what to do before believing them."""
        assert self.runner is not None
        runner, path, trials = self.runner, self.folder.path, self.trials
        lines = []
        for run in runner.runs:
            if (state := runner.ended.get(run.name)) in ("failed", "interrupted") and runner.stopping is None:
                lines.append(f"{state:<11} {said(run)}: {printable(runner.errors[run.name])}")
                lines.append(f"            log {path / 'logs' / run.name}.txt")
        states = list(runner.ended.values())
        done, failed = states.count("done"), states.count("failed")
        rest = len(runner.runs) - done - failed
        lines.append(f"{done} done, {failed} failed, {rest} left of {len(runner.runs)} runs: {path}")
        spent = trials.found
        lines.append(
            f"{len(trials.running)} trials and the base: {sum(t.steps for t in spent):,.0f} steps, "
            f"{clock(sum(t.seconds for t in spent))} of runs"
        )
        assert self.study.search is not None
        if done < len(runner.runs) or (len(trials.running) < self.study.search.trials and not trials.exhausted):
            lines.append(f"go on with: {call}")
        if trials.exhausted:
            lines.append("the space has no further point")
        return [*lines, *self._best()]

    def _best(self) -> list[str]:
        trials = self.trials
        best = trials.best()
        if best is None:
            return ["no trial has reached a score yet"]
        base = trials.found[0].objective
        beside = "" if base is None else f", the base {number(base)}"
        lines = [f"best        {best.arm}: {objective_name(trials)} {number(best.objective)}{beside}"]
        if base is not None and not trials.beats_base(best):
            lines.append("            no trial beats the base")
        for cell in trials.cells[best.arm]:
            words = [word for word in cell.words if word != "progress=false"]
            lines.append(f"            {shlex.join(['rlfw', 'train', *words])}")
        return [
            *lines,
            f"biased      the best of {len(trials.ranked)} trials owes a part of its score to luck: it was picked by",
            "            the seeds that it is scored on. On fresh seeds, against the base:",
            f"            {trials.log.confirm(self.folder.path)}",
        ]


class _Kept:
    """One table through all batches."""

    def __init__(self, inner: Table) -> None:
        self.inner = inner
        self.started, self.ended, self.waiting = inner.started, inner.ended, inner.waiting

    def show(self, runner: Runner, *, last: bool = False) -> None:
        self.inner.show(runner)

    def close(self, runner: Runner | None) -> None:
        if runner is not None:
            self.inner.show(runner, last=True)


def check(study: Study) -> None:
    """UserError where the extra is missing, or for more trials than the space has points."""
    assert study.search is not None
    sampler.require()
    config.prepare_for(study.base)
    points = space.size(space.typed(study.search.space))
    if study.search.trials > points:
        raise UserError(f"study.trials: {study.search.trials}: the space has {points:.0f} points; mode: grid runs each")


def _progress(trials: Trials) -> str:
    best = trials.best()
    told = f"{len(trials.running)} trials"
    return told if best is None else f"{told}; best so far {number(best.objective)}: {best.arm}"


def objective_name(trials: Trials) -> str:
    """What the objective is, in a few words."""
    metric, envs = trials.study.metric, len(trials.study.envs)
    return f"mean {metric.name} ({metric.summary})" if envs == 1 else f"mean normalised {metric.name} over {envs} envs"


def confirmation(trials: Trials, declared: Study, best: Trial, seeds: int) -> str:
    """A declaration: the best trial against the base on seeds that the search did not use."""
    spent = [sum(getattr(trial, what) for trial in trials.found[1:]) for what in ("runs", "steps", "seconds")]
    metric = {key: value for key, value in vars(declared.metric).items() if value is not None}
    if metric["summary"] != "final":
        metric.pop("last")
    study: dict[str, Any] = {
        "question": f"Is the best of {len(trials.ranked)} trials better than the base, on seeds it was not picked by?",
        "base": declared.base,
        "mode": "arms",
        "arms": {BASE: [], "best": best.words},
        "seeds": CONFIRMING,
        "metric": metric,
    }
    if any(env.words for env in declared.envs):
        study["envs"] = [env.words for env in declared.envs]
    return (
        f"# Trial {best.number} of a search, against the base. The search used the seeds {FIRST_SEED} to "
        f"{FIRST_SEED + seeds - 1};\n# this study uses others. Tuning has cost {spent[0]:.0f} runs, {spent[1]:,.0f} "
        f"steps and {clock(spent[2])} of runs; the base was not tuned.\n"
        + yaml.safe_dump({"study": study, **declared.experiment}, sort_keys=False, width=110)
    )


# ------------------------------------------------------------------------------------------------ the dry run


def told(study: Study, first: str | None, seeds: int, out: Path | None, workers: int) -> list[str]:
    """The space, the first batch, how many runs and how long."""
    check(study)
    search = study.search
    assert search is not None
    trials = Trials(study, [] if first is None else [first], [])
    trials.extend(search.trials)
    wide = max(map(len, trials.space))
    lines = [
        f"{search.trials} trials of a space, {search.batch} at once ({search.sampler})",
        *(f"  {key:<{wide}}  {space.described(levels)}" for key, levels in trials.space.items()),
        "",
        "the first batch",
    ]
    for trial in trials.found:
        refused = "" if trial.refused is None else f"\n      refused: {trial.refused}"
        lines.append(f"  {trial.arm}{refused}")
    envs = ", ".join(env.name for env in study.envs)
    count = (search.trials + 1) * len(study.envs) * seeds
    lines += [
        "",
        f"{search.trials} trials and the base x {len(study.envs)} envs ({envs}) x {seeds} seeds = {count} runs",
    ]
    entries = records.read_index(out) if out is not None and out.is_dir() else []
    done = sum(out is not None and records.run_state(out, entry) == "done" for entry in entries)
    seconds = None if out is None else Estimate(out).of(trials.runs(1)[0])
    if seconds is None:
        return [*lines, "time        not known before a run is done; with the same --out --dry-run then says it"]
    left = clock(max(0, count - done) * seconds / workers)
    return [*lines, f"{done} of them done in {out}", f"time        about {left} more with {workers} workers"]

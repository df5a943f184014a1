"""rlfw study: the dry run, the run, and what is said in the end."""

from __future__ import annotations

import argparse
import dataclasses
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import torch

from rlfw import config
from rlfw.errors import RunError, UserError, printable
from rlfw.study import declaration, search
from rlfw.study.estimate import Estimate, clock
from rlfw.study.folder import Folder, write_experiment
from rlfw.study.launcher import LAUNCHERS
from rlfw.study.plan import plan
from rlfw.study.records import base_of, read_index, run_state
from rlfw.study.runner import Runner
from rlfw.study.table import said, table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rlfw.study.declaration import Study
    from rlfw.study.launcher import Launcher
    from rlfw.study.plan import Plan, Run
    from rlfw.study.records import Arm

DESCRIPTION = """\
Run the study that FILE declares: every arm, env and seed as a process of its own.

Called again it goes on: what is done is skipped, what was cut is resumed, what failed is tried once more, a larger
--seeds adds seeds, a larger --trials trials of a search. Ctrl-C ends it, with every run saved. docs/studies.md says
what FILE holds.

exit codes: 0 all is done, 1 some runs failed or were cut, 2 the declaration is wrong, 130 or 143 ended by a signal"""


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what it takes")


def main(words: Sequence[str]) -> int:
    """An exit code; UserError where the declaration is wrong."""
    parser = _Parser(
        prog="rlfw study",
        description=DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("file", type=Path, metavar="FILE", help="a YAML file with a key study, or a shipped one's name")
    parser.add_argument("words", nargs="*", metavar="WORD", help="over the base's: plugins=[FILE], total_steps=N, ...")
    parser.add_argument("--out", type=Path, metavar="DIR", help="the study's folder")
    parser.add_argument("--workers", type=int, metavar="N", help="runs at once (default 2; ray: its CPUs; slurm: 50)")
    parser.add_argument("--threads", type=int, default=1, metavar="N", help="threads a run (default 1)")
    parser.add_argument("--seeds", type=int, metavar="N", help="seeds 0 to N-1, in place of the declaration's number")
    parser.add_argument("--trials", type=int, metavar="N", help="of mode: search, in place of the declaration's number")
    parser.add_argument("--launcher", choices=LAUNCHERS, default="local", help="what trains the runs (default local)")
    parser.add_argument(
        "--slurm", action="append", default=[], metavar="KEY=VALUE", help="for its jobs: partition=gpu, time=120, ..."
    )
    parser.add_argument("--dry-run", action="store_true", help="say what would run and how long; run nothing")
    args = parser.parse_intermixed_args(words)
    for name in ("workers", "threads"):
        if getattr(args, name) is not None:
            declaration.count(f"--{name}", getattr(args, name))
    if args.slurm and args.launcher != "slurm":
        raise UserError(f"--slurm {args.slurm[0]} belongs to --launcher slurm")
    launcher = LAUNCHERS[args.launcher](args.threads, args.workers, args.slurm)
    torch.set_num_threads(args.threads)
    if not args.file.exists():
        args.file = config.experiment_path(str(args.file)) or args.file
    declared = declaration.read(args.file)
    study = dataclasses.replace(declared, base=[*declared.base, *args.words], typed=args.words)
    if args.trials is not None:
        if study.search is None:
            raise UserError(f"--trials belongs to mode: search; {args.file} declares mode: {study.mode}")
        trials = declaration.count("--trials", args.trials)
        study = dataclasses.replace(study, search=dataclasses.replace(study.search, trials=trials))
    seeds = study.seeds if args.seeds is None else declaration.count("--seeds", args.seeds)
    if args.dry_run:
        with tempfile.TemporaryDirectory() as aside:
            first = write_experiment(study, Path(aside))
            if study.search is not None:
                told = search.told(study, first, seeds, args.out, launcher.workers)
                print("\n".join([*_aims(study), *told]))
                return 0
            made = plan(study, first)
        print(_told(study, made, seeds, launcher.workers, args))
        return 0
    if args.out is None:
        raise UserError("--out DIR is missing: the study's folder; --dry-run needs none")
    if study.search is not None:
        return _search(study, declared, seeds, launcher, args)
    return _run(study, seeds, launcher, args)


def _search(study: Study, declared: Study, seeds: int, launcher: Launcher, args: argparse.Namespace) -> int:
    session = search.Session(study, declared, Folder(args.out), args.file, args.words, seeds)
    session.run(launcher, args.threads)
    print("\n".join(session.summary(_command(args))))
    return session.code


def _run(study: Study, seeds: int, launcher: Launcher, args: argparse.Namespace) -> int:
    folder = Folder(args.out)
    folder.open()
    made = plan(study, folder.experiment(study))
    runs = made.runs(seeds)
    old = folder.declare(args.file, made, runs)
    for arm in made.arms:
        if arm.refused is not None:
            print(f"skipped     {arm.name}: {arm.refused}")
    if old:
        print(f"{old} run(s) of an earlier declaration are left in {args.out}/runs: no report reads them")
    states = folder.states()
    done = sum(states[run.name] == "done" for run in runs)
    if done < len(runs):
        launcher.open(args.out)
    at_once = f"{launcher.workers} at once, {args.threads} thread(s) each"
    print(f"{len(runs)} runs, {done} of them done; {at_once}", flush=True)
    runner = Runner(folder, runs, launcher.workers, args.threads, table(), launcher)
    try:
        runner.run()
    except OSError as error:
        raise RunError(f"cannot write to {args.out}: {error.strerror}; free space, and: {_command(args)}") from error
    finally:
        launcher.close()
    return _summary(runner, args)


def _summary(runner: Runner, args: argparse.Namespace) -> int:
    """What is done, what is not and why, and how to go on."""
    states = list(runner.ended.values())
    for run in runner.runs:
        if (state := runner.ended.get(run.name)) in ("failed", "interrupted") and runner.stopping is None:
            print(f"{state:<11} {said(run)}: {printable(runner.errors[run.name])}")
            print(f"            log {args.out / 'logs' / run.name}.txt")
    done, failed = states.count("done"), states.count("failed")
    rest = len(runner.runs) - done - failed
    print(f"{done} done, {failed} failed, {rest} left of {len(runner.runs)}: {args.out}")
    if done < len(runner.runs):
        print(f"go on with: {_command(args)}")
    if runner.stopping is not None:
        return 128 + runner.stopping
    return int(done < len(runner.runs))


def _command(args: argparse.Namespace) -> str:
    """The same call once more."""
    seeds = [] if args.seeds is None else ["--seeds", str(args.seeds)]
    seeds += [] if args.trials is None else ["--trials", str(args.trials)]
    workers = [] if args.workers is None else ["--workers", str(args.workers)]
    engine = [] if args.launcher == "local" else ["--launcher", args.launcher]
    options = [word for option in args.slurm for word in ("--slurm", option)]
    sizes = [*workers, "--threads", str(args.threads), *engine, *options]
    return shlex.join(["rlfw", "study", str(args.file), *args.words, "--out", str(args.out), *sizes, *seeds])


# ------------------------------------------------------------------------------------------------ the dry run


def _aims(study: Study) -> list[str]:
    metric = study.metric
    better = "higher is" if metric.higher_is_better else "lower is"
    better = "fewer steps are" if metric.summary == "steps_to" else better
    beside = " and the keys beside study" if study.experiment else ""
    return [
        study.question.strip(),
        f"base        {' '.join(study.base) or '(the defaults)'}{beside}",
        f"metric      {metric.name}, {metric.summary}{_detail(study)}; {better} better",
        "",
    ]


def _told(study: Study, made: Plan, seeds: int, workers: int, args: argparse.Namespace) -> str:
    base = base_of(made.arms)
    runs = made.runs(seeds)
    running = [arm for arm in made.arms if arm.refused is None]
    refused = [arm for arm in made.arms if arm.refused is not None]
    lines = [
        *_aims(study),
        f"{len(running)} arms, as differences from {base}",
        *(line for arm in running for line in _differences(arm, base)),
    ]
    if refused:
        lines += ["", f"{len(refused)} skipped", *(f"  {arm.name}\n      {arm.refused}" for arm in refused)]
    envs = ", ".join(env.name for env in study.envs)
    count = f"{len(running)} arms x {len(study.envs)} envs ({envs}) x {seeds} seeds = {len(runs)} runs"
    return "\n".join([*lines, "", count, *_time(runs, workers, args)])


def _detail(study: Study) -> str:
    metric = study.metric
    if metric.summary == "final":
        return f" (mean of the last {metric.last})"
    return f" {metric.threshold}" if metric.threshold is not None else ""


def _differences(arm: Arm, base: str) -> list[str]:
    if arm.name == base:
        return [f"  {arm.name}  (the base)" if base != "base" else "  base"]
    return [f"  {arm.name}", *(f"      {key}: {_word(a)} -> {_word(b)}" for key, (a, b) in arm.differences.items())]


def _word(value: Any) -> str:
    return "-" if value is None else declaration.written(value)


def _time(runs: Sequence[Run], workers: int, args: argparse.Namespace) -> list[str]:
    """How long it takes, from runs that are done; where none is, how to learn it."""
    states: dict[str, str] = {}
    if args.out is not None and args.out.is_dir():
        states = {entry["run"]: run_state(args.out, entry) for entry in read_index(args.out)}
    left = [(run, 0.0) for run in runs if states.get(run.name) != "done"]
    done = len(runs) - len(left)
    lines = [f"{done} of them done in {args.out}"] if done else []
    seconds = None if args.out is None else Estimate(args.out).left(left, workers)
    if seconds is None:
        where = "--out DIR" if args.out is None else f"--out {args.out}"
        return [
            *lines,
            f"time        not known before a run is done: rlfw study {args.file} {where} --seeds 1 trains the",
            "            first seed, which stays part of the study, and --dry-run with the same --out then says it",
        ]
    return [*lines, f"time        about {clock(seconds)} more with {workers} workers, from the runs that are done"]

"""Where the time of `rlfw study` goes: how much of the workers' time is training, and what the start of a run costs.

    python benchmarks/study/run.py [OUT] [--steps 50000] [--runs 12] [--workers 2]

PPO on CartPole, one thread a run. Every moment of every worker, from the command's start to its end, falls into one row
of the table. "no core" is how long runs could have gone on while another process of the machine had their core
(/proc/PID/schedstat): on a quiet machine that time is not there. The table goes to stdout and OUT/study.md. Linux.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml

INTERVAL = 0.02  # seconds between two looks at the processes
BASE = ["algorithm=ppo", "env=cartpole", "tensorboard=false"]
IMPORTS = "import rlfw.study.child"  # what a run imports
ENV = {**os.environ, "OMP_NUM_THREADS": "1"}
BOOT = time.time() - time.clock_gettime(time.CLOCK_BOOTTIME)
TICK = os.sysconf("SC_CLK_TCK")


@dataclass
class Watched:
    """A process as it was seen: when, its CPU seconds and its seconds in the queue for a core, all threads together."""

    began: float  # seconds since 1970, as all times here
    log: str = ""  # where its stdout goes: the log of a run
    seen: list[tuple[float, float, float]] = field(default_factory=list)

    def between(self, start: float, end: float) -> tuple[float, float]:
        """CPU and queue seconds of that stretch."""
        at, cpu, queue = np.array([(self.began, 0.0, 0.0), *self.seen]).T
        return tuple(float(np.diff(np.interp([start, end], at, total))[0]) for total in (cpu, queue))


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def look(pid: int, known: dict[int, Watched]) -> None:
    """One more line about a process; of one that has ended there is none."""
    folder = Path(f"/proc/{pid}")
    try:
        if pid not in known:
            started = int((folder / "stat").read_text().rpartition(")")[2].split()[19])
            known[pid] = Watched(BOOT + started / TICK)
        tasks = [(task / "schedstat").read_text().split() for task in (folder / "task").iterdir()]
        known[pid].log = os.readlink(folder / "fd" / "1")
    except OSError:
        return
    cpu, queue = (sum(int(words[place]) for words in tasks) / 1e9 for place in (0, 1))
    known[pid].seen.append((time.time(), cpu, queue))


def watch(process: subprocess.Popen[bytes]) -> tuple[dict[int, Watched], dict[int, Watched]]:
    """Until it ends: the runner with its server, and the runs that the server forks."""
    around: dict[int, Watched] = {}
    runs: dict[int, Watched] = {}
    while process.poll() is None:
        try:
            servers = children(process.pid)
            forked = [run for server in servers for run in children(server)]
        except OSError:
            continue
        for pid in (process.pid, *servers):
            look(pid, around)
        for pid in forked:
            look(pid, runs)
        time.sleep(INTERVAL)
    return around, runs


@dataclass(frozen=True)
class Run:
    """One run's course."""

    process: Watched
    first: float  # its first iteration begins
    last: float  # its last one is logged
    end: float

    @staticmethod
    def of(process: Watched, out: Path) -> Run:
        rows = (out / "runs" / Path(process.log).stem / "metrics.jsonl").read_text().splitlines()
        first, last = json.loads(rows[0]), json.loads(rows[-1])
        took = sum(seconds for name, seconds in first.items() if name.startswith("timing_s/"))
        return Run(process, first["time"] - took, last["time"], process.seen[-1][0])


def study(out: Path, runs: int, steps: int, workers: int) -> tuple[list[Run], dict[int, Watched], float, float]:
    """Run one; its runs, the processes around them, when it began and ended."""
    declared = {
        "question": "Where does the time go?",
        "base": [*BASE, f"total_steps={steps}"],
        "mode": "arms",
        "arms": {"plain": []},
        "seeds": runs,
        "metric": {"name": "objective/scores"},
    }
    file, folder = out / "declared.yaml", out / "study"
    file.write_text(yaml.safe_dump({"study": declared}, sort_keys=False))
    command = [sys.executable, "-m", "rlfw.cli", "study", str(file), "--out", str(folder), "--workers", str(workers)]
    began = time.time()
    around, forked = watch(process := subprocess.Popen(command, env=ENV, stdout=subprocess.DEVNULL))
    ended = time.time()
    if process.returncode:
        raise SystemExit(f"the study failed: {process.returncode}")
    found = sorted((Run.of(watched, folder) for watched in forked.values()), key=lambda run: run.process.began)
    return found, around, began, ended


def told(runs: list[Run], around: dict[int, Watched], began: float, ended: float, workers: int) -> list[str]:
    """The workers' time, shared out."""
    first = runs[0].process.began
    lasts = sorted(run.end for run in runs)[-workers:]  # the last run of each worker
    own = {
        "of a run, from its process to its first iteration": [(run, run.process.began, run.first) for run in runs],
        "of a run, its iterations": [(run, run.first, run.last) for run in runs],
        "of a run, from its last iteration to its end": [(run, run.last, run.end) for run in runs],
    }
    before = np.sum([process.between(began, first) for process in around.values()], 0)  # CPU, queue
    rows = {"before the first run: imports, the arms, the server": (workers * (first - began), before[0], 0.0)}
    for what, parts in own.items():
        cpu, queue = np.sum([run.process.between(start, end) for run, start, end in parts], 0)
        rows[what] = (sum(end - start for _, start, end in parts), cpu, queue)
    after = sum(ended - end for end in lasts)
    whole = workers * (ended - began)
    between = whole - after - sum(seconds for seconds, _, _ in rows.values())
    polls = sum(process.between(first, lasts[0])[0] for process in around.values())
    rows["between two runs"] = (between, polls, 0.0)
    rows["after a worker's last run"] = (after, 0.0, 0.0)
    lines = ["| the workers' time | seconds | share | CPU | no core |", "|---|---|---|---|---|"]
    for what, (seconds, cpu, queue) in rows.items():
        lines.append(f"| {what} | {seconds:.1f} | {seconds / whole:.1%} | {cpu:.1f} | {queue:.1f} |")
    lines.append(f"| {workers} workers, {len(runs)} runs | {whole:.1f} | | | |")
    inside = [rows[what] for what in own]
    share = sum(seconds for seconds, _, _ in inside) / (sum(seconds for seconds, _, _ in inside) + between)
    iterations = rows["of a run, its iterations"][1] / (sum(cpu for _, cpu, _ in inside) + polls)
    return [
        *lines,
        "",
        f"Between the start of the first run and a worker's last one, {share:.1%} of the workers' time is in runs;",
        f"of the CPU time of runs, runner and server then, {iterations:.1%} is in iterations.",
    ]


def imports() -> float:
    """CPU seconds of a process that imports what a run imports, the median of three."""
    found = []
    for _ in range(3):
        before = os.times()
        subprocess.run([sys.executable, "-c", IMPORTS], env=ENV, check=True)
        after = os.times()
        found.append(after.children_user + after.children_system - before.children_user - before.children_system)
    return statistics.median(found)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("runs/study_speed"))
    parser.add_argument("--steps", type=int, default=50_000, help="of a run")
    parser.add_argument("--runs", type=int, default=12)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=args.out) as aside:
        runs, around, began, ended = study(Path(aside), args.runs, args.steps, args.workers)
    starts = [run.process.between(run.process.began, run.first)[0] for run in runs]
    table = [
        *told(runs, around, began, ended, args.workers),
        f"From its process to its first iteration a run takes {statistics.median(starts):.2f} s of CPU (median of "
        f"{len(runs)}, at most {max(starts):.2f});",
        f"a process that makes the same imports itself takes {imports():.2f} s for them alone.",
    ]
    text = "\n".join(table) + "\n"
    print(text)
    (args.out / "study.md").write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

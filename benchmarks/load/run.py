"""Long runs: memory and speed must stay flat over the second half.

    python benchmarks/load/run.py [OUT] [--share 1.0]

10 million CartPole steps of PPO and 2,000 GRPO steps of a small language model, one process each, one thread, side by
side. Speed is in steps a CPU second, so that other work on the machine matters less. The table goes to stdout and
OUT/load.md; --share 0.01 is a trial. Linux alone (/proc).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

PLUGIN = Path(__file__).with_name("memory.py")
RUNS = {
    "ppo cartpole": (["algorithm=ppo", "env=cartpole", "controller=[anneal,memory]"], "total_steps", 10_000_000),
    "grpo reverse": (["algorithm=grpo", "env=reverse", "controller=[memory]"], "iterations", 2_000),
}
GROWTH = 0.02  # share by which memory may grow over the second half
SLOWDOWN = 0.10  # share by which the last quarter may be slower than the one before it


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", nargs="?", type=Path, default=Path("runs/load"))
    parser.add_argument("--share", type=float, default=1.0, help="of each budget")
    args = parser.parse_args()
    processes = {}
    for name, (words, unit, budget) in RUNS.items():
        out = args.out / name.replace(" ", "_")
        command = [sys.executable, "-m", "rlfw.cli", "train", *words, f"plugins=[{PLUGIN}]"]
        command += [f"{unit}={max(int(budget * args.share), 4)}", f"out={out}", "progress=false"]
        processes[name] = out, subprocess.Popen(command, env={**os.environ, "OMP_NUM_THREADS": "1"})
    lines = [
        "| run | iterations | MB at half | MB at the end | steps/CPU s, third quarter | last quarter | flat |",
        "|---|---|---|---|---|---|---|",
    ]
    passed = True
    for name, (out, process) in processes.items():
        if process.wait():
            print(f"{name} failed", file=sys.stderr)
            return 1
        row, flat = measured(out / "metrics.jsonl")
        lines.append(f"| {name} | {row} | {'yes' if flat else 'NO'} |")
        passed &= flat
    table = "\n".join(lines) + "\n"
    print(table)
    (args.out / "load.md").write_text(table)
    return 0 if passed else 1


def measured(metrics: Path) -> tuple[str, bool]:
    rows = [json.loads(line) for line in metrics.read_text().splitlines()]
    memory = np.array([row["perf/rss_mb"] for row in rows])
    steps, seconds = (np.array([row[name] for row in rows]) for name in ("global_step", "perf/cpu_s"))
    n = len(rows)
    half, end = np.median(memory[n // 2 : n // 2 + max(n // 20, 1)]), np.median(memory[-max(n // 20, 1) :])
    marks = [n // 2, 3 * n // 4, n - 1]
    third, last = np.diff(steps[marks]) / np.diff(seconds[marks])
    flat = bool(end < half * (1 + GROWTH) and last > third * (1 - SLOWDOWN))
    return f"{n} | {half:.0f} | {end:.0f} | {third:,.0f} | {last:,.0f}", flat


if __name__ == "__main__":
    sys.exit(main())

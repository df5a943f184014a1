"""Marginal cost of processes: (long run - short run) / (difference in size), start-up and imports cancelled out."""

from __future__ import annotations

import os
import resource
import statistics
import subprocess
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

SECONDS = ("cpu", "wall")


@dataclass
class Contestant:
    """A library: its command for a run of ``size`` units that may write into ``folder``, and what was measured."""

    name: str
    command: Callable[[int, int, str], list[str]]  # size, seed, folder -> words
    rounds: list[dict[str, float]] = field(default_factory=list)  # seconds a unit, CPU and wall


def environment(threads: int) -> dict[str, str]:
    """The same number of threads for every library that may start some; nothing is fetched."""
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS")
    return {
        **os.environ,
        **dict.fromkeys(names, str(threads)),
        "HF_HUB_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
    }


def seconds(words: list[str], threads: int) -> dict[str, float]:
    """CPU seconds (user and system, children included) and wall seconds of one process."""

    def spent() -> float:
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    cpu, wall = spent(), time.perf_counter()
    done = subprocess.run(words, env=environment(threads), capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(words)}\n{done.stdout}\n{done.stderr}")
    return {"cpu": spent() - cpu, "wall": time.perf_counter() - wall}


def compare(contestants: list[Contestant], *, short: int, long: int, rounds: int, threads: int) -> None:
    """``rounds`` rounds, in each of which every contestant runs once short and once long, in turn.

    A short run of each goes before and does not count: it fills the caches of the file system.
    """
    for contestant in contestants:
        with tempfile.TemporaryDirectory() as folder:
            seconds(contestant.command(short, 0, f"{folder}/run"), threads)
    for seed in range(1, rounds + 1):
        for contestant in contestants:
            with tempfile.TemporaryDirectory() as folder:
                runs = [seconds(contestant.command(size, seed, f"{folder}/{size}"), threads) for size in (short, long)]
            contestant.rounds.append({kind: (runs[1][kind] - runs[0][kind]) / (long - short) for kind in SECONDS})
            latest = contestant.rounds[-1]
            print(f"round {seed}  {contestant.name:<24} {latest['cpu']:.3e} CPU s, {latest['wall']:.3e} wall s a unit")


def table(contestants: list[Contestant], unit: str, *, per_second: bool) -> str:
    """Medians over the rounds, and the ratio to the first contestant within each round: median (lowest - highest)."""
    first = contestants[0]
    heads = [f"{unit}/s" if per_second else f"s/{unit}", f"ratio to {first.name}"]
    lines = [f"| | {' | '.join(f'{head}, {kind}' for kind in SECONDS for head in heads)} |", "|---|---|---|---|---|"]
    for contestant in contestants:
        cells = []
        for kind in SECONDS:
            cost = statistics.median(found[kind] for found in contestant.rounds)
            cells.append(f"{1 / cost:,.0f}" if per_second else f"{cost:.3f}")
            pairs = zip(first.rounds, contestant.rounds, strict=True)
            ratios = sorted(peer[kind] / own[kind] for peer, own in pairs)
            cells.append(f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} - {ratios[-1]:.2f})")
        lines.append(f"| {contestant.name} | {' | '.join(cells)} |")
    return "\n".join(lines)

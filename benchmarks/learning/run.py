"""Does it learn? Published and own bars, every seed kept, each result beside the command and the commit that made it.

    python benchmarks/learning/run.py [NAME ...] [--seeds N] [--workers 2]

Writes benchmarks/learning/results/NAME.json and the table results/README.md of all results that are there.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import rlfw
from rlfw.api import evaluate_run
from rlfw.evaluation import Interval
from rlfw.run import checkpoints, provenance

HERE = Path(__file__).parent
RESULTS = HERE / "results"


@dataclass(frozen=True)
class Bar:
    """A run of some seeds and what it must reach."""

    words: list[str]
    seeds: int
    measure: str  # greedy, last100, gain or final: see ``value``
    bar: str  # for people
    passes: Callable[[list[float]], bool]
    episodes: int = 100
    eval_words: tuple[str, ...] = ()


def file(name: str) -> str:
    return f"experiment={HERE / name}.yaml"


def mean_at_least(bar: float) -> Callable[[list[float]], bool]:
    return lambda values: statistics.mean(values) >= bar


def most_at_least(bar: float, share: float) -> Callable[[list[float]], bool]:
    return lambda values: sum(value >= bar for value in values) >= share * len(values)


TEXT = ["env=reverse_sort", "total_steps=30720"]
ZOO_CAR = ["algorithm=ppo", "env=mountain_car", file("mountain_car_zoo")]
PLAIN_CAR = [*ZOO_CAR, "env.gym.normalize_observations=false", "env.gym.normalize_rewards=false"]
ACROBOT = ["algorithm=ppo", "env=acrobot", file("acrobot_zoo")]
LONG_VIEW = ["lr=3e-4", "gamma=0.99", "baseline.critic.gae_lambda=1.0", "sampler.steps.num_steps=128"]
SHORT = ("env.gym.max_episode_steps=500",)
BARS = {
    "ppo_cartpole": Bar(
        ["algorithm=ppo", "env=cartpole"], 10, "greedy", ">= 475 on 9 of 10 seeds", most_at_least(475, 0.9)
    ),
    "grpo_cartpole": Bar(
        ["algorithm=grpo", "env=cartpole"], 10, "greedy", ">= 475 on 9 of 10 seeds", most_at_least(475, 0.9)
    ),
    "grpo_reverse": Bar(
        ["algorithm=grpo", "env=reverse"], 5, "gain", "gains >= .20 on each seed", most_at_least(0.2, 1), 500
    ),
    "cartpole_zoo": Bar(
        ["algorithm=ppo", "env=cartpole", file("cartpole_zoo")],
        10,
        "greedy",
        ">= 475 on 9 of 10 seeds",
        most_at_least(475, 0.9),
    ),
    "cartpole_cleanrl": Bar(
        ["algorithm=ppo", "env=cartpole", file("cartpole_cleanrl")],
        5,
        "last100",
        "mean within 478-500",
        mean_at_least(478),
    ),
    "acrobot_zoo": Bar(ACROBOT, 5, "greedy", "mean >= -90", mean_at_least(-90)),
    "cartpole_limit_50": Bar(
        ["algorithm=ppo", "env=cartpole", "env.gym.max_episode_steps=50", *LONG_VIEW],
        5,
        "greedy",
        ">= 200 of 500 steps on each seed",
        most_at_least(200, 1),
        eval_words=SHORT,
    ),
    "mountain_car_normalized": Bar(ZOO_CAR, 5, "greedy", "mean >= -125", mean_at_least(-125)),
    "mountain_car_plain": Bar(PLAIN_CAR, 3, "greedy", "stays at -200", lambda values: max(values) <= -195),
    "grpo_reverse_sort": Bar(["algorithm=grpo", *TEXT], 5, "final", "mean >= .85", mean_at_least(0.85), 500),
    "ppo_reverse_sort": Bar(["algorithm=ppo", *TEXT], 5, "final", "mean >= .85", mean_at_least(0.85), 500),
}


def one(name: str, seed: int) -> dict[str, float]:
    """Train one seed and measure it: ``value``, and ``start`` where a warm start came first."""
    bar = BARS[name]
    out = Path(tempfile.mkdtemp()) / name
    began = time.perf_counter()
    words = [*bar.words, f"seed={seed}", f"out={out}", "progress=false", "tensorboard=false", "checkpoint.keep=-1"]
    run = rlfw.train(words)
    seconds = time.perf_counter() - began
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    found = {"seed": seed, "seconds": round(seconds, 1), "steps": rows[-1]["global_step"]}

    def exact(path: Path, sampled: bool) -> float:
        return next(iter(evaluate_run(path, bar.episodes, greedy=not sampled, overrides=bar.eval_words).values())).mean

    if bar.measure == "last100":  # sampled actions, as trained: the last hundred episodes that ended
        episodes = [row for row in rows if "objective/scores" in row]
        count, total = 0, 0.0
        for row, before in zip(reversed(episodes), [*reversed(episodes[:-1]), {"episode": 0}], strict=True):
            new = row["episode"] - before["episode"]
            count, total = count + new, total + new * row["objective/scores"]
            if count >= 100:
                break
        found["value"] = total / count
    elif bar.measure == "greedy":
        found["value"] = exact(run, sampled=False)
    else:
        found["start"] = exact(checkpoints(run)[0], sampled=False)
        found["end"] = exact(run, sampled=False)
        found["value"] = found["end"] - found["start"] if bar.measure == "gain" else found["end"]
    shutil.rmtree(out.parent)
    return found


def table() -> str:
    """All results that are there."""
    lines = [
        "# Learning results",
        "",
        "Every seed is kept. `greedy`: return of 100 greedy episodes with seeds of their own; `last100`: mean of the",
        "last 100 training episodes, sampled; `final`, `gain`: exact match on 500 fresh prompts, greedy, and what was",
        "gained over the warm start. Mean over seeds, 95 % t-interval.",
        "",
        "| name | what | bar | mean [interval] | seeds | passes | seconds a run | commit |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name in BARS:
        path = RESULTS / f"{name}.json"
        if path.is_file():
            r = json.loads(path.read_text())
            values = ", ".join(f"{run['value']:.3g}" for run in r["runs"])
            i = Interval(**r["interval"])
            seconds = statistics.median(run["seconds"] for run in r["runs"])
            lines.append(
                f"| {name} | {r['measure']} | {r['bar']} | {i.mean:.3g} [{i.low:.3g}, {i.high:.3g}] "
                f"| {values} | {'yes' if r['passes'] else '**no**'} | {seconds:.0f} | {r['commit'][:9]} |"
            )
    lines += ["", "Commands: `python benchmarks/learning/run.py NAME`; the words of each run are in its JSON file.", ""]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help=", ".join(BARS))
    parser.add_argument("--seeds", type=int, default=None)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    unknown = set(args.names) - set(BARS)
    if unknown:
        parser.error(f"no such bar: {', '.join(unknown)}")
    RESULTS.mkdir(exist_ok=True)
    commit = provenance([])["git"]
    failed = 0
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(args.workers, mp_context=context) as pool:
        for name in args.names or BARS:
            bar = BARS[name]
            seeds = args.seeds or bar.seeds
            runs = list(pool.map(one, [name] * seeds, range(1, seeds + 1)))
            values = [run["value"] for run in runs]
            result = {
                "command": f"python benchmarks/learning/run.py {name}",
                "words": [word.replace(f"{HERE}/", "benchmarks/learning/") for word in bar.words],
                "commit": (commit["commit"] or "unknown") + ("+" if commit["dirty"] else ""),
                "measure": bar.measure,
                "bar": bar.bar,
                "passes": bar.passes(values),
                "interval": vars(Interval.of(values)),
                "runs": runs,
            }
            failed += not result["passes"]
            (RESULTS / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
            (RESULTS / "README.md").write_text(table())
            verdict = "passes" if result["passes"] else "FAILS"
            print(f"{name}: {[round(value, 3) for value in values]} {bar.bar}: {verdict}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())

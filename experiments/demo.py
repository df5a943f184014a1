"""The main job: an ablation on CartPole, its table and its picture, then GRPO on a language model.

    python experiments/demo.py [--out DIR] [--seeds 5] [--workers 2]

Baselines {critic, group_mean, none} x regularizers {clip, kl, both}, each on the same sampler, so that an arm is two
words; then `algorithm=grpo env=reverse` with samples before and after.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import sys
import time
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import product
from pathlib import Path

import matplotlib
import numpy as np
from scipy import stats

import rlfw
from rlfw.errors import printable

matplotlib.use("Agg")
import matplotlib.pyplot as plt

HERE = Path(__file__).parent
BASELINES = ("critic", "group_mean", "none")
REGULARIZERS = ("clip", "kl", "both")
FINAL = 0.1  # the last tenth of a run is its final return
LEGEND = "mean over seeds, band: 95 % t-interval"


def run(out: Path, baseline: str, regularizer: str, seed: int) -> Path:
    """One run of one arm: two words over the base."""
    words = [f"experiment={HERE / 'demo.yaml'}", f"baseline={baseline}", f"regularizer={regularizer}", f"seed={seed}"]
    return rlfw.train(["algorithm=ppo", "env=cartpole", *words, f"out={out}", "progress=false", "tensorboard=false"])


def curve(run: Path) -> tuple[np.ndarray, np.ndarray]:
    """Env steps and the mean return of the episodes that ended in each rollout."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return np.array([row["global_step"] for row in rows]), np.array([row["objective/scores"] for row in rows])


def interval(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean over seeds (axis 0) and the half width of its 95 % t-interval."""
    n = len(values)
    return values.mean(0), stats.t.ppf(0.975, n - 1) * values.std(0, ddof=1) / np.sqrt(n)


def ablation(out: Path, seeds: int, workers: int) -> None:
    """All arms, all seeds; a table and a picture."""
    arms = list(product(BASELINES, REGULARIZERS))
    jobs = {}
    started = time.time()
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        for seed, (baseline, regularizer) in product(range(seeds), arms):
            folder = out / f"{baseline}-{regularizer}-{seed}"
            jobs[pool.submit(run, folder, baseline, regularizer, seed)] = (baseline, regularizer, seed)
        runs: dict[tuple[str, str], list[Path]] = {arm: [] for arm in arms}
        for done, job in enumerate(as_completed(jobs), start=1):
            baseline, regularizer, seed = jobs[job]
            runs[baseline, regularizer].append(job.result())
            took = time.time() - started
            print(f"  {done:>2}/{len(jobs)}  baseline={baseline} regularizer={regularizer} seed={seed}  {took:.0f} s")
    curves = {arm: [curve(run) for run in runs[arm]] for arm in arms}
    table = out / "table.md"
    table.write_text(markdown(curves, seeds))
    print(f"\n{table.read_text()}")
    picture(curves, out / "learning_curves.png")
    print(f"table    {table}\npicture  {out / 'learning_curves.png'}")


def markdown(curves: dict, seeds: int) -> str:
    """Final return of each arm, with its interval over seeds."""
    lines = [
        f"CartPole-v1: return over the last {FINAL:.0%} of training, sampled actions.",
        f"Mean and 95 % t-interval over {seeds} seeds.",
        "",
        "| baseline | " + " | ".join(REGULARIZERS) + " |",
        "|---|" + "---|" * len(REGULARIZERS),
    ]
    for baseline in BASELINES:
        cells = []
        for regularizer in REGULARIZERS:
            finals = [y[x >= (1 - FINAL) * x[-1]].mean() for x, y in curves[baseline, regularizer]]
            mean, half = interval(np.array(finals))
            cells.append(f"{mean:.0f} ± {half:.0f}")
        lines.append(f"| {baseline} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def picture(curves: dict, path: Path) -> None:
    """A panel a baseline, a line a regularizer."""
    figure, axes = plt.subplots(1, len(BASELINES), figsize=(12, 3.8), sharey=True, layout="constrained")
    colours = dict(zip(REGULARIZERS, ("#0072B2", "#D55E00", "#009E73"), strict=True))  # Okabe and Ito
    for axis, baseline in zip(axes, BASELINES, strict=True):
        for regularizer in REGULARIZERS:
            found = curves[baseline, regularizer]
            grid = np.linspace(max(x[0] for x, _ in found), min(x[-1] for x, _ in found), 60)
            mean, half = interval(np.stack([np.interp(grid, x, y) for x, y in found]))
            axis.plot(grid, mean, color=colours[regularizer], label=regularizer)
            axis.fill_between(grid, mean - half, mean + half, color=colours[regularizer], alpha=0.18, linewidth=0)
        axis.set(title=f"baseline={baseline}", xlabel="env steps", ylim=(0, 510))
        axis.grid(alpha=0.3)
    axes[0].set_ylabel("return of an episode")
    axes[0].legend(title="regularizer", loc="lower right")
    figure.suptitle(f"CartPole-v1: {LEGEND}")
    figure.savefig(path, dpi=130)
    plt.close(figure)


def text(out: Path) -> None:
    """GRPO on a character-level language model that reverses words."""
    before = time.time()
    folder = rlfw.train(["algorithm=grpo", "env=reverse", f"out={out}"])
    samples = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    last = samples[-1]["iteration"]
    for title, iteration in (("before", 1), ("after", last)):
        rows = [row for row in samples if row["iteration"] == iteration]
        exact = sum(row["reward"] for row in rows) / len(rows)
        print(f"\n{title}: iteration {iteration}, {exact:.0%} of {len(rows)} sampled completions right")
        step = len(rows) // 5
        for row in rows[: 5 * step : step]:
            mark = "right" if row["reward"] > 0 else "wrong"
            print(f"    {row['prompt']}{printable(row['completion']):<8} {mark}")
    print(f"\nrun      {folder}  ({time.time() - before:.0f} s)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs") / time.strftime("demo-%Y%m%d-%H%M%S"))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    started = time.time()
    arms = len(BASELINES) * len(REGULARIZERS)
    print(f"1. CartPole: {arms} arms x {args.seeds} seeds, {args.workers} runs at a time, one thread each")
    ablation(args.out / "cartpole", args.seeds, args.workers)
    print("\n2. GRPO on a language model of 0.4 M parameters: env=reverse")
    text(args.out / "reverse")
    print(f"\nTook {time.time() - started:.0f} s. Curves in TensorBoard: .venv/bin/tensorboard --logdir {args.out}")


if __name__ == "__main__":
    sys.exit(main())

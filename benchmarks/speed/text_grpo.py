"""GRPO on a tiny language model, seconds a step: `rlfw train` beside TRL, in turn, with the same threads.

    python benchmarks/speed/text_grpo.py --peer-python /tmp/trl/bin/python [--beta 0.04] [override ...]

A random Llama (hidden 128, 4 layers, 78 characters), 16 prompts of 16 characters x 8 completions of at most 32 tokens,
fp32. The learning rate is so small that the completions stay as long as they are at the start. Overrides are added to
rlfw's command. README.md says how the peer's environment is made.
"""

import argparse
import sys
from pathlib import Path

from measure import Contestant, compare, table

HERE = Path(__file__).parent
WORDS = [
    f"plugins=[{HERE / 'tiny_task.py'}]",
    "algorithm=grpo",
    "env=compute",
    "policy=causal_lm",
    "policy.causal_lm.hidden_size=128",
    "policy.causal_lm.num_layers=4",
    "policy.causal_lm.num_heads=4",
    "sampler.episodes.num_episodes=128",
    "sampler.episodes.group_size=8",
    "lr=1e-6",
    "progress=false",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="the Python of an environment with TRL")
    parser.add_argument("--beta", type=float, default=0.0, help="coefficient of the KL to the reference; 0: no KL")
    parser.add_argument("--steps", type=int, default=23, help="GRPO steps of the long run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    threads = str(args.threads)
    leash = ["regularizer=[clip,kl]", f"regularizer.kl.coef={args.beta}"] if args.beta else ["regularizer=[clip]"]

    def peer(steps: int, seed: int, folder: str) -> list[str]:
        return [args.peer_python, str(HERE / "peer_trl.py"), str(steps), str(seed), threads, str(args.beta)]

    def rlfw(steps: int, seed: int, folder: str) -> list[str]:
        words = [*WORDS, *leash, f"iterations={steps}", f"seed={seed}", f"out={folder}", f"threads={threads}"]
        return [sys.executable, "-m", "rlfw.cli", "train", *words, *args.overrides]

    contestants = [Contestant("TRL", peer), Contestant(" ".join(["rlfw", *args.overrides]), rlfw)]
    compare(contestants, short=3, long=args.steps, rounds=args.rounds, threads=args.threads)
    print(table(contestants, "step", per_second=False))


if __name__ == "__main__":
    main()

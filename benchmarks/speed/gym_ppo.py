"""PPO on CartPole-v1, env steps a second: `rlfw train` beside stable-baselines3, in turn, with the same threads.

    python benchmarks/speed/gym_ppo.py --peer-python /tmp/sb3/bin/python [override ...]

8 envs x 128 steps, 4 epochs, minibatches of 256, separate 64x64 tanh networks, Adam 2.5e-4. Overrides are added to
rlfw's command, e.g. update=compile. README.md says how the peer's environment is made.
"""

import argparse
import sys
from pathlib import Path

from measure import Contestant, compare, table

WORDS = [
    "algorithm=ppo",
    "env=cartpole",
    "policy=mlp",
    "sampler.steps.num_envs=8",
    "sampler.steps.num_steps=128",
    "epochs=4",
    "num_minibatches=4",
    "lr=2.5e-4",
    "baseline.critic.coef=1.0",
    "progress=false",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="the Python of an environment with stable-baselines3")
    parser.add_argument("--steps", type=int, default=200_704, help="env steps of the long run")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args()
    threads = str(args.threads)

    def peer(steps: int, seed: int, folder: str) -> list[str]:
        return [args.peer_python, str(Path(__file__).with_name("peer_sb3.py")), str(steps), str(seed), threads]

    def rlfw(steps: int, seed: int, folder: str) -> list[str]:
        words = [*WORDS, f"total_steps={steps}", f"seed={seed}", f"out={folder}", f"threads={threads}"]
        return [sys.executable, "-m", "rlfw.cli", "train", *words, *args.overrides]

    contestants = [Contestant("stable-baselines3", peer), Contestant(" ".join(["rlfw", *args.overrides]), rlfw)]
    compare(contestants, short=16_384, long=args.steps, rounds=args.rounds, threads=args.threads)
    print(table(contestants, "step", per_second=True))


if __name__ == "__main__":
    main()

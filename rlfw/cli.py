"""The commands: rlfw train, rlfw eval, rlfw list, ..."""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from rlfw.errors import UserError, tell

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

HELP = """\
rlfw: policy-gradient algorithms as compositions of interchangeable parts

  rlfw train algorithm=ppo env=cartpole seed=1 out=runs/first
  rlfw train algorithm=grpo env=reverse regularizer.kl.coef=0.1
  rlfw train algorithm=ppo env=gym env.gym.id=Acrobot-v1 total_steps=300000
  rlfw train -m algorithm=grpo env=cartpole epochs=4 regularizer=none,clip,kl,both seed=0,1,2
  rlfw eval runs/first --episodes 100
  rlfw warmup env=reverse warmup.steps=150 out=runs/warm
  rlfw sample runs/warm --prompt r:abc=
  rlfw samples runs/text
  rlfw list baseline
  rlfw explain algorithm=grpo regularizer.clip.high=0.28
  rlfw new regularizer my_kl
  rlfw check regularizer/my_kl plugins=[my_kl.py]
  rlfw study ppo_details --out runs/details
  rlfw report runs/details
  rlfw compare runs/first runs/second

An algorithm is one part on each axis: algorithm=NAME chooses them all, axis=PART swaps one, axis.PART.key=VALUE
sets it. The budget is total_steps=N (env steps on gymnasium, completions on text) or iterations=N (rollouts with
their updates). `rlfw list` shows every part, `rlfw list AXIS` its keys, `rlfw train --help` the root keys. --debug,
anywhere: an error shows its traceback.

exit codes: 0 done, 1 the run failed, 2 the input was wrong, 130 or 143 ended by SIGINT or SIGTERM and saved: resume=DIR
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The console script: an exit code, messages on stderr."""
    given = list(sys.argv[1:] if argv is None else argv)
    words = [word for word in given if word != "--debug"]
    debug = len(words) < len(given)
    commands: dict[str, Callable[[list[str]], int]] = {
        "train": partial(_train, debug=debug),
        "eval": _eval,
        "warmup": _warmup,
        "sample": _sample,
        "samples": _samples,
        "list": _list,
        "explain": _explain,
        "new": _new,
        "check": _check,
        "study": _study,
        "report": _report,
        "compare": _compare,
    }
    if not words or words[0] in ("-h", "--help", "help"):
        print(HELP)
        return 0
    if words[0] == "--version":
        import rlfw

        print(rlfw.__version__)
        return 0
    if words[0] not in commands:
        from rlfw.registry import suggest

        return tell(UserError(f"no such command {words[0]}{suggest(words[0], commands)}"), debug=debug)
    try:
        return commands[words[0]](words[1:])
    except KeyboardInterrupt:
        print("rlfw: interrupted", file=sys.stderr)
        return 130
    except BrokenPipeError:
        return 0
    except Exception as error:
        return tell(error, debug=debug)


class _Parser(argparse.ArgumentParser):
    """Wrong words are a UserError, as everywhere."""

    def error(self, message: str) -> NoReturn:
        raise UserError(f"{message}; {self.prog} --help shows what it takes")


def _train(words: list[str], *, debug: bool) -> int:
    if any(word in ("-h", "--help") for word in words):
        print(_root_keys())
        return 0
    flags = [word for word in words if word.startswith("-")]
    if flags:
        from rlfw.multirun import multirun

        return multirun(words, debug=debug)
    from rlfw.api import interrupted, train
    from rlfw.closing import closing

    path = train(words)
    print(path)
    signal = interrupted(path)
    if signal is None:
        for line in closing(path):
            print(f"rlfw: {line}", file=sys.stderr)  # stdout holds the folder alone
        return 0
    print(f"rlfw: interrupted and saved; go on with: rlfw train resume={path}", file=sys.stderr)
    return 128 + signal


def _eval(words: list[str]) -> int:
    parser = _Parser(prog="rlfw eval", description="Play fresh episodes with a run's newest checkpoint.")
    parser.add_argument("dir", type=Path, help="a run's folder, or one of its checkpoints")
    parser.add_argument("overrides", nargs="*", help="keys of the env, and plugins=[FILE] where the run used any")
    parser.add_argument("--episodes", type=int, default=100, metavar="N", help="episodes or completions (default 100)")
    parser.add_argument("--sampled", action="store_true", help="sample the actions instead of taking the likeliest")
    parser.add_argument("--seed", type=int, default=None, help="seed of the episodes (default: the run's)")
    parser.add_argument("--json", action="store_true", help="print JSON: metric -> mean, low, high, n")
    args = parser.parse_intermixed_args(words)
    if args.episodes < 1:
        raise UserError(f"--episodes {args.episodes}: at least 1")
    from rlfw.api import evaluate_run

    found = evaluate_run(args.dir, args.episodes, greedy=not args.sampled, seed=args.seed, overrides=args.overrides)
    if args.json:
        metrics = {name: {k: _finite(v) for k, v in asdict(interval).items()} for name, interval in found.items()}
        print(json.dumps({**next(iter(metrics.values())), "metrics": metrics}))
        return 0
    for name, interval in found.items():
        print(f"{name:<12} {interval.mean:10.4g}   95 % [{interval.low:.4g}, {interval.high:.4g}]   n={interval.n}")
    return 0


def _warmup(words: list[str]) -> int:
    parser = _Parser(
        prog="rlfw warmup",
        description="Train a language model on a task's own answers; DIR is a model that policy.causal_lm.path takes.",
    )
    parser.add_argument("overrides", nargs="*", help="as for rlfw train: env=reverse warmup.steps=150 out=DIR")
    overrides = parser.parse_args(words).overrides
    from rlfw.api import interrupted
    from rlfw.warming import warmup

    path = warmup(overrides)
    print(path)
    signal = interrupted(path)
    return 0 if signal is None else 128 + signal


def _sample(words: list[str]) -> int:
    parser = _Parser(
        prog="rlfw sample", description="What a trained language model writes, and what its env gives for it."
    )
    parser.add_argument("dir", type=Path, help="a run's folder, one of its checkpoints, or any folder of a model")
    parser.add_argument(
        "overrides", nargs="*", help="policy.causal_lm.temperature=0.7, keys of the env, plugins=[FILE]"
    )
    parser.add_argument(
        "--prompt", action="append", metavar="TEXT", help="a prompt of yours, again for more; -: each line of the input"
    )
    parser.add_argument(
        "--n", type=int, metavar="N", help="completions of each prompt (1), or prompts of the env (8), each once"
    )
    parser.add_argument("--greedy", action="store_true", help="the likeliest tokens instead of sampled ones")
    parser.add_argument("--max-new-tokens", type=int, metavar="N", help="default: the env's own, 64 without one")
    parser.add_argument(
        "--seed", type=int, default=None, help="of the sampling and of the prompts (default: the run's)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON, an object a line")
    args = parser.parse_intermixed_args(words)
    from rlfw import sampling

    return sampling.command(args)


def _samples(words: list[str]) -> int:
    from rlfw.report import command

    return command.samples(words)


def _finite(value: float) -> float | None:
    """JSON has no NaN: a single episode has no interval."""
    return value if math.isfinite(value) else None


def _list(words: list[str]) -> int:
    parser = _Parser(prog="rlfw list", description="Every recipe and part, a line each; of one axis also the keys.")
    parser.add_argument("axis", nargs="?", help="one axis, or algorithm; plugins=[FILE] adds those parts")
    parser.add_argument("--json", action="store_true", help="print JSON, keys and all")
    plugins = [word for word in words if word.startswith("plugins=")]
    args = parser.parse_args([word for word in words if word not in plugins])
    from rlfw import config, listing

    config.prepare_for(plugins)
    rows = listing.rows(args.axis)
    if args.json:
        print(json.dumps(rows, default=str))
    else:
        print(listing.short(rows) if args.axis is None else listing.full(rows))
    return 0


def _explain(words: list[str]) -> int:
    parser = _Parser(
        prog="rlfw explain", description="A composition in formulas: its loss, its pipeline, what sets it apart."
    )
    parser.add_argument("overrides", nargs="*", help="as for rlfw train: algorithm=grpo regularizer.clip.high=0.28")
    args = parser.parse_args(words)
    from rlfw.explain import explain

    print(explain(args.overrides))
    return 0


def _new(words: list[str]) -> int:
    parser = _Parser(prog="rlfw new", description="Write a part to start from, and its test beside it.")
    parser.add_argument("axis", help="regularizer, baseline, reward, ...")
    parser.add_argument("name", help="NAME.py and test_NAME.py are written")
    parser.add_argument("--kind", help="of a regularizer: penalty (the default) or surrogate")
    args = parser.parse_args(words)
    from rlfw.scaffold import new_part

    written = new_part(args.axis, args.name, args.kind)
    print("\n  ".join([f"wrote {written.part} and {written.test}; next:", *written.commands]))
    return 0


def _check(words: list[str]) -> int:
    from rlfw.testing import command

    parser = _Parser(
        prog="rlfw check",
        description=command.DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("words", nargs="*", metavar="AXIS/NAME | key=VALUE", help="parts, their keys, plugins=[FILE]")
    parser.add_argument("--all", action="store_true", help="every registered part")
    parser.add_argument("--why", action="store_true", help="with the reason of every check")
    parser.add_argument("--json", action="store_true", help="print JSON")
    args = parser.parse_intermixed_args(words)
    return command.main(args.words, every=args.all, why=args.why, as_json=args.json)


def _study(words: list[str]) -> int:
    from rlfw.study import command

    return command.main(words)


def _report(words: list[str]) -> int:
    from rlfw.report import command

    return command.report(words)


def _compare(words: list[str]) -> int:
    from rlfw.report import command

    return command.compare(words)


def _root_keys() -> str:
    """Every root key with its default and its line of help."""
    from rlfw.schema import root_keys

    rows = [(name, "null" if default is None else str(default).lower(), text) for name, default, text in root_keys()]
    return "\n".join([HELP, "root keys", *(f"  {name:<20} {default:<8} {text}" for name, default, text in rows)])


if __name__ == "__main__":
    sys.exit(main())

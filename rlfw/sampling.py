"""What a trained language model writes: to prompts of the env that it was trained in, or to a person's own."""

from __future__ import annotations

import contextlib
import json
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlfw import config, registry
from rlfw.api import restored
from rlfw.errors import UserError, printable, tell
from rlfw.interfaces import TextPolicy, TextSpec
from rlfw.run import CONFIG, WARMUP
from rlfw.seeding import Streams

if TYPE_CHECKING:
    from argparse import Namespace
    from collections.abc import Iterator, Mapping, Sequence

    from rlfw.interfaces import Env, TextActor

NUM_SHOWN = 8  # prompts of the env, where nobody says how many
NEW_TOKENS = 64  # of a model that lies in a folder alone, or half its context, where that is less
POLICY_KEYS = ("temperature", "top_k", "top_p", "chat", "system")  # how it is asked, not what it is


def sample(
    path: str | Path,
    prompts: Sequence[str] | None = None,
    *,
    n: int | None = None,
    greedy: bool = False,
    max_new_tokens: int | None = None,
    seed: int | None = None,
    overrides: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """``n`` completions (1) of each prompt by what was trained in ``path``; without prompts one of ``n`` (8) prompts
    that ``rlfw eval`` asks too, with their rewards.

    ``path``: a run's folder, whose newest checkpoint writes, one of its checkpoints, what ``rlfw warmup`` left, or
    any folder of a transformers model. ``max_new_tokens``: None for the env's own. ``seed``: None for the run's.
    ``overrides``: keys of the run's env, of how its policy is asked, and plugins. Each record has prompt, completion,
    finish ("stop" or "length"), length in tokens, and without prompts scores and reward.
    """
    with speaker(Path(path), seed=seed, overrides=overrides) as writer:
        if prompts is None:
            return writer.of_the_env(n, greedy=greedy, max_new_tokens=max_new_tokens)
        return writer.answer(prompts, n, greedy=greedy, max_new_tokens=max_new_tokens)


@contextlib.contextmanager
def speaker(path: Path, *, seed: int | None = None, overrides: Sequence[str] = ()) -> Iterator[Speaker]:
    """What writes; UserError where ``path`` holds nothing that does."""
    ours = path.parent.name == "checkpoints" or any((path / name).is_file() for name in (CONFIG, WARMUP))
    model = (path / "config.json").is_file()
    if not ours and not model:
        raise UserError(f"{path} holds neither a run nor a model: it has no {CONFIG} and no config.json")
    if not ours:
        yield _of_a_model(path, 0 if seed is None else seed, overrides)
        return
    with restored(path, seed=seed, overrides=overrides, policy_keys=POLICY_KEYS) as run:
        if not isinstance(run.policy, TextPolicy):
            raise UserError(f"{path}: a run of env={run.env.name} writes no text: rlfw eval plays it")
        room = run.env.spec.max_steps
        assert room is not None  # of a task of text
        yield Speaker(run.policy, run.env, run.streams.child("evaluation"), run.saved, room)


def _of_a_model(path: Path, seed: int, overrides: Sequence[str]) -> Speaker:
    """A folder that transformers loads, as policy.causal_lm.path takes it."""
    keys = {}
    for key, value in config.typed_overrides(overrides):
        if (own := key.removeprefix("policy.causal_lm.")) not in POLICY_KEYS:
            known = ", ".join(f"policy.causal_lm.{name}" for name in POLICY_KEYS)
            raise UserError(f"{key} has no effect on a model alone; what has: {known}")
        keys[own] = value
    spec, streams = TextSpec("", 0, max_steps=1), Streams(seed)
    policy = registry.build("policy", {"part": "causal_lm", "path": str(path), **keys}, env_spec=spec, streams=streams)
    room = NEW_TOKENS if policy.context_size is None else min(NEW_TOKENS, max(policy.context_size // 2, 1))
    return Speaker(policy, None, streams.child("evaluation"), path, room)


@dataclass
class Speaker:
    """A policy over tokens and, where it was trained here, its env."""

    policy: TextPolicy
    env: Env | None
    streams: Streams
    saved: Path  # where the policy was read
    room: int  # new tokens, where nobody says how many

    def __post_init__(self) -> None:
        self.actor: TextActor = self.policy.actor(self.streams)

    def answer(
        self, prompts: Sequence[str], n: int | None = None, *, greedy: bool = False, max_new_tokens: int | None = None
    ) -> list[dict[str, Any]]:
        """``n`` completions of each, one by default; asked again, it goes on in its random stream."""
        n = _checked(1 if n is None else n, max_new_tokens)
        if greedy and n > 1:
            raise UserError(f"a greedy completion is the same each time: take one of each prompt, not {n}")
        room = self.room if max_new_tokens is None else max_new_tokens
        done = self.actor.complete(list(prompts), group_size=n, max_new_tokens=room, greedy=greedy)
        return [
            {
                "prompt": prompts[b // n],
                "completion": completion,
                "finish": "stop" if done.ended[b] else "length",
                "length": int(done.mask[b].sum()),
            }
            for b, completion in enumerate(done.texts)
        ]

    def of_the_env(
        self, n: int | None = None, *, greedy: bool = False, max_new_tokens: int | None = None
    ) -> list[dict[str, Any]]:
        """A completion of each of ``n`` prompts, those that an evaluation asks, with its rewards."""
        n = _checked(NUM_SHOWN if n is None else n, max_new_tokens)
        if self.env is None:
            raise UserError(f"{self.saved} is a model alone, without an env to take prompts from: give --prompt TEXT")
        return self.env.samples(self.actor, n, self.streams, max_new_tokens=max_new_tokens, greedy=greedy)


def _checked(n: int, max_new_tokens: int | None) -> int:
    for flag, value in (("--n", n), ("--max-new-tokens", max_new_tokens)):
        if value is not None and value < 1:
            raise UserError(f"{flag} {value}: at least 1")
    return n


# ------------------------------------------------------------------------------------------------ rlfw sample


def command(args: Namespace) -> int:
    """Print what is written, as it is written; an exit code."""
    asked = args.prompt
    if asked is not None and "-" in asked and len(asked) > 1:
        raise UserError("--prompt - reads the prompts, a line each: give no other one")
    how = {"greedy": args.greedy, "max_new_tokens": args.max_new_tokens}
    with speaker(args.dir, seed=args.seed, overrides=args.overrides) as writer:
        print(f"rlfw: {writer.saved}", file=sys.stderr)  # stdout holds the samples alone
        if asked == ["-"]:
            return _talk(writer, args.n, as_json=args.json, **how)
        _show(writer.of_the_env(args.n, **how) if asked is None else writer.answer(asked, args.n, **how), args.json)
    return 0


def _talk(writer: Speaker, n: int | None, *, as_json: bool, **how: Any) -> int:
    """Each line of the input is a prompt; one that cannot be asked is told, and the next is waited for."""
    code, person = 0, sys.stdin.isatty()
    while True:
        if person:
            print("> ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        if not line:
            return code
        try:
            _show(writer.answer([line.removesuffix("\n")], n, **how), as_json)
        except UserError as error:
            code = tell(error)


def _show(records: Sequence[Mapping[str, Any]], as_json: bool) -> None:
    for record in records:
        print(json.dumps(record) if as_json else f"{told(record)}\n", flush=True)


def told(record: Mapping[str, Any]) -> str:
    """A record for a terminal: whatever is not printable, an escape sequence among them, is spelt out."""
    ending = {"stop": "ended by itself", "length": "cut"}[record["finish"]]
    facts = [f"{record['length']} token{'s' * (record['length'] != 1)}, {ending}"]
    if "reward" in record:
        several = len(record["scores"]) > 1
        each = ", ".join(f"{name} {_number(value)}" for name, value in record["scores"].items()) if several else ""
        facts.insert(0, f"reward {_number(record['reward'])}" + f" ({each})" * several)
    lines = {"prompt": record["prompt"], "completion": record["completion"], "": "; ".join(facts)}
    return "\n".join(_labelled(name, text) for name, text in lines.items())


def _labelled(name: str, text: str) -> str:
    first, *others = [printable(line) for line in text.split("\n")]
    return "\n".join([f"{name:<12}{first}".rstrip(), *(f"{'':<12}{line}".rstrip() for line in others)])


def _number(value: float | None) -> str:
    return "none" if value is None else f"{value:.4g}"

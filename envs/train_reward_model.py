"""Train a reward model on preferences: python -m rlfw.envs.train_reward_model PAIRS.jsonl --model DIR --out DIR

B pairs
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.nn.functional import logsigmoid

from rlfw.checks import above, at_least, finite
from rlfw.errors import RunError, UserError, tell
from rlfw.seeding import Streams

from .reward_model import load_classifier, score
from .table import read_table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from torch import Tensor

MAX_GRAD_NORM = 1.0


@dataclass(frozen=True)
class Pair:
    """Two completions of a prompt, with it: the better one and the worse one."""

    chosen: str
    rejected: str


@dataclass(frozen=True)
class Settings:
    """Of the training."""

    epochs: int = 1
    batch_size: int = 16  # pairs a step
    lr: float = 1e-5  # AdamW's, which falls to 0 in a straight line
    seed: int = 0

    def __post_init__(self) -> None:
        at_least("--epochs", self.epochs, 1)
        at_least("--batch-size", self.batch_size, 1)
        above("--lr", self.lr, 0)
        finite("--lr", self.lr)
        at_least("--seed", self.seed, 0)


def bradley_terry(chosen: Tensor, rejected: Tensor) -> Tensor:
    """[B] -log P(chosen is preferred) = -log sigmoid(chosen - rejected), in nats (Bradley and Terry, 1952)."""
    return -logsigmoid(chosen - rejected)


def read_pairs(file: str) -> list[Pair]:
    """The pairs of a JSONL or CSV file with the columns prompt, chosen, rejected."""
    table = read_table("the preferences", file)
    prompts, chosen, rejected = (
        table.text("prompt", empty=True),
        table.text("chosen", empty=True),
        table.text("rejected", empty=True),
    )
    for line, better, worse in zip(table.lines, chosen, rejected, strict=True):
        if better == worse:
            raise UserError(f"{table.source}, line {line}: chosen and rejected are the same: it says nothing")
    return [Pair(p + better, p + worse) for p, better, worse in zip(prompts, chosen, rejected, strict=True)]


def train_reward_model(
    pairs: Sequence[Pair],
    model: str | Path,
    out: str | Path,
    settings: Settings,
    held_out: Sequence[Pair] = (),
) -> dict[str, float]:
    """Train the model in a folder on ``pairs``, write it to ``out``, a folder for reward_models; what it reached.

    ``model``: any transformers model with a head for sequences, a causal LM included. ``accuracy``: the share of
    held-out pairs whose chosen completion scores higher.
    """
    if Path(out).exists() and any(Path(out).iterdir()):
        raise UserError(f"--out {out} is not empty: name another folder")
    streams = Streams(settings.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(streams.integer("reward model"))
        network, tokenizer = load_classifier(model, "--model", new_head=True)
        losses = _fit(network, tokenizer, pairs, settings, streams.numpy("pairs"))
    found = {"loss": float(np.mean(losses[-10:])), "steps": len(losses), "pairs": len(pairs)}
    if held_out:
        margin = _margins(network, tokenizer, held_out)
        found |= {"accuracy": float((margin > 0).double().mean()), "held_out": len(held_out)}
    network.save_pretrained(out)
    tokenizer.save_pretrained(out)
    record = {"model": str(model), **asdict(settings), **found, "losses": losses}
    (Path(out) / "training.json").write_text(json.dumps(record, indent=2) + "\n")
    return found


def _fit(
    network: Any, tokenizer: Any, pairs: Sequence[Pair], settings: Settings, rng: np.random.Generator
) -> list[float]:
    """The loss of each step, in nats a pair. Dropout stays off."""
    optimizer = torch.optim.AdamW(network.parameters(), settings.lr, weight_decay=0.0)
    size = min(settings.batch_size, len(pairs))
    steps = settings.epochs * (len(pairs) // size)
    losses: list[float] = []
    for _ in range(settings.epochs):
        order = rng.permutation(len(pairs))
        for first in range(0, len(pairs) - size + 1, size):
            batch = [pairs[i] for i in order[first : first + size]]
            optimizer.param_groups[0]["lr"] = settings.lr * (1 - len(losses) / steps)
            texts = [pair.chosen for pair in batch] + [pair.rejected for pair in batch]
            loss = bradley_terry(*score(network, tokenizer, texts).chunk(2)).mean()
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), MAX_GRAD_NORM)
            optimizer.step()
            losses.append(loss.item())
            if not math.isfinite(losses[-1]):
                raise RunError(f"the loss of step {len(losses)} is {losses[-1]}: lower --lr")
    return losses


@torch.inference_mode()
def _margins(network: Any, tokenizer: Any, pairs: Sequence[Pair]) -> Tensor:
    """[B] chosen less rejected."""
    found = []
    for i in range(0, len(pairs), 64):
        batch = pairs[i : i + 64]
        texts = [pair.chosen for pair in batch] + [pair.rejected for pair in batch]
        chosen, rejected = score(network, tokenizer, texts).chunk(2)
        found.append(chosen - rejected)
    return torch.cat(found)


def main(argv: Sequence[str] | None = None) -> int:
    """The command; an exit code."""
    parser = argparse.ArgumentParser(prog="python -m rlfw.envs.train_reward_model", description=__doc__.split("\n")[0])
    parser.add_argument("pairs", help="JSONL or CSV with the columns prompt, chosen, rejected")
    parser.add_argument("--model", required=True, metavar="DIR", help="a transformers model with its tokenizer")
    parser.add_argument("--out", required=True, metavar="DIR", help="where the reward model is written")
    parser.add_argument("--eval", metavar="FILE", help="further pairs, to see how many it ranks right")
    for name, default in asdict(Settings()).items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=type(default), default=default, help=f"{default}")
    given = vars(parser.parse_args(argv))
    try:
        settings = Settings(**{name: given[name] for name in asdict(Settings())})
        held_out = [] if given["eval"] is None else read_pairs(given["eval"])
        found = train_reward_model(read_pairs(given["pairs"]), given["model"], given["out"], settings, held_out)
    except Exception as error:
        return tell(error)
    print(", ".join(f"{name} {value:.4g}" for name, value in found.items()))
    print(given["out"])
    return 0


if __name__ == "__main__":
    sys.exit(main())

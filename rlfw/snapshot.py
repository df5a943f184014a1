"""All that a run needs to go on, taken between two iterations.

A checkpoint holds the policy with its critic (policy/), the reference where it has moved (reference/; else the run's
own reference/ holds it), and everything else as state.json and state.safetensors.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rlfw.checkpoint import BROKEN, load_state, save_state
from rlfw.errors import RunError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from rlfw.trainer import Trainer


def write(trainer: Trainer, folder: Path) -> None:
    """Fill ``folder``."""
    trainer.policy.save(folder / "policy")
    if trainer.reference is not None and trainer.reference.moved:
        trainer.reference.save(folder / "reference")
    state = {
        "iteration": trainer.iteration,
        "steps": trainer.steps,
        "episodes": trainer.episodes,
        "env": trainer.env.state_dict(),
        "parts": {name: part.state_dict() for name, part in trainer.composition.parts.items()},
        "controllers": {name: controller.state_dict() for name, controller in trainer.controllers.items()},
        "knobs": trainer.knobs.state_dict(),
        "optimizer": trainer.optimizer.state_dict(),
        "streams": trainer.streams.state_dict(),
        "failed_steps": trainer.guard.in_a_row,
        "retention": trainer.retention.state_dict(),
    }
    save_state(folder, "state", state)


def counts(folder: Path) -> tuple[int, int]:
    """The iterations and the steps (in the env's unit) that were done when ``folder`` was written."""
    with _readable(folder):
        state = load_state(folder, "state")
        return int(state["iteration"]), int(state["steps"])


def read(trainer: Trainer, folder: Path) -> None:
    """Put a prepared ``trainer`` where it stood when ``folder`` was written."""
    with _readable(folder):
        state = load_state(folder, "state")
        trainer.policy.load(folder / "policy")
        if trainer.reference is not None:
            moved = (folder / "reference").is_dir()
            trainer.reference.load(folder / "reference" if moved else trainer.folder.path / "reference")
            trainer.reference.moved = moved
        trainer.iteration, trainer.steps, trainer.episodes = (state[k] for k in ("iteration", "steps", "episodes"))
        trainer.env.load_state_dict(state["env"])
        for name, part in trainer.composition.parts.items():
            part.load_state_dict(state["parts"][name])
        for name, controller in trainer.controllers.items():
            controller.load_state_dict(state["controllers"][name])
        trainer.knobs.load_state_dict(state["knobs"])
        trainer.optimizer.load_state_dict(state["optimizer"])
        trainer.streams.load_state_dict(state["streams"])
        trainer.guard.in_a_row = state["failed_steps"]
        trainer.retention.load_state_dict(state["retention"])


@contextlib.contextmanager
def _readable(folder: Path) -> Iterator[None]:
    """RunError where ``folder`` holds something else than a checkpoint."""
    try:
        yield
    except KeyError as error:
        raise RunError(f"{folder} was written by another version of rlfw: it has no {error}") from error
    except BROKEN as error:
        raise RunError(f"{folder} cannot be read as a checkpoint: {error!r:.300}") from error

"""rlfw: policy-gradient algorithms as compositions of interchangeable parts, run by one trainer.

rlfw.train(["algorithm=grpo", "env=cartpole", "seed=1"])     a run, as on the command line
rlfw.warmup(["env=reverse", "out=runs/warm"])                a language model trained on a task's own answers
rlfw.sample("runs/warm", ["r:abc="])                         what it writes
rlfw.register("regularizer", "mine")                         a part of one's own
rlfw.build("regularizer", {"part": "clip", "low": 0.1})      a part by name
rlfw.probe(["algorithm=grpo"], rewards=..., ...)             a composition on numbers written by hand
"""

from typing import TYPE_CHECKING

from rlfw.errors import RunError, UserError

if TYPE_CHECKING:
    from rlfw.api import train
    from rlfw.probing import probe
    from rlfw.registry import build, register
    from rlfw.sampling import sample
    from rlfw.warming import warmup

__version__ = "0.1.0"

__all__ = ["RunError", "UserError", "build", "probe", "register", "sample", "train", "warmup"]

if not TYPE_CHECKING:
    HOMES = {
        "build": "registry",
        "probe": "probing",
        "register": "registry",
        "sample": "sampling",
        "train": "api",
        "warmup": "warming",
    }

    def __getattr__(name: str) -> object:
        """What needs torch is imported when it is first asked for: `rlfw --help` does not wait for it."""
        if name not in HOMES:
            raise AttributeError(f"module rlfw has no attribute {name}")
        import importlib

        globals()[name] = getattr(importlib.import_module(f"rlfw.{HOMES[name]}"), name)
        return globals()[name]

"""rlfw: policy-gradient algorithms as compositions of interchangeable parts, run by one trainer.

rlfw.train(["algorithm=grpo", "env=cartpole", "seed=1"])     a run, as on the command line
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

__version__ = "0.1.0"

__all__ = ["RunError", "UserError", "build", "probe", "register", "train"]

if not TYPE_CHECKING:
    HOMES = {"build": "registry", "probe": "probing", "register": "registry", "train": "api"}

    def __getattr__(name: str) -> object:
        """What needs torch is imported when it is first asked for: `rlfw --help` does not wait for it."""
        if name not in HOMES:
            raise AttributeError(f"module rlfw has no attribute {name}")
        import importlib

        globals()[name] = getattr(importlib.import_module(f"rlfw.{HOMES[name]}"), name)
        return globals()[name]

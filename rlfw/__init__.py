"""rlfw: policy-gradient algorithms as compositions of interchangeable parts, run by one trainer.

rlfw.train(["algorithm=grpo", "env=cartpole", "seed=1"])     a run, as on the command line
rlfw.register("regularizer", "mine")                         a part of one's own
rlfw.build("regularizer", {"part": "clip", "low": 0.1})      a part by name
rlfw.probe(["algorithm=grpo"], rewards=..., ...)             a composition on numbers written by hand
"""

from rlfw.api import train
from rlfw.errors import RunError, UserError
from rlfw.probe import probe
from rlfw.registry import build, register

__version__ = "0.1.0"

__all__ = ["RunError", "UserError", "build", "probe", "register", "train"]

"""The algorithm's axes, one file each, and the published algorithms as YAML."""

from pathlib import Path

from rlfw.registry import store_presets

from . import (
    aggregation,
    baseline,
    controller,
    critic,
    kl_controller,
    normalize,
    optimizer,
    penalty,
    ratio,
    reward,
    sampler,
    surrogate,
    weight,
)

__all__ = [
    "aggregation",
    "baseline",
    "controller",
    "critic",
    "kl_controller",
    "normalize",
    "optimizer",
    "penalty",
    "ratio",
    "reward",
    "sampler",
    "surrogate",
    "weight",
]

store_presets("algorithm", Path(__file__).parent)

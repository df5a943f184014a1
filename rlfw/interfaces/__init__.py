"""The promises: Env and Policy, and one base class an axis."""

from .axes import (
    Aggregation,
    Baseline,
    Controller,
    LearnedBaseline,
    Normalize,
    Optimizer,
    Penalty,
    Ratio,
    Reward,
    Sampler,
    Surrogate,
    Weight,
)
from .env import ControlSpec, Env, EnvSpec, EpisodeGroups, Request, Steps, TextSpec
from .part import NEEDS, Part
from .policy import Completions, Policy, Scored, StepActor, TextActor, TextPolicy

__all__ = [
    "Aggregation",
    "Baseline",
    "Completions",
    "ControlSpec",
    "Controller",
    "Env",
    "EnvSpec",
    "EpisodeGroups",
    "LearnedBaseline",
    "NEEDS",
    "Normalize",
    "Optimizer",
    "Part",
    "Penalty",
    "Policy",
    "Ratio",
    "Request",
    "Reward",
    "Sampler",
    "Scored",
    "StepActor",
    "Steps",
    "Surrogate",
    "TextActor",
    "TextPolicy",
    "TextSpec",
    "Weight",
]

"""Environments: gymnasium ids and text tasks, and their YAML presets."""

from pathlib import Path

from rlfw.registry import store_presets

from . import grammar, gym, prompts, reasoning, sentiment, tasks

__all__ = ["grammar", "gym", "prompts", "reasoning", "sentiment", "tasks"]

store_presets("env", Path(__file__).parent)

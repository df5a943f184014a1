"""Environments: gymnasium ids and text tasks, and their YAML presets."""

from pathlib import Path

from rlfw.registry import store_presets

from . import gym, tasks

__all__ = ["gym", "tasks"]

store_presets("env", Path(__file__).parent)

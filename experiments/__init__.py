"""Experiments and studies, one YAML each: experiment=NAME, rlfw study NAME."""

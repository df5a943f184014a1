"""Networks that act and score."""

from . import causal_lm, cnn, mlp

__all__ = ["causal_lm", "cnn", "mlp"]

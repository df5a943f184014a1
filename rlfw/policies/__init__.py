"""Networks that act and score."""

from . import causal_lm, cnn, mlp, packaged

__all__ = ["causal_lm", "cnn", "mlp", "packaged"]

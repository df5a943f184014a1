"""An algorithm in words and formulas: one composition on the terminal, all parts and recipes on a page."""

from .page import page
from .terminal import explain

__all__ = ["explain", "page"]

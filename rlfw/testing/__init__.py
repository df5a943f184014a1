"""Is a part sound? ``rlfw check regularizer/mine`` on the command line, ``check_part`` in a test of one's own.

from rlfw.testing import check_part

def test_my_part():
    check_part("regularizer/mine", ["plugins=[my_parts.py]", "regularizer.mine.coef=0.3"])
"""

from .battery import check, check_part
from .report import Report, Result

__all__ = ["Report", "Result", "check", "check_part"]

"""python -m rlfw.explain FILE: write the page of all parts and recipes."""

import sys
from pathlib import Path

from rlfw.explain import page

if __name__ == "__main__":
    Path(sys.argv[1]).write_text(page())

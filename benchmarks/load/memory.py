"""A plugin: the process's memory and CPU time beside every iteration's metrics."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rlfw import register
from rlfw.interfaces import Controller


@register("controller", "memory")
@dataclass
class Memory(Controller):
    """Turns nothing; reports the resident set size of the process, in MB, and its CPU seconds so far."""

    formula = "nothing is turned"

    def report(self) -> Mapping[str, float]:
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        return {"perf/rss_mb": pages * os.sysconf("SC_PAGE_SIZE") / 1e6, "perf/cpu_s": time.process_time()}

"""How many cores this process may use: what CPU affinity and its control groups' quota leave of the machine's."""

from __future__ import annotations

import math
import os
from pathlib import Path

from .control_group import ROOT, cpu_quota

__all__ = ["core_share", "usable_cores"]


def core_share(root: Path = ROOT) -> float:
    """Return the cores' worth of time this process may use: its affinity, cut down to the quota where there is one."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(affinity, cpu_quota(root) or affinity)


def usable_cores(root: Path = ROOT) -> int:
    """Return how many threads can be busy in that: a part of a core counts as one."""
    return max(1, math.ceil(core_share(root)))

"""How many cores this process may use: what CPU affinity and the cgroup's quota leave of the machine's."""

from __future__ import annotations

import math
import os
from pathlib import Path

__all__ = ["usable_cores"]


def usable_cores(cgroup: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the cores this process may use: its affinity, cut down to the cgroup's CPU quota where there is one."""
    affinity = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    quota = _quota(cgroup)
    return max(1, min(affinity, math.ceil(quota)) if quota else affinity)


def _quota(cgroup: Path) -> float | None:
    """Return the CPU quota in cores of this process's cgroup or the tightest one above it; None: no limit."""
    found: list[float] = []
    try:
        own = [line.split("::", 1)[1].strip() for line in Path("/proc/self/cgroup").read_text().splitlines() if "::" in line]
        folder = cgroup / own[0].lstrip("/") if own else cgroup
        for place in (folder, *folder.parents):
            limits = place / "cpu.max"
            if limits.is_file():
                quota, period = limits.read_text().split()[:2]
                if quota != "max":
                    found.append(int(quota) / int(period))
            if place == cgroup:
                break
        old = cgroup / "cpu" / "cpu.cfs_quota_us"  # cgroup v1
        if old.is_file() and int(old.read_text()) > 0:
            found.append(int(old.read_text()) / int((cgroup / "cpu" / "cpu.cfs_period_us").read_text()))
    except (OSError, ValueError):
        return None  # not Linux, or a cgroup that cannot be read: affinity alone decides
    return min(found) if found else None

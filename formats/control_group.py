"""This process's control groups, of version 2 or 1, and what they and the ones above them allow it.

Names of files: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final, Literal, NamedTuple

__all__ = ["ROOT", "Group", "cpu_quota", "memory_bound", "own_group"]

ROOT: Final = Path("/sys/fs/cgroup")


class Group(NamedTuple):
    """The group that one controller counts this process in."""

    path: Path
    top: Path
    """The highest one that can be seen from here."""
    version: int

    def upwards(self) -> Iterator[Path]:
        """Yield the group and those above it, each of which bounds it."""
        for each in (self.path, *self.path.parents):
            yield each
            if each == self.top:
                return


def own_group(controller: Literal["cpu", "memory"], root: Path = ROOT) -> Group | None:
    """Return this process's group under `root`; None: nothing there has that controller."""
    with suppress(OSError):
        own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
        listed = root / "cgroup.controllers"
        if listed.is_file() and controller in listed.read_text().split():
            below = next((path.strip("/") for number, _, path in own if number == "0"), "")
            return Group(_inside(root, below), root, 2)
        top = root / controller
        if top.is_dir():
            below = next((path.strip("/") for _, names, path in own if controller in names.split(",")), "")
            return Group(_inside(top, below), top, 1)
    return None


def cpu_quota(root: Path = ROOT) -> float | None:
    """Return the cores' worth of time that is allowed, by the tightest of the groups; None: no limit."""
    numbers = _numbers("cpu", ("cpu.max",), ("cpu.cfs_quota_us", "cpu.cfs_period_us"), root)
    return min((quota / period for quota, period in numbers if quota > 0), default=None)  # version 1 says -1 for no limit


def memory_bound(root: Path = ROOT) -> int | None:
    """Return the bytes that are allowed, by the tightest of the groups; None: no group says so.

    Version 1 has no word for "no limit": it gives a number beyond any memory.
    """
    return min((bound for (bound,) in _numbers("memory", ("memory.max",), ("memory.limit_in_bytes",), root)), default=None)


def _numbers(controller: Literal["cpu", "memory"], v2: Sequence[str], v1: Sequence[str], root: Path) -> Iterator[list[int]]:
    """Yield what the files of each group say, upwards; nothing of groups that have none or set no limit."""
    group = own_group(controller, root)
    if group is None:
        return
    names = v2 if group.version == 2 else v1
    for each in group.upwards():
        with suppress(OSError, ValueError):  # "max"; and a root group has no such file
            yield [int(word) for name in names for word in (each / name).read_text().split()]


def _inside(top: Path, below: str) -> Path:
    """Return the group `below` `top`, or `top` where that is the group: a container may see its own as the root."""
    return top / below if (top / below).is_dir() else top

"""A bound on the memory of processes, by a control group of their own (v2 or v1): what a container of that size would do.

The group counts page cache too, so a set larger than the bound is read from disk again and again, as it would be in production.
File names: the kernel's `Documentation/admin-guide/cgroup-v2.rst` and `cgroup-v1/memory.rst`.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..formats import UsageError

__all__ = ["MemoryGroup", "join_group", "memory_bound"]

_ROOT = Path("/sys/fs/cgroup")
_REMEDY = "run without --memory-limit, or in a container with the bound (docker run --memory, a pod's resources.limits)"


class MemoryGroup:
    """A group below this process's own with its memory bounded; processes enter it by `join_group`, `close` removes it."""

    def __init__(self, limit_bytes: int, *, root: Path = _ROOT) -> None:
        parent, self._is_v2 = _own_group(root)
        self.path = parent / f"headway-bench-{os.getpid()}-{time.monotonic_ns()}"
        limit = "memory.max" if self._is_v2 else "memory.limit_in_bytes"
        # v2 counts swap apart from memory, v1 both together.
        with_swap, swapped = ("memory.swap.max", 0) if self._is_v2 else ("memory.memsw.limit_in_bytes", limit_bytes)
        try:
            if self._is_v2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            (self.path / limit).write_text(str(limit_bytes))
            with suppress(OSError):  # only where swap is accounted
                (self.path / with_swap).write_text(str(swapped))
        except OSError as error:
            with suppress(OSError):
                self.path.rmdir()
            raise UsageError(
                f"cannot bound memory below the control group {str(parent)!r}: {error.strerror}; {_REMEDY}"
            ) from error

    def events(self) -> dict[str, int]:
        """Return the peak in bytes, and how often the bound was met ("max") and a process killed for it ("oom_kill")."""
        peak, counts = ("memory.peak", "memory.events") if self._is_v2 else ("memory.max_usage_in_bytes", "memory.oom_control")
        found = {}
        with suppress(OSError):
            found["peak_bytes"] = int((self.path / peak).read_text())
        with suppress(OSError):
            for line in (self.path / counts).read_text().splitlines():
                name, _, value = line.partition(" ")
                if name in ("max", "oom_kill"):
                    found[name] = int(value)
        with suppress(OSError):  # v1's "max"
            found["max"] = int((self.path / "memory.failcnt").read_text())
        return found

    def close(self) -> None:
        """Remove the group; its processes have ended."""
        for _ in range(50):  # the kernel lets go of ended processes a moment later
            try:
                self.path.rmdir()
                return
            except FileNotFoundError:
                return
            except OSError:
                time.sleep(0.02)

    def __enter__(self) -> MemoryGroup:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def join_group(path: str) -> None:
    """Put this process under a group's bound; called first, before memory is used."""
    if path:
        Path(path, "cgroup.procs").write_text(str(os.getpid()))


def memory_bound(*, root: Path = _ROOT) -> int | None:
    """Return the bytes that this process's group and those above it allow, or None where no group says so."""
    try:
        group, is_v2 = _own_group(root)
    except UsageError:
        return None
    found = []
    for each in (group, *group.parents):
        with suppress(OSError, ValueError):  # "max"; and a root group has no such file
            found.append(int((each / ("memory.max" if is_v2 else "memory.limit_in_bytes")).read_text()))
        if each == root:
            break
    return min(found, default=None)


def _own_group(root: Path) -> tuple[Path, bool]:
    """Return the directory of the group that bounds this process's memory, and whether it is of v2.

    Raises:
        UsageError: no control group with a memory controller here.
    """
    own = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    controllers = root / "cgroup.controllers"
    if controllers.is_file() and "memory" in controllers.read_text().split():
        return root / next((path.strip("/") for number, _, path in own if number == "0"), ""), True
    if (root / "memory" / "memory.limit_in_bytes").is_file():
        below = next((path.strip("/") for _, names, path in own if "memory" in names.split(",")), "")
        inside = root / "memory" / below
        return (inside if inside.is_dir() else root / "memory"), False  # a container may see its own group as the root
    raise UsageError(f"cannot bound memory: there is no control group with a memory controller under {str(root)!r}; {_REMEDY}")

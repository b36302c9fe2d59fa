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
from typing import NamedTuple

from ..formats import UsageError
from ..formats.control_group import ROOT, own_group

__all__ = ["MemoryGroup", "join_group"]

_REMEDY = "run without --memory-limit, or in a container with the bound (docker run --memory, a pod's resources.limits)"


class _Files(NamedTuple):
    """What a version of control groups calls the files of a group."""

    limit: str
    swap_limit: str
    """v2: of swap alone; v1: of memory and swap together."""
    peak: str
    counts: str


_V2 = _Files("memory.max", "memory.swap.max", "memory.peak", "memory.events")
_V1 = _Files("memory.limit_in_bytes", "memory.memsw.limit_in_bytes", "memory.max_usage_in_bytes", "memory.oom_control")


class MemoryGroup:
    """A group below this process's own with its memory bounded; processes enter it by `join_group`, `close` removes it."""

    def __init__(self, limit_bytes: int, *, root: Path = ROOT) -> None:
        own = own_group("memory", root)
        if own is None:
            raise UsageError(f"cannot bound memory: no control group with a memory controller under {str(root)!r}; {_REMEDY}")
        parent, self._files = own.path, _V2 if own.version == 2 else _V1
        self.path = parent / f"headway-bench-{os.getpid()}-{time.monotonic_ns()}"
        try:
            if self._files is _V2 and "memory" not in (parent / "cgroup.subtree_control").read_text().split():
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            (self.path / self._files.limit).write_text(str(limit_bytes))
            with suppress(OSError):  # only where swap is accounted
                (self.path / self._files.swap_limit).write_text(str(0 if self._files is _V2 else limit_bytes))
        except OSError as error:
            with suppress(OSError):
                self.path.rmdir()
            raise UsageError(
                f"cannot bound memory below the control group {str(parent)!r}: {error.strerror}; {_REMEDY}"
            ) from error

    def events(self) -> dict[str, int]:
        """Return the peak in bytes, and how often the bound was met ("max") and a process killed for it ("oom_kill")."""
        found = {}
        with suppress(OSError):
            found["peak_bytes"] = int((self.path / self._files.peak).read_text())
        with suppress(OSError):
            for line in (self.path / self._files.counts).read_text().splitlines():
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

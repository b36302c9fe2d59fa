"""A bound on the memory of processes, by a control group of their own (cgroup v2): what a container of that size would do.

The group counts page cache too, so a set larger than the bound is read from disk again and again, as it would be in production.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from pathlib import Path
from types import TracebackType

from ..formats import UsageError

__all__ = ["MemoryGroup", "join_group"]

_ROOT = Path("/sys/fs/cgroup")
_REMEDY = "run without --memory-limit, or in a container with the bound (docker run --memory, a pod's resources.limits)"


class MemoryGroup:
    """A group below this process's own with `memory.max` set; processes enter it by `join_group`, `close` removes it."""

    def __init__(self, limit_bytes: int, *, root: Path = _ROOT) -> None:
        parent = _own_group(root)
        self.path = parent / f"headway-bench-{os.getpid()}-{time.monotonic_ns()}"
        try:
            enabled = (parent / "cgroup.subtree_control").read_text().split()
            if "memory" not in enabled:
                (parent / "cgroup.subtree_control").write_text("+memory")
            self.path.mkdir()
            (self.path / "memory.max").write_text(str(limit_bytes))
            with suppress(OSError):  # only where swap is accounted
                (self.path / "memory.swap.max").write_text("0")
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
            found["peak_bytes"] = int((self.path / "memory.peak").read_text())
        with suppress(OSError):
            for line in (self.path / "memory.events").read_text().splitlines():
                name, _, value = line.partition(" ")
                if name in ("max", "oom_kill"):
                    found[name] = int(value)
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


def _own_group(root: Path) -> Path:
    """Return the directory of this process's own group.

    Raises:
        UsageError: no cgroup v2 with a memory controller here.
    """
    if not (root / "cgroup.controllers").is_file():
        raise UsageError(
            f"cannot bound memory: {str(root)!r} is no cgroup v2 (this kernel was started with v1, or has none); {_REMEDY}"
        )
    if "memory" not in (root / "cgroup.controllers").read_text().split():
        raise UsageError(f"cannot bound memory: the control groups under {str(root)!r} have no memory controller; {_REMEDY}")
    line = next((line for line in Path("/proc/self/cgroup").read_text().splitlines() if line.startswith("0::")), "0::/")
    return root / line.removeprefix("0::").strip("/")

"""Files that survive a power loss once they have their name: written aside and synced, then renamed by whoever made them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

__all__ = ["private", "write_synced"]


def write_synced(
    path: Path, data: bytes | memoryview, *, mode: Literal["wb", "xb"] = "xb", opener: Callable[[str, int], int] | None = None
) -> None:
    """Write a file and wait until its bytes are on the disk; "xb": it must be new."""
    with open(path, mode, opener=opener) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def private(path: str, flags: int) -> int:
    """Open a file as only we may, and never through a link: an `opener`."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)

"""Payloads of a shard until it is written: in memory up to a budget, the rest in an unnamed file beside the shard.

So a pack worker's memory is bounded whatever the size of shards. The file has no name, so no crash leaves it behind.
"""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import IO

__all__ = ["Bytes", "KeptPayloads"]

Bytes = bytes | bytearray | memoryview


class KeptPayloads:
    """Payloads by sensor, in the order in which they were added; kept without copying while they fit the budget."""

    def __init__(self, directory: Path, sensors: int, *, hold_bytes: int) -> None:
        self._directory = directory
        self._left = hold_bytes
        self._kept: list[list[Bytes | slice]] = [[] for _ in range(sensors)]
        self._file: IO[bytes] | None = None
        self._view = memoryview(b"")
        self._end = 0

    def add(self, sensor: int, data: Bytes) -> None:
        """Append one payload; it must not change until it was read."""
        size = len(data)
        if size <= self._left:
            self._left -= size
            self._kept[sensor].append(data)
            return
        if self._file is None:
            self._file = tempfile.TemporaryFile(dir=self._directory, buffering=1 << 20)  # noqa: SIM115  closed in `close`
        self._file.write(data)
        self._kept[sensor].append(slice(self._end, self._end + size))
        self._end += size

    def of(self, sensor: int) -> Sequence[Bytes]:
        """Return the payloads of one sensor; nothing may be added after."""
        if self._file is not None and self._end:
            self._file.flush()
            self._view = memoryview(mmap.mmap(self._file.fileno(), self._end, prot=mmap.PROT_READ))
            self.close()  # the mapping lives on in its views
        return [self._view[item] if isinstance(item, slice) else item for item in self._kept[sensor]]

    def close(self) -> None:
        """Let go of the file; a second call does nothing."""
        if self._file is not None:
            self._file.close()
            self._file = None

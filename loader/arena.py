"""Memory that a feeder process fills and its parent reads: one anonymous file, handed over by descriptor, mapped by both.

It has no name anywhere, so nothing is left of it however the processes end, and the size of /dev/shm does not matter. The file is
larger than what is ever in use at once, so that ranges are found easily; only pages in use take memory. Who shares it is sealed
out of changing its size: no reader can meet a missing page.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
import weakref
from bisect import insort
from collections import deque
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import kernel

__all__ = ["HEADER_BYTES", "Arena", "create_arena"]

HEADER_BYTES: Final = 4096
"""Before the first block: where the process says what it is doing, as int64 numbers."""
_SPARE: Final = 4  # times the budget: a range between others that are in use must still be found


def create_arena(budget_bytes: int) -> tuple[int, int]:
    """Return (descriptor, bytes) of a new file whose blocks are to hold `budget_bytes` at most."""
    size = HEADER_BYTES + -(-budget_bytes // mmap.PAGESIZE) * mmap.PAGESIZE * _SPARE
    file = os.memfd_create("headway", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(file, size)
    fcntl.fcntl(file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
    return file, size


class Arena:
    """The filling side: blocks for `BufferPool`s; thread-safe."""

    def __init__(self, file: int, size: int) -> None:
        self._file = file
        self._lock = threading.Lock()
        self._whole = mmap.mmap(file, size)
        self.status: NDArray[np.int64] = np.frombuffer(self._whole, np.int64, HEADER_BYTES // 8)
        self._free: list[tuple[int, int]] = [(HEADER_BYTES, size - HEADER_BYTES)]  # (start, length), by start
        self._dropped: deque[tuple[int, int, int]] = deque()  # address, start, length
        self._starts: dict[int, tuple[int, int]] = {}  # address → (start in the file, length)

    def block(self, size: int) -> mmap.mmap:
        """Return `size` bytes (whole pages) of the file, mapped; they go back when the mapping is dropped."""
        with self._lock:
            self._collect()
            for place, (start, length) in enumerate(self._free):
                if length >= size:
                    self._free[place : place + 1] = [(start + size, length - size)] if length > size else []
                    break
            else:
                raise MemoryError(f"the arena has no {size} bytes in one piece")
            block = mmap.mmap(self._file, size, offset=start)
            address = kernel.address(np.frombuffer(block, np.uint8))
            self._starts[address] = (start, size)
            weakref.finalize(block, self._dropped.append, (address, start, size)).atexit = False
            return block

    def start_of(self, array: NDArray[Any]) -> int | None:  # Any: whatever lies there
        """Return where in the file a contiguous array lies; None: somewhere else."""
        address = kernel.address(array)
        # list(): another thread may be making a block.
        for begin, (start, length) in list(self._starts.items()):
            if begin <= address and address + array.nbytes <= begin + length:
                return start + address - begin
        return None

    def _collect(self) -> None:
        while self._dropped:
            address, start, length = self._dropped.popleft()
            if self._starts.get(address) == (start, length):  # else a newer block is mapped at that address already
                del self._starts[address]
            self._whole.madvise(mmap.MADV_REMOVE, start, length)
            insort(self._free, (start, length))
        merged: list[tuple[int, int]] = []
        for start, length in self._free:
            if merged and sum(merged[-1]) == start:
                merged[-1] = (merged[-1][0], merged[-1][1] + length)
            else:
                merged.append((start, length))
        self._free = merged

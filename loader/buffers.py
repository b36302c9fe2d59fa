"""Recycled batch memory, handed out under leases: a block comes back when the last view of it is gone.

The pool never hands out a block that anything can still see: numpy views, torch storages and DLPack capsules all keep
the block's owner object alive, and only the owner's finaliser reports it back. The finaliser (which may run in any
thread, at any point) does nothing but append to a deque; the pool picks up from there when it next needs memory.
"""

from __future__ import annotations

import ctypes
import mmap
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import StalledError, UsageError

__all__ = ["POLL_S", "SMALL_BYTES", "BufferPool", "block_bytes"]

SMALL_BYTES: Final = 64 << 10
"""Arrays below this are left to malloc, which recycles them without page faults."""

_PRIVATE: Final = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
POLL_S: Final = 0.002
"""A finaliser must not notify (it may run inside any lock), so who waits for memory looks again."""


class BufferPool:
    """Blocks of anonymous memory within a byte budget.

    Thread-safe. Leased and idle blocks together stay within the budget; when it is used up, idle blocks of other sizes go
    first, then `lease` waits for blocks to come back.
    """

    def __init__(self, budget_bytes: int, blocks: Callable[[int], mmap.mmap] | None = None) -> None:
        self.budget_bytes = budget_bytes
        self._make = blocks or _private_block  # of zeroed memory; a block that is dropped goes back by itself
        self._lock = threading.Lock()
        self._returned: deque[mmap.mmap] = deque()
        self._idle: list[mmap.mmap] = []  # most recently returned last: its pages are the warmest
        self._held_bytes = 0  # leased + idle; guarded by _lock

    @property
    def held_bytes(self) -> int:
        """Bytes of all blocks, leased and idle."""
        return self._held_bytes

    @property
    def leased_bytes(self) -> int:
        """Bytes of blocks that somebody can still see."""
        with self._lock:
            self._collect()
            return self._held_bytes - sum(len(block) for block in self._idle)

    def lease(
        self,
        sizes: Sequence[int],
        *,
        what: str,
        timeout_s: float | None,
        cancelled: Callable[[], bool] | None = None,
    ) -> list[NDArray[np.uint8]]:
        """Return one writable (size,) array for each of `sizes`, all at once or not at all; contents are arbitrary.

        Args:
            what: who needs them, for messages.
            timeout_s: how long to wait for memory that is still in use before StalledError; None: as long as it takes.
            cancelled: asked while waiting; when true, an empty list is returned.
        """
        classes = [block_bytes(size) for size in sizes]
        if sum(classes) > self.budget_bytes:
            raise UsageError(
                f"{what} needs {_mib(sum(classes))} of batch memory at once, and memory_bytes allows {_mib(self.budget_bytes)}; "
                "raise LoaderOptions.memory_bytes, or make batch_size or the image size smaller"
            )
        started = time.monotonic()
        while True:
            leased = self.try_lease(sizes)
            if leased is not None:
                return leased
            if cancelled is not None and cancelled():
                return []
            waited = time.monotonic() - started
            if timeout_s is not None and waited > timeout_s:
                raise StalledError(self.why(what, waited))
            time.sleep(POLL_S)

    def try_lease(self, sizes: Sequence[int]) -> list[NDArray[np.uint8]] | None:
        """Return the same as `lease`, or None where it would have to wait."""
        with self._lock:
            blocks = self._take([block_bytes(size) for size in sizes])
        return None if blocks is None else [self._lend(block)[:size] for block, size in zip(blocks, sizes, strict=True)]

    def why(self, what: str, waited: float) -> str:
        """Return what a person whose program waits for memory needs to know."""
        return (
            f"{what} has waited {waited:.0f} s for batch memory: {_mib(self._held_bytes)} of "
            f"memory_bytes={_mib(self.budget_bytes)} are in batches (or views of them) that your program still holds; "
            "drop them, copy what must stay, or raise LoaderOptions.memory_bytes"
        )

    def trim(self) -> None:
        """Give idle blocks back to the system."""
        with self._lock:
            self._collect()
            self._held_bytes -= sum(len(block) for block in self._idle)
            self._idle.clear()

    def _take(self, classes: Sequence[int]) -> list[mmap.mmap] | None:
        self._collect()
        found: list[mmap.mmap] = []
        missing: list[int] = []
        idle = list(self._idle)
        for need in classes:
            # A block of at most half as much again will do: points vary from step to step, and new pages cost more.
            fitting = [block for block in idle if need <= len(block) <= need + need // 2]
            if fitting:
                best = min(reversed(fitting), key=len)
                idle.remove(best)
                found.append(best)
            else:
                missing.append(need)
                found.append(_NONE)
        spare = sum(len(block) for block in idle)
        if self._held_bytes - spare + sum(missing) > self.budget_bytes:
            return None
        while idle and self._held_bytes + sum(missing) > self.budget_bytes:
            self._held_bytes -= len(idle.pop(0))
        self._idle = idle
        self._held_bytes += sum(missing)
        fresh = iter(missing)
        return [self._make(next(fresh)) if block is _NONE else block for block in found]

    def _lend(self, block: mmap.mmap) -> NDArray[np.uint8]:
        owner = _bytes_type(len(block)).from_buffer(block)
        owner.block, owner.give_back = block, self._returned.append
        view: NDArray[np.uint8] = np.frombuffer(memoryview(owner), np.uint8)
        return view

    def _collect(self) -> None:
        """Move returned blocks to the idle ones; the caller holds the lock."""
        while True:
            try:
                self._idle.append(self._returned.popleft())
            except IndexError:
                return


def _private_block(size: int) -> mmap.mmap:
    # Private, not shared (mmap's default): a forked child must not write into its parent's batches.
    return mmap.mmap(-1, size, flags=_PRIVATE)


@lru_cache(maxsize=1024)
def _bytes_type(size: int) -> Any:  # Any: ctypes' array types have no common name
    """Return the type of what owns `size` bytes of a block; making a type takes 20 µs, and a weakref's finaliser per block 3."""
    return type("_Lent", (ctypes.c_uint8 * size,), {"__del__": _give_back})


def _give_back(lent: Any) -> None:  # Any: see _bytes_type
    lent.give_back(lent.block)


def block_bytes(size: int) -> int:
    """Return the block size that serves `size` bytes: at most an eighth more, so that near sizes share blocks."""
    size = max(size, SMALL_BYTES)
    step = max(4096, 1 << (size.bit_length() - 4))
    return -(-size // step) * step


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.1f} MiB"


_NONE: Final[Any] = object()  # Any: stands in a list of blocks for one still to be made

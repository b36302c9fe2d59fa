"""A new file that knows the SHA-256 and chunk sums of what was written to it.

SHA-256 and the copy into the page cache are most of what packing costs; neither needs the interpreter or waits for the other:
a file that is written while its caller goes on has a thread for each. The disk is told to begin early, so that `close`, which
syncs, has little to wait for.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Final

import numpy as np
import xxhash

from ._lane import Lane
from .integrity import CHUNK, payload_hash

__all__ = ["HashedWriter"]

_BATCH: Final = 1 << 20
# Below this a file is written by its caller: starting threads costs as much as a few megabytes.
_ALONE: Final = 8 << 20
_IN_FLIGHT: Final = 8 << 20
# Bytes after which the disk is told to begin.
_EARLY: Final = 16 << 20
_MOST_VIEWS: Final = 1024
"""What one `writev` takes on Linux."""
_SYNC_FILE_RANGE_WRITE: Final = 2

_libc = ctypes.CDLL(None, use_errno=True)


class HashedWriter:
    """A new file, written from start to end; `close` makes it durable.

    What is handed to `write` is kept until it is written and must not change. `behind` has a thread that hashes and
    one that writes.
    """

    def __init__(self, path: Path, *, sums: bool = False, behind: bool = False) -> None:
        self.path = path
        self.bytes = 0
        self.closed = False
        self._file = open(path, "xb", buffering=0)  # noqa: SIM115  lives as long as the writer
        self._sha = hashlib.sha256()
        self._sums = _ChunkSums() if sums else None
        self._pending: list[memoryview] = []
        self._pending_bytes = 0
        self._put_bytes = 0
        self._early = 0
        self._behind = behind
        self._lanes: tuple[Lane, ...] = ()

    def write(self, data: bytes | bytearray | memoryview) -> int:
        """Append `data` and return its length in bytes."""
        view = memoryview(data).cast("B")
        self.bytes += len(view)
        if len(view):
            self._pending.append(view)
            self._pending_bytes += len(view)
            if self._pending_bytes >= _BATCH:
                self._hand_over()
        return len(view)

    def flush(self) -> None:
        """Hand everything to the system."""
        self._hand_over()
        for lane in self._lanes:
            lane.drain()

    def close(self) -> None:
        """Flush, fsync and close; a second call does nothing."""
        if self.closed:
            return
        self.closed = True
        try:
            self.flush()
            os.fsync(self._file.fileno())
        finally:
            self._end()

    def discard(self) -> None:
        """Close without syncing and remove the file."""
        self.closed = True
        try:
            self._end()
        finally:
            self.path.unlink(missing_ok=True)

    @property
    def sha256(self) -> str:
        """SHA-256 of everything written so far, 64 hex digits."""
        if not self.closed:
            self.flush()
        return self._sha.hexdigest()

    @property
    def sums(self) -> bytes:
        """Chunk sums of everything written so far."""
        assert self._sums is not None
        if not self.closed:
            self.flush()
        return self._sums.value()

    def _hand_over(self) -> None:
        batch, size = self._pending, self._pending_bytes
        self._pending, self._pending_bytes = [], 0
        if self._behind and not self._lanes and self.bytes > _ALONE:
            # Neither waits for the other: hashing a shard takes about twice as long as copying it.
            for work in (self._hash, self._put):
                self._lanes += (Lane(work, most_bytes=_IN_FLIGHT),)
        for lane in self._lanes:
            lane.add(batch, size)
        if not self._lanes:
            self._hash(batch)
            self._put(batch)

    def _hash(self, batch: Sequence[memoryview]) -> None:
        for view in batch:
            self._sha.update(view)
            if self._sums is not None:
                self._sums.add(view)

    def _put(self, batch: Sequence[memoryview]) -> None:
        left = list(batch)
        while left:
            done = os.writev(self._file.fileno(), left[:_MOST_VIEWS])
            self._put_bytes += done
            whole = 0
            while whole < len(left) and done >= len(left[whole]):
                done -= len(left[whole])
                whole += 1
            del left[:whole]
            if done:
                left[0] = left[0][done:]
        if self._put_bytes - self._early >= _EARLY:
            if sys.platform == "linux":  # a hint: what it answers does not matter, `close` syncs
                start, size = ctypes.c_int64(self._early), ctypes.c_int64(self._put_bytes - self._early)
                _libc.sync_file_range(self._file.fileno(), start, size, _SYNC_FILE_RANGE_WRITE)
            self._early = self._put_bytes

    def _end(self) -> None:
        try:
            for lane in self._lanes:
                lane.stop()
        finally:
            self._file.close()

    def __enter__(self) -> HashedWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self.close()
        else:
            self.discard()


class _ChunkSums:
    """xxh3-64 of each 64 KiB chunk of what is added, whatever the pieces it comes in."""

    def __init__(self) -> None:
        self._sums: list[int] = []
        self._chunk = xxhash.xxh3_64()  # of the chunk begun, of which _filled bytes are there
        self._filled = 0

    def value(self) -> bytes:
        """Return the sums so far, the last one of a chunk that may be short."""
        last = [self._chunk.intdigest()] if self._filled else []
        return np.array(self._sums + last, "<u8").tobytes()

    def add(self, view: memoryview) -> None:
        """Append bytes."""
        if self._filled:
            need = CHUNK - self._filled
            self._chunk.update(view[:need])
            self._filled += min(need, len(view))
            view = view[need:]
            if self._filled < CHUNK:
                return
            self._sums.append(self._chunk.intdigest())
            self._chunk.reset()
        whole = len(view) // CHUNK * CHUNK
        self._sums.extend(payload_hash(view[start : start + CHUNK]) for start in range(0, whole, CHUNK))
        self._filled = len(view) - whole
        self._chunk.update(view[whole:])

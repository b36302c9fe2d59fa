"""Hashes that keep a flipped bit from being read as data, and files mapped under them (`hashed_writer` writes them).

A payload has an xxh3-64 of its own, compared on the very buffer that is handed out, each time. The file that holds index
and columns has one xxh3-64 per 64 KiB chunk, compared when a byte of the chunk is first needed. Every file has a SHA-256.
xxh3 finds damage, not tampering; against tampering pin the manifest's digest (`open_set(expect_digest=…)`).
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from .errors import CorruptShard

__all__ = ["CHUNK", "ChunkedFile", "MappedFile", "chunk_sums", "payload_hash"]

# 64 KiB: one chunk hash costs about 3 µs, and a set's sums stay at 1/8192 of its bytes.
CHUNK: Final = 1 << 16

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long)


def payload_hash(data: bytes | bytearray | memoryview) -> int:
    """Return the xxh3-64 of one payload."""
    return int(xxhash.xxh3_64_intdigest(data))


def chunk_sums(data: bytes | bytearray | memoryview) -> bytes:
    """Return the xxh3-64 of each 64 KiB chunk of `data`, little-endian, end to end: the content of a `.sums` file."""
    view = memoryview(data)
    sums = [payload_hash(view[start : start + CHUNK]) for start in range(0, len(view), CHUNK)]
    return np.array(sums, "<u8").tobytes()


class MappedFile:
    """A file mapped read-only, of exactly the size the manifest states; the mapping lives as long as any view of it.

    Python's own mmap keeps a duplicate descriptor for each mapping, and a set may have more shards than a process may have
    descriptors; so the system call is made directly, and the descriptor closed.
    """

    def __init__(self, path: Path, expected_bytes: int) -> None:
        self.name = path.name
        try:
            with open(path, "rb") as file:
                found = os.fstat(file.fileno()).st_size
                if found != expected_bytes:
                    raise size_error(self.name, found, expected_bytes)
                self.view = _map_read_only(file.fileno(), found) if found else memoryview(b"")
        except FileNotFoundError as error:
            raise CorruptShard(
                f"cannot open {self.name!r}: the manifest names it, but {str(path.parent)!r} does not hold it; "
                "copy it again from where the set came from, or pack again"
            ) from error
        self.array: NDArray[np.uint8] = np.frombuffer(self.view, np.uint8)

    @property
    def address(self) -> int:
        """Where the first byte lies in memory."""
        return int(self.array.ctypes.data)


def _map_read_only(descriptor: int, size: int) -> memoryview:
    address = _libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, descriptor, 0)
    if address in (None, ctypes.c_void_p(-1).value):
        code = ctypes.get_errno()
        raise OSError(code, f"cannot map {size} bytes: {os.strerror(code)}")
    memory = (ctypes.c_ubyte * size).from_address(address)
    # Every view holds `memory`; when the last one goes, so does the mapping. At exit the system does it.
    weakref.finalize(memory, _libc.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size)).atexit = False
    return memoryview(memory).cast("B").toreadonly()


def size_error(name: str, found: int, expected: int) -> CorruptShard:
    """Return the error for a file that is longer or shorter than the manifest says."""
    return CorruptShard(
        f"cannot use {name!r}: found {found} bytes, expected {expected}; "
        "it was cut short, changed, or belongs to another set: copy it again, then run `headway verify`"
    )


class ChunkedFile:
    """A mapped file whose bytes are compared with their chunk sums before they are used for the first time.

    Threads may touch it at once: a chunk is then hashed twice at worst.
    """

    def __init__(self, mapped: MappedFile, sums: bytes) -> None:
        expected = -(-len(mapped.view) // CHUNK) * 8
        if len(sums) != expected:
            raise size_error(mapped.name + " (chunk sums)", len(sums), expected)
        self.mapped = mapped
        self.sums: NDArray[np.uint64] = np.frombuffer(sums, "<u8")
        """(chunks,) xxh3-64."""
        self.good: NDArray[np.bool_] = np.zeros(len(self.sums), np.bool_)
        """(chunks,) compared already; the native core reads it, and sets what it has compared itself."""

    def touch(self, start: int, stop: int) -> None:
        """Compare every chunk that overlaps bytes [start, stop) and was not compared before.

        Raises:
            CorruptShard: a chunk differs; the message names it.
        """
        self.check_bounds(start, stop)
        if start < stop:
            first, last = start // CHUNK, (stop - 1) // CHUNK + 1
            self._compare(first + np.flatnonzero(~self.good[first:last]))

    def touch_each(self, starts: NDArray[np.int64], width: int) -> None:
        """Do the same for the `width` bytes (1 or more) from each of `starts` on, which lie inside the file."""
        first, last = starts // CHUNK, (starts + (width - 1)) // CHUNK
        for ahead in range((width - 1) // CHUNK + 2):
            chunks = np.minimum(first + ahead, last)
            self._compare(np.unique(chunks[~self.good[chunks]]))

    def check_bounds(self, start: int, stop: int) -> None:
        """Refuse bytes [start, stop) that do not lie inside the file."""
        if start < 0 or stop > len(self.mapped.view):
            raise CorruptShard(
                f"cannot read bytes {start} to {stop} of {self.mapped.name!r}: it has {len(self.mapped.view)}; "
                "its index is damaged: run `headway verify`"
            )

    def _compare(self, chunks: NDArray[np.int64]) -> None:
        for chunk in chunks.tolist():
            found = payload_hash(self.mapped.view[chunk * CHUNK : (chunk + 1) * CHUNK])
            if found != int(self.sums[chunk]):
                raise CorruptShard(
                    f"cannot read {self.mapped.name!r}: chunk {chunk} (bytes from {chunk * CHUNK}) has xxh3 {found:016x}, "
                    f"expected {int(self.sums[chunk]):016x}; run `headway verify`, then `headway repair` or copy the file again"
                )
            self.good[chunk] = True

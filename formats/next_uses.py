"""When each live process of a node will next need which extent of a shard: what the node cache evicts by.

Each process writes a file: pairs of (extent, step that reads it), sorted, and in its head the first step whose bytes it does
not hold yet and the seconds that a step takes, which change in place. A file whose process is gone says nothing any more and
is removed by whoever meets it; where that cannot be told (another container or node), once it was not refreshed for long.
"""

from __future__ import annotations

import mmap
import os
import re
import secrets
import struct
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

import numpy as np
import xxhash
from numpy.typing import NDArray

from .process_name import LEASE_S, NAME_PATTERN, is_alive, process_name

__all__ = ["REFRESH_S", "NextUses", "PublishedUses", "extent_keys"]

REFRESH_S: Final = LEASE_S / 10
"""How often uses are to be refreshed."""

_HEAD: Final = 64
_MAGIC: Final = b"HWUSES01"
_MOST_PAIRS: Final = 4 << 20  # 64 MiB; beyond them the uses are so far away that they count as never
_SUFFIX: Final = ".uses"
_NAME: Final = re.compile(rf"({NAME_PATTERN})-[0-9a-f]{{16}}\.uses")


def extent_keys(shards: list[bytes], extents: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return a 64-bit key for each extent number of the shard (by SHA-256) at the same place."""
    bases = {shard: xxhash.xxh3_64_intdigest(shard) for shard in set(shards)}
    base = np.array([bases[shard] for shard in shards], np.uint64)
    return base + extents.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)


class PublishedUses:
    """This process's uses, for all others to see; `close` takes them back."""

    def __init__(self, folder: Path, keys: NDArray[np.uint64], steps: NDArray[np.int64], *, step_s: float) -> None:
        order = np.lexsort((steps, keys))
        if len(order) > _MOST_PAIRS:
            soon = np.sort(np.argsort(steps, kind="stable")[:_MOST_PAIRS])
            keys, steps = keys[soon], steps[soon]
            order = np.lexsort((steps, keys))
        self._path = folder / f"{process_name()}-{secrets.token_hex(8)}{_SUFFIX}"
        self._pid, self._refreshed_s = os.getpid(), time.monotonic()
        aside = self._path.with_suffix(".new")
        number = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            with open(number, "wb", closefd=False) as file:
                file.write(struct.pack("<8sqqd", _MAGIC, len(order), int(steps.min(initial=0)), step_s).ljust(_HEAD, b"\0"))
                file.write(keys[order].astype("<u8").tobytes())
                file.write(steps[order].astype("<i8").tobytes())
            self._head = mmap.mmap(number, _HEAD)
            os.replace(aside, self._path)
        finally:
            os.close(number)
            with suppress(FileNotFoundError):
                aside.unlink()

    def advance(self, step: int, step_s: float) -> None:
        """Say which step is the first whose bytes are still to come, and how long steps take."""
        self._head[16:32] = struct.pack("<qd", step, step_s)

    def refresh(self) -> None:
        """Say that they still hold, for processes that cannot see whether this one runs; to be called every `REFRESH_S`."""
        now = time.monotonic()
        if now - self._refreshed_s >= REFRESH_S:
            self._refreshed_s = now
            with suppress(OSError):
                os.utime(self._path)  # changes in place do not reach the file's time on every file system

    def close(self) -> None:
        """Take the uses back; a second call does nothing, nor does one in a forked child, whose parent still has them."""
        if os.getpid() == self._pid:
            with suppress(OSError):
                self._path.unlink(missing_ok=True)


class NextUses:
    """What all live processes of the node have published in `folder`."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._tables: dict[str, tuple[mmap.mmap, NDArray[np.uint64], NDArray[np.int64]]] = {}

    def seconds(self, keys: NDArray[np.uint64]) -> NDArray[np.float64]:
        """Return the seconds until each extent is needed by anybody; infinity where nobody is known to."""
        soonest = np.full(len(keys), np.inf)
        for head, theirs, steps in self._live():
            position, step_s = struct.unpack("<qd", head[16:32])
            found, is_used = _first_from(theirs, steps, keys, position)
            wait = (steps[found[is_used]] - position) * (step_s if 0 < step_s < 1e6 else 1.0)
            soonest[is_used] = np.minimum(soonest[is_used], wait)
        return soonest

    def _live(self) -> list[tuple[mmap.mmap, NDArray[np.uint64], NDArray[np.int64]]]:
        names = {entry.name for entry in os.scandir(self._folder) if _NAME.fullmatch(entry.name)}
        for name in self._tables.keys() - names:
            del self._tables[name]
        for name in sorted(names):
            process = _NAME.fullmatch(name)
            assert process is not None
            path = self._folder / name
            with suppress(OSError, ValueError, struct.error):
                if not is_alive(process[1], path.stat().st_mtime):
                    self._tables.pop(name, None)
                    path.unlink()
                elif name not in self._tables:
                    self._tables[name] = _read(path)
        return list(self._tables.values())


def _first_from(
    theirs: NDArray[np.uint64], steps: NDArray[np.int64], keys: NDArray[np.uint64], position: int
) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Return where in a table each key's first step from `position` on is, and whether there is one.

    A table has millions of rows and is asked for few keys while others wait, so it is searched and never copied.
    """
    low, end = np.searchsorted(theirs, keys, "left"), np.searchsorted(theirs, keys, "right")
    high = end.copy()
    while len(steps) and (is_open := low < high).any():
        middle = (low + high) // 2
        is_later = steps[np.where(is_open, middle, 0)] >= position
        high = np.where(is_open & is_later, middle, high)
        low = np.where(is_open & ~is_later, middle + 1, low)
    return low, low < end


def _read(path: Path) -> tuple[mmap.mmap, NDArray[np.uint64], NDArray[np.int64]]:
    number = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        data = mmap.mmap(number, 0, prot=mmap.PROT_READ)
    finally:
        os.close(number)
    magic, count = struct.unpack("<8sq", data[:16])
    if magic != _MAGIC or count < 0 or len(data) != _HEAD + 16 * count:
        raise ValueError(f"{path.name} holds no uses")
    keys = np.frombuffer(data, "<u8", count, _HEAD)
    return data, keys, np.frombuffer(data, "<i8", count, _HEAD + 8 * count)

"""The node cache: extents of remote shards on local disk, shared by all processes of a user, within a byte limit.

An extent is an aligned megabyte of a shard, kept as a file `<2 hex>/<SHA-256 of the shard>/<number>` and published by rename. Who
reads compares payload hashes, and drops an extent that fails; so nothing is synced, and nothing here is trusted. A catalogue
says which files are ours and how big: only those, by inode and time, are ever removed. When the limit is met, the extent goes
whose next use, as all live processes published it (`next_uses.py`), is farthest (Belady, 1966) – be it the new one.
"""

from __future__ import annotations

import fcntl
import itertools
import logging
import os
import re
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .byte_locks import ByteLocks
from .cache_directory import cache_directory, private_directory
from .errors import StoreError, UsageError
from .next_uses import NextUses, extent_keys
from .process_name import NAME_PATTERN, is_alive, process_name

__all__ = ["DEFAULT_CACHE", "EXTENT", "CacheOptions", "RangeCache"]

log = logging.getLogger("headway")

# 1 MiB: some payloads of a frame, read in 1 ms from disk; a shard has a few hundred, and eviction works on what is used together.
EXTENT: Final = 1 << 20

_ENTRY: Final = np.dtype(
    [("shard", "V32"), ("extent", "<i8"), ("bytes", "<i8"), ("inode", "<u8"), ("written_ns", "<i8"), ("since", "<i8")]
)
_SHARD: Final = re.compile(r"[0-9a-f]{64}")
_ASIDE: Final = re.compile(rf"\.({NAME_PATTERN})-[0-9]+-[0-9]+")  # process, extent, number
_numbers = itertools.count()  # several caches of one process may write the same extent
_GROW: Final = 1024  # entries
_SHARE: Final = 64  # of the extents that are held, one part is chosen for eviction at once
_TRUE_S: Final = 0.2  # for so long that choice stands, while plans go on
_DEFAULT_SHARE: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheOptions:
    """Where extents of remote sets are kept on this node, and how much of them.

    >>> CacheOptions(limit_bytes=200 << 30).directory is None
    True
    """

    limit_bytes: int | None = None
    """Bytes on disk, of all sets and processes together; None: half of what was free when the cache was opened, and what it
    holds. 0: nothing is kept."""
    directory: str | os.PathLike[str] | None = None
    """None: headway's directory in the user's cache directory. It must be yours alone (mode 0700)."""

    def __post_init__(self) -> None:
        if self.limit_bytes is not None and self.limit_bytes < 0:
            raise UsageError(
                f"CacheOptions: limit_bytes must be None (half the free space) or from 0, found {self.limit_bytes!r}"
            )

    def open(self) -> RangeCache | None:
        """Return the cache, or None where there is to be none, or, with a logged warning, where there cannot be one.

        Raises:
            StoreError: others own the directory or can write to it.
        """
        if self.limit_bytes == 0:
            return None
        root = cache_directory("extents") if self.directory is None else Path(self.directory)
        if root is None:
            return None
        try:
            root.parent.mkdir(parents=True, exist_ok=True)
            private_directory(root)
            return RangeCache(root, self.limit_bytes)
        except StoreError:
            raise
        except OSError as error:  # a full disk, a read-only folder, a file system without locks
            log.warning(
                "cannot keep what is downloaded in %s (%s); reading without a cache, so each epoch downloads it again: make room "
                "there, make it writable, or name another folder by CacheOptions(directory=…)",
                root,
                error.strerror or error,
            )
            return None


DEFAULT_CACHE: Final = CacheOptions()


class RangeCache:
    """Extents on disk. Safe to use from several threads and processes; any of them may die at any point."""

    def __init__(self, root: Path, limit_bytes: int | None) -> None:
        self.root = root
        self.uses = root / "uses"
        private_directory(self.uses)
        self._next_uses = NextUses(self.uses)
        self._chosen_s = 0.0
        self._victims: list[tuple[float, bytes, int]] = []  # guarded by the catalogue's lock
        self._sweep()
        if limit_bytes is None:
            space = os.statvfs(root)
            limit_bytes = int(_DEFAULT_SHARE * (space.f_bavail * space.f_frsize)) + self.held_bytes
        self.limit_bytes = limit_bytes

    @property
    def held_bytes(self) -> int:
        """Bytes of all extents."""
        with self._locked() as catalogue:
            return int(catalogue.entries["bytes"].sum())

    def read_into(self, shard: str, extent: int, start: int, out: memoryview, size: int) -> bool:
        """Fill `out` from byte `start` of an extent that has `size` bytes; False if it is not here."""
        try:
            number = os.open(self._path(shard, extent), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError:
            return False
        try:
            found = os.fstat(number)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_size != size:
                return False
            return os.preadv(number, [out], start) == len(out)
        except OSError:
            return False  # a disk that fails is as good as an empty one
        finally:
            os.close(number)

    def has(self, shard: str, extent: int) -> bool:
        """Whether an extent is here, as far as its name says."""
        return self._path(shard, extent).exists()

    def locks(self, shard: str) -> ByteLocks:
        """Return the shard's locks, by extent: who holds one fetches it."""
        return ByteLocks(self._folder(shard) / "lock")

    def publish(self, shard: str, extent: int, data: memoryview) -> bool:
        """Keep an extent, if what was kept already is not needed sooner; False if it is not kept, for whatever reason."""
        target = self._path(shard, extent)
        aside = target.parent / f".{process_name()}-{extent}-{next(_numbers)}"
        try:
            self._folder(shard)
            with self._locked() as catalogue:
                room = self._make_room(catalogue, bytes.fromhex(shard), extent, len(data))
            if not room:
                return False
            number = os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                with open(number, "wb", closefd=False, buffering=0) as file:
                    done = 0
                    while done < len(data):
                        done += file.write(data[done:])
                written = os.fstat(number)
            finally:
                os.close(number)
            with self._locked() as catalogue:
                if not self._make_room(catalogue, bytes.fromhex(shard), extent, len(data)):
                    return False
                if self._is_foreign(catalogue, bytes.fromhex(shard), extent):
                    return False
                catalogue.put(bytes.fromhex(shard), extent, written)
                os.replace(aside, target)
            return True
        except OSError as error:
            log.warning("cannot keep an extent in %s (%s); going on without", self.root, error.strerror)
            return False
        finally:
            with suppress(OSError):
                aside.unlink(missing_ok=True)

    def drop(self, shard: str, extent: int) -> None:
        """Remove an extent whose bytes turned out bad; one that we did not put there is only forgotten."""
        try:
            with self._locked() as catalogue:
                for at in catalogue.find(bytes.fromhex(shard), extent):
                    self._remove(catalogue, at)
        except OSError as error:
            log.warning("cannot drop an extent from %s (%s); going on without", self.root, error.strerror)

    def _make_room(self, catalogue: _Catalogue, shard: bytes, extent: int, size: int) -> bool:
        entries = catalogue.entries
        known = catalogue.find(shard, extent)
        need = int(entries["bytes"].sum()) - int(entries["bytes"][known].sum()) + size - self.limit_bytes
        if need <= 0:
            return True
        if size > self.limit_bytes:
            return False
        mine = float(self._next_uses.seconds(extent_keys([shard], np.array([extent], np.int64)))[0])
        refreshed = False
        while need > 0:
            is_old = time.monotonic() - self._chosen_s > _TRUE_S and not refreshed
            if is_old or not self._victims or self._victims[-1][0] <= mine < np.inf:
                if refreshed:
                    return False  # everything that is held is needed sooner
                refreshed, self._chosen_s = True, time.monotonic()
                self._victims = self._choose(catalogue)
                continue
            _, victim, number = self._victims.pop()
            for at in catalogue.find(victim, number):
                need -= int(catalogue.entries["bytes"][at])
                self._remove(catalogue, at)
        return True

    def _choose(self, catalogue: _Catalogue) -> list[tuple[float, bytes, int]]:
        """Return (seconds to the next use, shard, extent) of some extents, the farthest last, of equal ones the oldest."""
        held = np.flatnonzero(catalogue.entries["bytes"])
        entries = catalogue.entries[held]
        shards = [bytes(shard) for shard in entries["shard"]]
        seconds = self._next_uses.seconds(extent_keys(shards, entries["extent"]))
        order = np.lexsort((entries["since"], -seconds))[: max(1, len(held) // _SHARE)]
        return [(float(seconds[at]), shards[at], int(entries["extent"][at])) for at in reversed(order.tolist())]

    def _is_foreign(self, catalogue: _Catalogue, shard: bytes, extent: int) -> bool:
        """Whether there is a file under an extent's name that is not the one that was put there."""
        try:
            found = self._path(shard.hex(), extent).lstat()
        except FileNotFoundError:
            return False
        return not any(_is_ours(catalogue.entries[at], found) for at in catalogue.find(shard, extent))

    def _remove(self, catalogue: _Catalogue, at: int) -> None:
        entry = catalogue.entries[at]
        path = self._path(bytes(entry["shard"]).hex(), int(entry["extent"]))
        with suppress(OSError):
            if _is_ours(entry, path.lstat()):
                path.unlink()
        catalogue.entries[at] = np.zeros((), _ENTRY)

    def _folder(self, shard: str) -> Path:
        """Return the folder of a shard's extents, made if need be."""
        folder = self._path(shard, 0).parent
        for each in (folder.parent, folder):  # mkdir gives its mode to the last folder only
            each.mkdir(mode=0o700, exist_ok=True)
        return folder

    def _path(self, shard: str, extent: int) -> Path:
        return self.root / shard[:2] / shard / str(extent)

    @contextmanager
    def _locked(self) -> Iterator[_Catalogue]:
        number = os.open(self.root / "catalogue", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(number, fcntl.LOCK_EX)
            try:
                yield _Catalogue(number)
            finally:
                fcntl.flock(number, fcntl.LOCK_UN)  # said aloud: see ByteLocks.close
        finally:
            os.close(number)

    def _sweep(self) -> None:
        """Remove what processes that were killed had begun to write."""
        for path in self.root.glob("??/*/.*-*-*"):
            shard, named = path.parent.name, _ASIDE.fullmatch(path.name)  # whatever else lies in this folder is not ours
            if named and _SHARD.fullmatch(shard) and path.parent.parent.name == shard[:2]:
                with suppress(OSError):
                    if not is_alive(named[1], path.stat().st_mtime):
                        path.unlink()


def _is_ours(entry: np.void, found: os.stat_result) -> bool:
    return (found.st_ino, found.st_mtime_ns) == (int(entry["inode"]), int(entry["written_ns"]))


class _Catalogue:
    """What is held, in a file: entries of fixed size, those with 0 bytes free. The caller holds its lock."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._map()

    def find(self, shard: bytes, extent: int) -> list[int]:
        """Return the places of an extent's entry: one or none."""
        at = np.flatnonzero((self.entries["extent"] == extent) & (self.entries["bytes"] > 0))
        return [place for place in at.tolist() if bytes(self.entries["shard"][place]) == shard]

    def put(self, shard: bytes, extent: int, written: os.stat_result) -> None:
        """Write an extent's entry, over the one it has."""
        free = self.find(shard, extent) or np.flatnonzero(self.entries["bytes"] == 0)[:1].tolist()
        if not free:
            free = [len(self.entries)]
            # Allocated, not only extended: writing to a mapped hole of a full disk would kill the process.
            os.posix_fallocate(self._number, 0, (len(self.entries) + _GROW) * _ENTRY.itemsize)
            self._map()
        since = int(self.entries["since"].max(initial=0)) + 1
        self.entries[free[0]] = (shard, extent, written.st_size, written.st_ino, written.st_mtime_ns, since)

    def _map(self) -> None:
        size = os.fstat(self._number).st_size // _ENTRY.itemsize * _ENTRY.itemsize
        self.entries: NDArray[np.void] = np.empty(0, _ENTRY)
        if size:
            with open(self._number, "r+b", closefd=False) as file:
                self.entries = np.memmap(file, _ENTRY, "r+", shape=(size // _ENTRY.itemsize,))

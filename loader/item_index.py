"""The items of a filtered view: ascending global frame numbers, made once per node and memory-mapped.

One process builds while the others wait (a lock file, held by the kernel's file lock, so a dead builder releases it at
once). The file appears by rename, complete and hashed. A builder that makes no progress within the deadline is overtaken;
as the build is deterministic, that can cost time but never changes a byte.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import logging
import os
import secrets
import stat
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, cast

import numpy as np
import xxhash
from numpy.typing import NDArray

from ..formats import StoreError

__all__ = ["CHUNK_FRAMES", "Select", "open_index"]

log = logging.getLogger("headway")

Select = Callable[[int, int], NDArray[np.bool_]]
"""(start, stop) → which of those frames are items, bool (stop − start,). Pure and deterministic."""

# Progress is reported once a chunk: small enough to come well within a deadline, big enough to keep numpy busy.
CHUNK_FRAMES: Final = 16_384
_POLL_S: Final = 0.02
_MAGIC: Final = b"hwitems\0"
_HEADER: Final = struct.Struct("<8sQ16s32x")
_NO_LOCKS: Final = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


def open_index(directory: Path | None, key: str, *, frames: int, select: Select, deadline_s: float = 60.0) -> NDArray[np.int64]:
    """Return the selected frame numbers (N,), read-only, ascending: mapped from the cache, or built into it.

    `key` names everything that the answer depends on. Without a `directory`, or where it cannot be written (full disk), the
    items are built into memory. `deadline_s` is how long a waiting process tolerates a builder without progress.
    """
    if directory is None:
        return _build(frames, select)
    try:
        return _open_or_build(directory, key, frames=frames, select=select, deadline_s=deadline_s)
    except StoreError:
        raise
    except OSError as error:
        log.warning("cannot keep the item index %s in %s (%s); built into memory instead", key[:12], directory, error)
        return _build(frames, select)


def _open_or_build(directory: Path, key: str, *, frames: int, select: Select, deadline_s: float) -> NDArray[np.int64]:
    path = directory / f"{key}.items"
    lock = _open_private(directory / f"{key}.lock")
    try:
        seen, since = b"", time.monotonic()
        while True:
            items = _map(path, frames)
            if items is not None:
                return items
            held = _try_lock(lock)
            stalled = not held and time.monotonic() - since > deadline_s
            if stalled:
                log.warning("the builder of item index %s made no progress for %.0f s; taking over", key[:12], deadline_s)
            if held or stalled:
                try:
                    # Whoever held the lock before may have published between the look above and this one.
                    if _map(path, frames) is None:
                        _publish(path, frames, select, report=lock if held else None)
                finally:
                    if held:
                        with contextlib.suppress(OSError):
                            fcntl.flock(lock, fcntl.LOCK_UN)
                seen, since = b"", time.monotonic()
                continue
            progress = os.pread(lock, 64, 0)
            if progress != seen:
                seen, since = progress, time.monotonic()
            time.sleep(_POLL_S)
    finally:
        os.close(lock)


def _publish(path: Path, frames: int, select: Select, *, report: int | None) -> None:
    """Build into a file of random name and rename it; where another process was faster, its file stands."""
    if report is not None:
        # Only the lock's holder tidies up: these are from builders that died. One overtaken and still alive finds its
        # file gone and looks again.
        for stale in path.parent.glob(f"{path.stem}.*.tmp"):
            stale.unlink(missing_ok=True)
    temporary = path.with_name(f"{path.stem}.{secrets.token_hex(16)}.tmp")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            digest, count = xxhash.xxh3_128(), 0
            file.write(bytes(_HEADER.size))
            for done, items in _chunks(frames, select):
                data = items.astype("<i8").tobytes()
                digest.update(data)
                count += len(items)
                file.write(data)
                if report is not None:
                    os.pwrite(report, f"{os.getpid()} {done}/{frames}".ljust(64).encode(), 0)
            file.seek(0)
            file.write(_HEADER.pack(_MAGIC, count, digest.digest()))
            file.flush()
            os.fsync(file.fileno())
        with contextlib.suppress(FileNotFoundError):
            os.replace(temporary, path)
            _sync_directory(path.parent)
    finally:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)


def _build(frames: int, select: Select) -> NDArray[np.int64]:
    parts = [items for _, items in _chunks(frames, select)]
    items = np.concatenate(parts) if parts else np.empty(0, np.int64)
    items.setflags(write=False)
    return items


def _chunks(frames: int, select: Select) -> Iterator[tuple[int, NDArray[np.int64]]]:
    for start in range(0, frames, CHUNK_FRAMES):
        stop = min(start + CHUNK_FRAMES, frames)
        yield stop, start + np.flatnonzero(select(start, stop)).astype(np.int64)


def _map(path: Path, frames: int) -> NDArray[np.int64] | None:
    """Return the items in `path`, None if there is no such file; one that fails its checks is removed and built again."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with os.fdopen(descriptor, "rb") as file:
        found = os.fstat(file.fileno())
        header = file.read(_HEADER.size)
        if len(header) == _HEADER.size and found.st_uid == os.geteuid():
            magic, count, digest = _HEADER.unpack(header)
            if magic == _MAGIC and count <= frames and found.st_size == _HEADER.size + 8 * count:
                if not count:
                    return np.empty(0, np.int64)
                items = cast(NDArray[np.int64], np.memmap(file, "<i8", "r", _HEADER.size, (count,)))
                if xxhash.xxh3_128_digest(items.data) == digest:
                    return items.view(np.ndarray)
    log.warning("the item index %s is damaged; it is built again", path)
    path.unlink(missing_ok=True)
    return None


def _open_private(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid():
        os.close(descriptor)
        raise StoreError(
            f"cannot lock {str(path)!r}: expected a plain file of user {os.geteuid()}, found mode {found.st_mode:o} of user "
            f"{found.st_uid}; remove it"
        )
    # The lock file is never removed: unlinking it would let two processes hold "the" lock on different files.
    return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return True  # a file system without locks: every process builds for itself, and the bytes are the same
        raise
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)

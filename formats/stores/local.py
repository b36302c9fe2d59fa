"""A folder as a store: reads by pread beneath the root, publishes by write-aside, fsync and rename."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator
from pathlib import Path

from ..errors import StoreError
from .store import Entry, check_object_name

__all__ = ["LocalStore"]

_CHUNK = 1 << 20


class LocalStore:
    """Objects are the regular files below `root`; symbolic links are refused wherever a name leads through one."""

    def __init__(self, root: str | Path) -> None:
        self.root = Path(root)

    @property
    def url(self) -> str:
        """The root as given."""
        return str(self.root)

    def head(self, name: str) -> Entry:
        """Return size and version (mtime and inode) of a file."""
        with self._open(name) as descriptor:
            return _entry(name, os.fstat(descriptor.number))

    def read(self, name: str, start: int, length: int, *, version: str = "") -> memoryview:
        """Return exactly `length` bytes from `start`."""
        with self._open(name) as descriptor:
            found = _entry(name, os.fstat(descriptor.number))
            if version and found.version != version:
                raise StoreError(errno.ESTALE, f"{self._path(name)} changed while it was being read; open the set again")
            if start < 0 or length < 0 or start + length > found.size:
                raise StoreError(errno.EINVAL, f"{self._path(name)}: asked for bytes {start} to {start + length} of {found.size}")
            buffer = memoryview(bytearray(length))
            done = 0
            while done < length:
                count = os.preadv(descriptor.number, [buffer[done : done + (64 << 20)]], start + done)
                if count == 0:
                    raise StoreError(errno.EIO, f"{self._path(name)} became shorter while it was being read; open the set again")
                done += count
            return buffer.toreadonly()

    def whole(self, name: str, limit: int) -> tuple[Entry, memoryview]:
        """Return a file and its size and version."""
        entry = self.head(name)
        if entry.size > limit:
            raise StoreError(errno.EFBIG, f"{self._path(name)} has {entry.size} bytes, limit {limit}")
        return entry, self.read(name, 0, entry.size, version=entry.version)

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield the files whose names start with `prefix`, by name."""
        found = []
        for folder, folders, files in os.walk(self.root):
            folders.sort()
            for file in files:
                path = Path(folder, file)
                name = path.relative_to(self.root).as_posix()
                status = path.lstat()
                if name.startswith(prefix) and stat.S_ISREG(status.st_mode) and not file.startswith(".headway-"):
                    found.append(_entry(name, status))
        yield from sorted(found, key=lambda entry: entry.name)

    def put(self, name: str, data: bytes | Path, *, if_absent: bool = False, if_version: str = "") -> Entry:
        """Publish a file: written aside, synced, then renamed (or linked, where it must not exist yet) into place.

        File systems have no conditional rename: `if_version` is compared before, and is no lock between processes.
        """
        target = self._path(name)
        if if_version and self.head(name).version != if_version:
            raise StoreError(errno.ESTALE, f"{target} is no longer the version that was to be replaced; nothing was written")
        target.parent.mkdir(parents=True, exist_ok=True)
        aside = target.parent / f".headway-{secrets.token_hex(16)}"
        try:
            with open(aside, "xb") as sink:
                if isinstance(data, Path):
                    with open(data, "rb") as source:
                        while chunk := source.read(_CHUNK):
                            sink.write(chunk)
                else:
                    sink.write(data)
                sink.flush()
                os.fsync(sink.fileno())
            if if_absent:
                os.link(aside, target)
            else:
                os.replace(aside, target)
            _sync_folder(target.parent)
        except FileExistsError as error:
            raise StoreError(errno.EEXIST, f"{target} exists already; nothing was written") from error
        except OSError as error:
            raise StoreError(error.errno or errno.EIO, f"cannot write {target}: {error.strerror}") from error
        finally:
            aside.unlink(missing_ok=True)
        return self.head(name)

    def delete(self, name: str) -> None:
        """Remove a file; removing what is not there is no error."""
        self._path(name).unlink(missing_ok=True)

    def close(self) -> None:
        """Nothing is kept open between calls."""

    def _path(self, name: str) -> Path:
        return self.root / check_object_name(name)

    def _open(self, name: str) -> _Descriptor:
        """Open a file component by component, so that no link swapped in under us leads outside the root."""
        parts = Path(check_object_name(name)).parts
        number = -1
        try:
            number = os.open(self.root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            for part in parts[:-1]:
                number, above = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=number), number
                os.close(above)
            # O_NONBLOCK: a FIFO planted under a shard's name must not hold the reader up before fstat refuses it.
            number, above = os.open(parts[-1], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=number), number
            os.close(above)
        except OSError as error:
            if number >= 0:
                os.close(number)
            raise StoreError(error.errno or errno.EIO, f"cannot open {self.root / name}: {error.strerror}") from error
        if not stat.S_ISREG(os.fstat(number).st_mode):
            os.close(number)
            raise StoreError(errno.EINVAL, f"{self.root / name} is not a regular file")
        return _Descriptor(number)


class _Descriptor:
    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> _Descriptor:
        return self

    def __exit__(self, *exc: object) -> None:
        os.close(self.number)


def _entry(name: str, status: os.stat_result) -> Entry:
    return Entry(name=name, size=status.st_size, version=f"{status.st_ino:x}-{status.st_mtime_ns:x}-{status.st_size:x}")


def _sync_folder(folder: Path) -> None:
    number = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(number)
    finally:
        os.close(number)

"""Locks with numbers, in one file, shared by all processes of a node: who holds one and dies lets go of it.

Open file description locks on single bytes of the file: taking one costs a system call and leaves nothing behind. They belong to
an open file, so that threads exclude each other, too.
"""

from __future__ import annotations

import errno
import fcntl
import os
import struct
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from types import TracebackType

__all__ = ["ByteLocks"]

_HAS_LOCKS = hasattr(fcntl, "F_OFD_SETLK")  # Linux; elsewhere every process does its own work


class ByteLocks:
    """What one thread holds of a lock file's numbers; closing lets all of them go.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "lock")
    >>> with ByteLocks(path) as mine, ByteLocks(path) as theirs:
    ...     mine.take([3, 4]), theirs.take([4, 5])
    ([3, 4], [5])
    """

    def __init__(self, path: Path) -> None:
        self._number = os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        self._held: set[int] = set()

    def take(self, numbers: Iterable[int], *, wait: bool = False) -> list[int]:
        """Return those of `numbers` that are ours now; without `wait`, what others hold is left out.

        Raises:
            OSError: the file system has no locks, or none left; who can do without goes on without.
        """
        taken = []
        for number in numbers:
            if self._set(fcntl.F_WRLCK, number, wait=wait):
                self._held.add(number)
                taken.append(number)
        return taken

    def release(self, numbers: Iterable[int]) -> None:
        """Let go of some."""
        for number in numbers:
            with suppress(OSError):  # a file system without locks has none to let go of
                self._set(fcntl.F_UNLCK, number, wait=False)
            self._held.discard(number)

    def close(self) -> None:
        """Let go of all; a second call does nothing."""
        if self._number >= 0:
            self.release(list(self._held))  # said aloud: a forked child may have the open file, too, and keep it
            os.close(self._number)
            self._number = -1

    def __enter__(self) -> ByteLocks:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _set(self, kind: int, number: int, *, wait: bool) -> bool:
        if not _HAS_LOCKS:
            return True
        lock = struct.pack("hhqqi4x", kind, os.SEEK_SET, number, 1, 0)
        try:
            fcntl.fcntl(self._number, fcntl.F_OFD_SETLKW if wait else fcntl.F_OFD_SETLK, lock)
        except OSError as error:
            if error.errno in (errno.EAGAIN, errno.EACCES):
                return False
            raise
        return True

"""Whose turn it is on this node: ranks of one job say how urgent they are, and each reads off its share.

A small file in a private directory is mapped by all ranks of a job on a node; each writes its own 64-byte slot and reads all.
Nobody locks: a slot has one writer, its fields are aligned words, and a number read half a step late is late by that much.
What a rank gets of the node's threads is `pace.shares` of what is read. Ranks that died, or said nothing for
seconds, ask for nothing. Where no such file can be had, each rank is alone and takes its fixed share.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import mmap
import os
import stat
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import numpy as np

from ..formats import StoreError
from ..formats.cache_directory import private_directory
from .pace import shares, slack

__all__ = ["Seat", "job_key", "runtime_directory", "take_seat"]

log = logging.getLogger("headway")

# `spoke` is written last and read first. All times are CLOCK_MONOTONIC, which the processes of a machine share.
_SLOT: Final = np.dtype(
    {
        "names": ["pid", "began", "deadline_s", "work_s", "decode", "spoke_s"],
        "formats": ["i8", "i8", "f8", "f8", "i8", "f8"],
        "itemsize": 64,
    }
)
_SILENT_S: Final = 5.0  # longer than this between two steps (validation, a checkpoint), and a rank leaves its share to others
_LOOK_S: Final = 2.0  # between two looks at which processes live: a read of /proc a rank
_OLD_S: Final = 60.0  # a file this old whose ranks are all gone was left by a job that was killed
_MOST_RANKS: Final = 1024

_JOB_VARIABLES: Final = ("TORCHELASTIC_RUN_ID", "MASTER_ADDR", "MASTER_PORT", "SLURM_JOB_ID", "SLURM_STEP_ID", "PMIX_NAMESPACE")


class Seat:
    """One rank's slot in the file of its node and job; used by one thread at a time, by several iterators in turn."""

    def __init__(self, path: Path, *, local_rank: int, local_size: int) -> None:
        if not 0 <= local_rank < local_size <= _MOST_RANKS:
            raise StoreError(f"cannot take seat {local_rank} of {local_size} in {str(path)!r}: expected 0 to {_MOST_RANKS - 1}")
        self._path, self._own, self._pid = path, local_rank, os.getpid()
        self._users = 1
        size = local_size * _SLOT.itemsize
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            found = os.fstat(descriptor)
            if not stat.S_ISREG(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
                raise StoreError(f"cannot use {str(path)!r}: it is not a file of ours alone; remove it")
            if found.st_size < size:
                os.ftruncate(descriptor, size)  # never shrinks, so that nobody's mapping loses its end
            self._memory = mmap.mmap(descriptor, size)
        finally:
            os.close(descriptor)
        self._slots = np.frombuffer(self._memory, _SLOT)
        self._alive = np.zeros(local_size, np.bool_)
        self._looked_s = -np.inf
        mine = self._slots[local_rank : local_rank + 1]
        mine["spoke_s"] = -np.inf
        mine["pid"], mine["began"] = os.getpid(), _began(os.getpid())

    @property
    def local_rank(self) -> int:
        """Whose seat this is."""
        return self._own

    def say(self, now_s: float, *, deadline_s: float, work_s: float, decode: int, waits: bool = False) -> None:
        """Publish what this rank needs.

        Args:
            deadline_s: when the first batch that is not ready will be asked for.
            work_s: the work left on it.
            decode: threads it could use.
            waits: the consumer is blocked until that batch is there, and will say nothing meanwhile.
        """
        slot = self._slots[self._own : self._own + 1]
        slot["deadline_s"], slot["work_s"], slot["decode"] = deadline_s, work_s, decode
        slot["spoke_s"] = np.inf if waits else now_s

    def decode_threads(self, now_s: float, slots: int) -> int:
        """Return this rank's share of the node's `slots` decode threads; 0: it asks for none, or there are fewer than ranks."""
        self._look(now_s)
        table = self._slots.copy()
        heard = self._alive & (now_s - table["spoke_s"] < _SILENT_S)
        demand = np.where(heard, np.clip(table["decode"], 0, slots), 0)
        urgent = slack(table["deadline_s"], now_s, table["work_s"])
        return int(shares(urgent, demand, slots)[self._own])

    def share(self) -> Seat:
        """Return this seat for one more user, who closes it, too."""
        self._users += 1
        return self

    def close(self) -> None:
        """Leave the seat once all its users have; the last rank to leave removes the file."""
        if self._memory.closed or os.getpid() != self._pid:
            return  # a forked child has the mapping, and the seat is its parent's
        with _lock:
            self._users -= 1
            if self._users > 0:
                return
            _seats.pop(self._path, None)
        self._slots[self._own : self._own + 1]["pid"] = 0
        self._look(np.inf)
        is_last = not self._alive.any()
        del self._slots
        self._memory.close()
        if is_last:
            with contextlib.suppress(OSError):
                self._path.unlink()

    def _look(self, now_s: float) -> None:
        """See which ranks live: a process of the same number that began at another time is somebody else."""
        if now_s - self._looked_s < _LOOK_S:
            return
        self._looked_s = now_s
        for place, (pid, began) in enumerate(zip(self._slots["pid"].tolist(), self._slots["began"].tolist(), strict=True)):
            self._alive[place] = pid > 0 and _began(pid) == began


def take_seat(*, local_rank: int, local_size: int, directory: Path | None = None) -> Seat | None:
    """Return this rank's seat, or None (with one logged line) where no private directory can be had."""
    if local_size < 2:
        return None
    try:
        place = runtime_directory() if directory is None else directory
        path = place / f"ranks-{job_key(os.environ)}"
        with _lock:
            held = _seats.get(path)
            if held is not None and held.local_rank == local_rank:
                return held.share()  # training and validation of one process are one rank
            _sweep(place)
            seat = _seats[path] = Seat(path, local_rank=local_rank, local_size=local_size)
            return seat
    except (StoreError, OSError) as error:
        log.warning("headway: ranks of this node share its cores evenly, whoever is late: %s", error)
        return None


def runtime_directory() -> Path:
    """Return the private directory for what lives as long as processes do, made if need be: mode 0700, ours alone.

    Raises:
        StoreError: somebody else made it, or others may write there.
    """
    home = os.environ.get("XDG_RUNTIME_DIR", "")
    place = Path(home) / "headway" if os.path.isabs(home) and os.path.isdir(home) else Path(f"/tmp/headway-{os.geteuid()}")
    private_directory(place)
    return place


def job_key(environ: Mapping[str, str]) -> str:
    """Return a name that the ranks of one job on this node have in common, and no other job has.

    From what launchers say, and from the process that started the ranks: two jobs on one node may say the same.
    """
    said = [f"{name}={environ[name]}" for name in _JOB_VARIABLES if name in environ]
    parent = os.getppid()
    return hashlib.sha256("\n".join([*said, f"{parent} {_began(parent)}"]).encode()).hexdigest()[:16]


def _began(pid: int) -> int:
    """Return when a process began, in ticks since boot; 0: there is none."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("latin-1")
    except OSError:
        return 0
    fields = text.rpartition(")")[2].split()  # a command's name may hold anything, parentheses too
    return 0 if fields[0] in "ZX" else int(fields[19])


def _sweep(directory: Path) -> None:
    """Remove files of jobs that ended without cleaning up."""
    before = time.time() - _OLD_S
    for path in directory.glob("ranks-*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_mtime < before and not _in_use(path):
                path.unlink()


def _in_use(path: Path) -> bool:
    data = path.read_bytes()
    slots = np.frombuffer(data[: len(data) // _SLOT.itemsize * _SLOT.itemsize], _SLOT)
    return any(
        pid > 0 and _began(pid) == began for pid, began in zip(slots["pid"].tolist(), slots["began"].tolist(), strict=True)
    )


# Seats of this process by file; a forked child takes its own.
_seats: dict[Path, Seat] = {}
_lock = threading.RLock()  # a finaliser may close a seat in a thread that holds it


def _forget() -> None:
    global _seats, _lock
    _seats, _lock = {}, threading.RLock()


os.register_at_fork(after_in_child=_forget)

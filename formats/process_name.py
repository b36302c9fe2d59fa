"""Names of processes in files that several share, and whether the process that one names still runs.

A number alone says little: it is used again after its process, and containers that share a folder count from 1 each. So a name
has the process's number, when it began, which boot of which machine, and which pid namespace. One of another boot or namespace
cannot be looked up from here; it counts as running for as long as somebody refreshes what it left.
"""

from __future__ import annotations

import os
import time
from functools import lru_cache
from typing import Final

__all__ = ["LEASE_S", "NAME_PATTERN", "is_alive", "process_name"]

LEASE_S: Final = 600.0
"""Seconds after which what a process left counts as abandoned if it cannot be looked up and did not refresh it. Clocks of
machines that share a folder differ by less, and what is refreshed is so every minute."""

NAME_PATTERN: Final = r"[0-9]+-[0-9]*-[0-9a-f]{0,8}-[0-9]*"
"""What `process_name` returns, as a regular expression."""


def process_name() -> str:
    """Return a name that this process shares with no other, of today or before, here or in a container beside it."""
    return f"{os.getpid()}-{_began(os.getpid()) or ''}-{'-'.join(_place())}"


def is_alive(name: str, refreshed_s: float) -> bool:
    """Whether the process that `process_name` named so still runs, as far as can be known.

    `refreshed_s` is when it last touched what it left, in seconds since 1970; that decides where it cannot be looked up.
    """
    number, began, *place = name.split("-")
    if began and all(place) and tuple(place) == _place():
        return _began(int(number)) in (began, None)
    return time.time() - refreshed_s < LEASE_S


@lru_cache(maxsize=1)
def _boot() -> str:
    """Return eight digits of the boot's id, "" where the system has none."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read(8)
    except OSError:
        return ""


def _place() -> tuple[str, str]:
    """Return (boot, pid namespace) of this process; after a fork the namespace may be another."""
    try:
        return _boot(), str(os.stat("/proc/self/ns/pid").st_ino)
    except OSError:
        return _boot(), ""


def _began(number: int) -> str | None:
    """Return when a process of this namespace began, in ticks since the boot; "" if there is none; None if that is unknown."""
    try:
        with open(f"/proc/{number}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[19].decode()
    except (FileNotFoundError, ProcessLookupError):
        return "" if os.path.exists("/proc/self") else None
    except (OSError, IndexError):
        return None  # out of descriptors, say: that is no proof of death

"""What a store must do: read ranges, list, and publish objects whole. Names are relative, `/`-separated, never escaping.

A store knows nothing of sets. Local disk and every object store answer through the same few calls, so that what reads a
shard, packs one or caches one is written once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Protocol

from ..errors import UsageError

__all__ = ["Entry", "Store", "check_object_name"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One object: its name below the store's root, its size, and the version it had when listed."""

    name: str
    size: int
    version: str
    """ETag or the like; changes whenever the bytes may have changed; "" where the store has none."""


class Store(Protocol):
    """A place with objects. Safe to use from several threads; build a new one after a fork."""

    @property
    def url(self) -> str:
        """Where the root lies, without credentials."""
        ...

    def head(self, name: str) -> Entry:
        """Return size and version; FileNotFoundError (`StoreError`) where there is no such object."""
        ...

    def read(self, name: str, start: int, length: int, *, version: str = "") -> memoryview:
        """Return exactly `length` bytes from `start`; with `version`, only of that version of the object."""
        ...

    def whole(self, name: str, limit: int) -> tuple[Entry, memoryview]:
        """Return an object and its size and version; StoreError (EFBIG) if it is bigger than `limit` bytes."""
        ...

    def list(self, prefix: str = "") -> Iterator[Entry]:
        """Yield every object whose name starts with `prefix`, by name."""
        ...

    def put(self, name: str, data: bytes | Path, *, if_absent: bool = False, if_version: str = "") -> Entry:
        """Publish an object whole: readers see the old bytes or the new, never a mixture.

        With `if_absent` only where there is none, with `if_version` only over that version; StoreError otherwise, with errno
        EEXIST or ESTALE.
        """
        ...

    def delete(self, name: str) -> None:
        """Remove an object; removing what is not there is no error."""
        ...

    def close(self) -> None:
        """Let go of connections and descriptors."""
        ...


def check_object_name(name: str) -> str:
    """Return `name` if it stays below the root it is joined to; UsageError otherwise."""
    parts = PurePosixPath(name).parts
    bad = not parts or name.startswith("/") or ".." in parts or "\\" in name or "\0" in name or str(PurePosixPath(name)) != name
    if bad:
        raise UsageError(f"object name {name!r} must be relative and normalised, without '..', backslash or NUL")
    return name

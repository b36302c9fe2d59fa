"""Where headway keeps what can be made again: a private directory under the user's cache directory.

`$XDG_CACHE_HOME/headway` or `~/.cache/headway`, mode 0700. A directory that others planted or can write to is refused; one
that cannot be made (read-only home, full disk) is no error: callers then do without a cache.
"""

from __future__ import annotations

import logging
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from .errors import StoreError
from .system_error import as_typed

__all__ = ["cache_directory", "keeping", "private_directory"]

log = logging.getLogger("headway")

_ROOM: Final = "make room there and make it writable, or set XDG_CACHE_HOME to a folder on another disk"


def cache_directory(name: str) -> Path | None:
    """Return the private cache directory for `name`, made if need be; None (with a logged warning) where that cannot be."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    # The specification says that a relative path there is invalid and to be ignored.
    base = Path(home) if os.path.isabs(home) else Path.home() / ".cache"
    root = base / "headway"
    try:
        base.mkdir(mode=0o700, parents=True, exist_ok=True)
        private_directory(root)
        private_directory(root / name)
    except StoreError:
        raise
    except OSError as error:
        log.warning("cannot use the cache directory %s (%s); going on without, which costs time at each start", root, error)
        return None
    return root / name


@contextmanager
def keeping(what: str, folder: Path) -> Iterator[None]:
    """Raise what the system refuses while `what` is kept in a cache folder as NoSpace or StoreError."""
    with as_typed(f"keep {what} in", str(folder), _ROOM):
        yield


def private_directory(path: Path) -> None:
    """Make `path` with mode 0700, or check that it is ours alone."""
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        found = path.lstat()
        if not stat.S_ISDIR(found.st_mode):
            what = "a symbolic link" if stat.S_ISLNK(found.st_mode) else "no directory"
        elif found.st_uid != os.geteuid():
            what = f"owned by user {found.st_uid}, not by {os.geteuid()}"
        elif found.st_mode & 0o077:
            what = f"open to others (mode {stat.S_IMODE(found.st_mode):04o}, expected 0700)"
        else:
            return
        raise StoreError(
            f"cannot use the cache directory {str(path)!r}: it is {what}, so others could plant data there; remove it or "
            "chmod it to 700, or set XDG_CACHE_HOME to a directory of your own"
        ) from None

"""Refusals by the system, such as a full disk, as headway's own errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager

from .errors import HeadwayError, NoSpace, StoreError

__all__ = ["as_typed"]


@contextmanager
def as_typed(attempt: str, target: object) -> Iterator[None]:
    """Raise what goes wrong inside as NoSpace or StoreError; headway's own errors pass as they are."""
    try:
        yield
    except OSError as error:
        if isinstance(error, HeadwayError):
            raise
        where = f"cannot {attempt} {str(target)!r}: {error.strerror or error}"
        if error.filename:
            where += f" ({error.filename})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpace(
                f"{where}; nothing was published and what was written is removed; free some space and run again"
            ) from error
        raise StoreError(
            f"{where}; nothing was published and what was written is removed; mend the cause and run again"
        ) from error

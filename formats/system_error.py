"""Refusals by the system, such as a full disk, as headway's own errors."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from .errors import HeadwayError, NoSpace, StoreError

__all__ = ["as_typed"]


_PUBLISHING: Final = "nothing was published and what was written is removed"


@contextmanager
def as_typed(attempt: str, target: object, remedy: str = "") -> Iterator[None]:
    """Raise what goes wrong inside as NoSpace or StoreError; headway's own errors pass as they are.

    Args:
        attempt: what was to be done, as in "cannot … the target".
        remedy: what to do about it; by default what holds for publishing a set.
    """
    try:
        yield
    except OSError as error:
        if isinstance(error, HeadwayError):
            raise
        where = f"cannot {attempt} {str(target)!r}: {error.strerror or error}"
        if error.filename:
            where += f" ({error.filename})"
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise NoSpace(f"{where}; {remedy or f'{_PUBLISHING}; free some space and run again'}") from error
        raise StoreError(f"{where}; {remedy or f'{_PUBLISHING}; mend the cause and run again'}") from error

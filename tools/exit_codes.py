"""What a command returns, and which error gives which number. The numbers are part of the interface and never change."""

from __future__ import annotations

import errno
from enum import IntEnum

from ..formats import HeadwayError

__all__ = ["ExitCode", "exit_code_of"]


class ExitCode(IntEnum):
    """Number a command ends with; `tools/README.md` has the table for users."""

    OK = 0
    INTERNAL = 1
    """A bug in headway, or an error nobody foresaw; the traceback is printed."""
    USAGE = 2
    SOURCE = 3
    """The source data cannot be packed as it is; nothing was written."""
    CORRUPT = 4
    """A set that is damaged, unfinished, or of an unknown version."""
    STORE = 5
    """Reading or writing failed: permissions, a disk, an object store."""
    STALLED = 6
    """No progress within a deadline, or a worker of ours died."""
    REJECTS = 7
    """A set was published, but some payloads were left out as the options allowed."""
    NO_SPACE = 8
    INTERRUPTED = 130
    BROKEN_PIPE = 141
    """The reader of our output went away."""
    TERMINATED = 143


def exit_code_of(error: BaseException) -> int:
    """Return the number for an error that ended a command."""
    cause: BaseException | None = error
    while cause is not None:  # a full disk stays a full disk however often it was wrapped on its way up
        if isinstance(cause, OSError) and cause.errno in (errno.ENOSPC, errno.EDQUOT):
            return ExitCode.NO_SPACE
        cause = cause.__cause__
    if isinstance(error, HeadwayError):
        return error.exit_code
    if isinstance(error, KeyboardInterrupt):
        return ExitCode.INTERRUPTED
    if isinstance(error, OSError):
        return ExitCode.STORE
    return ExitCode.INTERNAL

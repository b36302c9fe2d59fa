"""Every error headway raises, in one tree.

    HeadwayError
    ├── UsageError (ValueError)             an option, argument or call that cannot be meant
    ├── SourceError (ValueError)            source data that cannot be packed; `problems` lists every one found
    ├── SetError (ValueError)               a packed set that cannot be used as it is
    │   ├── NotASet (FileNotFoundError)     no manifest here, or a half-published one
    │   ├── UnsupportedFormat               written by a format version this reader does not know
    │   ├── CorruptShard                    bytes that do not match their hash, size or structure
    │   └── LimitExceeded                   a declared size above the configured limit
    ├── DecodeError (ValueError)            one payload that cannot be decoded
    ├── StateError (ValueError)             a loader state that does not fit this view, plan or version
    ├── StoreError (OSError)                a store that did not answer as it must
    │   └── NoSpace                         no space left, or a quota or file size limit met
    ├── StalledError (TimeoutError)         no progress within a deadline
    ├── WorkerDied (RuntimeError)           a thread or process of ours ended without having been asked to
    └── MissingExtra (ImportError)          an optional dependency that is not installed

Each message says what was attempted, on which object, what was found against what was expected, and what to do next.
`exit_code` is what the command line returns for it (tools/README.md lists them).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

__all__ = [
    "CorruptShard",
    "DecodeError",
    "HeadwayError",
    "LimitExceeded",
    "MissingExtra",
    "NoSpace",
    "NotASet",
    "Problem",
    "SetError",
    "SourceError",
    "StalledError",
    "StateError",
    "StoreError",
    "UnsupportedFormat",
    "UsageError",
    "WorkerDied",
]


class HeadwayError(Exception):
    """Root of every error headway raises on purpose."""

    exit_code = 1


class UsageError(HeadwayError, ValueError):
    """An option, argument or call that cannot be meant."""

    exit_code = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """One thing wrong with source data: where, what, and what to do about it."""

    path: str
    """File (relative to the source) or table and row."""
    reason: str
    """What was found against what was expected, and the remedy, in one line."""
    sensor: str = ""
    stamp_ns: int | None = None
    code: str = "bad"
    """Stable short word: missing, dangling, truncated, layout, nan, duplicate, json, absent, image."""

    def __str__(self) -> str:
        where = self.path
        if self.sensor:
            where += f" (sensor {self.sensor!r}"
            where += f", stamp {self.stamp_ns})" if self.stamp_ns is not None else ")"
        return f"{where}: {self.reason}"


class SourceError(HeadwayError, ValueError):
    """Source data that cannot be packed; `problems` lists every one found, not just the first."""

    exit_code = 3

    def __init__(self, message: str, problems: Sequence[Problem] = ()) -> None:
        super().__init__(message, tuple(problems))
        self.message = message
        self.problems = tuple(problems)

    def __str__(self) -> str:
        return "\n".join([self.message, *(f"  {problem}" for problem in self.problems)])


class SetError(HeadwayError, ValueError):
    """A packed set that cannot be used as it is."""

    exit_code = 4


class NotASet(SetError, FileNotFoundError):
    """No manifest here, or a set whose publishing never finished."""


class UnsupportedFormat(SetError):
    """A set written by a format version this reader does not know."""


class CorruptShard(SetError):
    """Bytes that do not match their hash, size or structure."""


class LimitExceeded(SetError):
    """A declared size above the configured limit."""


class DecodeError(HeadwayError, ValueError):
    """One payload that cannot be decoded."""

    exit_code = 4


class StateError(HeadwayError, ValueError):
    """A loader state that does not fit this view, plan or version."""

    exit_code = 2


class StoreError(HeadwayError, OSError):
    """A store that did not answer as it must."""

    exit_code = 5


class NoSpace(StoreError):
    """No space left where a set is being written, or a quota or file size limit met."""

    exit_code = 8


class StalledError(HeadwayError, TimeoutError):
    """No progress within a deadline; the message carries the stacks and the item's key."""

    exit_code = 6


class WorkerDied(HeadwayError, RuntimeError):
    """A thread or process of ours ended without having been asked to."""

    exit_code = 6


class MissingExtra(HeadwayError, ImportError):
    """An optional dependency that is not installed."""

    exit_code = 2

    def __init__(self, extra: str, purpose: str) -> None:
        super().__init__(f"{purpose} needs the extra {extra!r}: pip install 'headway[{extra}]'")
        self.extra = extra
        self.purpose = purpose

    def __reduce__(self) -> tuple[type[MissingExtra], tuple[str, str]]:
        return type(self), (self.extra, self.purpose)

"""Which row of a timeline stands for an asked stamp: exact, nearest, previous, or interpolated between two.

Everything is vectorised over a batch and in int64 nanoseconds; a search never leaves the drive it is asked in. Only stamps
are read. −1 means that there is no such row.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .window import Outside, Sync

__all__ = ["Matched", "StampedRows", "bracket", "match", "stamps_of"]

Int64 = NDArray[np.int64]


class StampedRows(Protocol):
    """What sync needs of a timeline: global rows in (drive, stamp) order, contiguous by drive."""

    @property
    def starts(self) -> Int64:
        """(D + 1,): the first row of each drive."""
        ...

    def stamps(self, drive: int) -> Int64:
        """Return the stamps of one drive, ascending."""
        ...

    def take(self, column: str, rows: Int64) -> NDArray[Any]:  # Any: the dtype is the column's
        """Return a column's values (n, *shape) at global rows (n,); "stamp" is a column."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Matched:
    """The rows found for asked stamps; all arrays have the shape of the question."""

    rows: Int64
    """Global rows, −1 for a gap. Interpolated: the left neighbour."""
    stamps: Int64
    """ns; of the row, or of the interpolated value. Undefined (0) in a gap."""
    error: Int64
    """stamps − asked, ns; 0 in a gap."""
    right: Int64 | None = None
    """Interpolated only: the right neighbour, −1 for a gap. Equal to the left one on an exact hit."""
    fraction: NDArray[np.float64] | None = None
    """Interpolated only: how far from left to right, 0 to 1."""


def bracket(timeline: StampedRows, drives: Int64, asked: Int64) -> tuple[Int64, Int64]:
    """Return the last rows at or before, and the first at or after, `asked` (n, …) in `drives` (n,)."""
    left = np.full(asked.shape, -1, np.int64)
    right = np.full(asked.shape, -1, np.int64)
    order = np.argsort(drives, kind="stable")
    cuts = np.flatnonzero(np.diff(drives[order])) + 1
    for members in np.split(order, cuts) if len(order) else ():
        drive = int(drives[members[0]])
        stamps = timeline.stamps(drive)
        if not len(stamps):
            continue
        question = asked[members]
        before = np.searchsorted(stamps, question, side="right") - 1
        after = np.searchsorted(stamps, question, side="left")
        first = int(timeline.starts[drive])
        left[members] = np.where(before >= 0, first + before, -1)
        right[members] = np.where(after < len(stamps), first + after, -1)
    return left, right


def stamps_of(timeline: StampedRows, rows: Int64) -> Int64:
    """Return the stamps at `rows` (any shape), 0 where the row is −1."""
    stamps = np.zeros(rows.shape, np.int64)
    there = rows >= 0
    if there.any():
        stamps[there] = timeline.take("stamp", rows[there])
    return stamps


def match(
    timeline: StampedRows,
    drives: Int64,
    *,
    asked: Int64,
    sync: Sync,
    tolerance_ns: int | None,
    outside: Outside = "gap",
) -> Matched:
    """Return the rows that stand for stamps `asked` (n, …), ns, in `drives` (n,)."""
    left, right = bracket(timeline, drives, asked)
    if sync == "interpolate":
        return _interpolated(timeline, left, right, asked=asked, tolerance_ns=tolerance_ns, outside=outside)
    if sync == "previous":
        rows, stamps = left, stamps_of(timeline, left)
    else:
        left_stamps, right_stamps = stamps_of(timeline, left), stamps_of(timeline, right)
        earlier = (right < 0) | ((left >= 0) & (asked - left_stamps <= right_stamps - asked))
        rows, stamps = np.where(earlier, left, right), np.where(earlier, left_stamps, right_stamps)
    if sync == "exact" and tolerance_ns is None:
        tolerance_ns = 0
    found = rows >= 0
    if tolerance_ns is not None:
        found &= np.abs(stamps - asked) <= tolerance_ns
    return Matched(rows=np.where(found, rows, -1), stamps=np.where(found, stamps, 0), error=np.where(found, stamps - asked, 0))


def _interpolated(
    timeline: StampedRows, left: Int64, right: Int64, *, asked: Int64, tolerance_ns: int | None, outside: Outside
) -> Matched:
    inside = (left >= 0) & (right >= 0)
    found = inside if outside == "gap" else (left >= 0) | (right >= 0)
    left, right = np.where(left < 0, right, left), np.where(right < 0, left, right)
    left_stamps, right_stamps = stamps_of(timeline, left), stamps_of(timeline, right)
    if tolerance_ns is not None:
        found = found & (np.maximum(np.abs(asked - left_stamps), np.abs(right_stamps - asked)) <= tolerance_ns)
    stamps = np.where(inside, asked, left_stamps)
    # Differences first, in int64: epoch nanoseconds do not fit a double.
    gap = right_stamps - left_stamps
    fraction = np.where(gap > 0, (stamps - left_stamps) / np.where(gap > 0, gap, 1), 0.0)
    return Matched(
        rows=np.where(found, left, -1),
        stamps=np.where(found, stamps, 0),
        error=np.where(found, stamps - asked, 0),
        right=np.where(found, right, -1),
        fraction=np.where(found, fraction, 0.0),
    )

"""Which frame each payload is filed under, and which payloads are a frame's own.

A frame's own payload is the one the source ties to it; where the source says nothing, the nearest within half a reference
period. All others are filed under the last frame at or before their stamp, but never across an own payload: so rows in
frame order are always rows in stamp order, which is what lets readers count rows without opening a shard.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .errors import SourceError

__all__ = ["Filing", "file_rows"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Filing:
    """One sensor's rows of one drive, filed under the drive's frames."""

    starts: Ints
    """(frames + 1,): rows starts[f] to starts[f + 1] are filed under frame f."""
    own: Ints
    """(frames,): the row that is the frame's own, −1 for none."""


def file_rows(frames: Ints, stamps: Ints, own: Ints | None, *, what: str) -> Filing:
    """File rows with ascending `stamps` (n,) under frames with ascending stamps `frames` (F,), all ns.

    `own` (F,) is what the source ties to each frame; `what` names sensor and drive in errors.

    Raises:
        SourceError: the source's ties name rows that are not there, or not in the order of the frames.
    """
    if own is None:
        own = _nearest(frames, stamps)
    else:
        own = np.asarray(own, np.int64)
        tied = own[own >= 0]
        if own.shape != frames.shape or np.any(own < -1) or np.any(own >= len(stamps)) or np.any(np.diff(tied) <= 0):
            raise SourceError(
                f"cannot file {what}: the rows the source ties to its frames must exist, one per frame at most, in frame order; "
                f"found {len(own)} ties for {len(frames)} frames and {len(stamps)} rows; mend the source's tables"
            )
    natural = np.maximum(np.searchsorted(frames, stamps, side="right") - 1, 0)
    owners = np.flatnonzero(own >= 0)
    lower, upper = np.zeros(len(stamps), np.int64), np.full(len(stamps), len(frames) - 1)
    lower[own[owners]] = owners
    upper[own[owners]] = owners
    frame = np.clip(natural, np.maximum.accumulate(lower), np.minimum.accumulate(upper[::-1])[::-1])
    counts = np.bincount(frame, minlength=len(frames))
    return Filing(starts=np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]), own=own)


def _nearest(frames: Ints, stamps: Ints) -> Ints:
    """For each frame the nearest row within half a reference period; on a tie the earlier row, and the nearer frame."""
    if not len(stamps):
        return np.full(len(frames), -1, np.int64)
    right = np.clip(np.searchsorted(stamps, frames), 0, len(stamps) - 1)
    left = np.maximum(right - 1, 0)
    row = np.where(np.abs(frames - stamps[left]) <= np.abs(stamps[right] - frames), left, right)
    distance = np.abs(stamps[row] - frames)
    if len(frames) > 1:
        period = int(np.sort(np.diff(frames))[(len(frames) - 1) // 2])
        row = np.where(2 * distance <= period, row, -1)
    # Frames that chose the same row are neighbours: the nearest keeps it.
    order = np.lexsort((np.arange(len(frames)), distance, row))
    repeated = np.concatenate([[False], np.diff(row[order]) == 0])
    own = row.copy()
    own[order[repeated]] = -1
    return own

"""Frames that hold one number each, as many as asked for: what start-up costs by the size of a set, and nothing else.

Spec kind: "headway.bench.counted_source:open_source", option "frames". Drives are of a thousand frames.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..formats import Column, DriveListing, Ignored, Schema, Sensor, SourceDrive, SourceTimeline, UsageError
from ..formats.adapters import SourceSpec

__all__ = ["SPEC_KIND", "CountedSource", "open_source"]

SPEC_KIND: Final = "headway.bench.counted_source:open_source"
_DRIVE_FRAMES: Final = 1000
_PERIOD_NS: Final = 100_000_000


def open_source(spec: SourceSpec) -> CountedSource:
    """Open a source of `frames` frames."""
    frames = spec.options.get("frames")
    if not isinstance(frames, int) or frames < 1:
        raise UsageError(f"frames must be a number from 1, not {frames!r}")
    return CountedSource(frames)


class CountedSource:
    """Numbered frames seen as drives."""

    kind = "counted"
    licence = "CC0-1.0"

    def __init__(self, frames: int) -> None:
        self._frames = frames
        columns = (Column(name="number", dtype="int64"),)
        self.schema = Schema(reference="counter", sensors=(Sensor(name="counter", kind="array", codec=None, columns=columns),))
        self.ignored: Sequence[Ignored] = ()
        self.listings: Sequence[DriveListing] = [
            DriveListing(name=f"{start // _DRIVE_FRAMES:07d}", source_bytes=16 * min(_DRIVE_FRAMES, frames - start))
            for start in range(0, frames, _DRIVE_FRAMES)
        ]

    def open_drive(self, name: str) -> SourceDrive:
        """Open frames 1000·n to 1000·n + 999."""
        start = int(name) * _DRIVE_FRAMES
        rows = np.arange(start, min(start + _DRIVE_FRAMES, self._frames), dtype=np.int64)
        return SourceDrive(timelines={"counter": SourceTimeline(stamps=rows * _PERIOD_NS, columns={"number": rows})})

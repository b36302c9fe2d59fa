"""The first frames of a packed set as a source, so that a sample of it can be packed anew with other options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Final

import numpy as np

from ..formats import DriveListing, Ignored, Schema, Sensor, SourceDrive, SourceTimeline
from ..formats.adapters import SourceSpec
from ..formats.packed_set import PackedSet, open_set
from ..formats.schema import PACK_AFFINE
from ..formats.source import Payload
from ..formats.timeline import Timeline

__all__ = ["open_source", "sample_of"]

_FRAMES: Final = "frames"
_FACTS: Final = ("image_size", "jpeg_", "png_", PACK_AFFINE)  # columns that packing adds to images, for the stored bytes


def sample_of(location: str, frames: int) -> SourceSpec:
    """Return the spec of a source with about the first `frames` frames of the set at `location`; at least one drive's."""
    return SourceSpec(kind=f"{__name__}:open_source", path=location, options={_FRAMES: frames})


def open_source(spec: SourceSpec) -> _SetSource:
    """Open the source inside a spec made by `sample_of`."""
    return _SetSource(open_set(spec.path), int(str(spec.options[_FRAMES])))


class _SetSource:
    """Images are taken as they are stored: an edit made when the set was packed is not undone. Video is left out."""

    kind = "set"

    def __init__(self, packed: PackedSet, frames: int) -> None:
        self._packed = packed
        self.licence = packed.manifest.licence
        sensors = tuple(_as_source(sensor) for sensor in packed.schema.sensors if sensor.codec != "video")
        self.schema = Schema(reference=packed.schema.reference, sensors=sensors)
        self.ignored: Sequence[Ignored] = ()
        counts = np.diff(packed.frame_starts)
        drives = int(np.searchsorted(np.cumsum(counts), frames)) + 1
        each = sum(stats.bytes for stats in packed.manifest.sensors.values()) // max(1, int(counts.sum()))
        self._left: dict[str, int] = {}
        listings: list[DriveListing] = []
        for drive, count in zip(packed.drives[:drives], counts[:drives].tolist(), strict=True):
            self._left[drive.name] = min(count, max(1, frames))
            frames -= count
            listings.append(DriveListing(name=drive.name, source_bytes=self._left[drive.name] * max(1, each)))
        self.listings: Sequence[DriveListing] = sorted(listings, key=lambda listing: listing.name)

    def open_drive(self, name: str) -> SourceDrive:
        """Open the drive's first frames, with everything up to the last one's stamp."""
        number = self._packed.drive_index(name)
        reference = self._packed.timeline(self.schema.reference)
        until = int(reference.stamps(number)[self._left[name] - 1])
        timelines = {}
        for sensor in self.schema.sensors:
            timeline = self._packed.timeline(sensor.name)
            stamps = timeline.stamps(number)
            count, first = int(np.searchsorted(stamps, until, side="right")), int(timeline.starts[number])
            if not count:
                continue
            rows = np.arange(first, first + count)
            timelines[sensor.name] = SourceTimeline(
                stamps=np.array(stamps[:count]),
                columns={column.name: timeline.take(column.name, rows) for column in sensor.columns},
                read=None if sensor.codec is None else partial(_read, timeline, sensor, first),
            )
        return SourceDrive(timelines=timelines)


def _as_source(sensor: Sensor) -> Sensor:
    if sensor.kind != "image":
        return sensor
    columns = tuple(column for column in sensor.columns if not column.name.startswith(_FACTS))
    return replace(sensor, columns=columns, edit=None)


def _read(timeline: Timeline, sensor: Sensor, first: int, row: int) -> Payload:
    return bytes(timeline.payload(first + row)) if sensor.kind == "image" else timeline.value(first + row)

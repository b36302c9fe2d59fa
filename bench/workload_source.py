"""A bench workload as a source, so that `pack-dataset`'s own packer makes headway's set of it.

Samples become frames of drives of 40 (nuScenes' length), a tenth of a second apart. Small values are columns of the reference
sensor "sample"; images, sweeps and boxes are payloads. Spec kind: "headway.bench.workload_source:open_source".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import Camera, Column, DriveListing, Ignored, Schema, Sensor, SourceDrive, SourceTimeline, UsageError
from ..formats.adapters import SourceSpec
from .peers.samples import Stored

__all__ = ["SPEC_KIND", "WorkloadSource", "open_source"]

SPEC_KIND: Final = "headway.bench.workload_source:open_source"
_DRIVE_SAMPLES: Final = 40
_PERIOD_NS: Final = 100_000_000
_COLUMNS: Final = (
    Column(name="trajectory", dtype="float32"),
    Column(name="calibration", dtype="float32"),
    Column(name="label", dtype="int64"),
    Column(name="speed", dtype="float32"),
    Column(name="time", dtype="int64", unit="ns"),
    Column(name="command", dtype="int64"),
)
_POINT: Final = tuple(
    Column(name=name, dtype="float32", unit="m" if name in "xyz" else "") for name in ("x", "y", "z", "intensity", "ring")
)


def open_source(spec: SourceSpec) -> WorkloadSource:
    """Open a workload directory; option `points_codec`: "points-raw" (default) or "points-lossless"."""
    codec = spec.options.get("points_codec", "points-raw")
    if codec not in ("points-raw", "points-lossless"):
        raise UsageError(f"points_codec must be points-raw or points-lossless, not {codec!r}")
    return WorkloadSource(Path(spec.path), points_codec=str(codec))


class WorkloadSource:
    """A workload seen as drives."""

    kind = "workload"
    licence = "CC0-1.0"

    def __init__(self, directory: Path, *, points_codec: str = "points-raw") -> None:
        self.stored = Stored(directory)
        stored = self.stored.columns
        columns = tuple(
            replace(column, shape=stored[self._name(column)].shape[1:]) for column in _COLUMNS if self._name(column) in stored
        )
        sensors = [Sensor(name="sample", kind="array", codec=None, columns=columns)]
        self._cameras = stored["images"].shape[1] if "images" in stored else 0
        sensors += [Sensor(name=f"cam{place}", kind="image", codec="jpeg", camera=Camera()) for place in range(self._cameras)]
        if "sweep" in stored:
            sensors.append(Sensor(name="lidar", kind="points", codec=points_codec, fields=_POINT))  # type: ignore[arg-type]  # one of two literals, checked above
        if "boxes" in stored:
            box = Column(name="box", dtype="float32", shape=(9,))
            sensors.append(Sensor(name="boxes", kind="table", codec="table", fields=(box,)))
        self.schema = Schema(reference="sample", sensors=tuple(sensors))
        self.ignored: Sequence[Ignored] = ()
        payload = int(self._cameras * 200_000 + ("sweep" in stored) * 680_000 + 2_500)
        count = len(self.stored)
        self.listings: Sequence[DriveListing] = [
            DriveListing(name=f"{start // _DRIVE_SAMPLES:06d}", source_bytes=payload * min(_DRIVE_SAMPLES, count - start))
            for start in range(0, count, _DRIVE_SAMPLES)
        ]

    def open_drive(self, name: str) -> SourceDrive:
        """Open samples 40·n to 40·n + 39."""
        start = int(name) * _DRIVE_SAMPLES
        rows = np.arange(start, min(start + _DRIVE_SAMPLES, len(self.stored)))
        stamps = rows.astype(np.int64) * _PERIOD_NS
        stored = self.stored.columns
        columns = {
            column.name: stored[self._name(column)][rows].astype(column.numpy_dtype)
            for column in self.schema.sensor("sample").columns
        }
        timelines = {"sample": SourceTimeline(stamps=stamps, columns=columns)}
        for place in range(self._cameras):
            timelines[f"cam{place}"] = SourceTimeline(stamps=stamps, columns={}, read=partial(self._image, rows, place))
        if "sweep" in stored:
            timelines["lidar"] = SourceTimeline(
                stamps=stamps, columns={}, read=lambda i: self._points(int(stored["sweep"][rows[i]]))
            )
        if "boxes" in stored:
            starts = stored["box_starts"]
            timelines["boxes"] = SourceTimeline(
                stamps=stamps, columns={}, read=lambda i: {"box": stored["boxes"][starts[rows[i]] : starts[rows[i] + 1]]}
            )
        return SourceDrive(timelines=timelines)

    def _image(self, rows: NDArray[np.int64], place: int, i: int) -> bytes:
        return self.stored.image(int(self.stored.columns["images"][rows[i], place]))

    def _points(self, sweep: int) -> NDArray[Any]:  # Any: a structured array of the sensor's record dtype
        return self.stored.sweep(sweep).view(self.schema.sensor("lidar").record_dtype).ravel()

    @staticmethod
    def _name(column: Column) -> str:
        """Return the workload's own name of a column: "stamp" is taken by the set."""
        return "stamp" if column.name == "time" else column.name

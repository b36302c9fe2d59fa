"""A set held in arrays: the columns side of `PackedSet` without files, so that laws can draw thousands of drives."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from headway.formats import EGO_TO_WORLD, SENSOR_TO_EGO, Camera, Column, Schema, Sensor

Int64 = NDArray[np.int64]
POSES = (
    Column(name=SENSOR_TO_EGO, dtype="float64", shape=(7,), unit="m"),
    Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), unit="m"),
)
XYZ = tuple(Column(name=name, dtype="float32", unit="m") for name in ("x", "y", "z", "intensity"))


def camera(name: str) -> Sensor:
    """Return an image sensor with poses."""
    return Sensor(name=name, kind="image", codec="jpeg", columns=POSES, camera=Camera())


def lidar(name: str = "LIDAR_TOP") -> Sensor:
    """Return a points sensor with poses."""
    return Sensor(name=name, kind="points", codec="points-raw", columns=POSES, fields=XYZ)


def ego() -> Sensor:
    """Return the timeline of ego poses."""
    return Sensor(name="ego", kind="array", codec=None, columns=POSES[1:])


@dataclass(frozen=True, kw_only=True)
class MemoryDrive:
    """A drive's name and attributes."""

    name: str
    attributes: Mapping[str, str | int | float | bool] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MemoryTimeline:
    """The rows of one sensor."""

    sensor: Sensor
    starts: Int64
    columns: dict[str, NDArray[Any]]

    def stamps(self, drive: int) -> Int64:
        """Return the stamps of a drive."""
        return self.columns["stamp"][self.starts[drive] : self.starts[drive + 1]]

    def take(self, column: str, rows: Int64) -> NDArray[Any]:
        """Return a column's values at global rows."""
        assert len(rows) == 0 or (rows.min() >= 0 and rows.max() < self.starts[-1])
        return self.columns[column][rows]


class MemorySet:
    """Drives given as {sensor name: stamps}; the reference is the first sensor. Poses are random but fixed."""

    def __init__(
        self,
        sensors: Sequence[Sensor],
        drives: Sequence[Mapping[str, Sequence[int]]],
        *,
        own: Mapping[str, Sequence[int]] | None = None,
        columns: Mapping[tuple[str, str], NDArray[Any]] | None = None,
        attributes: Sequence[Mapping[str, str | int | float | bool]] | None = None,
    ) -> None:
        self.schema = Schema(reference=sensors[0].name, sensors=tuple(sensors))
        self.drives = [
            MemoryDrive(name=f"drive{number:03}", attributes={} if attributes is None else attributes[number])
            for number in range(len(drives))
        ]
        self._timelines = {}
        for sensor in self.schema.sensors:
            stamps = [np.array(drive.get(sensor.name, ()), np.int64) for drive in drives]
            starts = np.concatenate([[0], np.cumsum([len(each) for each in stamps])]).astype(np.int64)
            values: dict[str, NDArray[Any]] = {"stamp": np.concatenate(stamps)}
            rng = np.random.default_rng(len(sensor.name))
            for column in sensor.columns:
                given = None if columns is None else columns.get((sensor.name, column.name))
                values[column.name] = (
                    np.asarray(given) if given is not None else rng.normal(size=(int(starts[-1]), *column.shape))
                )
            self._timelines[sensor.name] = MemoryTimeline(sensor=sensor, starts=starts, columns=values)
        self.frame_starts = self._timelines[self.schema.reference].starts
        self._own = {
            name: np.full(len(self), -1, np.int64) if own is None or name not in own else np.array(own[name], np.int64)
            for name in self._timelines
        }
        self._own[self.schema.reference] = np.arange(len(self), dtype=np.int64)
        digest = hashlib.sha256(repr([(drive.name, dict(drive.attributes)) for drive in self.drives]).encode())
        for name, timeline in self._timelines.items():
            for array in (timeline.starts, *timeline.columns.values(), self._own[name]):
                digest.update(name.encode() + np.ascontiguousarray(array).tobytes())
        self.set_id = digest.hexdigest()

    def __len__(self) -> int:
        return int(self.frame_starts[-1])

    def timeline(self, sensor: str) -> MemoryTimeline:
        """Return one sensor's timeline."""
        return self._timelines[sensor]

    def own(self, sensor: str, frames: Int64) -> Int64:
        """Return each frame's own row."""
        return self._own[sensor][frames]

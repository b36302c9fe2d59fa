"""A synthetic source whose payloads say who they are: drive, sensor and row can be computed again from nothing.

`ramp_spec()` names it for the packer, `Ramp(…)` is the source itself, and its `open_drive` gives what a set must give back.
KEY (text, 2 Hz) is the reference; CAM (opaque image bytes, 12 Hz) has own payloads tied by the source, 20 ms before their
frame; LIDAR (points, 10 Hz), BOX (tables, at every second frame), IMU (arrays, 5 Hz) and ego (columns, 20 Hz) have the nearest.
Drives differ in length; drive 1 has no BOX. `fault` makes reading CAM of drive-1 go wrong; `jpeg` makes CAM real JPEGs.
"""

from __future__ import annotations

import hashlib
import os
import signal
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import simplejpeg

from headway.formats import (
    Attachment,
    Camera,
    Column,
    DriveListing,
    Ignored,
    Payload,
    Schema,
    Sensor,
    SourceDrive,
    SourceTimeline,
)
from headway.formats.adapters import SourceSpec

START_NS = 1_500_000_000_000_000_000
KIND = "tests.formats.ramp:open_ramp"

POSE = (Column(name="sensor_to_ego", dtype="float64", shape=(7,)), Column(name="ego_to_world", dtype="float64", shape=(7,)))
SCHEMA = Schema(
    reference="KEY",
    sensors=(
        Sensor(name="KEY", kind="text", codec="text", frame=""),
        Sensor(
            name="CAM",
            kind="image",
            codec="raw",
            camera=Camera(),
            columns=(*POSE, Column(name="intrinsics", dtype="float64", shape=(3, 3)), Column(name="night", dtype="bool")),
        ),
        Sensor(
            name="LIDAR",
            kind="points",
            codec="points-raw",
            columns=POSE,
            fields=(Column(name="x", dtype="float32", unit="m"), Column(name="ring", dtype="uint16")),
        ),
        Sensor(
            name="BOX",
            kind="table",
            codec="table",
            frame="world",
            fields=(
                Column(name="centre", dtype="float64", shape=(3,), unit="m"),
                Column(name="track", dtype="str"),
                Column(name="category", dtype="int32", categories=("car", "Fußgänger")),
            ),
        ),
        Sensor(name="IMU", kind="array", codec="array", fields=(Column(name="value", dtype="float32", shape=(6,)),)),
        Sensor(name="ego", kind="array", codec=None, columns=(Column(name="ego_to_world", dtype="float64", shape=(7,)),)),
    ),
)


def ramp_spec(**options: int) -> SourceSpec:
    """Name a ramp source; options are those of `Ramp`."""
    return SourceSpec(kind=KIND, path="", options=options)


def open_ramp(spec: SourceSpec) -> Ramp:
    """Open the source a spec names."""
    numbers: dict[str, Any] = {name: value for name, value in spec.options.items() if isinstance(value, int)}  # Any: for **
    return Ramp(**numbers)


@dataclass(frozen=True, kw_only=True)
class Ramp:
    """The source; equal arguments give equal data."""

    drives: int = 3
    frames: int = 4
    """Of the first drive; each further one has one more."""
    seed: int = 0
    image_bytes: int = 700
    fault: int = 0
    """At row 5 of CAM of drive-1: 1 _exit(3), 2 SIGKILL, 3 MemoryError, 4 RuntimeError, 5 OSError, 6 a bad image."""
    jpeg: int = 0
    """1: CAM is of codec jpeg."""
    cam_reference: int = 0
    """1: CAM, as JPEGs, is the reference."""
    skip: int = 0
    """Leave out the first drives."""
    understate: int = 1
    """The listing states source bytes divided by this."""
    kind: str = "ramp"
    licence: str = "CC0-1.0"

    @property
    def schema(self) -> Schema:
        return _with_codec("jpeg", "CAM" if self.cam_reference else "KEY") if self.jpeg else SCHEMA

    @property
    def listings(self) -> Sequence[DriveListing]:
        return [
            DriveListing(
                name=f"drive-{at}",
                source_bytes=(self.frames + at) * 6 * self.image_bytes // self.understate,
                attributes={"night": at % 2 == 1},
            )
            for at in range(self.skip, self.drives)
        ]

    @property
    def ignored(self) -> Sequence[Ignored]:
        return [Ignored(path="notes.txt", reason="no table names it")]

    def open_drive(self, name: str) -> SourceDrive:
        at = int(name.rpartition("-")[2])
        frames = START_NS + at * 10**12 + np.arange(self.frames + at) * 500_000_000
        period = {"CAM": 83_333_333, "LIDAR": 100_000_000, "BOX": 1_000_000_000, "IMU": 200_000_000, "ego": 50_000_000}
        stamps = {"KEY": frames}
        for sensor, step in period.items():
            if sensor == "BOX" and at == 1:
                continue
            stamps[sensor] = np.arange(frames[0] - 3 * step // 2, frames[-1] + 3 * step // 2, step)
        stamps["CAM"] = np.unique(np.concatenate([stamps["CAM"], frames - 20_000_000]))
        timelines = {sensor: self._timeline(name, SCHEMA.sensor(sensor), values, frames) for sensor, values in stamps.items()}
        shared = Attachment(name="map.bin", media_type="application/octet-stream", read=lambda: b"one map for all drives")
        own = Attachment(name="log.txt", media_type="text/plain", read=lambda: f"log of {name}".encode())
        return SourceDrive(timelines=timelines, attachments=(shared, own))

    def _timeline(self, drive: str, sensor: Sensor, stamps: np.ndarray[Any, np.dtype[np.int64]], frames: Any) -> SourceTimeline:
        rng = self._rng(drive, sensor.name, -1)
        columns = {column.name: _values(rng, column, len(stamps)) for column in sensor.columns}
        return SourceTimeline(
            stamps=stamps,
            columns=columns,
            read=None if sensor.codec is None else lambda row: self.payload(drive, sensor.name, row),
            origin=lambda row: f"{drive}/{sensor.name}/{row}",
            own=None if sensor.name != "CAM" or self.cam_reference else np.searchsorted(stamps, frames - 20_000_000),
        )

    def payload(self, drive: str, sensor: str, row: int) -> Payload:
        """Return the payload of a row; it depends on nothing but the arguments and the seed."""
        rng = self._rng(drive, sensor, row)
        if self.fault and (drive, sensor, row) == ("drive-1", "CAM", 5):
            return _misbehave(self.fault)
        match sensor:
            case "KEY":
                return f"{drive} {row} größer"
            case "CAM" if self.jpeg:
                return bytes(simplejpeg.encode_jpeg(rng.integers(0, 255, (16, 24, 3), np.uint8), quality=50))
            case "CAM":
                return f"{drive}/{row}:".encode() + rng.bytes(int(rng.integers(0, self.image_bytes)))
            case "LIDAR":
                points = np.empty(int(rng.integers(0, 40)), SCHEMA.sensor("LIDAR").record_dtype)
                points["x"], points["ring"] = rng.normal(size=len(points)), rng.integers(0, 32, len(points))
                return points
            case "BOX":
                count = int(rng.integers(0, 4))
                table: Mapping[str, Any] = {
                    "centre": rng.normal(size=(count, 3)),
                    "track": [f"{drive} ö {number}" for number in range(count)],
                    "category": rng.integers(0, 2, count).astype(np.int32),
                }
                return table
            case _:
                return rng.normal(size=(int(rng.integers(0, 5)), 6)).astype(np.float32)

    def _rng(self, drive: str, sensor: str, row: int) -> np.random.Generator:
        key = hashlib.sha256(f"{self.seed}/{drive}/{sensor}/{row}".encode()).digest()
        return np.random.default_rng(int.from_bytes(key[:8], "little"))


def _values(rng: np.random.Generator, column: Column, rows: int) -> np.ndarray[Any, np.dtype[Any]]:
    values = rng.normal(size=(rows, *column.shape))
    return (values > 0) if column.dtype == "bool" else values.astype(column.numpy_dtype)


def _with_codec(codec: Literal["jpeg"], reference: str) -> Schema:
    sensors = (replace(sensor, codec=codec) if sensor.name == "CAM" else sensor for sensor in SCHEMA.sensors)
    return Schema(reference=reference, sensors=tuple(sensors))


def _misbehave(fault: int) -> bytes:
    match fault:
        case 1:
            os._exit(3)
        case 2:
            os.kill(os.getpid(), signal.SIGKILL)
        case 3:
            raise MemoryError
        case 4:
            raise RuntimeError("the adapter has a bug")
        case 5:
            raise OSError(5, "Input/output error")
    return b"\xff\xd8\xff\xd9"


def equal_payloads(left: Payload, right: Payload) -> bool:
    """Compare two payloads of one sensor, bit for bit."""
    if isinstance(left, Mapping) and isinstance(right, Mapping):
        return set(left) == set(right) and all(equal_payloads(left[name], right[name]) for name in left)
    if isinstance(left, np.ndarray) and isinstance(right, np.ndarray):
        return left.dtype == right.dtype and left.shape == right.shape and left.tobytes() == right.tobytes()
    return bool(left == right)

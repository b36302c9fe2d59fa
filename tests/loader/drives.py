"""Small drives with real pictures for the loader's tests: what each payload shows can be computed again from its place.

Two JPEG cameras and a PNG one of another size, a LiDAR (the reference, 2 Hz), a radar with a wide integer field, boxes, a text,
an array and the ego's poses (20 Hz). CAM_FRONT misses a frame in each drive. Frame f of drive d shows level `level(d, f)`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from headway.formats import (
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
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from headway.formats.shard import ShardKind

__all__ = ["BOX", "JPEG", "PERIOD_NS", "PNG", "SCHEMA", "START_NS", "level", "points_of", "pose_of", "write_drives"]

KIND = "tests.loader.drives:open_drives"
START_NS = 1_600_000_000_000_000_000
PERIOD_NS = 500_000_000
JPEG = (48, 64)
"""(height, width) of the JPEG cameras."""
PNG = (30, 40)
BOX = ("centre", "size", "category", "track_id")
MISSING = 1
"""The frame for which CAM_FRONT has no image."""

_POSES = (
    Column(name="sensor_to_ego", dtype="float64", shape=(7,)),
    Column(name="ego_to_world", dtype="float64", shape=(7,), frame="world"),
)
_CAMERA = (*_POSES, Column(name="intrinsics", dtype="float64", shape=(3, 3), unit="px"))
SCHEMA = Schema(
    reference="LIDAR",
    sensors=(
        Sensor(name="CAM_BACK", kind="image", codec="jpeg", camera=Camera(), columns=_CAMERA),
        Sensor(name="CAM_FRONT", kind="image", codec="jpeg", camera=Camera(), columns=_CAMERA),
        Sensor(name="CAM_PORT", kind="image", codec="png", camera=Camera(), columns=_CAMERA),
        Sensor(
            name="LIDAR",
            kind="points",
            codec="points-raw",
            columns=_POSES,
            fields=(
                *tuple(Column(name=name, dtype="float32", unit="m") for name in "xyz"),
                Column(name="intensity", dtype="float32"),
            ),
        ),
        Sensor(
            name="RADAR",
            kind="points",
            codec="points-lossless",
            columns=_POSES,
            fields=(
                Column(name="x", dtype="float32", unit="m"),
                Column(name="ring", dtype="uint16"),
                Column(name="t", dtype="int64", unit="ns"),
            ),
        ),
        Sensor(
            name="boxes",
            kind="table",
            codec="table",
            frame="world",
            fields=(
                Column(name="centre", dtype="float64", shape=(3,), unit="m", frame="world"),
                Column(name="size", dtype="float64", shape=(3,), unit="m"),
                Column(name="category", dtype="int32", categories=("car", "van")),
                Column(name="track_id", dtype="str"),
            ),
        ),
        Sensor(name="ego", kind="array", codec=None, columns=(_POSES[1], Column(name="gear", dtype="int8"))),
        Sensor(name="imu", kind="array", codec="array", fields=(Column(name="value", dtype="float32", shape=(2,)),)),
        Sensor(name="note", kind="text", codec="text", frame=""),
    ),
)


def write_drives(destination: Path, *, drives: int = 3, frames: int = 5, kind: ShardKind = "arrow", broken: int = 0) -> Path:
    """Pack `drives` drives of `frames`, frames + 1, … frames; the first `broken` images of CAM_BACK are no JPEGs."""
    spec = SourceSpec(kind=KIND, path="", options={"drives": drives, "frames": frames, "broken": broken})
    pack(spec, destination, PackOptions(format=kind, workers=1, bad_images="keep"), None)
    return destination


def open_drives(spec: SourceSpec) -> Drives:
    """Open the source that a spec names."""
    drives, frames, broken = (int(str(spec.options[name])) for name in ("drives", "frames", "broken"))
    return Drives(drives=drives, frames=frames, broken=broken)


def level(drive: int, frame: int, camera: int) -> int:
    """Return the grey level that a camera shows."""
    return 20 + (drive * 67 + frame * 13 + camera * 5) % 200


def points_of(drive: int, row: int) -> NDArray[np.float32]:
    """Return the LiDAR points (N, 4) of a row."""
    rng = np.random.default_rng([drive, row])
    return rng.normal(scale=20, size=(40 + (drive * 7 + row * 3) % 25, 4)).astype(np.float32)


def pose_of(drive: int, stamp_ns: int) -> NDArray[np.float64]:
    """Return the ego's pose: straight ahead at (5 + drive) m/s, turned by the drive's heading."""
    heading = 0.3 * drive
    way = (stamp_ns - START_NS) * 1e-9 * (5 + drive)
    return np.array([way * np.cos(heading), way * np.sin(heading), 0, np.cos(heading / 2), 0, 0, np.sin(heading / 2)])


@dataclass(frozen=True, kw_only=True)
class Drives:
    """The source; equal arguments give equal data."""

    drives: int = 3
    frames: int = 5
    broken: int = 0
    kind: str = "loader-drives"
    licence: str = "CC0-1.0"
    schema: Schema = SCHEMA
    ignored: Sequence[Ignored] = ()

    @property
    def listings(self) -> Sequence[DriveListing]:
        return [
            DriveListing(name=f"drive-{at}", source_bytes=(self.frames + at) * 20_000, attributes={"night": at % 2 == 1})
            for at in range(self.drives)
        ]

    def open_drive(self, name: str) -> SourceDrive:
        drive = int(name.rpartition("-")[2])
        frames = START_NS + np.arange(self.frames + drive, dtype=np.int64) * PERIOD_NS
        stamps = dict.fromkeys(("LIDAR", "RADAR", "boxes", "imu", "note"), frames)
        stamps |= dict.fromkeys(("CAM_BACK", "CAM_PORT"), frames - 20000000)
        stamps["CAM_FRONT"] = np.delete(frames - 20_000_000, MISSING)
        stamps["ego"] = np.arange(frames[0] - PERIOD_NS, frames[-1] + PERIOD_NS, 50_000_000)
        return SourceDrive(timelines={sensor: self._timeline(drive, sensor, at) for sensor, at in stamps.items()})

    def _timeline(self, drive: int, sensor: str, stamps: NDArray[np.int64]) -> SourceTimeline:
        schema = SCHEMA.sensor(sensor)
        values: dict[str, NDArray[Any]] = {
            "sensor_to_ego": np.tile([1.0, 0.0, 1.5, 1.0, 0.0, 0.0, 0.0], (len(stamps), 1)),
            "ego_to_world": np.stack([pose_of(drive, int(stamp)) for stamp in stamps]),
            "intrinsics": np.tile([[50.0, 0, 32], [0, 50, 24], [0, 0, 1]], (len(stamps), 1, 1)),
            "gear": (np.arange(len(stamps)) % 5).astype(np.int8),
        }
        return SourceTimeline(
            stamps=stamps,
            columns={column.name: values[column.name] for column in schema.columns},
            read=None if schema.codec is None else lambda row: self.payload(drive, sensor, row),
            origin=lambda row: f"drive-{drive}/{sensor}/{row}",
        )

    def payload(self, drive: int, sensor: str, row: int) -> Payload:
        """Return the payload of a row."""
        if sensor.startswith("CAM"):
            camera = ("CAM_BACK", "CAM_FRONT", "CAM_PORT").index(sensor)
            frame = row + (sensor == "CAM_FRONT" and row >= MISSING)
            if sensor == "CAM_BACK" and drive == 0 and row < self.broken:
                return b"\xff\xd8 no picture follows"
            picture = np.full((*(PNG if sensor == "CAM_PORT" else JPEG), 3), level(drive, frame, camera), np.uint8)
            if sensor == "CAM_PORT":
                return bytes(cv2.imencode(".png", picture)[1])
            return bytes(simplejpeg.encode_jpeg(picture, quality=95, colorspace="RGB"))
        if sensor == "LIDAR":
            return np.ascontiguousarray(points_of(drive, row)).view(SCHEMA.sensor("LIDAR").record_dtype)[:, 0]
        rng = np.random.default_rng([drive, row, 1])
        count = (drive + row) % 4
        if sensor == "RADAR":
            points = np.zeros(count * 5, SCHEMA.sensor("RADAR").record_dtype)
            points["x"], points["ring"], points["t"] = rng.normal(size=count * 5), np.arange(count * 5), 2**40 + row
            return points
        if sensor == "boxes":
            return {
                "centre": rng.normal(size=(count, 3)),
                "size": np.ones((count, 3)),
                "category": np.arange(count, dtype=np.int32) % 2,
                "track_id": [f"{drive}-{row}-{box}" for box in range(count)],
            }
        if sensor == "imu":
            return np.full((3, 2), drive * 100 + row, np.float32)
        assert sensor == "note"
        return f"drive {drive} frame {row}"

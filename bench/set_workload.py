"""A packed set as a workload, so that `bench peers` runs over data of the user's own.

Every frame becomes a sample in the plain form of `make_data`: the JPEGs of all cameras and the first point sensor's sweep, bytes
as they are stored. A set with cameras becomes W1 with as many of them, one with points alone W4. Every loader, headway too,
packs that form again. The small columns of W1 are stand-ins: a set's own have any names and shapes, and they weigh
kilobytes beside megabytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..formats import Sensor, UsageError
from ..formats.packed_set import PackedSet, open_set
from .make_data import FILE

__all__ = ["is_workload", "workload_of_set"]

_FIELDS = ("x", "y", "z", "intensity", "ring")


def is_workload(location: Path) -> bool:
    """Say whether `headway bench make-data` wrote this directory."""
    return (location / FILE).is_file()


def workload_of_set(location: Path, directory: Path, *, samples: int | None = None) -> Path:
    """Write up to `samples` frames of a set as a workload under `directory`, unless it is there; return its place.

    Raises:
        UsageError: the set has neither JPEG cameras nor points, or no frame that has all of them.
    """
    with open_set(location) as packed:
        cameras = [sensor for sensor in packed.schema.sensors if sensor.kind == "image" and sensor.codec == "jpeg"]
        points = next((sensor for sensor in packed.schema.sensors if sensor.kind == "points"), None)
        if not cameras and points is None:
            raise UsageError(f"cannot compare loaders over {str(location)!r}: it has neither JPEG cameras nor points")
        frames = _whole_frames(packed, [*cameras, *([points] if points else [])])[:samples]
        if not len(frames):
            raise UsageError(f"cannot compare loaders over {str(location)!r}: no frame has a payload of every camera and sweep")
        place = directory / f"{location.resolve().name}-{packed.manifest.set_id[:12]}-{len(frames)}"
        if not is_workload(place):
            _write(packed, cameras, points, frames, place)
    return place


def _whole_frames(packed: PackedSet, sensors: list[Sensor]) -> NDArray[Any]:
    """Return the frames in which every sensor has a payload of its own."""
    frames = np.arange(len(packed))
    for sensor in sensors:
        frames = frames[packed.own(sensor.name, frames) >= 0]
    return frames


def _write(packed: PackedSet, cameras: list[Sensor], points: Sensor | None, frames: NDArray[Any], place: Path) -> None:
    count = len(frames)
    columns: dict[str, NDArray[Any]] = {}
    for name in ("images", "sweeps"):
        (place / name).mkdir(parents=True, exist_ok=True)
    if cameras:
        columns["images"] = np.arange(count * len(cameras)).reshape(count, len(cameras))
        for eye, sensor in enumerate(cameras):
            timeline = packed.timeline(sensor.name)
            for sample, row in enumerate(packed.own(sensor.name, frames).tolist()):
                (place / "images" / f"{sample * len(cameras) + eye:06d}.jpg").write_bytes(timeline.payload(row))
        columns |= {
            "trajectory": np.zeros((count, 100, 6), np.float32),
            "calibration": np.zeros((count, len(cameras), 25), np.float32),
            "boxes": np.zeros((count, 9), np.float32),
            "box_starts": np.arange(count + 1),
        }
    rows = packed.own(points.name, frames).tolist() if points else [None] * count
    for sample, row in enumerate(rows):
        # Without points a sweep of one: what W1 delivers keeps its form.
        sweep = np.ones((1, 5), np.float32) if points is None else _sweep(packed.timeline(points.name).value(row))
        sweep.tofile(place / "sweeps" / f"{sample:06d}.bin")
    columns["sweep"] = np.arange(count)
    np.savez(place / "columns.npz", **columns)  # type: ignore[arg-type]  # the stubs know only allow_pickle=
    about = {
        "name": "W1" if cameras else "W4",
        "samples": count,
        "cameras": len(cameras),
        "distinct_images": count * len(cameras),
        "distinct_sweeps": count,
        "of_set": packed.manifest.set_id,
    }
    (place / FILE).write_text(json.dumps(about, indent=1) + "\n", "utf-8")


def _sweep(records: Any) -> NDArray[np.float32]:  # Any: a structured array of the sensor's record dtype
    """Return (N, 5) float32 of a sweep's records; what a sensor does not measure is 0."""
    found = np.zeros((len(records), len(_FIELDS)), np.float32)
    for column, name in enumerate(_FIELDS):
        if name in (records.dtype.names or ()):
            found[:, column] = records[name]
    return found

"""KITTI object detection: each frame is a drive of its own, because nothing in the download says which follow each other.

Sensors: "image_2" and, where present, "image_3"; "velodyne" (the reference); "boxes" where there are labels. All have stamp 0.
Ego is the car's GPS/IMU unit (x forward, y left, z up). Boxes are moved from the rectified camera 0 into ego, from the bottom
face to the centre, and keep the source's numbers that no other dataset has: `bbox` in pixels, `truncated`, `occluded`,
`alpha`. "DontCare" rows have no box in space: NaN.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import pose
from ..errors import Problem, SourceError, UsageError
from ..schema import INTRINSICS, SENSOR_TO_EGO, Column, Schema, Sensor
from ..source import DriveListing, Ignored, SourceDrive, SourceTimeline
from .kitti_files import (
    POINT_FIELDS,
    TO_EGO,
    K,
    Numbered,
    camera_sensor,
    file_timeline,
    inverse,
    numbered,
    parsed,
    png_size,
    read_calibration,
    read_lines,
    repeated,
    rigid,
    split_projection,
)

__all__ = ["CATEGORIES", "KittiObject", "read_labels"]

CATEGORIES: Final = ("Car", "Van", "Truck", "Pedestrian", "Person_sitting", "Cyclist", "Tram", "Misc", "DontCare")
_CAMERAS: Final = ("image_2", "image_3")
_MATRICES: Final = {
    **{f"P{k}": (3, 4) for k in range(4)},
    "R0_rect": (3, 3),
    "Tr_velo_to_cam": (3, 4),
    "Tr_imu_to_velo": (3, 4),
}
_SUFFIX: Final = {"image_2": ".png", "image_3": ".png", "velodyne": ".bin", "calib": ".txt", "label_2": ".txt"}
_ZERO: Final = np.zeros(1, np.int64)
# From a label's own axes (x right at rotation 0, y down) to length, width, height along x, y, z.
_BOX_AXES: Final = np.array([[1.0, 0, 0], [0, 0, -1], [0, 1, 0]])


class KittiObject:
    """training/ and testing/ of the object benchmark, listed and checked."""

    kind = "kitti"

    def __init__(self, root: Path, *, split: str | None, points_codec: Any, licence: str) -> None:  # Any: a Literal
        self.licence = licence
        self._root = root
        splits = [name for name in ("training", "testing") if (root / name).is_dir() and split in (None, name)]
        if not splits:
            raise UsageError(f"kitti object: split {split!r} is neither 'training' nor 'testing' of {str(root)!r}")
        problems: list[Problem] = []
        self._files = {
            name: {kind: numbered(root / name / kind, suffix, root, problems) for kind, suffix in _SUFFIX.items()}
            for name in splits
        }
        present = [kind for kind in ("image_2", "image_3") if any(files[kind].paths for files in self._files.values())]
        self._labelled = any(files["label_2"].paths for files in self._files.values())
        self.listings = self._list(present, problems)
        self.ignored = [
            Ignored(path=entry.relative_to(root).as_posix(), reason="no part of the object layout that is taken")
            for name in splits
            for entry in sorted((root / name).iterdir())
            if entry.name not in _SUFFIX
        ]
        if problems:
            raise SourceError(f"cannot pack KITTI source {str(root)!r}: {len(problems)} problems", problems)
        sensors = [camera_sensor(name, (K, TO_EGO)) for name in present]
        sensors.append(Sensor(name="velodyne", kind="points", codec=points_codec, columns=(TO_EGO,), fields=POINT_FIELDS))
        if self._labelled:
            sensors.append(_boxes_sensor())
        self.schema = Schema(reference="velodyne", sensors=tuple(sensors))

    schema: Schema
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one frame, such as "training-000123"."""
        split, _, number = name.partition("-")
        if split not in self._files or not number.isdigit() or int(number) not in self._files[split]["velodyne"].paths:
            raise UsageError(f"no drive {name!r} in this source; drives are named like {self.listings[0].name!r}")
        files = {kind: _only(found, int(number)) for kind, found in self._files[split].items()}
        calibration = read_calibration(files["calib"].paths[int(number)], _MATRICES)
        ego_from_velodyne = inverse(rigid(calibration["Tr_imu_to_velo"]))
        rectified = rigid(calibration["R0_rect"]) @ rigid(calibration["Tr_velo_to_cam"])
        ego_from_rectified = ego_from_velodyne @ inverse(rectified)
        timelines: dict[str, SourceTimeline] = {}
        for sensor in self.schema.sensors:
            if sensor.name == "boxes":
                if files["label_2"].paths:
                    timelines["boxes"] = self._boxes(files["label_2"].paths[int(number)], ego_from_rectified)
                continue
            if not files[sensor.name].paths:
                continue
            columns: dict[str, NDArray[Any]] = {SENSOR_TO_EGO: repeated(ego_from_velodyne, 1)}
            if sensor.kind == "image":
                k, offset = split_projection(calibration[f"P{sensor.name[-1]}"])
                columns = {INTRINSICS: k[None], SENSOR_TO_EGO: repeated(ego_from_rectified @ inverse(offset), 1)}
            timelines[sensor.name] = file_timeline(
                files[sensor.name], _ZERO, columns, sensor=sensor, root=self._root, own=np.zeros(1, np.int64)
            )
        return SourceDrive(timelines=timelines)

    def _boxes(self, path: Path, ego_from_rectified: NDArray[np.float64]) -> SourceTimeline:
        return SourceTimeline(
            stamps=_ZERO,
            columns={},
            read=lambda row: read_labels(path, ego_from_rectified),
            origin=lambda row: path.relative_to(self._root).as_posix(),
            own=np.zeros(1, np.int64),
        )

    def _list(self, cameras: Sequence[str], problems: list[Problem]) -> list[DriveListing]:
        listings = []
        for split, files in self._files.items():
            needed = ["velodyne", "calib", *(camera for camera in cameras if files[camera].paths)]
            needed += ["label_2"] * bool(files["label_2"].paths)
            numbers = sorted(set().union(*(files[kind].paths for kind in _SUFFIX)))
            if not numbers:
                problems.append(Problem(path=split, reason="holds no frames; give the folder above training/", code="absent"))
            for number in numbers:
                for kind in needed:
                    where = f"{split}/{kind}/{number:06}{_SUFFIX[kind]}"
                    path = files[kind].paths.get(number)
                    if path is None:
                        problems.append(Problem(path=where, reason="is missing; download it beside the others", code="missing"))
                    elif kind == "velodyne" and path.stat().st_size % 16:
                        reason = f"{path.stat().st_size} bytes, expected a multiple of 16; copy it again"
                        problems.append(Problem(path=where, reason=reason, sensor=kind, code="truncated"))
                    elif kind == "calib":
                        parsed(problems, where, read_calibration, path, _MATRICES)
                    elif kind == "label_2":
                        parsed(problems, where, read_labels, path, np.eye(4))
                    elif kind in _CAMERAS:
                        parsed(problems, where, png_size, path)
                size = sum(path.stat().st_size for kind in _SUFFIX if (path := files[kind].paths.get(number)) is not None)
                attributes: dict[str, str | int | float | bool] = {"split": split, "frame": number}
                listings.append(DriveListing(name=f"{split}-{number:06}", source_bytes=size, attributes=attributes))
        return sorted(listings, key=lambda listing: listing.name)


def read_labels(path: Path, ego_from_rectified: NDArray[np.float64]) -> dict[str, Any]:
    """Return a label file as the common table record, boxes moved by `ego_from_rectified` (4, 4).

    Raises:
        ValueError: a row is not the 15 columns of a label.
    """
    rows, categories = [], []
    for at, line in enumerate(read_lines(path), 1):
        words = line.split()
        if len(words) != 15:
            raise ValueError(f"line {at} has {len(words)} columns, a label has 15")
        if words[0] not in CATEGORIES:
            raise ValueError(f"line {at} names the class {words[0]!r}, KITTI has {', '.join(CATEGORIES)}")
        categories.append(CATEGORIES.index(words[0]))
        rows.append([float(word) for word in words[1:]])
    values = np.array(rows, np.float64).reshape(-1, 14)
    category = np.array(categories, np.int32)
    height, width, length = values[:, 7], values[:, 8], values[:, 9]
    centre = values[:, 10:13] - np.stack([np.zeros_like(height), height / 2, np.zeros_like(height)], 1)
    centre = centre @ ego_from_rectified[:3, :3].T + ego_from_rectified[:3, 3]
    rotation = _rotations(values[:, 13], ego_from_rectified)
    size = np.stack([length, width, height], 1)
    for column in (centre, size, rotation):
        column[category == CATEGORIES.index("DontCare")] = np.nan
    count = len(values)
    return {
        "centre": centre,
        "size": size,
        "rotation": rotation,
        "velocity": np.full((count, 3), np.nan),
        "category": category,
        "track_id": [""] * count,
        "attributes": [""] * count,
        "visibility": np.zeros(count, np.int8),
        "lidar_points": np.full(count, -1, np.int32),
        "radar_points": np.full(count, -1, np.int32),
        "bbox": values[:, 3:7],
        "truncated": values[:, 0],
        "occluded": values[:, 1].astype(np.int8),
        "alpha": values[:, 2],
    }


def _rotations(angle: NDArray[np.float64], ego_from_rectified: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return (n, 4) w x y z in ego of rotations about the camera's y axis."""
    matrix = np.zeros((len(angle), 4, 4))
    matrix[:, 0, 0] = matrix[:, 2, 2] = np.cos(angle)
    matrix[:, 0, 2], matrix[:, 2, 0] = np.sin(angle), -np.sin(angle)
    matrix[:, 1, 1] = matrix[:, 3, 3] = 1
    return pose.from_matrix(ego_from_rectified @ matrix @ rigid(_BOX_AXES))[:, 3:]


def _only(files: Numbered, number: int) -> Numbered:
    return Numbered(folder=files.folder, paths={number: files.paths[number]} if number in files.paths else {}, bytes=0)


def _boxes_sensor() -> Sensor:
    return Sensor(
        name="boxes",
        kind="table",
        codec="table",
        frame="ego",
        fields=(
            Column(name="centre", dtype="float64", shape=(3,), unit="m", frame="ego"),
            Column(name="size", dtype="float64", shape=(3,), unit="m"),
            Column(name="rotation", dtype="float64", shape=(4,), frame="ego"),
            Column(name="velocity", dtype="float64", shape=(3,), unit="m/s", frame="ego"),
            Column(name="category", dtype="int32", categories=CATEGORIES),
            Column(name="track_id", dtype="str"),
            Column(name="attributes", dtype="str"),
            Column(name="visibility", dtype="int8"),
            Column(name="lidar_points", dtype="int32"),
            Column(name="radar_points", dtype="int32"),
            Column(name="bbox", dtype="float64", shape=(4,), unit="px"),
            Column(name="truncated", dtype="float64"),
            Column(name="occluded", dtype="int8"),
            Column(name="alpha", dtype="float64", unit="rad"),
        ),
    )

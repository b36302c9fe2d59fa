"""Argoverse 2 sensor logs. Sensors: "ego" (all poses), "lidar", each camera, "boxes", and "lidar_flow" where labels are.

Sweeps are kept as the files hold them: float16 metres in the ego frame at the sweep's stamp, ego motion taken out, with `t` in
ns from the stamp; decode to float32 before any transform. Cameras project with K alone, as the devkit does: the released
pictures are already undistorted, and `lens` (k1 k2 k3) describes the original lens. Maps and calibrations are attached.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, Problem, SourceError, UsageError
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Camera, Column, Schema, Sensor
from ..source import Attachment, DriveListing, Ignored, Payload, SourceDrive, SourceTimeline
from .argoverse2_files import BOX_CATEGORIES, poses_at, read_columns, read_extrinsics, read_poses

__all__ = ["Argoverse2Sensor"]

_LIDAR: Final = "lidar"
_FLOW: Final = "lidar_flow"
_BOXES: Final = "boxes"
_EGO_VEHICLE: Final = "EGO_VEHICLE"  # scenario mining's logs hold the car itself as a track
_TO_WORLD: Final = Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), frame="world")
_TO_EGO: Final = Column(name=SENSOR_TO_EGO, dtype="float64", shape=(7,), frame="ego")
_SWEEP: Final = {
    "x": "float16", "y": "float16", "z": "float16", "intensity": "uint8", "laser_number": "uint8", "offset_ns": "int32",
}  # fmt: skip
_SWEEP_FIELDS: Final = tuple(
    Column(
        name="t" if name == "offset_ns" else name, dtype=dtype, unit={"offset_ns": "ns"}.get(name, "m" if name in "xyz" else "")
    )
    for name, dtype in _SWEEP.items()
)
_FLOW_COLUMNS: Final = {
    "flow_tx_m": "float32", "flow_ty_m": "float32", "flow_tz_m": "float32",
    "classes": "uint8", "dynamic": "bool", "is_ground_0": "bool",
}  # fmt: skip
_FLOW_FIELDS: Final = tuple(
    Column(
        name=name,
        dtype=dtype,
        unit="m" if name.endswith("_m") else "",
        categories=("NONE", *BOX_CATEGORIES) if name == "classes" else (),
    )
    for name, dtype in _FLOW_COLUMNS.items()
)
_BOX: Final = {
    "timestamp_ns": "int64", "track_uuid": "str", "category": "str", "length_m": "float64", "width_m": "float64",
    "height_m": "float64", "qw": "float64", "qx": "float64", "qy": "float64", "qz": "float64", "tx_m": "float64",
    "ty_m": "float64", "tz_m": "float64", "num_interior_pts": "int32",
}  # fmt: skip
_CAMERA: Final = {"sensor_name": "str", **dict.fromkeys(("fx_px", "fy_px", "cx_px", "cy_px", "k1", "k2", "k3"), "float64"),
                  "height_px": "int32", "width_px": "int32"}  # fmt: skip
_IDENTITY: Final = np.array([0.0, 0, 0, 1, 0, 0, 0])
_POSES: Final = "city_SE3_egovehicle.feather"
_CALIBRATION: Final = ("calibration/egovehicle_SE3_sensor.feather", "calibration/intrinsics.feather")
_ANNOTATIONS: Final = ("annotations_with_ego.feather", "annotations.feather")
_MEDIA: Final = {".json": "application/json", ".npy": "application/x-npy", ".feather": "application/vnd.apache.arrow.file"}


class Argoverse2Sensor:
    """Logs of the sensor dataset, listed and checked."""

    kind = "argoverse2"

    def __init__(
        self,
        root: Path,
        logs: Mapping[str, Path],
        *,
        points_codec: Any,  # Any: a Literal
        licence: str,
        allow_empty_images: bool = False,
    ) -> None:
        self.licence, self._root, self._logs, self._allow_empty_images = licence, root, logs, allow_empty_images
        problems: list[Problem] = []
        ignored: list[Ignored] = []
        self._files = {name: self._list(folder, problems, ignored) for name, folder in logs.items()}
        taken = {sensor for files in self._files.values() for sensor in files}
        for name, folder in logs.items():
            cameras = any(sensor not in (_LIDAR, _FLOW, _BOXES) for sensor in self._files[name])
            for needed in (_POSES, *(_CALIBRATION if cameras else ())):
                if not (folder / needed).is_file():
                    problems.append(Problem(path=self._name(folder / needed), reason="is missing; download it", code="missing"))
        if problems:
            raise SourceError(f"cannot pack Argoverse 2 source {str(root)!r}: {len(problems)} problems", problems)
        everywhere = [name for name in (_LIDAR, _BOXES) if all(name in files for files in self._files.values())]
        self.schema = Schema(
            reference=everywhere[0] if everywhere else "ego",
            sensors=(
                Sensor(name="ego", kind="array", codec=None, columns=(_TO_WORLD,)),
                *(_sensor(name, points_codec) for name in sorted(taken)),
            ),
        )
        self.ignored = ignored
        self.listings = [
            DriveListing(
                name=name,
                source_bytes=sum(path.stat().st_size for files in self._files[name].values() for path in files.values()),
                attributes={"split": folder.parent.name, "city": _city(folder)},
            )
            for name, folder in logs.items()
        ]

    schema: Schema
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one log."""
        if name not in self._logs:
            raise UsageError(f"no drive {name!r} in this source; it has {len(self._logs)}, such as {next(iter(self._logs))!r}")
        folder, files = self._logs[name], self._files[name]
        try:
            return self._open(folder, files)
        except (ValueError, OSError) as error:
            raise SourceError(f"cannot open Argoverse 2 log {name!r}: {error}; download it again") from error

    def _open(self, folder: Path, files: Mapping[str, Mapping[int, Path]]) -> SourceDrive:
        pose_stamps, poses = self._checked(folder / _POSES, read_poses)
        boxes = self._boxes(next(iter(files[_BOXES].values()))) if _BOXES in files else None
        reference = self.schema.reference
        frame_stamps: NDArray[np.int64] = pose_stamps
        if reference == _LIDAR:
            frame_stamps = _stamps(files[_LIDAR])
        elif boxes is not None and reference == _BOXES:
            frame_stamps = np.unique(boxes["timestamp_ns"])
        timelines = {"ego": SourceTimeline(stamps=pose_stamps, columns={EGO_TO_WORLD: poses})}
        if any(sensor not in (_LIDAR, _FLOW, _BOXES) for sensor in files):
            extrinsics = self._checked(folder / _CALIBRATION[0], read_extrinsics)
            cameras = self._checked(folder / _CALIBRATION[1], lambda path: read_columns(path, _CAMERA))
        for sensor, paths in files.items():
            if sensor == _BOXES:
                assert boxes is not None
                stamps, starts = np.unique(boxes["timestamp_ns"], return_index=True)
                read = _box_reader(boxes, np.append(starts, len(boxes["timestamp_ns"])))
            else:
                stamps = _stamps(paths)
                read = self._reader(sensor, [paths[int(stamp)] for stamp in stamps])
            columns: dict[str, NDArray[Any]] = {EGO_TO_WORLD: poses_at(pose_stamps, poses, stamps, f"sensor {sensor!r}")}
            if sensor == _LIDAR:
                columns[SENSOR_TO_EGO] = np.tile(_IDENTITY, (len(stamps), 1))
            elif sensor not in (_FLOW, _BOXES):
                columns |= _camera_columns(sensor, extrinsics, cameras, len(stamps))
            exact = None if sensor not in (_LIDAR, _FLOW, _BOXES) else _rows_at(stamps, frame_stamps)
            names = [self._name(path) for path in paths.values()]
            timelines[sensor] = SourceTimeline(
                stamps=stamps,
                columns=columns,
                read=read,
                origin=lambda row, names=names: names[min(row, len(names) - 1)],  # type: ignore[misc]  # binds the loop's names
                own=exact,
            )
        return SourceDrive(timelines=timelines, attachments=self._attachments(folder))

    def _may_be_empty(self, sensor: str) -> bool:
        return self._allow_empty_images and sensor != _LIDAR

    def _list(self, folder: Path, problems: list[Problem], ignored: list[Ignored]) -> dict[str, dict[int, Path]]:
        """Return files by sensor and stamp."""
        found: dict[str, dict[int, Path]] = {}
        places = [(_LIDAR, folder / "sensors/lidar", ".feather")]
        if (folder / "sensors/cameras").is_dir():
            places += [(entry.name, entry, ".jpg") for entry in sorted((folder / "sensors/cameras").iterdir()) if entry.is_dir()]
        for sensor, place, suffix in places:
            for path in sorted(place.iterdir()) if place.is_dir() else ():
                if path.suffix != suffix or not path.stem.isascii() or not path.stem.isdigit() or len(path.stem) > 18:
                    ignored.append(Ignored(path=self._name(path), reason=f"is not named <stamp in ns>{suffix}"))
                elif path.is_symlink() or not path.is_file() or not (path.stat().st_size or self._may_be_empty(sensor)):
                    reason = "is not a regular file with content; download it again"
                    reason += ", or pass --bad-images reject" * (sensor != _LIDAR)
                    problems.append(Problem(path=self._name(path), reason=reason, sensor=sensor, code="truncated"))
                else:
                    found.setdefault(sensor, {})[int(path.stem)] = path
        annotations = [folder / name for name in _ANNOTATIONS if (folder / name).is_file()]
        if annotations:
            found[_BOXES] = {0: annotations[0]}
            ignored += [
                Ignored(path=self._name(path), reason=f"{annotations[0].name} holds the same") for path in annotations[1:]
            ]
        if (folder / "flow_labels.feather").is_file():
            if _LIDAR in found:
                found[_FLOW] = {min(found[_LIDAR]): folder / "flow_labels.feather"}
            else:
                reason = "labels points of the first sweep, and there is no sweep; download sensors/lidar"
                problems.append(Problem(path=self._name(folder / "flow_labels.feather"), reason=reason, code="dangling"))
        known = {"sensors", "calibration", "map", _POSES, *_ANNOTATIONS, "flow_labels.feather"}
        for entry in sorted(folder.iterdir()):
            if entry.name == "ego_motion.npz":
                ignored.append(
                    Ignored(path=self._name(entry), reason="motion between the first two sweeps, which the poses give")
                )
            elif entry.name not in known:
                ignored.append(Ignored(path=self._name(entry), reason="no part of the sensor layout that is taken"))
        return found

    def _reader(self, sensor: str, paths: Sequence[Path]) -> Callable[[int], Payload]:
        columns, fields = (_FLOW_COLUMNS, _FLOW_FIELDS) if sensor == _FLOW else (_SWEEP, _SWEEP_FIELDS)
        dtype = np.dtype([(field.name, field.numpy_dtype) for field in fields])

        def read(row: int) -> Payload:
            if sensor not in (_LIDAR, _FLOW):
                return paths[row].read_bytes()
            try:
                found = read_columns(paths[row], columns)
            except ValueError as error:
                raise DecodeError(
                    f"cannot read {self._name(paths[row])} (sensor {sensor!r}): {error}; download it again"
                ) from error
            records = np.empty(len(found[next(iter(columns))]), dtype)
            for name, field in zip(columns, fields, strict=True):
                records[field.name] = found[name]
            return records

        return read

    def _boxes(self, path: Path) -> dict[str, NDArray[Any]]:
        boxes = self._checked(path, lambda path: read_columns(path, _BOX, optional=("num_interior_pts",)))
        order = np.argsort(boxes["timestamp_ns"], kind="stable")
        boxes = {name: values[order] for name, values in boxes.items()}
        names = {name: number for number, name in enumerate((*BOX_CATEGORIES, _EGO_VEHICLE))}
        if unknown := sorted(set(boxes["category"].tolist()) - set(names)):
            raise ValueError(f"{self._name(path)}: class {unknown[0]!r} is none of the dataset's")
        boxes["category"] = np.array([names[name] for name in boxes["category"].tolist()], np.int32)
        return boxes

    def _attachments(self, folder: Path) -> list[Attachment]:
        paths = [*sorted((folder / "map").glob("*")), *(folder / name for name in _CALIBRATION)]
        return [
            Attachment(
                name=f"{path.parent.name}/{path.name}",
                media_type=_MEDIA.get(path.suffix, "application/octet-stream"),
                read=path.read_bytes,
            )
            for path in paths
            if path.is_file() and not path.is_symlink()
        ]

    def _name(self, path: Path) -> str:
        return path.relative_to(self._root).as_posix()

    def _checked(self, path: Path, read: Callable[[Path], Any]) -> Any:  # Any: what `read` returns
        try:
            return read(path)
        except ValueError as error:
            raise ValueError(f"{self._name(path)}: {error}") from error


def _sensor(name: str, points_codec: Any) -> Sensor:  # Any: a Literal
    if name == _LIDAR:
        return Sensor(
            name=name,
            kind="points",
            codec=points_codec,
            columns=(_TO_EGO, _TO_WORLD),
            fields=_SWEEP_FIELDS,
            frame="ego",
            deskewed=True,
        )
    if name == _FLOW:
        return Sensor(name=name, kind="points", codec=points_codec, columns=(_TO_WORLD,), fields=_FLOW_FIELDS, frame="ego")
    if name == _BOXES:
        return _boxes_sensor()
    columns = (
        Column(name=INTRINSICS, dtype="float64", shape=(3, 3), unit="px"),
        _TO_EGO,
        _TO_WORLD,
        Column(name="lens", dtype="float64", shape=(3,)),
        Column(name="width", dtype="int32", unit="px"),
        Column(name="height", dtype="int32", unit="px"),
    )
    return Sensor(name=name, kind="image", codec="jpeg", columns=columns, camera=Camera())


def _boxes_sensor() -> Sensor:
    return Sensor(
        name=_BOXES,
        kind="table",
        codec="table",
        columns=(_TO_WORLD,),
        frame="ego",
        fields=(
            Column(name="centre", dtype="float64", shape=(3,), unit="m", frame="ego"),
            Column(name="size", dtype="float64", shape=(3,), unit="m"),
            Column(name="rotation", dtype="float64", shape=(4,), frame="ego"),
            Column(name="velocity", dtype="float64", shape=(3,), unit="m/s", frame="ego"),
            Column(name="category", dtype="int32", categories=(*BOX_CATEGORIES, _EGO_VEHICLE)),
            Column(name="track_id", dtype="str"),
            Column(name="attributes", dtype="str"),
            Column(name="visibility", dtype="int8"),
            Column(name="lidar_points", dtype="int32"),
            Column(name="radar_points", dtype="int32"),
        ),
    )


def _box_reader(boxes: Mapping[str, NDArray[Any]], starts: NDArray[np.int64]) -> Callable[[int], Payload]:
    def read(row: int) -> Payload:
        part = slice(int(starts[row]), int(starts[row + 1]))
        count = part.stop - part.start
        points = boxes.get("num_interior_pts")
        return {
            "centre": np.stack([boxes[name][part] for name in ("tx_m", "ty_m", "tz_m")], 1),
            "size": np.stack([boxes[name][part] for name in ("length_m", "width_m", "height_m")], 1),
            "rotation": np.stack([boxes[name][part] for name in ("qw", "qx", "qy", "qz")], 1),
            "velocity": np.full((count, 3), np.nan),
            "category": boxes["category"][part],
            "track_id": boxes["track_uuid"][part].tolist(),
            "attributes": [""] * count,
            "visibility": np.zeros(count, np.int8),
            "lidar_points": np.full(count, -1, np.int32) if points is None else points[part],
            "radar_points": np.full(count, -1, np.int32),
        }

    return read


def _camera_columns(
    sensor: str, extrinsics: Mapping[str, NDArray[np.float64]], cameras: Mapping[str, NDArray[Any]], rows: int
) -> dict[str, NDArray[Any]]:
    names = cameras["sensor_name"].tolist()
    if sensor not in extrinsics or sensor not in names:
        raise ValueError(f"camera {sensor!r} has pictures and no calibration; it is given for {', '.join(names)}")
    of = {name: values[names.index(sensor)] for name, values in cameras.items()}
    k = np.array([[of["fx_px"], 0, of["cx_px"]], [0, of["fy_px"], of["cy_px"]], [0, 0, 1]], np.float64)
    return {
        INTRINSICS: np.tile(k, (rows, 1, 1)),
        SENSOR_TO_EGO: np.tile(extrinsics[sensor], (rows, 1)),
        "lens": np.tile(np.array([of["k1"], of["k2"], of["k3"]], np.float64), (rows, 1)),
        "width": np.full(rows, of["width_px"], np.int32),
        "height": np.full(rows, of["height_px"], np.int32),
    }


def _stamps(paths: Mapping[int, Path]) -> NDArray[np.int64]:
    return np.array(sorted(paths), np.int64)


def _rows_at(stamps: NDArray[np.int64], frames: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the row of each frame's very stamp, −1 for none."""
    row = np.minimum(np.searchsorted(stamps, frames), len(stamps) - 1)
    return np.where(stamps[row] == frames, row, -1).astype(np.int64)


@lru_cache(maxsize=4096)
def _city(folder: Path) -> str:
    """Return the city's short name from its map's file name, such as "PIT"."""
    for path in sorted((folder / "map").glob("log_map_archive_*____*_city_*.json")):
        return path.name.rsplit("____", 1)[1].split("_city_")[0]
    return ""

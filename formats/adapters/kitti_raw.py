"""KITTI raw data: a drive is a <date>_drive_NNNN_sync or _extract folder, its calibration the date's.

Sensors carry the source's names: "image_00" … "image_03", "velodyne_points" (with the sweep's start and end stamp), and "ego"
from oxts. Files are tied to frames by their number, not by their position: some drives miss sweeps. Ego is the GPS/IMU unit;
world has its origin at the drive's first position (latitude, longitude and altitude are attributes) and axes east, north, up,
by the devkit's Mercator projection. Poses of images and sweeps are interpolated from ego's. Stamps are local time without a
zone, taken as if it were UTC. Tracklets are not taken.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import pose
from ..errors import Problem, SourceError, UsageError
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Column, Schema, Sensor
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
    own_rows,
    parse_stamp,
    parsed,
    png_size,
    read_calibration,
    read_stamps,
    repeated,
    rigid,
    split_projection,
)

__all__ = ["KittiRaw", "gaps", "mercator_poses"]

_CAMERAS: Final = ("image_00", "image_01", "image_02", "image_03")
_SWEEPS: Final = "velodyne_points"
_TO_WORLD: Final = Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), frame="world")
# The 30 numbers of an oxts line, in order: name, unit, how many.
_OXTS: Final = (
    ("latitude_longitude_altitude", "", 3),
    ("roll_pitch_yaw", "rad", 3),
    ("velocity_ne_flu", "m/s", 5),
    ("acceleration_xyz_flu", "m/s2", 6),
    ("angular_rate_xyz_flu", "rad/s", 6),
    ("accuracy_position_velocity", "", 2),
    ("status", "", 5),
)
_OXTS_WIDTH: Final = sum(width for _, _, width in _OXTS)
_EARTH_M: Final = 6_378_137.0
_CALIBRATION: Final[Mapping[str, Mapping[str, tuple[int, int]]]] = {
    "calib_cam_to_cam.txt": {"R_rect_00": (3, 3), **{f"P_rect_0{k}": (3, 4) for k in range(4)}},
    "calib_velo_to_cam.txt": {"R": (3, 3), "T": (3, 1)},
    "calib_imu_to_velo.txt": {"R": (3, 3), "T": (3, 1)},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Timed:
    files: Numbered
    stamps: Mapping[str, NDArray[np.int64]]
    """"timestamps", and for sweeps "timestamps_start" and "timestamps_end": (lines,), ns, by file number."""


class KittiRaw:
    """Drives of the raw recordings, listed and checked."""

    kind = "kitti"

    def __init__(
        self,
        root: Path,
        *,
        split: str | None,
        allow_missing: bool,
        without_calibration: bool,
        points_codec: Any,  # Any: a Literal
        licence: str,
    ) -> None:
        self.licence, self._root = licence, root
        problems: list[Problem] = []
        ignored: list[Ignored] = []
        self._drives: dict[str, dict[str, _Timed]] = {}
        self._folders: dict[str, Path] = {}
        for folder in sorted([*root.glob("*_sync"), *root.glob("*_extract"), *root.glob("*/*_sync"), *root.glob("*/*_extract")]):
            name = folder.name if folder.name.startswith("20") else f"{folder.parent.name}_{folder.name}"
            if folder.is_dir() and split in (None, name):
                self._folders[name] = folder
                self._drives[name] = self._read(folder, allow_missing, problems, ignored)
        if not self._drives:
            raise UsageError(f"kitti raw: no drive {split or '<date>_drive_NNNN_sync'!r} under {str(root)!r}")
        taken = sorted({sensor for drive in self._drives.values() for sensor in drive})
        self._calibrations = {} if without_calibration else self._calibrate(problems)
        everywhere = [name for name in (_SWEEPS, *_CAMERAS, "oxts") if all(name in drive for drive in self._drives.values())]
        if not everywhere:
            reason = "no sensor has files in all drives; pack them apart (--split)"
            problems.append(Problem(path=str(root), reason=reason, code="absent"))
        self._posed = "oxts" in everywhere
        if not self._posed and "oxts" in taken:
            reason = "oxts are in some drives and not in others; download them all, or pack those drives apart (--split)"
            problems.append(Problem(path=str(root), reason=reason, code="missing"))
        self.listings = sorted((self._list(name, problems) for name in self._drives), key=lambda listing: listing.name)
        if problems:
            raise SourceError(f"cannot pack KITTI source {str(root)!r}: {len(problems)} problems", problems)
        self.ignored = ignored
        world = (_TO_WORLD,) if self._posed else ()
        calibrated = not without_calibration
        sensors = [self._sensor(name, points_codec, world, calibrated) for name in taken]
        self._reference = "ego" if everywhere[0] == "oxts" else everywhere[0]
        self.schema = Schema(reference=self._reference, sensors=tuple(sensors))

    schema: Schema
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one drive."""
        if name not in self._drives:
            raise UsageError(f"no drive {name!r} in this source; it has {', '.join(self._drives)}")
        drive = self._drives[name]
        frames = sorted(drive["oxts" if self._reference == "ego" else self._reference].files.paths)
        calibration = self._calibrations.get(self._folders[name].parent)
        timelines: dict[str, SourceTimeline] = {}
        ego: tuple[NDArray[np.int64], NDArray[np.float64]] | None = None
        if "oxts" in drive:
            oxts = drive["oxts"]
            numbers = sorted(oxts.files.paths)
            values = np.array([_oxts_line(oxts.files.paths[number]) for number in numbers])
            stamps, first = np.unique(oxts.stamps["timestamps"][numbers], return_index=True)
            values, numbers = values[first], [numbers[k] for k in first]
            ego = stamps, mercator_poses(values)
            columns: dict[str, NDArray[Any]] = {EGO_TO_WORLD: ego[1]}
            at = 0
            for column, _, width in _OXTS:
                part = values[:, at : at + width]
                columns[column] = part.astype(np.int32) if column == "status" else part
                at += width
            rows = {number: k for k, number in enumerate(numbers)}
            own = np.array([rows.get(number, -1) for number in frames], np.int64)
            timelines["ego"] = SourceTimeline(stamps=stamps, columns=columns, own=own)
        for sensor in self.schema.sensors:
            if sensor.name == "ego" or sensor.name not in drive:
                continue
            timed = drive[sensor.name]
            numbers = sorted(timed.files.paths)
            stamps = timed.stamps["timestamps"][numbers]
            columns = {}
            if calibration is not None:
                columns = _place(sensor.name, calibration, len(numbers))
            if ego is not None:
                columns[EGO_TO_WORLD] = pose.interpolate(*ego, stamps)
            if sensor.name == _SWEEPS:
                columns["start_stamp"] = timed.stamps["timestamps_start"][numbers]
                columns["end_stamp"] = timed.stamps["timestamps_end"][numbers]
            own = own_rows(frames, timed.files)
            timelines[sensor.name] = file_timeline(timed.files, stamps, columns, sensor=sensor, root=self._root, own=own)
        return SourceDrive(timelines=timelines)

    def _read(self, folder: Path, allow_missing: bool, problems: list[Problem], ignored: list[Ignored]) -> dict[str, _Timed]:
        found: dict[str, _Timed] = {}
        for entry in sorted(folder.iterdir()):
            where = entry.relative_to(self._root).as_posix()
            if entry.name not in (_SWEEPS, *_CAMERAS, "oxts"):
                what = (
                    "tracklets are not taken" if entry.name.startswith("tracklet") else "no part of the raw layout that is taken"
                )
                ignored.append(Ignored(path=where, reason=what))
                continue
            suffix = {_SWEEPS: ".bin", "oxts": ".txt"}.get(entry.name, ".png")
            files = numbered(entry / "data", suffix, self._root, problems)
            names = ("timestamps", "timestamps_start", "timestamps_end") if entry.name == _SWEEPS else ("timestamps",)
            stamps = {
                name: read
                for name in names
                if (read := parsed(problems, f"{where}/{name}.txt", read_stamps, entry / f"{name}.txt", parse_stamp)) is not None
            }
            if len(stamps) < len(names):
                continue
            lines = len(stamps["timestamps"])
            if any(len(other) != lines for other in stamps.values()):
                reason = (
                    f"stamp files of {[len(other) for other in stamps.values()]} lines, expected equal numbers; copy them again"
                )
                problems.append(Problem(path=where, reason=reason, code="layout"))
                continue
            for number in [number for number in files.paths if number >= lines]:
                reason = f"has no stamp: there are {lines} lines; copy timestamps.txt again"
                problems.append(Problem(path=f"{where}/data/{number:010}{suffix}", reason=reason, code="dangling"))
            if not files.paths:
                ignored.append(Ignored(path=where, reason="holds stamps and no files"))
                continue
            gaps(files, lines, where, allow_missing=allow_missing, problems=problems, ignored=ignored)
            _check_files(files, entry.name, self._root, problems)
            times = stamps["timestamps"][sorted(number for number in files.paths if number < lines)]
            if entry.name != "oxts" and (np.diff(times) <= 0).any():
                reason = "stamps do not ascend with the file numbers; copy timestamps.txt again"
                problems.append(Problem(path=f"{where}/timestamps.txt", reason=reason, code="duplicate"))
            found[entry.name] = _Timed(files=files, stamps=stamps)
        return found

    def _calibrate(self, problems: list[Problem]) -> dict[Path, dict[str, dict[str, NDArray[np.float64]]]]:
        found: dict[Path, dict[str, dict[str, NDArray[np.float64]]]] = {}
        for date in sorted({folder.parent for folder in self._folders.values()}):
            read = {}
            for name, shapes in _CALIBRATION.items():
                where = (date / name).relative_to(self._root).as_posix() if date.is_relative_to(self._root) else name
                try:
                    read[name] = read_calibration(date / name, shapes)
                except FileNotFoundError:
                    reason = "is missing; download the date's calibration, or pack without it (--without-calibration)"
                    problems.append(Problem(path=where, reason=reason, code="missing"))
                except (ValueError, OSError) as error:
                    problems.append(Problem(path=where, reason=f"{error}; copy the file again", code="layout"))
            found[date] = read
        return found

    def _list(self, name: str, problems: list[Problem]) -> DriveListing:
        drive, attributes = self._drives[name], dict[str, str | int | float | bool]()
        if "oxts" in drive and drive["oxts"].files.paths:
            first = drive["oxts"].files.paths[min(drive["oxts"].files.paths)]
            line = parsed(problems, first.relative_to(self._root).as_posix(), _oxts_line, first)
            if line is not None:
                attributes = dict(zip(("latitude", "longitude", "altitude"), line[:3].tolist(), strict=True))
        return DriveListing(name=name, source_bytes=sum(timed.files.bytes for timed in drive.values()), attributes=attributes)

    def _sensor(self, name: str, points_codec: Any, world: tuple[Column, ...], calibrated: bool) -> Sensor:  # Any: a Literal
        if name == "oxts":
            columns = [
                Column(name=column, dtype="int32" if column == "status" else "float64", shape=(width,), unit=unit)
                for column, unit, width in _OXTS
            ]
            return Sensor(name="ego", kind="array", codec=None, columns=(*world, *columns))
        place = (TO_EGO,) if calibrated else ()
        if name != _SWEEPS:
            return camera_sensor(name, (*((K,) if calibrated else ()), *place, *world))
        turn = tuple(Column(name=f"{end}_stamp", dtype="int64", unit="ns") for end in ("start", "end"))
        return Sensor(name=name, kind="points", codec=points_codec, columns=(*place, *world, *turn), fields=POINT_FIELDS)


def mercator_poses(oxts: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return ego_to_world (n, 7) of oxts lines (n, 30): the devkit's projection, the first position as origin."""
    latitude, longitude, altitude, roll, pitch, yaw = oxts[:, :6].T
    scale = np.cos(np.deg2rad(latitude[0]))
    east = scale * _EARTH_M * np.deg2rad(longitude)
    north = scale * _EARTH_M * np.log(np.tan(np.deg2rad(90 + latitude) / 2))
    place = np.stack([east, north, altitude], 1)
    half = np.stack([roll, pitch, yaw], 1) / 2
    zero = np.zeros(len(oxts))
    turns = [np.stack([np.cos(half[:, k]), *(np.sin(half[:, k]) if k == j else zero for j in range(3))], 1) for k in range(3)]
    poses = [np.concatenate([np.zeros((len(oxts), 3)), turn], 1) for turn in turns]
    turned = pose.compose(poses[2], pose.compose(poses[1], poses[0]))
    return np.concatenate([place - place[0], turned[:, 3:]], 1)


def gaps(
    files: Numbered, lines: int, where: str, *, allow_missing: bool, problems: list[Problem], ignored: list[Ignored]
) -> None:
    """Note the stamps that have no file: refused, or listed as ignored where missing files are allowed."""
    missing = [number for number in range(lines) if number not in files.paths]
    if not missing:
        return
    reason = f"{len(missing)} of {lines} stamps have no file, the first is number {missing[0]}"
    if allow_missing:
        ignored.append(Ignored(path=where, reason=reason))
    else:
        remedy = "download them, or take the drive as it is (--allow-missing)"
        problems.append(Problem(path=where, reason=f"{reason}; {remedy}", code="missing"))


def _check_files(files: Numbered, sensor: str, root: Path, problems: list[Problem]) -> None:
    for path in files.paths.values():
        where = path.relative_to(root).as_posix()
        if sensor == _SWEEPS and path.stat().st_size % 16:
            reason = f"{path.stat().st_size} bytes, expected a multiple of 16; copy it again"
            problems.append(Problem(path=where, reason=reason, sensor=sensor, code="truncated"))
        elif sensor == "oxts":
            parsed(problems, where, _oxts_line, path)
        elif sensor in _CAMERAS:
            parsed(problems, where, png_size, path)


def _oxts_line(path: Path) -> NDArray[np.float64]:
    values = np.array([float(word) for word in path.read_text(encoding="ascii").split()])
    if len(values) != _OXTS_WIDTH or not np.isfinite(values).all():
        raise ValueError(f"{len(values)} numbers, an oxts line has {_OXTS_WIDTH} finite ones")
    return values


def _place(sensor: str, calibration: Mapping[str, Mapping[str, NDArray[np.float64]]], rows: int) -> dict[str, NDArray[Any]]:
    camera, velodyne, imu = (calibration[name] for name in _CALIBRATION)
    ego_from_velodyne = inverse(rigid(np.hstack([imu["R"], imu["T"]])))
    if sensor == _SWEEPS:
        return {SENSOR_TO_EGO: repeated(ego_from_velodyne, rows)}
    rectified = rigid(camera["R_rect_00"]) @ rigid(np.hstack([velodyne["R"], velodyne["T"]]))
    k, offset = split_projection(camera[f"P_rect_{sensor[-2:]}"])
    to_ego = ego_from_velodyne @ inverse(offset @ rectified)
    return {INTRINSICS: np.tile(k, (rows, 1, 1)), SENSOR_TO_EGO: repeated(to_ego, rows)}

"""KITTI odometry: a drive is a sequence; sensors "image_0" … "image_3", "velodyne" and "ego" (poses, for sequences 00 to 10).

Ego is camera 0 with its axes turned to x forward, y left, z up; world is ego at the sequence's first frame. So poses need no
calibration: they are the benchmark's, turned. Stamps are the sequence's own, from zero, read without a float.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import pose
from ..errors import Problem, SourceError, UsageError
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Column, Schema, Sensor
from ..source import DriveListing, Ignored, SourceDrive, SourceTimeline
from .kitti_files import (
    EGO_FROM_CAMERA,
    POINT_FIELDS,
    TO_EGO,
    K,
    Numbered,
    camera_sensor,
    file_timeline,
    inverse,
    numbered,
    odometry_stamp,
    own_rows,
    parsed,
    png_size,
    read_calibration,
    read_lines,
    read_stamps,
    repeated,
    rigid,
    split_projection,
)
from .kitti_raw import gaps

__all__ = ["KittiOdometry"]

_CAMERAS: Final = ("image_0", "image_1", "image_2", "image_3")
_MATRICES: Final = {**{f"P{k}": (3, 4) for k in range(4)}, "Tr": (3, 4)}
_TO_WORLD: Final = Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), frame="world")


class KittiOdometry:
    """Sequences of the odometry benchmark, listed and checked."""

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
        folders = {path.name: path for path in sorted((root / "sequences").iterdir()) if path.is_dir()}
        self._folders = {name: path for name, path in folders.items() if split in (None, name)}
        if not self._folders:
            raise UsageError(
                f"kitti odometry: no sequence {split!r} under {str(root / 'sequences')!r}; it has {', '.join(folders)}"
            )
        self._times: dict[str, NDArray[np.int64]] = {}
        self._poses: dict[str, NDArray[np.float64]] = {}
        self._files: dict[str, dict[str, Numbered]] = {}
        for name, folder in self._folders.items():
            self._read(name, folder, allow_missing, problems, ignored)
        self.ignored = ignored
        self._calibrations = {} if without_calibration else self._calibrate(problems)
        present = [kind for kind in ("velodyne", *_CAMERAS) if all(kind in files for files in self._files.values())]
        posed = all(name in self._poses for name in self._folders)
        if not present and not posed:
            reason = "no sensor and no poses in all sequences; pack them apart (--split)"
            problems.append(Problem(path="sequences", reason=reason, code="absent"))
        if self._poses and not posed:
            reason = f"only {', '.join(sorted(self._poses))} have poses; pack sequences with and without them apart (--split)"
            problems.append(Problem(path="poses", reason=reason, code="missing"))
        if problems:
            raise SourceError(f"cannot pack KITTI source {str(root)!r}: {len(problems)} problems", problems)
        self.listings = [
            DriveListing(name=name, source_bytes=sum(files.bytes for files in self._files[name].values()))
            for name in sorted(self._folders)
        ]
        place, world = () if without_calibration else (TO_EGO,), (_TO_WORLD,) if posed else ()
        sensors = [Sensor(name="ego", kind="array", codec=None, columns=(_TO_WORLD,))] if posed else []
        for kind in sorted({kind for files in self._files.values() for kind in files}):
            if kind == "velodyne":
                columns = (*place, *world)
                sensors.append(Sensor(name=kind, kind="points", codec=points_codec, columns=columns, fields=POINT_FIELDS))
            else:
                sensors.append(camera_sensor(kind, (*((K,) if place else ()), *place, *world)))
        self.schema = Schema(reference=present[0] if present else "ego", sensors=tuple(sensors))

    schema: Schema
    listings: Sequence[DriveListing]
    ignored: Sequence[Ignored]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one sequence."""
        if name not in self._folders:
            raise UsageError(f"no drive {name!r} in this source; it has {', '.join(self._folders)}")
        times, files, reference = self._times[name], self._files[name], self.schema.reference
        frames = list(range(len(times))) if reference == "ego" else sorted(files[reference].paths)
        timelines: dict[str, SourceTimeline] = {}
        if name in self._poses:
            timelines["ego"] = SourceTimeline(
                stamps=times, columns={EGO_TO_WORLD: self._poses[name]}, own=np.array(frames, np.int64)
            )
        for kind, found in files.items():
            numbers = sorted(found.paths)
            columns = self._place(kind, self._calibrations[name], len(numbers)) if name in self._calibrations else {}
            if name in self._poses:
                columns[EGO_TO_WORLD] = self._poses[name][numbers]
            timelines[kind] = file_timeline(
                found, times[numbers], columns, sensor=self.schema.sensor(kind), root=self._root, own=own_rows(frames, found)
            )
        return SourceDrive(timelines=timelines)

    def _read(self, name: str, folder: Path, allow_missing: bool, problems: list[Problem], ignored: list[Ignored]) -> None:
        where = f"sequences/{name}"
        read = parsed(problems, f"{where}/times.txt", read_stamps, folder / "times.txt", odometry_stamp)
        times = self._times[name] = np.zeros(0, np.int64) if read is None else read
        if (np.diff(times) <= 0).any():
            problems.append(Problem(path=f"{where}/times.txt", reason="times do not ascend; copy it again", code="duplicate"))
        path = self._root / "poses" / f"{name}.txt"
        if path.exists():
            matrices = parsed(problems, f"poses/{name}.txt", _read_poses, path, len(times))
            if matrices is not None:
                self._poses[name] = pose.from_matrix(EGO_FROM_CAMERA @ matrices @ EGO_FROM_CAMERA.T)
        self._files[name] = {}
        for entry in sorted(folder.iterdir()):
            if entry.name in ("times.txt", "calib.txt"):
                continue
            if entry.name not in ("velodyne", *_CAMERAS):
                ignored.append(Ignored(path=f"{where}/{entry.name}", reason="no part of the odometry layout that is taken"))
                continue
            suffix = ".bin" if entry.name == "velodyne" else ".png"
            files = numbered(entry, suffix, self._root, problems)
            for number, file in files.paths.items():
                at = f"{where}/{entry.name}/{file.name}"
                if number >= len(times):
                    reason = f"has no time: times.txt has {len(times)} lines; copy it again"
                    problems.append(Problem(path=at, reason=reason, code="dangling"))
                elif entry.name == "velodyne" and file.stat().st_size % 16:
                    reason = f"{file.stat().st_size} bytes, expected a multiple of 16; copy it again"
                    problems.append(Problem(path=at, reason=reason, sensor=entry.name, code="truncated"))
                elif entry.name != "velodyne":
                    parsed(problems, at, png_size, file)
            if files.paths:
                gaps(
                    files,
                    len(times),
                    f"{where}/{entry.name}",
                    allow_missing=allow_missing,
                    problems=problems,
                    ignored=ignored,
                )
                self._files[name][entry.name] = files

    def _calibrate(self, problems: list[Problem]) -> dict[str, dict[str, NDArray[np.float64]]]:
        found = {}
        for name, folder in self._folders.items():
            if not self._files[name]:
                continue  # poses alone need none
            try:
                found[name] = read_calibration(folder / "calib.txt", _MATRICES)
            except FileNotFoundError:
                reason = "is missing; download the calibration, or pack without it (--without-calibration)"
                problems.append(Problem(path=f"sequences/{name}/calib.txt", reason=reason, code="missing"))
            except (ValueError, OSError) as error:
                reason = f"{error}; copy the file again"
                problems.append(Problem(path=f"sequences/{name}/calib.txt", reason=reason, code="layout"))
        return found

    @staticmethod
    def _place(kind: str, calibration: dict[str, NDArray[np.float64]], rows: int) -> dict[str, NDArray[Any]]:
        if kind == "velodyne":
            return {SENSOR_TO_EGO: repeated(EGO_FROM_CAMERA @ rigid(calibration["Tr"]), rows)}
        k, offset = split_projection(calibration[f"P{kind[-1]}"])
        to_ego = EGO_FROM_CAMERA @ inverse(offset)
        return {INTRINSICS: np.tile(k, (rows, 1, 1)), SENSOR_TO_EGO: repeated(to_ego, rows)}


def _read_poses(path: Path, frames: int) -> NDArray[np.float64]:
    lines = read_lines(path)
    values = np.array([[float(word) for word in line.split()] for line in lines])
    if len(lines) != frames or values.shape != (frames, 12) or not np.isfinite(values).all():
        raise ValueError(f"{len(lines)} lines, expected 12 finite numbers for each of the {frames} times")
    matrices = np.tile(np.eye(4), (frames, 1, 1))
    matrices[:, :3] = values.reshape(frames, 3, 4)
    return matrices

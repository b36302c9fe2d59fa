"""The files KITTI's three layouts share: calibrations, sweeps, pictures, labels, stamps; and timelines over numbered files.

Parsers raise `ValueError` with what was found against what was expected; preflight turns that into a `Problem`, reading a
payload into a `DecodeError`.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .. import pose
from ..errors import DecodeError, Problem
from ..limits import DEFAULT_LIMITS
from ..schema import INTRINSICS, SENSOR_TO_EGO, Camera, Column, Sensor
from ..source import Payload, SourceTimeline

__all__ = [
    "EGO_FROM_CAMERA",
    "POINT_FIELDS",
    "TO_EGO",
    "K",
    "Numbered",
    "camera_sensor",
    "file_timeline",
    "inverse",
    "numbered",
    "odometry_stamp",
    "own_rows",
    "parse_stamp",
    "parsed",
    "png_size",
    "read_calibration",
    "read_lines",
    "read_stamps",
    "read_sweep",
    "repeated",
    "rigid",
    "split_projection",
]

POINT_FIELDS: Final = (
    Column(name="x", dtype="float32", unit="m"),
    Column(name="y", dtype="float32", unit="m"),
    Column(name="z", dtype="float32", unit="m"),
    Column(name="reflectance", dtype="float32"),
)
K: Final = Column(name=INTRINSICS, dtype="float64", shape=(3, 3), unit="px")
TO_EGO: Final = Column(name=SENSOR_TO_EGO, dtype="float64", shape=(7,), frame="ego")
# Camera axes (x right, y down, z forward) turned into ego axes (x forward, y left, z up), the place unchanged.
EGO_FROM_CAMERA: Final = np.array([[0.0, 0, 1, 0], [-1, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1]])

_TEXT_BYTES: Final = 64 << 20
_STAMP: Final = re.compile(r"(\d{4})-(\d\d)-(\d\d) (\d\d):(\d\d):(\d\d)\.(\d{1,9})")
_PNG: Final = b"\x89PNG\r\n\x1a\n"
_RECORD: Final = np.dtype([(field.name, "<f4") for field in POINT_FIELDS])


@dataclass(frozen=True, slots=True, kw_only=True)
class Numbered:
    """Files of one folder by the number that is their name."""

    folder: Path
    paths: Mapping[int, Path]
    bytes: int


def numbered(folder: Path, suffix: str, root: Path, problems: list[Problem]) -> Numbered:
    """Return the files "<digits><suffix>" of a folder, ascending; links and empty files are problems."""
    found: dict[int, Path] = {}
    size = 0
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        if path.suffix != suffix or not path.stem.isascii() or not path.stem.isdigit():
            continue
        where = path.relative_to(root).as_posix()
        if path.is_symlink() or not path.is_file():
            problems.append(Problem(path=where, reason="is not a regular file; copy it into the source", code="layout"))
        elif int(path.stem) in found:
            problems.append(Problem(path=where, reason=f"has the number of {found[int(path.stem)].name}", code="duplicate"))
        else:
            found[int(path.stem)] = path
            size += path.stat().st_size
    return Numbered(folder=folder, paths=found, bytes=size)


def read_lines(path: Path) -> list[str]:
    """Return a text file's lines; blank ones at the end are normal and left out."""
    if path.stat().st_size > _TEXT_BYTES:
        raise ValueError(f"{path.stat().st_size} bytes, at most {_TEXT_BYTES} are read as text")
    lines = path.read_text(encoding="ascii").splitlines()
    while lines and not lines[-1].strip():
        lines.pop()
    return lines


def read_calibration(path: Path, shapes: Mapping[str, tuple[int, int]]) -> dict[str, NDArray[np.float64]]:
    """Return the named matrices of a "NAME: numbers" file; other names (dates, distortions) are passed over."""
    found: dict[str, NDArray[np.float64]] = {}
    for line in read_lines(path):
        name, colon, numbers = line.partition(":")
        if colon and name in shapes:
            values = np.array([float(number) for number in numbers.split()])
            if values.size != np.prod(shapes[name]) or not np.isfinite(values).all():
                raise ValueError(f"{name!r} has {values.size} numbers, expected {int(np.prod(shapes[name]))} finite ones")
            found[name] = values.reshape(shapes[name])
    if missing := [name for name in shapes if name not in found]:
        raise ValueError(f"no {missing[0]!r}; it has {sorted(found)}")
    return found


def rigid(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the (4, 4) of a (3, 3) rotation or a (3, 4) transform."""
    whole = np.eye(4)
    whole[:3, : matrix.shape[1]] = matrix
    return whole


def inverse(matrix: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the inverse of a (4, 4)."""
    return np.asarray(np.linalg.inv(matrix), np.float64)


def read_stamps(path: Path, parse: Callable[[str], int]) -> NDArray[np.int64]:
    """Return one stamp a line, ns."""
    return np.array([parse(line) for line in read_lines(path)], np.int64)


def split_projection(projection: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return K and the transform from rectified camera 0 to this camera, of a (3, 4) projection K [I | t]."""
    k = projection[:, :3]
    offset = np.eye(4)
    offset[:3, 3] = np.linalg.solve(k, projection[:, 3])
    return k, offset


def parse_stamp(text: str) -> int:
    """Return ns of "2011-09-26 14:30:14.950485851". KITTI writes local time and no zone: it is taken as if it were UTC."""
    match = _STAMP.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"stamp {text!r} is not YYYY-MM-DD HH:MM:SS.fraction")
    year, month, day, hour, minute, second = (int(part) for part in match.groups()[:6])
    days = datetime.date(year, month, day).toordinal() - datetime.date(1970, 1, 1).toordinal()
    return (days * 86_400 + hour * 3600 + minute * 60 + second) * 1_000_000_000 + int(match.group(7).ljust(9, "0"))


def odometry_stamp(text: str) -> int:
    """Return ns of seconds such as "4.704779e+02", exactly."""
    try:
        stamp = Decimal(text.strip()) * 1_000_000_000
    except InvalidOperation:
        raise ValueError(f"time {text!r} is not a number of seconds") from None
    if not stamp.is_finite() or abs(stamp) > 1 << 62 or stamp != stamp.to_integral_value():
        raise ValueError(f"time {text!r} is not a whole number of nanoseconds")
    return int(stamp)


def png_size(path: Path) -> tuple[int, int]:
    """Return width and height from a PNG's header."""
    with path.open("rb") as file:
        head = file.read(24)
    if len(head) < 24 or head[:8] != _PNG or head[12:16] != b"IHDR":
        raise ValueError(f"first bytes {head[:8]!r}, expected a PNG")
    return int.from_bytes(head[16:20], "big"), int.from_bytes(head[20:24], "big")


def read_sweep(path: Path, what: str) -> Payload:
    """Return the records of a velodyne file: float32 x y z reflectance."""
    size = path.stat().st_size
    if size % _RECORD.itemsize or size // _RECORD.itemsize > DEFAULT_LIMITS.points:
        raise DecodeError(
            f"cannot read {what}: {size} bytes, expected a multiple of 16 (x y z reflectance, float32) and at most "
            f"{DEFAULT_LIMITS.points} points; copy the file again"
        )
    return np.frombuffer(path.read_bytes(), _RECORD)


def camera_sensor(name: str, columns: Sequence[Column]) -> Sensor:
    """Return a rectified PNG camera; its sizes differ between drives, and the packer adds them to each row."""
    return Sensor(name=name, kind="image", codec="png", columns=tuple(columns), camera=Camera())


def file_timeline(
    files: Numbered,
    stamps: NDArray[np.int64],
    columns: Mapping[str, NDArray[Any]],
    *,
    sensor: Sensor,
    root: Path,
    own: NDArray[np.int64] | None,
) -> SourceTimeline:
    """Return the timeline of numbered files, whose `stamps` and `columns` are in the order of their numbers."""
    paths = [files.paths[number] for number in sorted(files.paths)]

    def origin(row: int) -> str:
        return paths[row].relative_to(root).as_posix()

    def read(row: int) -> Payload:
        if sensor.kind == "image":
            return paths[row].read_bytes()
        return read_sweep(paths[row], f"{origin(row)} (sensor {sensor.name!r}, stamp {int(stamps[row])})")

    return SourceTimeline(stamps=stamps, columns=columns, read=read, origin=origin, own=own)


def own_rows(frames: Sequence[int], files: Numbered) -> NDArray[np.int64]:
    """Return, for each frame's number, the row of the file of that number; −1 for none."""
    row = {number: k for k, number in enumerate(sorted(files.paths))}
    return np.array([row.get(number, -1) for number in frames], np.int64)


def repeated(matrix: NDArray[np.float64], rows: int) -> NDArray[np.float64]:
    """Return a pose, one row for each of `rows`."""
    return np.tile(pose.from_matrix(matrix), (rows, 1))


def parsed(problems: list[Problem], where: str, parse: Callable[..., Any], *arguments: Any) -> Any:  # Any: passed through
    """Return `parse(*arguments)`, or None after noting why it could not."""
    try:
        return parse(*arguments)
    except FileNotFoundError:
        problems.append(Problem(path=where, reason="is missing; download it beside the data", code="missing"))
    except (ValueError, OSError) as error:
        problems.append(Problem(path=where, reason=f"{error}; copy the file again", code="layout"))
    return None

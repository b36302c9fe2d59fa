"""A plain folder described by a small YAML file: for logs that no adapter knows.

One sub-folder a drive. Each sensor names its files by a pattern that holds the stamp, or one CSV file with a stamp column:

    reference: front
    licence: internal
    sensors:
      front: {kind: image, files: "cameras/front/{stamp}.jpg", unit: us, intrinsics: [[900, 0, 640], [0, 900, 360], [0, 0, 1]],
              sensor_to_ego: [1.5, 0, 1.6, 0.5, -0.5, 0.5, -0.5]}
      lidar: {kind: points, files: "lidar/{stamp}.bin", unit: us,
              fields: [x:float32:m, y:float32:m, z:float32:m, intensity:float32]}
      ego:   {kind: array, csv: poses.csv, unit: ns, columns: {ego_to_world: [x, y, z, qw, qx, qy, qz]}}
      notes: {kind: text, files: "notes/{stamp}.txt", unit: ms}

Poses are x y z qw qx qy qz. Where there is an `ego` sensor with `ego_to_world`, images and points get theirs by interpolation.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, MissingExtra, Problem, SourceError, UsageError
from ..limits import DEFAULT_LIMITS
from ..pcd import read_pcd
from ..pose import interpolate
from ..schema import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, Camera, Column, Schema, Sensor
from ..source import DriveListing, Ignored, Payload, SourceDrive, SourceTimeline
from .registry import SourceSpec

__all__ = ["DESCRIPTION", "Folder", "open_source"]

DESCRIPTION: Final = "headway.yaml"
_UNITS: Final[Mapping[str, int]] = {"ns": 1, "us": 1_000, "ms": 1_000_000, "s": 1_000_000_000}
_STATIC: Final[Mapping[str, tuple[int, ...]]] = {INTRINSICS: (3, 3), SENSOR_TO_EGO: (7,)}
_KEYS: Final[Mapping[str, set[str]]] = {
    "image": {"kind", "files", "unit", "camera", "colour", *_STATIC},
    "points": {"kind", "files", "unit", "fields", "frame", "deskewed", SENSOR_TO_EGO},
    "text": {"kind", "files", "unit"},
    "array": {"kind", "csv", "unit", "stamp", "columns"},
}


def open_source(spec: SourceSpec) -> Folder:
    """Open a described folder.

    Options: `description` names the YAML file (default headway.yaml inside the folder); `bad_images` is what the packer will do
    with them: unless "fail", empty ones are no reason to refuse the source.
    """
    if unknown := set(spec.options) - {"description", "bad_images"}:
        raise UsageError(f"folder has no option {sorted(unknown)}; it has ['bad_images', 'description']")
    return Folder(
        spec.path,
        description=str(spec.options.get("description") or DESCRIPTION),
        allow_empty_images=spec.options.get("bad_images", "fail") != "fail",
    )


class Folder:
    """Sub-folders seen as drives."""

    kind = "folder"

    def __init__(self, path: str | Path, *, description: str = DESCRIPTION, allow_empty_images: bool = False) -> None:
        self.root = Path(path)
        self._allow_empty_images = allow_empty_images
        text = _read_description(self.root / description)
        self._sensors: dict[str, dict[str, Any]] = text["sensors"]
        self.licence = str(text.get("licence", ""))
        self.schema = Schema(reference=str(text["reference"]), sensors=tuple(self._sensor(name) for name in self._sensors))
        drives = sorted(entry for entry in self.root.iterdir() if entry.is_dir())
        problems: list[Problem] = []
        self._files: dict[str, dict[str, dict[int, Path]]] = {}
        for drive in drives:
            self._files[drive.name] = {
                name: self._find(drive, name, problems) for name in self._sensors if "files" in self._sensors[name]
            }
            problems += [
                Problem(path=str((drive / item["csv"]).relative_to(self.root)), reason="is missing", sensor=name, code="missing")
                for name, item in self._sensors.items()
                if "csv" in item and not (drive / item["csv"]).is_file()
            ]
            reference = self._files[drive.name].get(self.schema.reference)
            if reference is not None and not reference:
                problems.append(
                    Problem(
                        path=drive.name, reason="no file of the reference sensor", sensor=self.schema.reference, code="absent"
                    )
                )
        if not drives:
            problems.append(
                Problem(path=str(self.root), reason="holds no folders; each drive is a folder of its own", code="absent")
            )
        if problems:
            raise SourceError(f"cannot pack {self.root}: {len(problems)} problems", problems)
        self.ignored: Sequence[Ignored] = self._list_ignored(drives, description)
        self.listings: Sequence[DriveListing] = [
            DriveListing(
                name=drive.name,
                source_bytes=sum(path.stat().st_size for files in self._files[drive.name].values() for path in files.values()),
            )
            for drive in drives
        ]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one sub-folder."""
        timelines: dict[str, SourceTimeline] = {}
        for sensor, item in self._sensors.items():
            if "csv" in item:
                timelines[sensor] = self._from_csv(self.root / name / item["csv"], sensor)
        ego = timelines.get("ego")
        for sensor, item in self._sensors.items():
            if "files" in item and self._files[name][sensor]:
                timelines[sensor] = self._from_files(self._files[name][sensor], sensor, ego)
        return SourceDrive(timelines=timelines)

    def _sensor(self, name: str) -> Sensor:
        item = self._sensors[name]
        if not isinstance(item, dict) or item.get("kind") not in _KEYS:
            raise SourceError(f"sensor {name!r} of the description: kind must be one of {', '.join(_KEYS)}")
        kind = item["kind"]
        if unknown := set(item) - _KEYS[kind]:
            raise SourceError(
                f"sensor {name!r} of the description has unknown keys {sorted(unknown)}; known are {sorted(_KEYS[kind])}"
            )
        if ("csv" if kind == "array" else "files") not in item:
            raise SourceError(
                f"sensor {name!r} of the description: an {kind} sensor needs the key {'csv' if kind == 'array' else 'files'!r}"
            )
        if item.get("unit", "ns") not in _UNITS:
            raise SourceError(
                f"sensor {name!r} of the description: unit must be one of {', '.join(_UNITS)}, not {item['unit']!r}"
            )
        columns = [
            Column(name=key, dtype="float64", shape=shape, unit="px" if key == INTRINSICS else "m")
            for key, shape in _STATIC.items()
            if key in item
        ]
        if kind in ("image", "points") and self._has_ego_poses():
            columns.append(Column(name=EGO_TO_WORLD, dtype="float64", shape=(7,), unit="m"))
        if kind == "image":
            codec = {".jpg": "jpeg", ".jpeg": "jpeg", ".png": "png"}.get(Path(item["files"]).suffix.lower())
            if codec is None:
                raise SourceError(
                    f"sensor {name!r} of the description: image files end in .jpg, .jpeg or .png, not {item['files']!r}"
                )
            camera = Camera(model=item.get("camera", "pinhole"), colour=item.get("colour", "rgb"))
            return Sensor(name=name, kind="image", codec=codec, columns=tuple(columns), camera=camera)  # type: ignore[arg-type]  # values of the table above
        if kind == "points":
            fields = tuple(_field(text) for text in item.get("fields", ()))
            return Sensor(
                name=name,
                kind="points",
                codec="points-lossless",
                columns=tuple(columns),
                fields=fields,
                frame=item.get("frame", "sensor"),
                deskewed=bool(item.get("deskewed", False)),
            )
        if kind == "text":
            return Sensor(name=name, kind="text", codec="text")
        wanted = item.get("columns") or {}
        return Sensor(
            name=name,
            kind="array",
            codec=None,
            columns=tuple(
                Column(name=key, dtype="float64", shape=() if isinstance(of, str) else (len(of),)) for key, of in wanted.items()
            ),
        )

    def _has_ego_poses(self) -> bool:
        ego = self._sensors.get("ego", {})
        return isinstance(ego, dict) and EGO_TO_WORLD in (ego.get("columns") or {})

    def _find(self, drive: Path, sensor: str, problems: list[Problem]) -> dict[int, Path]:
        """Return files by stamp."""
        item = self._sensors[sensor]
        pattern, scale = str(item["files"]), _UNITS[item.get("unit", "ns")]
        if pattern.count("{stamp}") != 1 or ".." in Path(pattern).parts or Path(pattern).is_absolute():
            raise SourceError(
                f"sensor {sensor!r} of the description: files must be relative and hold {{stamp}} once, not {pattern!r}"
            )
        before, after = pattern.split("{stamp}")
        if "/" in after:
            raise SourceError(
                f"sensor {sensor!r} of the description: {{stamp}} belongs into the file name, not into a folder of {pattern!r}"
            )
        folder, _, prefix = before.rpartition("/")
        name = re.compile(re.escape(prefix) + r"(-?\d{1,19})" + re.escape(after))
        found: dict[int, Path] = {}
        for path in sorted((drive / folder).iterdir()) if (drive / folder).is_dir() else ():
            match = name.fullmatch(path.name)
            if match is None:
                continue
            stamp, where = int(match.group(1)) * scale, str(path.relative_to(self.root))
            if path.is_symlink() or not path.is_file():
                problems.append(Problem(path=where, reason="is not a regular file", sensor=sensor, stamp_ns=stamp, code="layout"))
            elif path.stat().st_size == 0 and not (item["kind"] == "image" and self._allow_empty_images):
                reason = "is empty; copy it again" + ", or pass --bad-images reject" * (item["kind"] == "image")
                problems.append(Problem(path=where, reason=reason, sensor=sensor, stamp_ns=stamp, code="truncated"))
            elif stamp in found:
                problems.append(
                    Problem(
                        path=where,
                        reason=f"has the stamp of {found[stamp].name}",
                        sensor=sensor,
                        stamp_ns=stamp,
                        code="duplicate",
                    )
                )
            else:
                found[stamp] = path
        return dict(sorted(found.items()))

    def _from_files(self, files: Mapping[int, Path], sensor: str, ego: SourceTimeline | None) -> SourceTimeline:
        item, described = self._sensors[sensor], self.schema.sensor(sensor)
        stamps, paths = np.array(list(files), np.int64), list(files.values())
        columns: dict[str, NDArray[Any]] = {}
        for column in described.columns:
            if column.name == EGO_TO_WORLD:
                assert ego is not None
                columns[column.name] = interpolate(ego.stamps, ego.columns[EGO_TO_WORLD], stamps)
            else:
                value = np.asarray(item[column.name], np.float64)
                if value.shape != column.shape:
                    raise SourceError(
                        f"sensor {sensor!r} of the description: {column.name} must be of shape {column.shape}, not {value.shape}"
                    )
                columns[column.name] = np.broadcast_to(value, (len(stamps), *column.shape))
        readers: dict[str, Callable[[Path], Payload]] = {
            "image": _read_limited,
            "points": lambda path: _points(path, described),
            "text": lambda path: _read_limited(path).decode("utf-8"),
        }
        read = readers[described.kind]
        return SourceTimeline(
            stamps=stamps,
            columns=columns,
            read=lambda i: read(paths[i]),
            origin=lambda i: str(paths[i].relative_to(self.root)),
        )

    def _from_csv(self, path: Path, sensor: str) -> SourceTimeline:
        item, described, where = self._sensors[sensor], self.schema.sensor(sensor), str(path.relative_to(self.root))
        stamp_column, scale = str(item.get("stamp", "stamp")), _UNITS[item.get("unit", "ns")]
        with open(path, newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            wanted = {key: [of] if isinstance(of, str) else list(of) for key, of in (item.get("columns") or {}).items()}
            missing = {stamp_column, *(name for of in wanted.values() for name in of)} - set(rows.fieldnames or ())
            if missing:
                raise SourceError(
                    "cannot read a table", [Problem(path=where, reason=f"has no columns {sorted(missing)}", sensor=sensor)]
                )
            stamps, values = [], []
            for row in rows:
                try:
                    stamps.append(_stamp(row[stamp_column], scale))
                    values.append([[float(row[name]) for name in of] for of in wanted.values()])
                except (TypeError, ValueError) as error:
                    problem = Problem(path=f"{where}: line {rows.line_num}", reason=str(error), sensor=sensor, code="layout")
                    raise SourceError("cannot read a table", [problem]) from error
        order = np.array(stamps, np.int64)
        if not len(order) or (np.diff(order) <= 0).any():
            reason = "holds no rows" if not len(order) else "stamps must ascend and not repeat"
            raise SourceError("cannot read a table", [Problem(path=where, reason=reason, sensor=sensor, code="duplicate")])
        columns = {
            column.name: np.array([row[place] for row in values], np.float64).reshape(len(order), *column.shape)
            for place, column in enumerate(described.columns)
        }
        return SourceTimeline(stamps=order, columns=columns, origin=lambda i: f"{where}: row {i + 1}")

    def _list_ignored(self, drives: Sequence[Path], description: str) -> list[Ignored]:
        taken = {path for files in self._files.values() for by_stamp in files.values() for path in by_stamp.values()}
        taken |= {drive / item["csv"] for drive in drives for item in self._sensors.values() if "csv" in item}
        taken.add(self.root / description)
        loose = [path for path in sorted(self.root.rglob("*")) if not path.is_dir() and path not in taken]
        return [Ignored(path=str(path.relative_to(self.root)), reason="no sensor of the description names it") for path in loose]


def _read_description(path: Path) -> dict[str, Any]:
    try:
        import yaml
    except ImportError as error:
        raise MissingExtra("folder", "reading a folder's description") from error
    if not path.is_file():
        raise SourceError(
            f"cannot pack {path.parent}: {path.name} is missing; `pack-dataset folder --help` shows one to start from"
        )
    if path.stat().st_size > 1 << 20:
        raise SourceError(f"cannot read {path}: a description is at most 1 MiB")
    try:
        text = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise SourceError(f"cannot read {path}: {error}") from error
    if not isinstance(text, dict) or not isinstance(text.get("sensors"), dict) or "reference" not in text:
        raise SourceError(f"cannot read {path}: expected the keys 'reference' and 'sensors'")
    if unknown := set(text) - {"reference", "sensors", "licence"}:
        raise SourceError(f"cannot read {path}: unknown keys {sorted(unknown)}; known are reference, sensors, licence")
    return text


def _field(text: str) -> Column:
    name, _, rest = str(text).partition(":")
    dtype, _, unit = rest.partition(":")
    return Column(name=name, dtype=dtype or "float32", unit=unit, frame="sensor" if unit == "m" else "")


def _stamp(text: str, scale: int) -> int:
    """Return ns; decimal fractions are read digit by digit, since a float would lose nanoseconds."""
    match = re.fullmatch(r"\s*(-?)(\d{1,19})(?:\.(\d+))?\s*", text)
    if match is None:
        raise ValueError(f"stamp {text!r} is not a plain decimal number")
    digits = round(math.log10(scale))
    fraction = (match.group(3) or "").ljust(digits, "0")
    if fraction[digits:].strip("0"):
        raise ValueError(f"stamp {text!r} has more digits than nanoseconds")
    value = int(match.group(2)) * scale + int(fraction[:digits] or 0)
    return -value if match.group(1) else value


def _read_limited(path: Path) -> bytes:
    if path.stat().st_size > DEFAULT_LIMITS.payload_bytes:
        raise DecodeError(f"{path} is {path.stat().st_size} bytes; a payload is at most {DEFAULT_LIMITS.payload_bytes}")
    return path.read_bytes()


def _points(path: Path, sensor: Sensor) -> NDArray[Any]:
    data = _read_limited(path)
    if path.suffix.lower() == ".pcd":
        return _pcd_points(path, data, sensor)
    width = sensor.record_dtype.itemsize
    if len(data) % width:
        declared = ", ".join(f"{field.name}:{field.dtype}" for field in sensor.fields)
        raise DecodeError(f"{path.name}: {len(data)} bytes are not a whole number of points of {width} bytes ({declared})")
    return np.frombuffer(data, sensor.record_dtype)


def _pcd_points(path: Path, data: bytes, sensor: Sensor) -> NDArray[Any]:
    found = read_pcd(data, path.name)
    for field in sensor.fields:
        if field.name not in (found.dtype.names or ()) or found.dtype[field.name] != field.numpy_dtype:
            raise DecodeError(f"{path.name}: field {field.name}:{field.dtype} is declared, the file has {found.dtype}")
    records = np.empty(len(found), sensor.record_dtype)
    for field in sensor.fields:
        records[field.name] = found[field.name]
    return records

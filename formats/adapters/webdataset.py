"""Foreign WebDataset tars: one drive a tar, one frame a key, one sensor an extension.

Tars carry no time, so frames are stamped by their number at a stated rate. Members are read by offset from a walk over the
headers, never extracted; anything that is not a plain file is refused, and members that could only be read by unpickling are
left out with that reason.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError, Problem, SourceError, UsageError
from ..limits import DEFAULT_LIMITS
from ..schema import Camera, Column, Schema, Sensor
from ..source import DriveListing, Ignored, Payload, SourceDrive, SourceTimeline
from .registry import SourceSpec

__all__ = ["WebDataset", "open_source"]

_IMAGES: Final[Mapping[str, str]] = {"jpg": "jpeg", "jpeg": "jpeg", "png": "png"}
_TEXTS: Final = ("txt", "text", "json", "cls", "cls2", "index", "inx", "id")
_CODE: Final = ("pyd", "pickle", "pkl", "pth", "pt", "pb")
# webdataset's own rule for members that describe the tar rather than a sample.
_META: Final = re.compile(r"__[^/]*__($|/)")


@dataclass(frozen=True, slots=True)
class _Member:
    offset: int
    size: int
    name: str


def open_source(spec: SourceSpec) -> WebDataset:
    """Open one tar or a folder of tars; option `rate_hz` (default 10) stamps frames by number."""
    if unknown := set(spec.options) - {"rate_hz"}:
        raise UsageError(f"webdataset has no option {sorted(unknown)}; it has ['rate_hz']")
    rate = spec.options.get("rate_hz", 10)
    if not isinstance(rate, (int, float)) or rate <= 0:
        raise UsageError(f"rate_hz must be above 0, not {rate!r}")
    return WebDataset(spec.path, rate_hz=rate)


class WebDataset:
    """Tars seen as drives."""

    kind = "webdataset"
    licence = ""

    def __init__(self, path: str | Path, *, rate_hz: float = 10) -> None:
        self.root = Path(path)
        self._rate = Fraction(rate_hz).limit_denominator(1001)
        tars = [self.root] if self.root.is_file() else sorted(self.root.glob("*.tar"))
        if not tars:
            raise SourceError(f"cannot pack {self.root}: neither a tar nor a folder with *.tar")
        problems: list[Problem] = []
        ignored: dict[str, str] = {}
        self._tars = {tar.stem: tar for tar in tars}
        self._members: dict[str, dict[str, dict[str, _Member]]] = {}  # drive → key → extension → member
        for name, tar in self._tars.items():
            self._members[name] = _walk(tar, problems)
        sensors: dict[str, Sensor] = {"frame": Sensor(name="frame", kind="array", codec=None)}
        self._extensions: dict[str, str] = {}
        for name, keys in self._members.items():
            for parts in keys.values():
                for extension, member in parts.items():
                    if extension not in self._extensions and extension not in ignored:
                        self._describe(name, extension, member, sensors, ignored)
        if problems:
            raise SourceError(f"cannot pack {self.root}: {len(problems)} problems", problems)
        self.schema = Schema(reference="frame", sensors=tuple(sensors.values()))
        self.ignored: Sequence[Ignored] = [
            Ignored(path=f"*.{extension}", reason=reason) for extension, reason in sorted(ignored.items())
        ]
        self.listings: Sequence[DriveListing] = [
            DriveListing(name=name, source_bytes=tar.stat().st_size)
            for name, tar in sorted(self._tars.items())
            if self._members[name]
        ]

    def open_drive(self, name: str) -> SourceDrive:
        """Open one tar."""
        keys, tar = list(self._members[name].values()), self._tars[name]
        stamps = np.array([round(i * 1_000_000_000 / self._rate) for i in range(len(keys))], np.int64)
        timelines = {"frame": SourceTimeline(stamps=stamps, columns={}, origin=lambda i: f"{tar.name}: frame {i}")}
        for extension, sensor in self._extensions.items():
            rows = [i for i, parts in enumerate(keys) if extension in parts]
            if rows:
                members = [keys[i][extension] for i in rows]
                timelines[sensor] = self._timeline(tar, self.schema.sensor(sensor), stamps[rows], members, len(keys), rows)
        return SourceDrive(timelines=timelines)

    def _timeline(
        self, tar: Path, sensor: Sensor, stamps: NDArray[np.int64], members: list[_Member], frames: int, rows: list[int]
    ) -> SourceTimeline:
        own = np.full(frames, -1, np.int64)
        own[rows] = np.arange(len(rows))
        return SourceTimeline(
            stamps=stamps,
            columns={},
            read=lambda i: _value(sensor, _bytes(tar, members[i])),
            origin=lambda i: f"{tar.name}: {members[i].name}",
            own=own,
        )

    def _describe(self, drive: str, extension: str, member: _Member, sensors: dict[str, Sensor], ignored: dict[str, str]) -> None:
        stem, _, kind = extension.rpartition(".")
        kind, name = kind.lower(), stem or kind
        if kind in _CODE:
            ignored[extension] = "can only be read by running code from the data (pickle); convert it to .npy or .json first"
            return
        sensor: Sensor
        if kind in _IMAGES:
            sensor = Sensor(name=name, kind="image", codec=_IMAGES[kind], camera=Camera())  # type: ignore[arg-type]  # values of _IMAGES
        elif kind in _TEXTS:
            sensor = Sensor(name=name, kind="text", codec="text")
        elif kind == "npy":
            first = _array(_bytes(self._tars[drive], member), member.name)
            element = Column(name="value", dtype=first.dtype.name, shape=first.shape[1:])
            sensor = Sensor(name=name, kind="array", codec="array", fields=(element,))
        elif kind == "bin":
            sensor = Sensor(name=name, kind="array", codec="array", fields=(Column(name="byte", dtype="uint8"),))
        else:
            ignored[extension] = f"unknown extension; known are {', '.join([*_IMAGES, *_TEXTS, 'npy', 'bin'])}"
            return
        if sensor.name.lower() in {other.lower() for other in sensors}:
            sensor = replace(sensor, name=f"{name}_{kind}")
        sensors[sensor.name] = sensor
        self._extensions[extension] = sensor.name


def _walk(tar: Path, problems: list[Problem]) -> dict[str, dict[str, _Member]]:
    """Read the headers of a tar: keys in file order, and each key's members by extension."""
    keys: dict[str, dict[str, _Member]] = {}
    end = 0
    try:
        with tarfile.open(tar, "r:") as archive:
            for count, info in enumerate(archive, 1):
                end = info.offset_data + (-(-info.size // 512) * 512 if info.isreg() else 0)
                if count > DEFAULT_LIMITS.tar_members:
                    raise SourceError(f"cannot read {tar}: more than {DEFAULT_LIMITS.tar_members} members")
                if info.isdir() or _META.match(info.name):
                    continue
                reason = _refusal(info)
                key, extension = _split(info.name)
                if reason is None and extension in keys.get(key, {}):
                    reason = "stands twice in this tar"
                if reason is None and not extension:
                    reason = "has no extension, so it belongs to no sensor"
                if reason is not None:
                    problems.append(Problem(path=f"{tar.name}: {info.name!r}", reason=reason, code="layout"))
                    continue
                keys.setdefault(key, {})[extension] = _Member(info.offset_data, info.size, info.name)
    except (tarfile.TarError, EOFError, ValueError, OSError) as error:
        problems.append(
            Problem(path=tar.name, reason=f"cannot be read as a tar: {error}; was it copied whole?", code="truncated")
        )
    # tarfile takes a header that is cut short for the end of the archive; a whole one ends in two blocks of zeros.
    if _read_at(tar, end, 1024) != bytes(1024):
        problems.append(Problem(path=tar.name, reason="does not end as a tar ends; was it copied whole?", code="truncated"))
    return keys


def _refusal(info: tarfile.TarInfo) -> str | None:
    if not info.isreg() or info.issparse():
        return "is not a plain file (links, devices and sparse members are refused)"
    if len(info.name.encode(errors="surrogateescape")) > DEFAULT_LIMITS.name_bytes or "\0" in info.name:
        return f"has a name over {DEFAULT_LIMITS.name_bytes} bytes, or with a NUL"
    if info.name.startswith("/") or ".." in info.name.split("/"):
        return "has a name that leads out of the tar"
    if info.size > DEFAULT_LIMITS.payload_bytes:
        return f"is {info.size} bytes; a payload is at most {DEFAULT_LIMITS.payload_bytes}"
    return None


def _split(name: str) -> tuple[str, str]:
    """Split at the first dot of the base name, as webdataset does."""
    folder, slash, base = name.rpartition("/")
    stem, _, extension = base.partition(".")
    return folder + slash + stem, extension


def _read_at(tar: Path, offset: int, size: int) -> bytes:
    with open(tar, "rb") as file:
        file.seek(offset)
        return file.read(size)


def _bytes(tar: Path, member: _Member) -> bytes:
    data = _read_at(tar, member.offset, member.size)
    if len(data) != member.size:
        raise DecodeError(f"{tar.name}: {member.name!r} ends after {len(data)} of {member.size} bytes")
    return data


def _value(sensor: Sensor, data: bytes) -> Payload:
    if sensor.kind == "image":
        return data
    if sensor.kind == "text":
        try:
            return data.decode("utf-8")
        except UnicodeDecodeError as error:
            raise DecodeError(f"text of sensor {sensor.name!r} is not UTF-8: {error}") from error
    if sensor.fields[0].name == "byte":
        return np.frombuffer(data, np.uint8)
    array = _array(data, sensor.name)
    if array.dtype != sensor.fields[0].numpy_dtype or array.shape[1:] != sensor.fields[0].shape:
        raise DecodeError(f"array of sensor {sensor.name!r} is {array.dtype}{array.shape}, the first was {sensor.fields[0]}")
    return array


def _array(data: bytes, name: str) -> NDArray[Any]:
    try:
        array = np.load(io.BytesIO(data), allow_pickle=False, max_header_size=4096)
    except (ValueError, EOFError, OSError) as error:
        raise DecodeError(f"cannot read {name!r} as .npy: {error}") from error
    if not isinstance(array, np.ndarray) or array.ndim == 0:
        raise DecodeError(f"{name!r} must hold one array of at least one axis")
    return array.astype(array.dtype.newbyteorder("<"), copy=False)

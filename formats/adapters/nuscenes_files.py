"""nuScenes' files: where they are, whether their sizes fit what they must hold, and their contents as payloads.

A LiDAR `.bin` has no header, so its layout is declared (x y z intensity ring, five float32) and checked: by size for every
file in preflight, by value where the size would fit another layout as well, and point by point when it is read.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import DecodeError
from ..image_header import image_size
from ..limits import DEFAULT_LIMITS
from ..schema import Column

__all__ = [
    "LIDAR_LAYOUTS",
    "RADAR_FIELDS",
    "Folder",
    "Layout",
    "is_inside",
    "layout_fault",
    "layout_fault_of_file",
    "read_image",
    "read_labels",
    "read_lidar",
    "read_radar",
]

Layout = Literal["xyzir", "xyzi"]


def _point(name: str, dtype: str, unit: str = "") -> Column:
    return Column(name=name, dtype=dtype, unit=unit, frame="sensor" if unit in ("m", "m/s") else "")


_XYZ: Final = tuple(_point(name, "float32", "m") for name in "xyz")
LIDAR_LAYOUTS: Final[Mapping[str, tuple[Column, ...]]] = MappingProxyType(
    {
        "xyzir": (*_XYZ, _point("intensity", "float32"), _point("ring", "float32")),
        "xyzi": (*_XYZ, _point("intensity", "float32")),
    }
)
_LIDAR: Final = MappingProxyType(
    {name: np.dtype([(field.name, field.numpy_dtype) for field in fields]) for name, fields in LIDAR_LAYOUTS.items()}
)
RADAR_FIELDS: Final = (
    *_XYZ,
    _point("dyn_prop", "int8"),
    _point("id", "int16"),
    _point("rcs", "float32"),
    *(_point(name, "float32", "m/s") for name in ("vx", "vy", "vx_comp", "vy_comp")),
    *(_point(name, "int8") for name in ("is_quality_valid", "ambig_state", "x_rms", "y_rms", "invalid_state", "pdh0")),
    *(_point(name, "int8") for name in ("vx_rms", "vy_rms")),
)
"""The 18 fields of nuScenes' radar PCD, in file order."""

_RADAR: Final = np.dtype([(field.name, field.numpy_dtype) for field in RADAR_FIELDS])
_HEADER_BYTES: Final = 4096
_PROBED_POINTS: Final = 400
_FARTHEST_M: Final = 1000.0
"""No LiDAR reaches this far; fields read at the wrong offset soon do, or give a ring that is no integer."""


class Folder:
    """The files below a source: each directory is listed once, symbolic links included."""

    def __init__(self, roots: Sequence[Path]) -> None:
        self.roots = tuple(roots)

    def path(self, filename: str) -> Path:
        """Return where a file named in the tables is, or would be: below the first root that has its directory."""
        for root in self.roots:
            if (root / filename).parent.is_dir():
                return root / filename
        return self.roots[0] / filename

    def sizes(self, directory: Path) -> dict[str, int]:
        """Return name → bytes of the plain files in a directory; empty if there is none."""
        found: dict[str, int] = {}
        try:
            with os.scandir(directory) as entries:
                for entry in entries:
                    if entry.is_file():
                        found[entry.name] = entry.stat().st_size
        except (FileNotFoundError, NotADirectoryError):
            pass
        return found

    def walk(self) -> Iterator[tuple[str, Sequence[str]]]:
        """Yield (directory, file names) below the last root, which holds all others; a directory is seen once."""
        top = self.roots[-1]
        seen: set[tuple[int, int]] = set()
        for directory, below, names in os.walk(top, followlinks=True):
            status = os.stat(directory)
            if (status.st_dev, status.st_ino) in seen:
                below.clear()
                continue
            seen.add((status.st_dev, status.st_ino))
            below.sort()
            yield Path(directory).relative_to(top).as_posix(), sorted(names)


def is_inside(filename: str) -> bool:
    """Say whether a file name of the tables stays below the source folder."""
    parts = PurePosixPath(filename).parts
    return bool(parts) and ".." not in parts and not filename.startswith("/") and "\\" not in filename


def layout_fault(points: NDArray[Any]) -> str:
    """Say why structured LiDAR points cannot be of their declared layout, or "" if they can."""
    if "ring" in (points.dtype.names or ()):
        ring = points["ring"]
        odd = ~((ring >= -1) & (ring < 256) & (ring == np.floor(ring)))
        if odd.any():
            row = int(np.argmax(odd))
            return f"point {row} has ring {ring[row]!r}, expected a whole number"
    for name in "xyz":
        far = np.abs(points[name]) > _FARTHEST_M
        if far.any():
            row = int(np.argmax(far))
            return f"point {row} has {name} = {points[name][row]:.4g} m, beyond {_FARTHEST_M:g} m"
    intensity = points["intensity"]
    if (intensity < 0).any():
        row = int(np.argmax(intensity < 0))
        return f"point {row} has intensity {intensity[row]:.4g}, expected 0 or more"
    return ""


def layout_fault_of_file(path: Path, size: int, layout: Layout) -> str:
    """Say what is wrong with the size of a LiDAR file, or with its first points where two layouts fit; "" if nothing."""
    widths = {name: _LIDAR[name].itemsize for name in LIDAR_LAYOUTS}
    fitting = [name for name, width in widths.items() if size % width == 0]
    if layout not in fitting:
        other = f"; it would fit layout {fitting[0]!r}: if it is that, set points_layout" if fitting else ", download it again"
        return f"{size} bytes are no multiple of {widths[layout]} (layout {layout!r}, float32){other}"
    if len(fitting) == 1:
        return ""
    with path.open("rb") as file:
        head = file.read(_PROBED_POINTS * 80)  # 80 bytes hold whole points of either layout
    faults = {name: layout_fault(_finite(np.frombuffer(head, _LIDAR[name]))) for name in fitting}
    if not faults[layout]:
        return ""
    others = [name for name in fitting if not faults[name]]
    also = (
        f"; its values fit layout {others[0]!r}: if it is that, set points_layout"
        if others
        else ", nor do others: download it again"
    )
    return f"{size} bytes fit layouts {' and '.join(map(repr, fitting))}, but {faults[layout]} as {layout!r}{also}"


def read_lidar(path: Path, layout: Layout, what: str, *, allow_nan: bool = False) -> NDArray[Any]:
    """Return the points of a LiDAR file, untouched; `what` names it in the `DecodeError` of a bad one.

    With `allow_nan`, points without a finite position may be among them, for the packer to leave out.
    """
    data = _read(path, what)
    dtype = _LIDAR[layout]
    if len(data) == 0 or len(data) % dtype.itemsize:
        raise DecodeError(
            f"cannot read {what}: found {len(data)} bytes, expected a multiple of {dtype.itemsize} (layout {layout!r}); "
            "download the file again, or set points_layout"
        )
    points = np.frombuffer(data, dtype)
    known = _placed(points) if allow_nan else points
    _refuse_nan(known, what)
    fault = layout_fault(known)
    if fault:
        raise DecodeError(f"cannot read {what} as layout {layout!r}: {fault}; set points_layout, or download the file again")
    return points


def read_image(path: Path, what: str, width: int, height: int) -> bytes:
    """Return an image file, untouched; one whose header states another size than its table row is refused.

    Whether the rest decodes is for whoever packs it to check. A width of 0 means that the table does not say.
    """
    data = _read(path, what)
    if width < 1 or height < 1:
        return data
    try:
        size = image_size(data, "jpeg")
    except DecodeError:
        return data
    if size != (width, height):
        raise DecodeError(
            f"cannot take {what}: it is {size[0]} × {size[1]} pixels, its sample_data row says {width} × {height}, so the "
            "intrinsics would not fit; download tables and images of one version"
        )
    return data


def read_labels(path: Path, what: str) -> NDArray[Any]:
    """Return the lidarseg labels of a sweep: uint8, one a point, in the sweep's order."""
    return np.frombuffer(_read(path, what), np.dtype([("label", "u1")]))


def read_radar(path: Path, what: str, *, allow_nan: bool = False) -> NDArray[Any]:
    """Return the points of a nuScenes radar PCD, untouched. A first point of NaN means none, as nuScenes writes it.

    `allow_nan` is as in `read_lidar`.
    """
    data = _read(path, what)
    header, count = _radar_header(data, what)
    end = header + count * _RADAR.itemsize
    # Writers pad the end; a shorter body is a cut file.
    if len(data) < end:
        raise DecodeError(
            f"cannot read {what}: its header promises {count} points ({end} bytes), found {len(data)}; download the file again"
        )
    points = np.frombuffer(data, _RADAR, count, header)
    if count and np.isnan(points["x"][0]):
        return points[:0]
    _refuse_nan(_placed(points) if allow_nan else points, what)
    return points


def _radar_header(data: bytes, what: str) -> tuple[int, int]:
    lines: dict[str, list[str]] = {}
    at = 0
    while "DATA" not in lines:
        end = data.find(b"\n", at, _HEADER_BYTES)
        if end < 0:
            raise DecodeError(f"cannot read {what}: no PCD header in its first {_HEADER_BYTES} bytes; download the file again")
        word, *values = data[at:end].decode("ascii", "replace").split() or ["#"]
        lines.setdefault(word, values)
        at = end + 1
    kinds = {"f": "F", "i": "I", "u": "U"}
    expected = {
        "FIELDS": [field.name for field in RADAR_FIELDS],
        "SIZE": [str(field.width) for field in RADAR_FIELDS],
        "TYPE": [kinds[field.numpy_dtype.kind] for field in RADAR_FIELDS],
        "COUNT": ["1"] * len(RADAR_FIELDS),
        "DATA": ["binary"],
    }
    for word, values in expected.items():
        if lines.get(word) != values:
            found = " ".join(lines.get(word, ["nothing"]))[:200]
            raise DecodeError(
                f"cannot read {what}: {word} is {found!r}, expected {' '.join(values)!r}; is it a nuScenes radar file?"
            )
    points = "".join(lines.get("POINTS", []))
    if not points.isdigit() or int(points) > DEFAULT_LIMITS.points:
        raise DecodeError(f"cannot read {what}: POINTS is {points!r}, expected 0 to {DEFAULT_LIMITS.points}")
    return at, int(points)


def _finite(points: NDArray[Any]) -> NDArray[Any]:
    return _where_finite(points, points.dtype.names or ())


def _placed(points: NDArray[Any]) -> NDArray[Any]:
    return _where_finite(points, "xyz")


def _where_finite(points: NDArray[Any], names: Sequence[str]) -> NDArray[Any]:
    return points[np.logical_and.reduce([np.isfinite(points[name]) for name in names])]


def _refuse_nan(points: NDArray[Any], what: str) -> None:
    for name in points.dtype.names or ():
        if points.dtype[name].kind == "f" and not np.isfinite(points[name]).all():
            bad = ~np.isfinite(points[name])
            raise DecodeError(
                f"cannot read {what}: {int(bad.sum())} points from {int(np.argmax(bad))} on have NaN or infinity in {name!r}, "
                "expected finite numbers; mend the file, or leave out points without a position (--lidar-precision, --drop-nan)"
            )


def _read(path: Path, what: str) -> bytes:
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        if size > DEFAULT_LIMITS.payload_bytes:
            raise DecodeError(
                f"cannot read {what}: {size} bytes, above the limit of {DEFAULT_LIMITS.payload_bytes} for one payload"
            )
        return file.read()

"""Argoverse 2's feather and parquet files as numpy columns, checked: names, types, no nulls, finite where they must be.

Readers raise `ValueError` with what was found against what was expected. Stamps stay int64: one row of a pandas frame would
pass through float64 and move by up to 32 ns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from .. import pose
from ..limits import DEFAULT_LIMITS

__all__ = ["BOX_CATEGORIES", "poses_at", "read_columns", "read_extrinsics", "read_poses"]

BOX_CATEGORIES: Final = (
    "ANIMAL", "ARTICULATED_BUS", "BICYCLE", "BICYCLIST", "BOLLARD", "BOX_TRUCK", "BUS", "CONSTRUCTION_BARREL",
    "CONSTRUCTION_CONE", "DOG", "LARGE_VEHICLE", "MESSAGE_BOARD_TRAILER", "MOBILE_PEDESTRIAN_CROSSING_SIGN", "MOTORCYCLE",
    "MOTORCYCLIST", "OFFICIAL_SIGNALER", "PEDESTRIAN", "RAILED_VEHICLE", "REGULAR_VEHICLE", "SCHOOL_BUS", "SIGN", "STOP_SIGN",
    "STROLLER", "TRAFFIC_LIGHT_TRAILER", "TRUCK", "TRUCK_CAB", "VEHICULAR_TRAILER", "WHEELCHAIR", "WHEELED_DEVICE",
    "WHEELED_RIDER",
)  # fmt: skip
"""The dataset's 30 classes in the devkit's order, which flow labels count from 1."""

_POSE: Final = dict.fromkeys(("tx_m", "ty_m", "tz_m", "qw", "qx", "qy", "qz"), "float64")
_OUTSIDE_NS: Final = 100_000_000


def read_columns(path: Path, columns: Mapping[str, str], *, optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return the columns of a feather or parquet file by name; types are numpy names, "str" gives an object array.

    A number's type may differ from the wanted one if every value survives the cast.
    """
    size = path.stat().st_size
    if size > DEFAULT_LIMITS.payload_bytes:
        raise ValueError(f"{size} bytes, at most {DEFAULT_LIMITS.payload_bytes} are read")
    try:
        if path.suffix == ".parquet":
            table = pq.read_table(path)
        else:
            table = pa.ipc.open_file(pa.py_buffer(path.read_bytes())).read_all()
        table.validate(full=True)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, FileNotFoundError):
            raise
        raise ValueError(f"not readable as {path.suffix[1:]}: {error}") from error
    if table.num_rows > DEFAULT_LIMITS.points:
        raise ValueError(f"{table.num_rows} rows, at most {DEFAULT_LIMITS.points} are read")
    found = {}
    for name, dtype in columns.items():
        if name not in table.column_names:
            if name in optional:
                continue
            raise ValueError(f"no column {name!r}; it has {', '.join(table.column_names)}")
        column = table.column(name)
        if column.null_count:
            raise ValueError(f"column {name!r} has {column.null_count} nulls")
        found[name] = _column(name, column, dtype)
    return found


def read_poses(path: Path) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Return stamps (n,) and ego_to_world (n, 7) of a log; world is the city's frame."""
    columns = read_columns(path, {"timestamp_ns": "int64", **_POSE})
    stamps, poses = columns["timestamp_ns"], _finite_poses(columns)
    if len(stamps) == 0 or (np.diff(stamps) <= 0).any():
        raise ValueError(f"{len(stamps)} stamps that do not ascend strictly")
    return stamps, poses


def read_extrinsics(path: Path) -> dict[str, NDArray[np.float64]]:
    """Return sensor_to_ego (7,) by sensor name."""
    columns = read_columns(path, {"sensor_name": "str", **_POSE})
    return dict(zip(columns["sensor_name"].tolist(), _finite_poses(columns), strict=True))


def poses_at(stamps: NDArray[np.int64], poses: NDArray[np.float64], at: NDArray[np.int64], what: str) -> NDArray[np.float64]:
    """Return poses at stamps `at`: the log's own where it has that very stamp, else interpolated.

    Raises:
        ValueError: a stamp lies more than 0.1 s outside the log's poses.
    """
    if len(at) and (at.min() < stamps[0] - _OUTSIDE_NS or at.max() > stamps[-1] + _OUTSIDE_NS):
        raise ValueError(
            f"{what} has stamps {int(at.min())} to {int(at.max())}, the poses end at {int(stamps[0])} and {int(stamps[-1])}"
        )
    found = pose.interpolate(stamps, poses, at)
    row = np.minimum(np.searchsorted(stamps, at), len(stamps) - 1)
    same = stamps[row] == at
    found[same] = poses[row[same]]
    return found


def _finite_poses(columns: Mapping[str, NDArray[Any]]) -> NDArray[np.float64]:
    poses: NDArray[np.float64] = np.stack([columns[name] for name in _POSE], 1)
    norms = np.linalg.norm(poses[:, 3:], axis=1)
    if not np.isfinite(poses).all() or (np.abs(norms - 1) > 1e-3).any():
        raise ValueError("poses that are not finite, or whose quaternions are not unit")
    return poses


def _column(name: str, column: Any, dtype: str) -> NDArray[Any]:  # Any: a pyarrow ChunkedArray, which is untyped
    if dtype == "str":
        if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
            raise ValueError(f"column {name!r} is of type {column.type}, expected text")
        return np.array(column.to_pylist(), object)
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type) or pa.types.is_boolean(column.type)):
        raise ValueError(f"column {name!r} is of type {column.type}, expected {dtype}")
    values: NDArray[Any] = column.to_numpy()
    wanted = np.dtype(dtype)
    with np.errstate(all="ignore"):
        cast = values.astype(wanted)
        if values.dtype != wanted and not np.array_equal(cast.astype(values.dtype), values, equal_nan=values.dtype.kind == "f"):
            raise ValueError(f"column {name!r} is of type {column.type} and does not fit {dtype}")
    return np.ascontiguousarray(cast)

"""What is known of a frame without reading a payload, as an Arrow table that view filters are evaluated on.

Columns: `id` (global frame number), `drive` (name), `frame` (number within the drive), `stamp` (reference stamp, int64 ns),
`drive.<attribute>`, `has.<sensor>` (the frame has an own payload), and `<sensor>.<column>` of that own payload (null where
there is none; values with a shape are lists).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from ..formats import UsageError
from .read_set import FrameFiles
from .sync import stamps_of

__all__ = ["fact_names", "frames_where"]

Int64 = NDArray[np.int64]


def fact_names(files: FrameFiles) -> list[str]:
    """Return the names of the facts that frames of this set have."""
    attributes = sorted({name for drive in files.drives for name in drive.attributes})
    names = ["id", "drive", "frame", "stamp", *(f"drive.{name}" for name in attributes)]
    for sensor in files.schema.sensors:
        names += [f"has.{sensor.name}", *(f"{sensor.name}.{column.name}" for column in sensor.columns)]
    return names


def frames_where(files: FrameFiles, where: Any, frames: Int64) -> NDArray[np.bool_]:  # Any: pyarrow is untyped
    """Return which global frame numbers (n,), ascending, a boolean `pyarrow.compute` expression is true for.

    False and null both mean no.
    """
    # An expression does not list its fields, but its text holds their names; a name too many costs time, nothing else.
    text, names = str(where), fact_names(files)
    wanted = [name for name in names if name in text]
    try:
        try:
            table = _facts(files, ["id", *wanted], frames).filter(where)
        except pa.ArrowInvalid:
            # Perhaps a name that the text writes differently; if not, the same error comes back.
            table = _facts(files, names, frames).filter(where)
    except (pa.ArrowException, TypeError) as error:
        raise UsageError(
            f"cannot filter frames with {text}: {error}; pyarrow.compute.field takes these facts by name: {', '.join(names)}"
        ) from error
    # Arrow does not promise the order of filtered rows; the frame numbers carry it.
    return np.isin(frames, table.column("id").to_numpy(), assume_unique=True)


def _facts(files: FrameFiles, names: list[str], frames: Int64) -> Any:  # Any: pyarrow is untyped
    drives = np.searchsorted(files.frame_starts, frames, side="right") - 1
    wanted = dict.fromkeys(names)
    arrays: dict[str, Any] = {}
    for name in ("id", "drive", "frame", "stamp"):
        if name not in wanted:
            continue
        if name == "id":
            arrays[name] = pa.array(frames)
        elif name == "drive":
            arrays[name] = pa.array([drive.name for drive in files.drives], pa.string()).take(pa.array(drives))
        elif name == "frame":
            arrays[name] = pa.array(frames - files.frame_starts[drives])
        else:
            arrays[name] = pa.array(stamps_of(files.timeline(files.schema.reference), frames))
    for attribute in sorted({name for drive in files.drives for name in drive.attributes}):
        if f"drive.{attribute}" in wanted:
            values = _one_type([drive.attributes.get(attribute) for drive in files.drives])
            arrays[f"drive.{attribute}"] = values.take(pa.array(drives))
    for sensor in files.schema.sensors:
        columns = [column for column in sensor.columns if f"{sensor.name}.{column.name}" in wanted]
        if not columns and f"has.{sensor.name}" not in wanted:
            continue
        rows = np.asarray(files.own(sensor.name, frames), np.int64)
        arrays[f"has.{sensor.name}"] = pa.array(rows >= 0)
        for column in columns:
            arrays[f"{sensor.name}.{column.name}"] = _values(files, sensor.name, column.name, rows)
    return pa.table(arrays)


def _values(files: FrameFiles, sensor: str, column: str, rows: Int64) -> Any:  # Any: pyarrow is untyped
    there = rows >= 0
    timeline = files.timeline(sensor)
    if not there.any():
        kept = timeline.take(column, rows[:0])
    else:
        kept = timeline.take(column, rows[there])
    flat = pa.array(np.ascontiguousarray(kept).reshape(-1))
    width = int(np.prod(kept.shape[1:], dtype=np.int64))
    values = flat if kept.ndim == 1 else pa.FixedSizeListArray.from_arrays(flat, width)
    # Null where there is no own payload: a take with a null index gives null.
    place = np.cumsum(there) - 1
    return values.take(pa.array(place, mask=~there))


def _one_type(values: list[str | int | float | bool | None]) -> Any:  # Any: pyarrow is untyped
    """Attributes that differ in type between drives compare as floats if all are numbers, else as text."""
    kinds = {type(value) for value in values if value is not None}
    if len(kinds) <= 1:
        return pa.array(values)
    if kinds == {int, float}:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    return pa.array([None if value is None else str(value) for value in values], pa.string())

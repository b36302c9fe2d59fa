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

__all__ = ["FrameFacts"]

Int64 = NDArray[np.int64]


class FrameFacts:
    """Evaluates filters on the frames of one set; what it knows of drives is worked out once."""

    def __init__(self, files: FrameFiles) -> None:
        self._files = files
        self._of_drives: dict[str, Any] = {}  # Any: pyarrow is untyped; name → array (D,)
        attributes = sorted({name for drive in files.drives for name in drive.attributes})
        self._attributes = {f"drive.{name}": name for name in attributes}
        self._own = {f"has.{sensor.name}": sensor.name for sensor in files.schema.sensors}
        self._columns = {
            f"{sensor.name}.{column.name}": (sensor.name, column.name)
            for sensor in files.schema.sensors
            for column in sensor.columns
        }

    @property
    def names(self) -> list[str]:
        """Names of the facts that frames of this set have."""
        return ["id", "drive", "frame", "stamp", *self._attributes, *self._own, *self._columns]

    def where(self, expression: Any, frames: Int64) -> NDArray[np.bool_]:  # Any: pyarrow is untyped
        """Return which global frame numbers (n,), ascending, a boolean `pyarrow.compute` expression is true for.

        False and null both mean no.
        """
        # An expression does not list its fields, but its text holds their names; a name too many costs time, nothing else.
        text = str(expression)
        wanted = [name for name in self.names if name in text]
        try:
            try:
                table = self._table(["id", *wanted], frames).filter(expression)
            except pa.ArrowInvalid:
                # Perhaps a name that the text writes differently; if not, the same error comes back.
                table = self._table(self.names, frames).filter(expression)
        except (pa.ArrowException, TypeError) as error:
            raise UsageError(
                f"cannot filter frames with {text}: {error}; pyarrow.compute.field takes these facts by name: "
                f"{', '.join(self.names)}"
            ) from error
        # Arrow does not promise the order of filtered rows; the frame numbers carry it.
        return np.isin(frames, table.column("id").to_numpy(), assume_unique=True)

    def _table(self, names: list[str], frames: Int64) -> Any:  # Any: pyarrow is untyped
        drives = np.searchsorted(self._files.frame_starts, frames, side="right") - 1
        own: dict[str, Int64] = {}

        def rows(sensor: str) -> Int64:
            if sensor not in own:
                own[sensor] = np.asarray(self._files.own(sensor, frames), np.int64)
            return own[sensor]

        arrays: dict[str, Any] = {}  # Any: pyarrow is untyped
        for name in dict.fromkeys(names):
            if name == "id":
                arrays[name] = pa.array(frames)
            elif name == "frame":
                arrays[name] = pa.array(frames - self._files.frame_starts[drives])
            elif name == "stamp":
                arrays[name] = pa.array(stamps_of(self._files.timeline(self._files.schema.reference), frames))
            elif name in self._own:
                arrays[name] = pa.array(rows(self._own[name]) >= 0)
            elif name in self._columns:
                sensor, column = self._columns[name]
                arrays[name] = _values(self._files, sensor, column, rows(sensor))
            else:
                arrays[name] = self._of_drive(name).take(pa.array(drives))
        return pa.table(arrays)

    def _of_drive(self, name: str) -> Any:  # Any: pyarrow is untyped
        if name not in self._of_drives:
            drives = self._files.drives
            if name == "drive":
                self._of_drives[name] = pa.array([drive.name for drive in drives], pa.string())
            else:
                self._of_drives[name] = _one_type([drive.attributes.get(self._attributes[name]) for drive in drives])
        return self._of_drives[name]


def _values(files: FrameFiles, sensor: str, column: str, rows: Int64) -> Any:  # Any: pyarrow is untyped
    there = rows >= 0
    timeline = files.timeline(sensor)
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

"""Columns of timelines as batch arrays: one vectorised take a column, poses as 4 × 4 matrices, zeros where nothing is."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, SENSOR_TO_EGO, Column, Sensor, UsageError, pose
from .draft import Draft, Prepared, Task
from .read_set import Resolved

if TYPE_CHECKING:
    from ..formats.timeline import Timeline

__all__ = ["ColumnField", "gather_columns", "shared_columns", "take_columns", "window_entry", "with_matrices"]

_FILE_FACTS = ("image_size", "jpeg_")
_POSES = frozenset((SENSOR_TO_EGO, EGO_TO_WORLD))
_IDENTITY = np.array([0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0])


def shared_columns(sensors: Sequence[Sensor]) -> list[Column]:
    """Return the columns that all `sensors` have with one dtype and shape: those that stack.

    What the packer noted about the files themselves (size, coding) is for decoders, and no part of a sample.
    """
    first, *others = sensors
    return [
        column
        for column in first.columns
        if not column.name.startswith(_FILE_FACTS)
        and all(
            sensor.has(column.name)
            and (sensor.column(column.name).dtype, sensor.column(column.name).shape) == (column.dtype, column.shape)
            for sensor in others
        )
    ]


def gather_columns(
    timeline: Timeline,
    columns: Sequence[Column],
    rows: NDArray[np.int64],
    right: NDArray[np.int64] | None = None,
    fraction: NDArray[np.float64] | None = None,
) -> dict[str, NDArray[Any]]:  # Any: dtypes by schema
    """Return each column at `rows` (any shape; −1 gives zeros), poses as (…, 4, 4) matrices.

    With `right` and `fraction`, values lie between `rows` and `right`: poses by slerp, other floats linearly; integers,
    which have no between, are those of the nearer row.
    """
    return with_matrices(columns, take_columns(timeline, columns, rows, right, fraction))


def take_columns(
    timeline: Timeline,
    columns: Sequence[Column],
    rows: NDArray[np.int64],
    right: NDArray[np.int64] | None = None,
    fraction: NDArray[np.float64] | None = None,
) -> dict[str, NDArray[Any]]:  # Any: dtypes by schema
    """Return each column at `rows` as it is stored; see `gather_columns`."""
    there = rows >= 0
    all_there, any_there = bool(there.all()), bool(there.any())
    found: dict[str, NDArray[Any]] = {}  # Any: dtypes by schema
    for column in columns:
        if not any_there:
            found[column.name] = np.zeros((*rows.shape, *column.shape), column.numpy_dtype)
            continue
        if right is None or fraction is None:
            values = timeline.take(column.name, rows[there])
        else:
            values = _between(timeline, column, rows[there], right[there], fraction[there])
        if all_there:
            found[column.name] = values.reshape(*rows.shape, *column.shape)
            continue
        full = np.zeros((*rows.shape, *column.shape), values.dtype)
        full[there] = values
        found[column.name] = full
    return found


def with_matrices(columns: Sequence[Column], values: dict[str, NDArray[Any]]) -> dict[str, NDArray[Any]]:  # Any: dtypes by schema
    """Return columns with poses turned into matrices; rows that are absent (a quaternion of zeros) become zeros."""
    for column in columns:
        if _is_pose(column):
            poses = values[column.name]
            absent = np.logical_not(np.any(poses[..., 3:], axis=-1, keepdims=True))[..., 0]
            if absent.any():
                matrices = pose.to_matrix(np.where(absent[..., None], _IDENTITY, poses))
                matrices[absent] = 0
            else:
                matrices = pose.to_matrix(poses)
            values[column.name] = matrices
    return values


def window_entry(window: Resolved, place: int) -> dict[str, Any]:  # Any: see Draft.entries
    """Return what every field of one sensor says about its places in time: [B, T] each."""
    return {
        "stamp": window.stamps[..., place],
        "sync_error": window.sync_error[..., place],
        "mask": window.valid[..., place],
    }


class ColumnField:
    """Fills batch[key] for a timeline of columns only: one [B, T, …] array a column."""

    def __init__(self, key: str, sensor: Sensor, timeline: Timeline, *, window: str, place: int) -> None:
        self.key = key
        self._sensor, self._timeline = sensor, timeline
        self._window, self._place = window, place

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for no memory: columns are small, and malloc recycles small arrays well."""
        return Prepared(fill=lambda _: self._fill(draft))

    def _fill(self, draft: Draft) -> list[Task]:
        window = draft.windows[self._window]
        draft.entries[self.key] = entry = window_entry(window, self._place)
        return [Task(partial(self._gather, window, entry), f"columns of {self.key!r}")]

    def _gather(self, window: Resolved, entry: dict[str, Any]) -> None:  # Any: see Draft.entries
        place = self._place
        right = None if window.right is None else window.right[..., place]
        fraction = None if window.fraction is None else window.fraction[..., place]
        entry.update(gather_columns(self._timeline, self._sensor.columns, window.rows[..., place], right, fraction))


def _is_pose(column: Column) -> bool:
    return column.name in _POSES and column.shape == (7,)


def _between(
    timeline: Timeline,
    column: Column,
    left: NDArray[np.int64],
    right: NDArray[np.int64],
    fraction: NDArray[np.float64],
) -> NDArray[Any]:  # Any: dtype by schema
    start, end = timeline.take(column.name, left), timeline.take(column.name, right)
    share = fraction.reshape(-1, *(1 for _ in column.shape))
    if _is_pose(column):
        shift = start[:, :3] + share * (end[:, :3] - start[:, :3])
        return np.concatenate([shift, pose.slerp(start[:, 3:], end[:, 3:], fraction)], -1)
    if column.numpy_dtype.kind == "f":
        return np.asarray((start + share * (end - start)).astype(column.numpy_dtype))
    if column.numpy_dtype.kind in "iub":
        return np.where(share < 0.5, start, end)
    raise UsageError(f"column {column.name!r} of dtype {column.dtype!r} cannot be interpolated; use sync='nearest'")

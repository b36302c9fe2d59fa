"""Columns of timelines as batch arrays: one vectorised take a column, poses as 4 × 4 matrices, zeros where nothing is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import EGO_TO_WORLD, SENSOR_TO_EGO, Column, Sensor, UsageError, kernel, pose
from ..formats.shard_column import RowPlaces, take_later, take_rows
from .draft import Draft, Prepared, Task
from .located import Ahead
from .read_set import Resolved

if TYPE_CHECKING:
    from ..formats.timeline import Timeline

__all__ = ["ColumnField", "gather_columns", "shared_columns", "take_columns", "window_ahead", "window_entry", "with_matrices"]

_SMALL_WIDTH: Final = 256
"""Bytes of a row up to which a column is taken for many batches at once: so many numbers are made faster than one call is."""

_FILE_FACTS = ("image_size", "jpeg_", "png_", "gop_", "video_order")
_POSES = frozenset((SENSOR_TO_EGO, EGO_TO_WORLD))
_SHARD, _ROW = "\0shard", "\0row"  # no column is called so: names have no control characters
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
    everywhere = bool(there.all())
    flat = rows.ravel() if everywhere else rows[there]
    if not len(flat):
        return {column.name: np.zeros((*rows.shape, *column.shape), column.numpy_dtype) for column in columns}
    if right is None or fraction is None:
        sources = [timeline.column(column.name) for column in columns]
        taken = [source.empty(len(flat)) for source in sources]
        if sources:
            take_rows(sources, timeline.places(flat), taken)
    else:
        taken = [_between(timeline, column, flat, right[there], fraction[there]) for column in columns]
    found: dict[str, NDArray[Any]] = {}  # Any: dtypes by schema
    for column, values in zip(columns, taken, strict=True):
        full = values if everywhere else np.zeros((rows.size, *column.shape), values.dtype)
        if not everywhere:
            full[there.ravel()] = values
        found[column.name] = full.reshape(*rows.shape, *column.shape)
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


def window_ahead(window: Resolved, place: int) -> dict[str, NDArray[Any]]:  # Any: dtypes by schema
    """Return `window_entry` as contiguous arrays, whose parts are tensors without a copy."""
    return {name: np.ascontiguousarray(values) for name, values in window_entry(window, place).items()}


class ColumnField:
    """Fills batch[key] for a timeline of columns only: one [B, T, …] array a column.

    Small columns are taken for many batches at once; of large ones only the places of their rows are found ahead, and each
    batch is filled by one take a column.
    """

    def __init__(self, key: str, sensor: Sensor, timeline: Timeline, *, window: str, place: int) -> None:
        self.key = key
        self._timeline = timeline
        self._window, self._place = window, place
        self._large = [column for column in sensor.columns if column.width > _SMALL_WIDTH]
        self._small = [column for column in sensor.columns if column not in self._large]
        self._sources = [timeline.column(column.name) for column in self._large]
        self._layouts = [(column.name, column.numpy_dtype, column.shape) for column in self._large]
        self._widths = [column.width for column in self._large]
        self._what = f"columns of {key!r}"

    def ahead(self, windows: Mapping[str, Resolved]) -> Ahead:
        """Return stamps, small columns, and where the rows of large ones lie."""
        window = windows[self._window]
        rows, right, fraction = self._rows(window)
        found = window_ahead(window, self._place)
        found.update(gather_columns(self._timeline, self._small, rows, right, fraction))
        if self._large and right is None and rows.size and rows.min() >= 0:
            places = self._timeline.places(rows.ravel())
            for source in self._sources:
                source.open(places.shard)
            found[_SHARD], found[_ROW] = places.shard.reshape(rows.shape), places.row.reshape(rows.shape)
        return found

    def prepare(self, draft: Draft) -> Prepared:
        """Ask for memory for the large columns, where no row is absent or interpolated."""
        ahead = dict(draft.ahead[self.key])
        shard, row = ahead.pop(_SHARD, None), ahead.pop(_ROW, None)
        draft.entries[self.key] = entry = ahead
        if not self._large:
            return Prepared(fill=lambda _: [])
        if shard is None or row is None:
            window = draft.windows[self._window]
            return Prepared(
                fill=lambda _: [Task(partial(self._gather, window, entry), f"columns of {self.key!r}", stage="assemble")]
            )
        places = RowPlaces(shard=shard.ravel(), row=row.ravel())
        fill = partial(self._fill, shard.shape, places, entry)
        return Prepared(sizes=[row.size * width for width in self._widths], fill=fill)

    def _fill(
        self,
        lead: tuple[int, ...],
        places: RowPlaces,
        entry: dict[str, Any],  # Any: see Draft.entries
        memory: Sequence[NDArray[np.uint8]],
    ) -> list[Task]:
        outs = []
        for (name, dtype, shape), piece in zip(self._layouts, memory, strict=True):
            entry[name] = out = piece.view(dtype).reshape(*lead, *shape)
            outs.append(out)
        take = partial(take_rows, self._sources, places, outs)
        start = partial(take_later, self._sources, places, outs) if kernel.available() else None
        return [Task(take, self._what, is_quick=True, stage="assemble", start=start)]

    def _gather(self, window: Resolved, entry: dict[str, Any]) -> None:  # Any: see Draft.entries
        entry.update(gather_columns(self._timeline, self._large, *self._rows(window)))

    def _rows(self, window: Resolved) -> tuple[NDArray[np.int64], NDArray[np.int64] | None, NDArray[np.float64] | None]:
        place = self._place
        right = None if window.right is None else window.right[..., place]
        fraction = None if window.fraction is None else window.fraction[..., place]
        return window.rows[..., place], right, fraction


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

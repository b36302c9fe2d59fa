"""A fixed-size column over all shards of a set: rows of many shards in one take, several columns at once.

The native core reads rows at their addresses and compares every index; without it numpy takes shard by shard. A shard's part
is opened when a row of it is first asked for, and a chunk of it compared with its hash when a row in the chunk is.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .integrity import ChunkedFile

__all__ = ["ColumnPart", "RowPlaces", "ShardColumn", "take_later", "take_rows"]

Ints = NDArray[np.int64]
Array = NDArray[Any]  # Any: dtypes by schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """Where rows lie: found once, good for every column of their timeline."""

    shard: Ints
    """(n,) index into the manifest's shards."""
    row: Ints
    """(n,) row inside the shard."""


@dataclass(frozen=True, slots=True)
class ColumnPart:
    """A column in one shard."""

    values: Array
    """(rows, *shape), read-only and contiguous; to be touched before they are read."""
    file: ChunkedFile | None = None
    """Where `values` lie; None: in no file, and there is nothing to compare."""

    def rows(self, start: int, stop: int) -> Array:
        """Return values [start, stop), their chunks compared."""
        found = self.values[start:stop]
        if self.file is not None and found.nbytes:
            begin = kernel.address(found) - self.file.mapped.address
            self.file.touch(begin, begin + found.nbytes)
        return found

    def take(self, rows: Ints) -> Array:
        """Return values of `rows`, their chunks compared."""
        self.touch(rows)
        return np.asarray(self.values[rows])

    def touch(self, rows: Ints) -> None:
        """Compare the chunks in which `rows` lie."""
        if self.file is not None and len(rows) and self.values.nbytes:
            width = self.values.nbytes // len(self.values)
            self.file.touch_each(kernel.address(self.values) - self.file.mapped.address + rows * width, width)

    def home(self) -> tuple[int, ...]:
        """Return what `kernel.HOME` lists."""
        base, file = kernel.address(self.values) if len(self.values) else 0, self.file
        if file is None:
            return base, 0, 0, 0, 0
        return base, kernel.address(file.good), file.mapped.address, len(file.mapped.view), kernel.address(file.sums)


class ShardColumn:
    """One column; safe to use from several threads, which open a shard twice at worst.

    Args:
        counts: (S,) rows of each shard.
        dtype, shape: of one row.
        open_part: shard → what it holds.
    """

    def __init__(
        self, counts: Ints, dtype: np.dtype[Any], shape: tuple[int, ...], open_part: Callable[[int], ColumnPart]
    ) -> None:
        self.counts, self.dtype, self.shape, self._open_part = counts, dtype, shape, open_part
        self.homes: NDArray[np.void] = np.zeros(len(counts), kernel.HOME)
        """(S,) where each shard's rows lie."""
        self._parts: dict[int, ColumnPart] = {}  # keeps what `homes` points to

    def empty(self, rows: int) -> Array:
        """Return memory for so many rows."""
        return np.empty((rows, *self.shape), self.dtype)

    def part(self, shard: int) -> ColumnPart:
        """Return what a shard holds, opened once."""
        found = self._parts.get(shard)
        if found is None:
            part = self._open_part(shard)
            assert part.values.flags.c_contiguous
            assert part.values.dtype == self.dtype
            assert part.values.shape == (self.counts[shard], *self.shape)
            found = self._parts.setdefault(shard, part)
            self.homes[shard] = found.home()
        return found

    def open(self, shards: Ints) -> None:
        """Open all of `shards` (any order, repeated)."""
        closed = self.homes["base"][shards] == 0
        for shard in np.unique(shards[closed]).tolist() if closed.any() else ():
            self.part(shard)

    def touch(self, places: RowPlaces) -> None:
        """Open the shards of rows, and compare the chunks they lie in.

        Raises:
            CorruptShard: a chunk is not what was packed; the message names it.
        """
        for shard in np.unique(places.shard).tolist():
            self.part(shard).touch(places.row[places.shard == shard])


def take_rows(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array]) -> None:
    """Fill each of `outs`, contiguous, of any shape with n rows in it, with its column's rows at `places`.

    The columns are of one timeline.

    Raises:
        CorruptShard: a row lies in a chunk that is not what was packed.
    """
    if not kernel.available():
        for column, out in zip(columns, outs, strict=True):
            _take(places, out, column)
        return
    try:
        _native(columns, places, outs, later=False)
        return
    except IndexError:  # of shards not open so far, or in damaged chunks
        for column in columns:
            column.open(places.shard)
    try:
        _native(columns, places, outs, later=False)
    except IndexError:
        _say_damaged(columns, places)
        raise


def take_later(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array]) -> TakeLater:
    """Begin the same in the native core's threads; the shards are open, and the core is available."""
    return TakeLater(columns, places, _native(columns, places, outs, later=True))


class TakeLater:
    """Rows on their way; dropping it waits for what has begun."""

    __slots__ = ("_columns", "_places", "_take", "is_done")

    def __init__(self, columns: Sequence[ShardColumn], places: RowPlaces, take: kernel.Take) -> None:
        self._columns, self._places, self._take = columns, places, take
        self.is_done = take.is_done

    def wait(self, timeout_s: float) -> bool:
        """Return True when all rows are there, False if `timeout_s` passes first.

        Raises:
            CorruptShard: a row lies in a chunk that is not what was packed.
            IndexError: a row that there is not, or of a shard that is not open.
        """
        try:
            return self._take.wait(timeout_s)
        except IndexError:
            _say_damaged(self._columns, self._places)
            raise


def _native(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array], *, later: bool) -> kernel.Take:
    rows = len(places.row)
    for column, out in zip(columns, outs, strict=True):
        assert out.dtype == column.dtype
        assert out.size == rows * math.prod(column.shape)
    homes = tuple(column.homes for column in columns)
    return kernel.take(columns[0].counts, homes, places.shard, places.row, tuple(outs), later=later)


def _say_damaged(columns: Sequence[ShardColumn], places: RowPlaces) -> None:
    for column in columns:
        column.touch(places)


def _take(places: RowPlaces, out: Array, column: ShardColumn) -> None:
    shards, rows = places.shard, places.row
    out = out.reshape(len(rows), *column.shape)
    if len(rows) and np.all(shards == shards[0]):
        part = column.part(int(shards[0]))
        part.touch(rows)
        np.take(part.values, rows, axis=0, out=out, mode="clip")
        return
    for shard in np.unique(shards).tolist():
        chosen = shards == shard
        out[chosen] = column.part(shard).take(rows[chosen])

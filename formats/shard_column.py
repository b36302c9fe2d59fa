"""A fixed-size column over all shards of a set: rows of many shards in one take, several columns at once.

The native core reads rows at their addresses and compares every index; without it numpy takes shard by shard. A shard's part
is opened, and its chunk hashes compared, when a row of it is first asked for.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import kernel

__all__ = ["RowPlaces", "ShardColumn", "take_later", "take_rows"]

Ints = NDArray[np.int64]
Array = NDArray[Any]  # Any: dtypes by schema


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlaces:
    """Where rows lie: found once, good for every column of their timeline."""

    shard: Ints
    """(n,) index into the manifest's shards."""
    row: Ints
    """(n,) row inside the shard."""


class ShardColumn:
    """One column; safe to use from several threads, which open a shard twice at worst.

    Args:
        counts: (S,) rows of each shard.
        dtype, shape: of one row.
        view: shard → its (rows, *shape), read-only and contiguous, checked.
    """

    def __init__(self, counts: Ints, dtype: np.dtype[Any], shape: tuple[int, ...], view: Callable[[int], Array]) -> None:
        self.counts, self.dtype, self.shape, self.view = counts, dtype, shape, view
        self.bases: Ints = np.zeros(len(counts), np.int64)
        """(S,) address of each shard's first row; 0 where it is not open."""
        self._kept: list[Array] = []  # what the addresses point to

    def empty(self, rows: int) -> Array:
        """Return memory for so many rows."""
        return np.empty((rows, *self.shape), self.dtype)

    def open(self, shards: Ints) -> None:
        """Open all of `shards` (any order, repeated)."""
        closed = self.bases[shards] == 0
        for shard in np.unique(shards[closed]).tolist() if closed.any() else ():
            view = self.view(shard)
            assert view.flags.c_contiguous
            assert view.dtype == self.dtype
            assert view.shape == (self.counts[shard], *self.shape)
            if len(view):
                self._kept.append(view)
                self.bases[shard] = view.__array_interface__["data"][0]


def take_rows(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array]) -> None:
    """Fill each of `outs` (n, *shape), contiguous, with its column's rows at `places`; the columns are of one timeline."""
    if not kernel.available():
        for column, out in zip(columns, outs, strict=True):
            _take(places, out, column.view)
        return
    try:
        _native(columns, places, outs, later=False)
    except IndexError:  # of shards not open so far
        for column in columns:
            column.open(places.shard)
        _native(columns, places, outs, later=False)


def take_later(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array]) -> kernel.Take:
    """Begin the same in the native core's threads; the shards are open, and the core is available."""
    return _native(columns, places, outs, later=True)


def _native(columns: Sequence[ShardColumn], places: RowPlaces, outs: Sequence[Array], *, later: bool) -> kernel.Take:
    rows = len(places.row)
    for column, out in zip(columns, outs, strict=True):
        assert out.dtype == column.dtype
        assert out.size == rows * math.prod(column.shape)
    bases = tuple(column.bases for column in columns)
    return kernel.take(columns[0].counts, bases, places.shard, places.row, tuple(outs), later=later)


def _take(places: RowPlaces, out: Array, view: Callable[[int], Array]) -> None:
    shards, rows = places.shard, places.row
    if len(rows) and np.all(shards == shards[0]):
        np.take(view(int(shards[0])), rows, axis=0, out=out, mode="clip")
        return
    for shard in np.unique(shards).tolist():
        chosen = shards == shard
        out[chosen] = view(shard)[rows[chosen]]

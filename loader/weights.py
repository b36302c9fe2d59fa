"""Integer cumulative tables that weighted sampling draws from: how often each item comes, exact, hashed, memory-mapped.

Entry i is the sum of the integer weights of items 0 … i. Weights given as floats are rounded to integers once, when the table
is made, so that a draw is the same on every machine. `class_balanced` computes weights from the classes each item holds.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from ..formats.errors import SetError, UsageError

__all__ = ["WeightTable", "class_balanced"]

_LARGEST = 2**62
_CHUNK = 1 << 20


class WeightTable:
    """A cumulative table of integer weights.

    >>> table = WeightTable.of([1, 0, 3])
    >>> table.cumulative.tolist(), table.total
    ([1, 1, 4], 4)
    """

    def __init__(self, cumulative: NDArray[np.int64]) -> None:
        self.cumulative = cumulative
        """(items,) int64, never falling; may be memory-mapped."""
        self.total = int(cumulative[-1]) if len(cumulative) else 0
        if self.total < 1:
            raise UsageError(
                f"cannot draw from weights of {len(cumulative)} items: their sum is {self.total}, expected 1 or more"
            )
        digest = hashlib.sha256()
        for begin in range(0, len(cumulative), _CHUNK):
            part = np.ascontiguousarray(cumulative[begin : begin + _CHUNK], "<i8")
            if part[0] < (cumulative[begin - 1] if begin else 0) or (np.diff(part) < 0).any():
                raise UsageError(f"cannot draw from the weights of items {begin} on: their cumulative table falls; make it anew")
            digest.update(part.data)
        self.digest = digest.hexdigest()
        """Names the table in states and journals."""

    @classmethod
    def of(cls, weights: ArrayLike) -> WeightTable:
        """Return the table of one weight per item, integers as they are, floats in steps of 2⁻³² of the largest or finer."""
        given = np.asarray(weights)
        if given.ndim != 1 or not given.size or given.dtype.kind not in "iufb":
            raise UsageError(f"cannot make a weight table of {given.dtype} {given.shape}: expected one number per item")
        if given.dtype.kind == "f":
            given = _rounded(given.astype(np.float64))
        if (given < 0).any() or float(given.astype(np.float64).sum()) >= _LARGEST:
            raise UsageError("cannot make a weight table: expected weights of 0 or more with a sum below 2⁶²")
        return cls(np.cumsum(given.astype(np.int64)))

    @classmethod
    def open(cls, path: str | Path) -> WeightTable:
        """Return the table of a file that `save` wrote, memory-mapped: its pages are shared by all processes of a node."""
        try:
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        except ValueError as error:
            raise SetError(f"cannot open weight table {str(path)!r}: {error}; write it again with WeightTable.save") from error
        if not isinstance(mapped, np.ndarray) or mapped.dtype != np.dtype("<i8") or mapped.ndim != 1:
            raise SetError(f"cannot open weight table {str(path)!r}: expected one int64 per item; write it with WeightTable.save")
        return cls(mapped)

    def save(self, path: str | Path) -> Path:
        """Write the table, whole or not at all."""
        path = Path(path)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "wb") as file:
                np.save(file, self.cumulative.astype("<i8", copy=False), allow_pickle=False)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
        return path


def _rounded(weights: NDArray[np.float64]) -> NDArray[np.int64]:
    largest = float(weights.max())
    if not np.isfinite(weights).all() or largest <= 0:
        raise UsageError("cannot make a weight table: expected finite weights, at least one of them above 0")
    steps = min(2**32, _LARGEST // (2 * weights.size))
    rounded = np.rint(weights / largest * steps).astype(np.int64)
    # A weight above 0 never becomes 0: that item would never come.
    return np.where(weights > 0, np.maximum(rounded, 1), rounded)


def class_balanced(
    items: ArrayLike, classes: ArrayLike, *, count: int, background: float = 0.0, power: float = 1.0
) -> NDArray[np.float64]:
    """Return one weight per item so that each class is drawn equally often (CBGS, arXiv 1908.09492).

    An item's weight is the sum over the classes it holds of 1 / (items that hold the class).

    Args:
        items, classes: (n,) each: item `items[i]` holds class `classes[i]`; a class held several times counts once.
            From box annotations, or from tags of drives.
        count: items of the view.
        background: weight of an item that holds no class, in mean weights of the others. 0: never drawn.
        power: 1 balances fully, 0 ignores how frequent a class is, 0.5 lies between.
    """
    pairs = np.unique(np.stack([np.asarray(items, np.int64).ravel(), np.asarray(classes, np.int64).ravel()]), axis=1)
    if pairs.size and not 0 <= pairs[0].min() <= pairs[0].max() < count:
        raise UsageError(f"cannot balance classes: found items {pairs[0].min()} to {pairs[0].max()}, expected 0 to {count - 1}")
    if not pairs.size:
        raise UsageError("cannot balance classes: no item holds any; check the annotation columns")
    _, which, frequency = np.unique(pairs[1], return_inverse=True, return_counts=True)
    share: NDArray[Any] = frequency[which] ** -float(power)  # Any: numpy types powers of ints loosely; it is float64
    weights = np.bincount(pairs[0], weights=share, minlength=count)
    held = np.bincount(pairs[0], minlength=count) > 0
    return np.where(held, weights, background * weights[held].mean())

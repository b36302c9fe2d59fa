"""One column of points as byte streams and back, in numpy: the reference for formats/native/points.c.

A column is turned into integers (its own bits, or the decimals it was rounded to), then into differences to the value
`stride` points earlier, then into byte planes. `plan_column` picks the layout from a fixed sample, so the choice is a pure
function of the values; the streams' bytes are compressed by points.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

__all__ = ["BITS", "DECIMAL", "Layout", "bits", "decimals", "join_column", "plan_column", "split_column"]

BITS: Final = 0
"""The integers are the values' own bits."""
DECIMAL: Final = 1
"""value = float(integer / divisor), divided in double precision and rounded once to the column's type."""

# What real sweeps are rounded to: integers, KITTI's 0.01 and 0.001, normalised bytes; smallest range of integers first.
_DIVISORS: Final = (1, 10, 100, 255, 1000, 10_000)
# Consecutive firings, and the beam counts at which firing-ordered sweeps repeat (nuScenes: 32 raises 2.05x to 2.4x).
_STRIDES: Final = (1, 16, 32, 64, 128)
_GLANCE: Final = 256
_RUN: Final = 256
_RUNS: Final = 4
# One value in 64 may be an exception: KITTI's few -0.0, a radar's NaN. Each costs 8 to 12 bytes.
_PATCH_SHARE: Final = 64
_LOG2: Final = np.rint(np.log2(np.arange(1, (_RUN + _STRIDES[-1]) * _RUNS + 1)) * 1024).astype(
    np.int64
)  # fixed point: equal on every CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How one column is stored; the 16-byte descriptor of points.py holds the same values."""

    transform: int = BITS
    stored: int
    """Bytes kept of each integer, lowest first; the higher ones are zero. 0: all integers are zero."""
    plain: bool = False
    """One stream of little-endian integers of `stored` bytes instead of one stream a byte plane."""
    zigzag: bool = False
    """Integers were mapped 0, -1, 1, -2, … → 0, 1, 2, 3, … after differencing."""
    stride: int = 0
    """Integers are differences to the one `stride` points earlier, modulo the working width; 0: themselves."""
    divisor: int = 0
    patches: int = 0
    """DECIMAL: how many values are given as their bits instead."""


def decimals(values: NDArray[Any], divisor: int) -> tuple[NDArray[np.int32], NDArray[np.intp]]:
    """Return the integers nearest to float `values` times `divisor`, and where they do not give `values` back bit for bit."""
    with np.errstate(all="ignore"):
        scaled = np.rint(values.astype(np.float64) * divisor)
        scaled = np.where(np.abs(scaled) < 2.0**31, scaled, 0.0)  # false for NaN
        integers = scaled.astype(np.int32)  # which has no -0.0: going back from `scaled` would hide it
        again = (integers / divisor).astype(values.dtype)
    return integers, np.flatnonzero(bits(again) != bits(values))


def bits(values: NDArray[Any]) -> NDArray[Any]:
    """Return the values' bits as unsigned integers, a view."""
    return values.view(_unsigned(values.itemsize))


def plan_column(values: NDArray[Any], *, divisor: int = 0) -> tuple[Layout, NDArray[Any], NDArray[np.intp]]:
    """Choose the layout of a contiguous column; return it, its residual integers, and the positions of patches.

    With a `divisor` the column is rounded to 1 / divisor instead of kept exactly.
    """
    integers, patches = np.empty(0, np.int32), np.empty(0, np.intp)
    if divisor:
        integers = decimals(values, divisor)[0]
    elif values.dtype.kind == "f" and values.itemsize >= 4 and len(values):
        for candidate in _likely_divisors(values[:: max(len(values) // _GLANCE, 1)]):
            integers, odd = decimals(values, candidate)
            if len(odd) * _PATCH_SHARE <= len(values):
                divisor, patches = candidate, odd
                break
    signed = divisor > 0 or values.dtype.kind == "i"
    work = integers.view(np.uint32) if divisor else bits(values)
    negative = bool(len(work)) and signed and bool(work.view(f"<i{work.itemsize}").min() < 0)

    sample = _sample(work)
    stride, cost = 0, _cost(_runs(sample, 0, negative), work.itemsize)
    candidate = _likely_stride(sample, len(work))
    if candidate and (guess := _cost(_runs(sample, candidate, True), work.itemsize)) < cost:
        stride, cost = candidate, guess
    zigzag = stride > 0 or negative
    rest = _residuals(work, stride, zigzag)
    stored = (int(rest.max()).bit_length() + 7) // 8 if len(rest) else 0
    plain = False
    if stride == 0 and stored in (2, 4, 8):
        piece = _runs(sample, 0, zigzag).astype(f"<u{stored}").tobytes()
        plain = len(zstandard.ZstdCompressor(level=1).compress(piece)) * 8 * 1024 < cost
    layout = Layout(
        transform=DECIMAL if divisor else BITS,
        stored=stored,
        plain=plain,
        zigzag=zigzag,
        stride=stride,
        divisor=divisor,
        patches=len(patches),
    )
    return layout, rest, patches


def _likely_divisors(few: NDArray[Any]) -> list[int]:
    """Return the divisors under which at least seven eighths of a few values are decimals."""
    by = np.array(_DIVISORS, np.float64)[:, None]
    with np.errstate(all="ignore"):
        again = (np.rint(few.astype(np.float64) * by) / by).astype(few.dtype)
    share = (again == few).mean(1)
    return [divisor for divisor, part in zip(_DIVISORS, share.tolist(), strict=True) if part >= 0.875]


def split_column(values: NDArray[Any], layout: Layout, rest: NDArray[Any], patches: NDArray[np.intp]) -> list[bytes]:
    """Return the column's streams: planes from the lowest byte up, or one plain stream; then the patches if there are any."""
    streams = []
    if layout.plain:
        streams.append(rest.astype(f"<u{layout.stored}").tobytes())
    elif layout.stored:
        planes = rest.view(np.uint8).reshape(len(rest), rest.itemsize)
        streams += [planes[:, k].tobytes() for k in range(layout.stored)]
    if layout.patches:
        streams.append(patches.astype("<u4").tobytes() + values[patches].tobytes())
    return streams


def join_column(streams: list[memoryview], layout: Layout, dtype: np.dtype[Any], out: NDArray[Any]) -> None:
    """Write the column that `streams` hold into `out` (N,), a view of any stride and of a type `dtype` casts to.

    Stream sizes were checked against the layout before; positions of patches are checked here (ValueError).
    """
    count = len(out)
    width = 4 if layout.transform == DECIMAL else dtype.itemsize
    work = np.zeros(count, _unsigned(width))
    streams = list(streams)
    if layout.plain:
        work[:] = np.frombuffer(streams.pop(0), f"<u{layout.stored}")
    else:
        planes = work.view(np.uint8).reshape(count, width)
        for k in range(layout.stored):
            planes[:, k] = np.frombuffer(streams.pop(0), np.uint8)
    if layout.zigzag:
        work = (work >> 1) ^ (-(work & 1).astype(f"<i{width}")).view(work.dtype)
    if layout.stride:
        work = _accumulate(work, layout.stride)
    if layout.transform == BITS:
        out[:] = work.view(dtype)
        return
    value = (work.view("<i4").astype(np.float64) / layout.divisor).astype(dtype)
    if layout.patches:
        positions = np.frombuffer(streams[0], "<u4", layout.patches)
        if int(positions.max()) >= count:
            raise ValueError(f"exception at point {int(positions.max())} of {count}")
        value[positions] = np.frombuffer(streams[0], dtype, layout.patches, offset=4 * layout.patches)
    out[:] = value


def _unsigned(width: int) -> np.dtype[Any]:
    return np.dtype(f"<u{width}")


def _residuals(work: NDArray[Any], stride: int, zigzag: bool) -> NDArray[Any]:
    rest = work
    if stride:
        rest = work.copy()
        rest[stride:] -= work[:-stride]
    if zigzag:
        signs: NDArray[Any] = rest.view(f"<i{rest.itemsize}") >> (8 * rest.itemsize - 1)
        rest = (rest << 1) ^ signs.view(rest.dtype)
    return rest


def _accumulate(rest: NDArray[Any], stride: int) -> NDArray[Any]:
    rows = -(-len(rest) // stride)
    table = np.zeros((rows, stride), rest.dtype)
    table.ravel()[: len(rest)] = rest
    np.add.accumulate(table, axis=0, dtype=rest.dtype, out=table)
    return table.reshape(-1)[: len(rest)]


def _sample(values: NDArray[Any]) -> NDArray[Any]:
    """Return (runs, length) values: all of a short column, else a few runs evenly over it."""
    length = _RUN + _STRIDES[-1]
    if len(values) <= length * _RUNS:
        return values[None]
    starts = np.arange(_RUNS) * ((len(values) - length) // (_RUNS - 1))
    chosen: NDArray[Any] = values[starts[:, None] + np.arange(length)]
    return chosen


def _skip(sample: NDArray[Any]) -> int:
    length: int = sample.shape[1]
    return min(_STRIDES[-1], length // 3)  # a run is three times the longest stride; shorter columns try shorter strides


def _runs(sample: NDArray[Any], stride: int, zigzag: bool) -> NDArray[Any]:
    skip = _skip(sample)
    differences = sample[:, skip:] - sample[:, skip - stride : sample.shape[1] - stride] if stride else sample[:, skip:]
    return _residuals(np.ascontiguousarray(differences).ravel(), 0, zigzag)


def _likely_stride(sample: NDArray[Any], count: int) -> int:
    """Return the stride whose differences have the fewest bits before leading zeros, which is cheaper to tell than `_cost`."""
    strides: list[int] = [stride for stride in _STRIDES if count > 4 * stride]
    if not strides:
        return 0
    later = np.arange(_skip(sample), sample.shape[1])
    differences = sample[:, None, later] - sample[:, later - np.array(strides)[:, None]]
    lengths = np.frexp(_residuals(differences, 0, True).astype(np.float64))[1].sum(axis=(0, 2))
    return strides[int(lengths.argmin())]


def _cost(rest: NDArray[Any], width: int) -> int:
    """Estimate the bits of `rest`'s planes under entropy coding, in 1/1024 bit, scaled to the sample."""
    planes = rest.view(np.uint8).reshape(len(rest), width) + np.arange(width, dtype=np.int64) * 256
    counts = np.bincount(planes.ravel(), minlength=256 * width).reshape(width, 256)
    inner = (counts * _LOG2[np.maximum(counts, 1) - 1]).sum(1)
    total = max(len(rest), 1)
    whole = int(_LOG2[total - 1]) * total
    limit = total * 8 * 1024
    return int(np.minimum(whole - inner, limit).sum())

"""One affine → what decoders can do: which part of the source to decode, how to shrink it, and what is left for a warp.

Downscaling needs a filter as wide as a target pixel, which no warp has. So every backend decodes a slice of the source, resizes a
region of it to an upright canvas with an antialiased triangle filter, and warps that. Without rotation the canvas is cut on the
target's pixel grid: the warp then moves whole pixels and adds no blur.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

__all__ = ["Sampling", "sample"]

_RIM: Final = 1e-6  # px; as the decoders of the loader have it, so that rounding opens no rim
_OUTSIDE: Final = -1e6
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Sampling:
    """How one image gets to its target; all pairs are (y, x), px, edges at whole numbers."""

    start: tuple[int, int]
    """First source pixel of the slice."""
    shape: tuple[int, int]
    """Height and width of the slice."""
    region: tuple[tuple[float, float], tuple[float, float]]
    """Begin and end, relative to the slice, of what the canvas shows; at most half a target pixel outside the slice."""
    canvas: tuple[int, int]
    """Height and width of the upright picture."""
    matrix: NDArray[np.float64]
    """(2, 3), target px → canvas px. What lies outside the canvas is filled."""


def sample(affine: NDArray[np.float64], *, source: tuple[int, int], target: tuple[int, int]) -> Sampling:
    """Return how to get from a source of (width, height) to a target of (height, width) by `affine` (2, 3), source → target."""
    if affine[0, 1] == 0 == affine[1, 0]:
        return _upright(affine, source, target)
    width, height = source
    back = np.linalg.inv(np.vstack([affine, [0, 0, 1]]))
    scale = min(1.0, float(np.linalg.svd(affine[:, :2], compute_uv=False)[0]))
    corners = back[:2] @ [[0, target[1], 0, target[1]], [0, 0, target[0], target[0]], [1, 1, 1, 1]]
    margin = 2 / scale  # two canvas pixels for the warp
    left, right = _clipped(corners[0].min() - margin, corners[0].max() + margin, width)
    top, bottom = _clipped(corners[1].min() - margin, corners[1].max() + margin, height)
    canvas = (max(1, int(np.ceil((bottom - top) * scale))), max(1, int(np.ceil((right - left) * scale))))
    shrink = np.array([canvas[1] / (right - left), canvas[0] / (bottom - top)])
    matrix = np.concatenate([back[:2, :2], back[:2, 2:] - [[left], [top]]], 1) * shrink[:, None]
    size = (bottom - top, right - left)
    return Sampling((top, left), size, ((0.0, 0.0), (float(size[0]), float(size[1]))), canvas, matrix)


def _upright(affine: NDArray[np.float64], source: tuple[int, int], target: tuple[int, int]) -> Sampling:
    starts, shapes, begins, ends, canvas = [], [], [], [], []
    matrix = np.zeros((2, 3))
    for axis in (1, 0):  # y, then x
        scale, shift, length = float(affine[axis, axis]), float(affine[axis, 2]), source[axis]
        low, high = sorted((shift, scale * length + shift))
        # A target pixel i shows the source when its centre i + 0.5 does.
        first = max(int(np.ceil(low - 0.5 - _RIM)), 0)
        last = min(int(np.ceil(high - 0.5 + _RIM)), target[1 - axis])
        if first >= last:  # nothing of the source is seen: any pixel, moved out of sight
            starts.append(0)
            shapes.append(1)
            begins.append(0.0)
            ends.append(1.0)
            canvas.append(1)
            matrix[axis, 2] = _OUTSIDE
            continue
        begin, end = sorted(((first - shift) / scale, (last - shift) / scale))
        margin = 1 + 1 / abs(scale)  # the filter's half width
        start, stop = _clipped(begin - margin, end + margin, length)
        starts.append(start)
        shapes.append(stop - start)
        begins.append(begin - start)
        ends.append(end - start)
        canvas.append(last - first)
        matrix[axis, axis] = np.sign(scale)
        matrix[axis, 2] = -first if scale > 0 else last
    return Sampling(_pair(starts), _pair(shapes), (_pair(begins), _pair(ends)), _pair(canvas), matrix)


def _clipped(low: float, high: float, length: int) -> tuple[int, int]:
    """Return whole (start, stop) around low–high within 0–length, at least one pixel."""
    start = min(max(int(np.floor(low)), 0), length - 1)
    return start, max(min(int(np.ceil(high)), length), start + 1)


def _pair(values: list[T]) -> tuple[T, T]:
    first, second = values
    return first, second

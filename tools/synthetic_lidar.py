"""The synthetic drives' LiDAR: a spinning head whose rays meet boxes and ground, all at the sweep's stamp.

A return from a box lies a few centimetres inside it, so that float32 rounding cannot put it outside of its own annotation.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats.pose import invert, to_matrix

__all__ = ["Lidar", "Sweep"]

Float = NDArray[np.float64]

_RANGE_M: Final = 75.0
_DEPTH_M: Final = 0.03
_TOP_DEG, _BOTTOM_DEG = 10.67, -30.67


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """One rotation."""

    points: NDArray[np.float32]
    """(n, 5): x y z (metres, LiDAR frame), intensity 0–255, ring."""
    hit: NDArray[np.int32]
    """(n,): the box each point lies on, −1 for the ground."""
    seen: Float
    """(boxes,): share of the rays towards a box that nothing else stops; 0 where no ray goes there."""


@dataclass(frozen=True, kw_only=True)
class Lidar:
    """A LiDAR of `rings` beams that fires `columns` times a rotation."""

    rings: int = 32
    columns: int = 1085

    @cached_property
    def rays(self) -> Float:
        """(columns, rings, 3) unit vectors in the LiDAR frame, starting behind the car and turning clockwise."""
        azimuth = -np.pi / 2 - 2 * np.pi * (np.arange(self.columns) + 0.5) / self.columns
        height = np.deg2rad(np.linspace(_BOTTOM_DEG, _TOP_DEG, self.rings))
        flat = np.cos(height)
        level = np.broadcast_to(np.sin(height), (self.columns, self.rings))
        return np.stack([np.outer(np.cos(azimuth), flat), np.outer(np.sin(azimuth), flat), level], -1)

    def sweep(self, to_world: Float, boxes: Float, sizes: Float, brightness: Float, rng: np.random.Generator) -> Sweep:
        """Return what a LiDAR at pose `to_world` sees of boxes (n, 7) with sizes (n, 3) on the ground z = 0."""
        matrix = to_matrix(to_world)
        down = self.rays @ matrix[2, :3]
        with np.errstate(divide="ignore"):
            reach = np.where(down < 0, -matrix[2, 3] / down, np.inf)
        hit = np.full(reach.shape, -1, np.int32)
        aimed = np.zeros(len(boxes))
        from_world = to_matrix(invert(boxes))
        distance = np.linalg.norm(boxes[:, :2] - matrix[:2, 3], axis=1) - np.linalg.norm(sizes[:, :2], axis=1) / 2
        for number in np.flatnonzero(distance < _RANGE_M):
            box = from_world[number] @ matrix
            columns = self._columns_towards(box, sizes[number])
            near, far = _through_box(box, sizes[number], self.rays[columns])
            met = (near < far) & (near > 0) & (near < _RANGE_M)
            aimed[number] = met.sum()
            first = met & (near < reach[columns])
            column, ring = np.nonzero(first)
            reach[columns[column], ring] = near[first] + np.minimum(_DEPTH_M, (far[first] - near[first]) / 2)
            hit[columns[column], ring] = number
        back = reach < _RANGE_M
        kept = np.bincount(hit[back & (hit >= 0)], minlength=len(boxes))
        noise = np.where(hit[back] < 0, rng.normal(0, 0.01, int(back.sum())), 0.0)
        xyz = self.rays[back] * (reach[back] + noise)[:, None]
        shine = np.where(hit[back] < 0, 12.0, np.append(brightness, 0.0)[hit[back]])
        intensity = np.clip(np.rint(shine + rng.normal(0, 4, len(shine))), 0, 255)
        ring = np.broadcast_to(np.arange(self.rings), back.shape)[back]
        points = np.concatenate([xyz, intensity[:, None], ring[:, None]], 1).astype(np.float32)
        return Sweep(points=points, hit=hit[back], seen=np.divide(kept, aimed, out=np.zeros(len(boxes)), where=aimed > 0))

    def _columns_towards(self, box: Float, size: Float) -> NDArray[np.int64]:
        """Return the columns whose azimuth may meet a box: the rest of the rotation is not computed."""
        signs = np.array([[i & 1, i >> 1 & 1, i >> 2] for i in range(8)]) - 0.5
        corners = (signs * size - box[:3, 3]) @ box[:3, :3]
        reach = np.hypot(corners[:, 0], corners[:, 1])
        centre = -box[:3, 3] @ box[:3, :3]
        middle = np.arctan2(centre[1], centre[0])
        apart = np.angle(np.exp(1j * (np.arctan2(corners[:, 1], corners[:, 0]) - middle)))
        if np.ptp(apart) > np.pi / 2 or reach.min() < 1.0:  # around us: look everywhere
            return np.arange(self.columns)
        step = 2 * np.pi / self.columns
        first = np.floor((-np.pi / 2 - (middle + apart.max())) / step) - 1
        return np.arange(int(first), int(first + np.ptp(apart) / step) + 4) % self.columns


def _through_box(box: Float, size: Float, rays: Float) -> tuple[Float, Float]:
    """Return where rays from the origin of `box`'s source frame enter and leave it (slab method)."""
    near, far = np.full(rays.shape[:2], -np.inf), np.full(rays.shape[:2], np.inf)
    for axis in range(3):
        along = rays @ box[axis, :3]
        along = np.where(np.abs(along) < 1e-12, 1e-12, along)
        low, high = (-size[axis] / 2 - box[axis, 3]) / along, (size[axis] / 2 - box[axis, 3]) / along
        np.maximum(near, np.minimum(low, high), out=near)
        np.minimum(far, np.maximum(low, high), out=far)
    return near, far

"""Augmentations of the scene as seen from above: rotation, scale, flip and translation, each one 4 × 4 matrix a sample.

Each is data and a pure function of keys, as the image augmentations are. A matrix acts on homogeneous coordinates (x forward,
y left, z up); flips are matrices of determinant −1, which no quaternion can hold, so matrices stay matrices. What a matrix
does to points, boxes, poses and paths is `geometry`'s to say.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError
from ..loader.draws import fold, uniform

__all__ = ["BevOp", "FlipBev", "RotateBev", "ScaleBev", "TranslateBev"]

Matrices = NDArray[np.float64]
"""(n, 4, 4)"""

_MAX_M: Final = 1e4


@dataclass(frozen=True, slots=True, kw_only=True)
class RotateBev:
    """Turn the scene about the vertical axis. BEVDet and StreamPETR draw ±0.3925 rad, BEVFusion ±0.785.

    >>> RotateBev(angle_rad=(0.5, 0.5)).matrices(np.zeros(1, np.uint64))[0, :2, :2].round(3).tolist()
    [[0.878, -0.479], [0.479, 0.878]]
    """

    angle_rad: tuple[float, float] = (-0.3925, 0.3925)
    """Lowest and highest angle, counter-clockwise as seen from above."""
    purpose: str = "bev-rotate"

    def __post_init__(self) -> None:
        _bounds("RotateBev: angle_rad", self.angle_rad, -2 * np.pi, 2 * np.pi)

    def matrices(self, keys: NDArray[np.uint64]) -> Matrices:
        """Return (n, 4, 4), one a key."""
        angle = _between(self.angle_rad, keys)
        found = _identities(len(keys))
        found[:, 0, 0] = found[:, 1, 1] = np.cos(angle)
        found[:, 1, 0] = np.sin(angle)
        found[:, 0, 1] = -found[:, 1, 0]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class ScaleBev:
    """Scale the scene about the origin, alike in x, y and z. BEVDet draws 0.95–1.05, BEVFusion 0.9–1.1."""

    factor: tuple[float, float] = (0.95, 1.05)
    """Lowest and highest factor."""
    purpose: str = "bev-scale"

    def __post_init__(self) -> None:
        _bounds("ScaleBev: factor", self.factor, 1e-3, 1e3)

    def matrices(self, keys: NDArray[np.uint64]) -> Matrices:
        """Return (n, 4, 4), one a key."""
        found = _identities(len(keys))
        found[:, :3, :3] *= _between(self.factor, keys)[:, None, None]
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class FlipBev:
    """Mirror the scene: forward with backward, left with right, each drawn by itself. BEVDet and BEVFusion: 0.5 each."""

    forward: float = 0.5
    """Probability of x → −x."""
    sideways: float = 0.5
    """Probability of y → −y."""
    purpose: str = "bev-flip"

    def __post_init__(self) -> None:
        for name, value in (("forward", self.forward), ("sideways", self.sideways)):
            if not 0 <= value <= 1:
                raise UsageError(f"FlipBev: {name} must be a probability from 0 to 1, found {value!r}")

    def matrices(self, keys: NDArray[np.uint64]) -> Matrices:
        """Return (n, 4, 4), one a key."""
        found = _identities(len(keys))
        for axis, chance in enumerate((self.forward, self.sideways)):
            found[:, axis, axis] = np.where(uniform(fold(keys, axis)) < chance, -1.0, 1.0)
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class TranslateBev:
    """Shift the scene by normally distributed metres. BEVFusion: 0.5 m along each axis."""

    std_m: tuple[float, float, float] = (0.5, 0.5, 0.5)
    """Standard deviation along x, y and z."""
    purpose: str = "bev-translate"

    def __post_init__(self) -> None:
        if len(self.std_m) != 3 or not all(0 <= value <= _MAX_M for value in self.std_m):
            raise UsageError(f"TranslateBev: std_m must be three lengths from 0 to {_MAX_M:g} m, found {self.std_m!r}")

    def matrices(self, keys: NDArray[np.uint64]) -> Matrices:
        """Return (n, 4, 4), one a key."""
        found = _identities(len(keys))
        for axis, std in enumerate(self.std_m):
            # Box and Muller 1958; 1 − u lies in (0, 1], so that the logarithm is finite.
            radius = np.sqrt(-2 * np.log(1 - uniform(fold(keys, axis, 0))))
            found[:, axis, 3] = std * radius * np.cos(2 * np.pi * uniform(fold(keys, axis, 1)))
        return found


BevOp = RotateBev | ScaleBev | FlipBev | TranslateBev


def _identities(count: int) -> Matrices:
    return np.tile(np.eye(4), (count, 1, 1))


def _between(bounds: tuple[float, float], keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    return bounds[0] + (bounds[1] - bounds[0]) * uniform(fold(keys, 0))


def _bounds(name: str, bounds: tuple[float, float], lowest: float, highest: float) -> None:
    if len(bounds) != 2 or not lowest <= bounds[0] <= bounds[1] <= highest:
        raise UsageError(f"{name} must be (low, high) within {lowest:.4g} to {highest:.4g}, found {bounds!r}")

"""Image augmentations as affines: resize, crop, flip and rotation in one matrix, by the names of the recipes in use.

Each is data (a frozen dataclass) and a pure function of keys, so that a draw is the same on every rank, for every decoder, and
when it is made again. Numbers in use: av recipes BEVDet, BEVFusion and StreamPETR draw `resize` 0.38–0.55 of 1600 × 900,
`rotate_deg` ±5.4 (StreamPETR none) and `flip` 0.5; StreamPETR draws once a sample.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError
from ..loader.draws import fold, uniform
from ..loader.image_draw import Share

__all__ = ["RandomResizedCrop", "ResizeCropFlip"]

_TRIES: Final = 10  # of a crop that fits, before the largest centred one is taken; torchvision's number

Affines = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResizeCropFlip:
    """Resize by a drawn factor, crop at the bottom and a drawn place sideways, flip, rotate about the crop's centre.

    >>> policy = ResizeCropFlip(resize=(0.44, 0.44), rotate_deg=(0, 0), flip=0)
    >>> source, keys = np.array([[1600, 900]]), np.zeros(1, np.uint64)
    >>> policy.affines(np.eye(3)[None], source=source, target=(256, 704), keys=keys)[0, 1].tolist()
    [0.0, 0.44, -140.0]
    """

    resize: tuple[float, float] = (0.38, 0.55)
    """Target px per source px, lowest and highest."""
    bottom: tuple[float, float] = (0.0, 0.0)
    """Share of the resized height that is cut off below the crop, lowest and highest (`bot_pct_lim`)."""
    rotate_deg: tuple[float, float] = (-5.4, 5.4)
    """Degrees, counter-clockwise as seen on the picture, lowest and highest."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    share: Share = "image"
    purpose: str = "resize-crop-flip"

    def __post_init__(self) -> None:
        _ordered("resize", self.resize, lowest=1e-6)
        _ordered("bottom", self.bottom, lowest=0.0, highest=1.0)
        _ordered("rotate_deg", self.rotate_deg)
        _probability("flip", self.flip)

    def affines(
        self, fitted: Affines, *, source: NDArray[np.int64], target: tuple[int, int], keys: NDArray[np.uint64]
    ) -> Affines:
        """Return (n, 3, 3) source px → target px; see `headway.loader.image_draw`."""
        height, width = target
        scale = _between(self.resize, _draw(keys, 0))
        resized = source * scale[:, None]
        left = np.maximum(resized[:, 0] - width, 0) * _draw(keys, 1)
        top = resized[:, 1] * (1 - _between(self.bottom, _draw(keys, 2))) - height
        crop = _stack(scale, 0, -left, 0, scale, -top)
        flipped = _draw(keys, 3) < self.flip
        flip = _stack(np.where(flipped, -1, 1), 0, np.where(flipped, width, 0), 0, 1, 0)
        # y points down: counter-clockwise to the eye is a negative angle in these axes.
        angle = -np.deg2rad(_between(self.rotate_deg, _draw(keys, 4)))
        cosine, sine = np.cos(angle), np.sin(angle)
        x, y = width / 2, height / 2
        turn = _stack(cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y)
        return turn @ flip @ crop


@dataclass(frozen=True, slots=True, kw_only=True)
class RandomResizedCrop:
    """Stretch a drawn part of the image over the target; flip half of them. The usual augmentation of single pictures."""

    area: tuple[float, float] = (0.08, 1.0)
    """Share of the source's area, lowest and highest."""
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    """Width ÷ height of the part, lowest and highest; drawn evenly in the logarithm."""
    flip: float = 0.5
    """Probability of a left-right flip."""
    share: Share = "image"
    purpose: str = "random-resized-crop"

    def __post_init__(self) -> None:
        _ordered("area", self.area, lowest=1e-6, highest=1.0)
        _ordered("aspect", self.aspect, lowest=1e-3)
        _probability("flip", self.flip)

    def affines(
        self, fitted: Affines, *, source: NDArray[np.int64], target: tuple[int, int], keys: NDArray[np.uint64]
    ) -> Affines:
        """Return (n, 3, 3) source px → target px; see `headway.loader.image_draw`."""
        height, width = target
        size = source.astype(np.float64)
        tries = np.arange(_TRIES)
        area = size.prod(1)[:, None] * _between(self.area, _draw(keys[:, None], 0, tries))
        low, high = np.log(self.aspect)
        aspect = np.exp(low + (high - low) * _draw(keys[:, None], 1, tries))
        parts = np.stack([np.sqrt(area * aspect), np.sqrt(area / aspect)], -1)  # (n, tries, 2): width, height
        fits: NDArray[np.bool_] = np.all(parts <= size[:, None], axis=-1)
        some, first = np.any(fits, axis=1, keepdims=True), np.argmax(fits, axis=1)
        part = np.where(some, parts[np.arange(len(keys)), first], size.min(1)[:, None])
        corner = (size - part) * np.where(some, np.stack([_draw(keys, 2), _draw(keys, 3)], -1), 0.5)
        across, down = width / part[:, 0], height / part[:, 1]
        flipped = _draw(keys, 4) < self.flip
        sign = np.where(flipped, -1.0, 1.0)
        return _stack(sign * across, 0, np.where(flipped, width, 0) - sign * across * corner[:, 0], 0, down, -down * corner[:, 1])


def _draw(keys: NDArray[np.uint64], *which: int | NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the `which`-th number in [0, 1) of each key."""
    return uniform(fold(keys, *which))


def _between(bounds: tuple[float, float], share: NDArray[np.float64]) -> NDArray[np.float64]:
    return bounds[0] + (bounds[1] - bounds[0]) * share


def _stack(*rows: float | NDArray[np.float64]) -> Affines:
    """Return (n, 3, 3) affines of six numbers, each one for all or one an image."""
    six = np.stack(np.broadcast_arrays(*rows), -1).astype(np.float64)
    matrices = np.zeros((len(six), 3, 3))
    matrices[:, :2] = six.reshape(-1, 2, 3)
    matrices[:, 2, 2] = 1
    return matrices


def _ordered(name: str, bounds: tuple[float, float], *, lowest: float = -np.inf, highest: float = np.inf) -> None:
    if len(bounds) != 2 or not lowest <= bounds[0] <= bounds[1] <= highest:
        raise UsageError(f"{name} must be (low, high) with {lowest} <= low <= high <= {highest}, found {bounds!r}")


def _probability(name: str, value: float) -> None:
    if not 0 <= value <= 1:
        raise UsageError(f"{name} must be a probability from 0 to 1, found {value!r}")

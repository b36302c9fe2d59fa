"""What an image augmentation must say to the loader: one affine an image, drawn from keys that depend only on the item.

The loader knows no augmentation by name. It makes the keys (seed, epoch, item, occurrence, and which image of the item, as far as
`share` tells them apart), asks for affines, and everything follows from these: pixels, intrinsics, and `affine` in the batch.
"""

from __future__ import annotations

from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from .draft import Draft
from .draws import fold, key

__all__ = ["ImageDraw", "Share", "image_keys"]

Share = Literal["image", "frame", "sample"]


class ImageDraw(Protocol):
    """A random choice of affine for each image."""

    @property
    def purpose(self) -> str:
        """Short name that keys the draws; two augmentations of one loader need two."""
        ...

    @property
    def share(self) -> Share:
        """Which images of a sample get one draw: each its own, those of one frame, or all of the sample."""
        ...

    def affines(
        self,
        fitted: NDArray[np.float64],
        *,
        source: NDArray[np.int64],
        target: tuple[int, int],
        keys: NDArray[np.uint64],
    ) -> NDArray[np.float64]:
        """Return (n, 3, 3) source px → target px, pixel centres at +0.5.

        `fitted` (n, 3, 3) is what `Images` alone would do; `source` (n, 2) is width, height; `target` is height, width;
        `keys` (n,) are the draws: equal keys must give equal affines for equal images.
        """
        ...


def image_keys(draw: ImageDraw, draft: Draft, places: NDArray[np.int64], *, length: int, cameras: int) -> NDArray[np.uint64]:
    """Return a key for each of the flat `places` on the [B, T, N] axes of a batch."""
    sample, frame, camera = places // (length * cameras), places // cameras % length, places % cameras
    draws = draft.draws
    keys = key(draws.seed, draws.epoch, draft.items[sample], draws.occurrence[sample], draw.purpose)
    if draw.share == "image":
        return fold(keys, frame, camera)
    return fold(keys, frame) if draw.share == "frame" else keys

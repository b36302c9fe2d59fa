"""What the user asks of images: which sensors, at which size, as which numbers; and the one affine that says it all.

`affine()` maps source pixels to target pixels, with pixel centres at +0.5 on both sides, so that intrinsics follow by one
product (K' = A·K) and decoders need to know nothing about crops, letterboxes or stretching.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from ..formats import UsageError

if TYPE_CHECKING:
    from .image_draw import ImageDraw

__all__ = ["Images", "match_sensors"]

Fit = Literal["crop", "letterbox", "stretch"]
Anchor = Literal["bottom", "centre", "top"]
ImageDtype = Literal["uint8", "float16", "bfloat16", "float32", "source"]
Layout = Literal["chw", "hwc"]

_MAX_SIDE: Final = 32_768


@dataclass(frozen=True, slots=True)
class Images:
    """Ask for the images of some sensors at one size.

    >>> images = Images("CAM_*", size=(256, 704), dtype="float32", mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    >>> images.affine(1600, 900).round(3).tolist()
    [[0.44, 0.0, 0.0], [0.0, 0.44, -140.0], [0.0, 0.0, 1.0]]
    """

    sensors: str | Sequence[str]
    """Names or shell patterns ("CAM_*"); the camera axis has the order given, the matches of one pattern by name."""
    _: KW_ONLY
    size: tuple[int, int] | None = None
    """(height, width) of the target, px; None keeps the source's own size, which must then be one for all sensors."""
    fit: Fit = "crop"
    """crop: fill the target, cutting what hangs over. letterbox: show all, padded with `fill`. stretch: sides apart."""
    anchor: Anchor = "bottom"
    """Which end a crop keeps and a letterbox touches, vertically (sideways always the centre). Sky is above."""
    dtype: ImageDtype = "uint8"
    """uint8 hands over levels; a float type hands over (level − mean) / std. source: the numbers of a png or raw image as they
    are, 16-bit, depth and bayer too, at its own size and with as many channels as it has."""
    mean: tuple[float, ...] = (0.0, 0.0, 0.0)
    """Per channel (red, green, blue), in levels 0–255."""
    std: tuple[float, ...] = (1.0, 1.0, 1.0)
    """Per channel, in levels."""
    layout: Layout = "chw"
    """Order of the last three axes: (3, H, W) or (H, W, 3)."""
    fill: int = 0
    """Level (0–255) of target pixels that show no source pixel; normalised like the others."""
    augment: ImageDraw | None = None
    """Draws another affine for each image, such as `headway.gpu_decode.ResizeCropFlip`; None: always the fitted one."""
    name: str = "camera"
    """Key of the group in the batch."""

    def __post_init__(self) -> None:
        patterns = (self.sensors,) if isinstance(self.sensors, str) else tuple(self.sensors)
        object.__setattr__(self, "sensors", patterns)
        object.__setattr__(self, "mean", tuple(float(value) for value in self.mean))
        object.__setattr__(self, "std", tuple(float(value) for value in self.std))
        if not patterns or not all(isinstance(pattern, str) and pattern for pattern in patterns):
            raise UsageError(f"Images: sensors must be a name, a pattern or several of them, found {self.sensors!r}")
        if self.size is not None:
            size = tuple(int(side) for side in self.size)
            if len(size) != 2 or not all(1 <= side <= _MAX_SIDE for side in size):
                raise UsageError(f"Images: size must be (height, width), each 1 to {_MAX_SIDE}, found {self.size!r}")
            object.__setattr__(self, "size", size)
        for option, choices in (("fit", Fit), ("anchor", Anchor), ("dtype", ImageDtype), ("layout", Layout)):
            if getattr(self, option) not in get_args(choices):
                raise UsageError(f"Images: {option} {getattr(self, option)!r} is none of {', '.join(get_args(choices))}")
        if len(self.mean) != 3 or len(self.std) != 3 or not all(value > 0 for value in self.std):
            raise UsageError(f"Images: mean and std have 3 numbers each, std above 0; found {self.mean!r} and {self.std!r}")
        if self.dtype == "uint8" and (any(self.mean) or any(value != 1 for value in self.std)):
            raise UsageError("Images: dtype 'uint8' hands over levels; mean and std need dtype float16, bfloat16 or float32")
        if self.dtype == "source" and (self.size or self.augment or any(self.mean) or any(value != 1 for value in self.std)):
            raise UsageError(
                "Images: dtype 'source' hands over pixels as they are; size, augment, mean and std need another dtype"
            )
        if not 0 <= self.fill <= 255:
            raise UsageError(f"Images: fill must be a level from 0 to 255, found {self.fill!r}")
        if not self.name:
            raise UsageError("Images: name must not be empty; it is the group's key in the batch")

    def affine(self, width: int, height: int) -> NDArray[np.float64]:
        """Return the (3, 3) matrix from source pixels of a `width` × `height` image to target pixels."""
        target_h, target_w = self.size or (height, width)
        across, down = target_w / width, target_h / height
        if self.fit == "crop":
            across = down = max(across, down)
        elif self.fit == "letterbox":
            across = down = min(across, down)
        share = {"top": 0.0, "centre": 0.5, "bottom": 1.0}[self.anchor]
        shift_x = (target_w - across * width) / 2
        shift_y = (target_h - down * height) * share
        return np.array([[across, 0.0, shift_x], [0.0, down, shift_y], [0.0, 0.0, 1.0]])


def match_sensors(patterns: str | Sequence[str], names: Sequence[str]) -> list[str]:
    """Return the `names` that patterns ask for, each once; a pattern that matches nothing is an error."""
    found: dict[str, None] = {}
    for pattern in (patterns,) if isinstance(patterns, str) else patterns:
        matches = [name for name in sorted(names) if fnmatchcase(name, pattern)]
        if not matches:
            raise UsageError(f"no image sensor matches {pattern!r}; there are: {', '.join(sorted(names)) or 'none'}")
        found.update(dict.fromkeys(matches))
    return list(found)

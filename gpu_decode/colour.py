"""Augmentations of levels, after decoding: photometric distortion, GridMask, and the normalisation that ends the pass.

Parameters are drawn on the CPU from keys, one set an image; pixels change in plain torch operations wherever the batch is.
Images of levels (uint8) go in; the pass works in float32 red, green, blue and rounds once, at its end.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from ..formats import UsageError
from ..loader.draws import below, fold, uniform
from ..loader.image_draw import Share

__all__ = ["ColourOp", "GridMask", "Normalise", "PhotometricDistortion"]

Params = dict[str, NDArray[Any]]  # Any: one number, flag or order an image, by name

# Images changed at once: on a CPU one, whose float32 planes stay in its caches; on a GPU enough to fill it without holding
# float32 copies of the whole batch.
CHUNK: Final = {"cpu": 1, "cuda": 6}


@dataclass(frozen=True, slots=True, kw_only=True)
class PhotometricDistortion:
    """Brightness, contrast, saturation, hue and channel order, each half of the time; numbers of SSD and BEVFormer."""

    brightness: float = 32.0
    """Largest shift, levels."""
    contrast: tuple[float, float] = (0.5, 1.5)
    """Factors; applied before or after the change of hue, by another draw."""
    saturation: tuple[float, float] = (0.5, 1.5)
    """Factors."""
    hue_deg: float = 18.0
    """Largest turn of hue."""
    probability: float = 0.5
    """Of each of the five."""
    share: Share = "image"
    purpose: str = "photometric"

    def __post_init__(self) -> None:
        _check_share("PhotometricDistortion", self.share)
        if not (self.brightness >= 0 and self.hue_deg >= 0 and 0 <= self.probability <= 1):
            raise UsageError(f"PhotometricDistortion: brightness, hue_deg and probability must not be negative, found {self}")
        for low, high in (self.contrast, self.saturation):
            if not 0 <= low <= high:
                raise UsageError(f"PhotometricDistortion: factors must be (low, high) from 0 up, found {(low, high)}")

    def draw(self, keys: NDArray[np.uint64], *, size: tuple[int, int], epoch: NDArray[np.int64]) -> Params:
        """Return what happens to the images of `keys` (n,)."""
        on = [uniform(fold(keys, which, 0)) < self.probability for which in range(5)]
        how = [uniform(fold(keys, which, 1)) for which in range(4)]
        one = np.ones(len(keys))
        orders = np.array([[0, 1, 2], [0, 2, 1], [1, 0, 2], [1, 2, 0], [2, 0, 1], [2, 1, 0]])
        return {
            "shift": np.where(on[0], (2 * how[0] - 1) * self.brightness, 0.0),
            "contrast": np.where(on[1], self.contrast[0] + (self.contrast[1] - self.contrast[0]) * how[1], one),
            "saturation": np.where(on[2], self.saturation[0] + (self.saturation[1] - self.saturation[0]) * how[2], one),
            "hue": np.where(on[3], (2 * how[3] - 1) * self.hue_deg, 0.0),
            "contrast_last": uniform(fold(keys, 5)) < 0.5,
            "order": np.where(on[4][:, None], orders[below(fold(keys, 4, 1), 6)], orders[0]),
        }

    def apply(self, levels: torch.Tensor, params: Params) -> torch.Tensor:
        """Return float32 (n, 3, H, W) levels, changed."""
        device = levels.device
        shift, contrast, saturation, hue = (
            torch.from_numpy(params[name].astype(np.float32)).to(device)[:, None, None]
            for name in ("shift", "contrast", "saturation", "hue")
        )
        last = torch.from_numpy(params["contrast_last"]).to(device)[:, None, None]
        levels = levels + shift[:, None]
        levels = levels * torch.where(last, 1.0, contrast)[:, None]
        turned = np.flatnonzero((params["saturation"] != 1) | (params["hue"] != 0))
        if len(turned):
            some = torch.from_numpy(turned).to(device)
            levels = levels.index_copy(0, some, _saturate_and_turn(levels[some], saturation[some], hue[some]))
        levels = levels * torch.where(last, contrast, 1.0)[:, None]
        order = torch.from_numpy(params["order"]).to(device)
        return torch.take_along_dim(levels, order[:, :, None, None], 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridMask:
    """Black out a grid of squares (Chen et al. 2020), with the numbers of BEVFusion, StreamPETR and BEVFormer."""

    probability: float = 0.7
    """Of each image (or frame, or sample: `share`) to be masked."""
    ratio: float = 0.5
    """Share of a period that each band keeps."""
    rotate_deg: float = 0.0
    """The grid is turned by a drawn angle from 0 to this; the recipes in use draw none (`rotate=1`)."""
    ramp_epochs: int = 0
    """The probability grows evenly from 0 over this many epochs; 0: it is fixed."""
    share: Share = "image"
    purpose: str = "grid-mask"

    def __post_init__(self) -> None:
        _check_share("GridMask", self.share)
        if not (0 <= self.probability <= 1 and 0 < self.ratio < 1 and 0 <= self.rotate_deg <= 360 and self.ramp_epochs >= 0):
            raise UsageError(f"GridMask: probability 0–1, ratio inside 0–1, rotate_deg 0–360, ramp_epochs from 0; found {self}")

    def draw(self, keys: NDArray[np.uint64], *, size: tuple[int, int], epoch: NDArray[np.int64]) -> Params:
        """Return what happens to the images of `keys` (n,), all of `size` (height, width)."""
        grown = np.minimum(epoch / self.ramp_epochs, 1.0) if self.ramp_epochs else np.ones(len(keys))
        period = 2 + below(fold(keys, 1), max(min(size) - 2, 1))
        return {
            "on": uniform(fold(keys, 0)) < self.probability * grown,
            "period": period,
            "band": np.clip((period * self.ratio + 0.5).astype(np.int64), 1, np.maximum(period - 1, 1)),
            "across": below(fold(keys, 2), period),
            "down": below(fold(keys, 3), period),
            "angle": np.deg2rad(uniform(fold(keys, 4)) * self.rotate_deg),
        }

    def apply(self, levels: torch.Tensor, params: Params) -> torch.Tensor:
        """Return float32 (n, 3, H, W) levels with the masked ones 0."""
        height, width = levels.shape[2:]
        device = levels.device
        on, period, band, across, down, angle = (
            torch.from_numpy(params[name]).to(device)[:, None, None]
            for name in ("on", "period", "band", "across", "down", "angle")
        )
        y = (torch.arange(height, device=device, dtype=torch.float64) + 0.5 - height / 2)[None, :, None]
        x = (torch.arange(width, device=device, dtype=torch.float64) + 0.5 - width / 2)[None, None, :]
        cosine, sine = torch.cos(angle), torch.sin(angle)
        column, row = torch.floor(cosine * x - sine * y), torch.floor(sine * x + cosine * y)
        kept = (torch.remainder(column + across, period) < band) | (torch.remainder(row + down, period) < band)
        return levels * (kept | ~on)[:, None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Normalise:
    """End the colour pass with (level − mean) / std in a float type. Without it, levels are clipped and rounded to uint8."""

    mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    """Levels, red, green, blue."""
    std: tuple[float, float, float] = (58.395, 57.12, 57.375)
    """Levels."""
    dtype: Literal["float16", "bfloat16", "float32"] = "float32"
    bgr: bool = False
    """Hand over blue, green, red, as recipes with Caffe weights want; mean and std are still given red, green, blue."""

    def __post_init__(self) -> None:
        if len(self.mean) != 3 or len(self.std) != 3 or not all(value > 0 for value in self.std):
            raise UsageError(f"Normalise: mean and std have 3 numbers each, std above 0; found {self.mean!r} and {self.std!r}")
        if self.dtype not in ("float16", "bfloat16", "float32"):
            raise UsageError(f"Normalise: dtype {self.dtype!r} is none of float16, bfloat16, float32")

    def finish(self, levels: torch.Tensor) -> torch.Tensor:
        """Return normalised (n, 3, H, W) of the asked dtype."""
        mean, std = (torch.tensor(side, device=levels.device)[:, None, None] for side in (self.mean, self.std))
        found = ((levels - mean) / std).to(getattr(torch, self.dtype))
        return found.flip(1) if self.bgr else found


ColourOp = PhotometricDistortion | GridMask


def run_pass(image: torch.Tensor, drawn: list[tuple[ColourOp, Params]], end: Normalise | None) -> torch.Tensor:
    """Return (n, 3, H, W) images after all colour operations: uint8, or what `end` makes of them."""
    if image.dtype != torch.uint8:
        raise UsageError(f"colour operations work on levels: open the images with dtype='uint8', found {image.dtype}")
    if not drawn and end is None:
        return image
    dtype = torch.uint8 if end is None else getattr(torch, end.dtype)
    out = torch.empty(image.shape, dtype=dtype, device=image.device)
    chunk = CHUNK.get(image.device.type, 6)
    for start in range(0, len(image), chunk):
        part = slice(start, start + chunk)
        levels = image[part].to(torch.float32)
        for op, params in drawn:
            levels = op.apply(levels, {name: values[part] for name, values in params.items()})
        out[part] = levels.round().clamp_(0, 255).to(torch.uint8) if end is None else end.finish(levels)
    return out


def _saturate_and_turn(levels: torch.Tensor, saturation: torch.Tensor, hue: torch.Tensor) -> torch.Tensor:
    """Return levels (n, 3, H, W) with saturation times a factor (at most full) and hue turned by degrees: RGB → HSV → RGB."""
    largest, smallest = levels.amax(1), levels.amin(1)
    spread = largest - smallest
    safe = torch.where(spread > 0, spread, 1.0)
    red, green, blue = levels.unbind(1)
    sixth = torch.where(
        largest == red,
        torch.remainder((green - blue) / safe, 6),
        torch.where(largest == green, (blue - red) / safe + 2, (red - green) / safe + 4),
    )
    sixth = torch.where(spread > 0, sixth, 0.0) + hue / 60
    # Chroma is value times saturation. Levels pushed below zero by the shift have no colour that saturation could raise.
    chroma = torch.minimum(spread * saturation, largest.clamp_min(0.0).maximum(spread))
    channels = []
    for offset in (5.0, 3.0, 1.0):
        k = torch.remainder(sixth + offset, 6)
        channels.append(largest - chroma * torch.minimum(k, 4 - k).clamp(0, 1))
    return torch.stack(channels, 1)


def _check_share(what: str, share: str) -> None:
    if share not in get_args(Share):
        raise UsageError(f"{what}: share {share!r} is none of {', '.join(get_args(Share))}")

"""What the tests of the native core share: pictures, JPEG writers, a decode in one call, and float64 references."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from headway.formats import kernel

needs_core = pytest.mark.skipif(not kernel.available(), reason="the native core is not built here")

Affine = Sequence[Sequence[float]]
IDENTITY: Affine = ((1, 0, 0), (0, 1, 0))
_NUMPY = {"uint8": np.uint8, "float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}


def picture(height: int, width: int, seed: int = 0) -> NDArray[np.uint8]:
    """A smooth colour field with grain and a few hard edges, uint8 (H, W, 3)."""
    rng = np.random.default_rng(seed)
    coarse = rng.integers(0, 256, (height // 12 + 2, width // 12 + 2, 3), np.uint8)
    image = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_CUBIC).astype(np.int64)
    image[height // 3 : height // 3 + 5, width // 4 :] = 240
    image[:, width // 2 : width // 2 + 3] = 10
    return np.asarray(np.clip(image + rng.integers(-5, 6, image.shape), 0, 255), np.uint8)


def jpeg(image: NDArray[np.uint8], subsampling: str = "420", quality: int = 92) -> bytes:
    """Encode RGB (H, W, 3); subsampling "gray" keeps the first channel."""
    if subsampling == "gray":
        gray = np.ascontiguousarray(image[..., :1])
        return bytes(simplejpeg.encode_jpeg(gray, quality=quality, colorspace="GRAY", colorsubsampling="Gray"))
    return bytes(simplejpeg.encode_jpeg(image, quality=quality, colorspace="RGB", colorsubsampling=subsampling))


def jpeg_with(image: NDArray[np.uint8], **options: int) -> bytes:
    """Encode with OpenCV's named options: progressive=1, rst_interval=3, …"""
    flags = [part for name, value in options.items() for part in (getattr(cv2, f"IMWRITE_JPEG_{name.upper()}"), value)]
    done, data = cv2.imencode(".jpg", image[..., ::-1], flags)
    assert done
    return bytes(data)


def reference(data: bytes) -> NDArray[np.float64]:
    """The whole picture as libjpeg-turbo gives it through simplejpeg, float64 (H, W, 3)."""
    return np.asarray(simplejpeg.decode_jpeg(data, colorspace="RGB"), np.float64)


def decode(
    data: Sequence[bytes], affine: Affine | Sequence[Affine], target: kernel.Target, *, flags: int = 0
) -> tuple[NDArray[Any], kernel.Step]:
    """Decode `data` with one affine for all or one each; return the batch (bfloat16 as float32) and the finished step."""
    size = (target.height, target.width)
    shape = (3, *size) if target.layout == "chw" else (*size, 3)
    out = np.full((len(data), *shape), 77, _NUMPY[target.dtype])  # any value that zeroing must remove
    jobs = kernel.image_jobs(len(data))
    jobs["data"], jobs["length"] = kernel.addresses(data)
    jobs["out"] = out.ctypes.data + np.arange(len(data), dtype=np.uint64) * np.uint64(target.image_bytes)
    jobs["affine"], jobs["flags"] = affine, flags
    step = kernel.submit([target], jobs, keep=(data, out))
    assert step.wait(60)
    if target.dtype == "bfloat16":
        return (out.astype(np.uint32) << 16).view(np.float32), step
    return out, step


def levels(data: bytes, affine: Affine, width: int, height: int, *, flags: int = 0, **options: Any) -> NDArray[Any]:
    """Decode one image that must be fine to (H, W, 3); `options` are Target's."""
    target = replace(kernel.Target(width=width, height=height, layout="hwc"), **options)
    out, step = decode([data], affine, target, flags=flags)
    assert step.status.tolist() == [kernel.Status.OK], step.message(0)
    return np.asarray(out[0])


def triangle(image: NDArray[np.float64], affine: Affine, width: int, height: int) -> NDArray[np.float64]:
    """Resample by an upright affine in float64: a triangle as wide as the step between target pixels, at least one."""

    def weights(targets: int, sources: int, scale: float, shift: float) -> NDArray[np.float64]:
        centre = (np.arange(targets) + 0.5 - shift) / scale
        reach = max(1.0, 1 / abs(scale))
        table = np.maximum(0, 1 - np.abs(np.arange(sources)[None] + 0.5 - centre[:, None]) / reach)
        table[(centre < 0) | (centre >= sources)] = 0
        total = table.sum(1, keepdims=True)
        return table / np.where(total == 0, 1, total)

    across = weights(width, image.shape[1], affine[0][0], affine[0][2])
    down = weights(height, image.shape[0], affine[1][1], affine[1][2])
    return np.stack([down @ image[..., channel] @ across.T for channel in range(3)], -1)


def psnr(found: NDArray[Any], expected: NDArray[np.float64]) -> float:
    """Peak signal-to-noise ratio of levels 0–255, dB."""
    error = float(np.mean((found.astype(np.float64) - expected) ** 2))
    return float("inf") if error == 0 else float(10 * np.log10(255**2 / error))

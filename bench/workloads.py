"""Four synthetic workloads with the statistics of real ones, from fixed seeds, at any size.

    W1  driving samples: six 1600×900 JPEGs (about 206 kB each), one sweep, a trajectory, calibration, boxes
    W2  pictures: one 500×375 JPEG (about 96 kB) and a label
    W3  trajectories: float32 (100, 6) and three numbers; nothing to decode
    W4  LiDAR sweeps: 33,000 to 35,000 points × 5 float32

The same (workload, seed) gives the same bytes for any number of threads and for every prefix of the samples.
Writing them to disk is `make_data`'s job.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..formats import UsageError

__all__ = ["WORKLOADS", "Sample", "Workload", "jpeg", "sample_columns", "sweep", "workload"]

Sample = dict[str, Any]  # Any: bytes, arrays and numbers, by workload
_IMAGE, _SWEEP, _SAMPLE = 1, 2, 3  # streams of the generator: independent whatever the counts are


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a sample of one workload is made of."""

    name: str
    samples: int
    cameras: int = 0
    height: int = 0
    width: int = 0
    quality: int = 90
    grain: tuple[float, float] = (0.0, 0.0)
    """Standard deviation of the sensor noise, drawn per image: this sets the compressed size."""
    distinct_images: int = 0
    """Samples share this many different images: enough to defeat caches, few enough to generate."""
    points: tuple[int, int] = (0, 0)
    """Points of a sweep, lowest and highest."""
    distinct_sweeps: int = 0
    steps: int = 0
    """Length of a trajectory."""
    seed: int = 61


WORKLOADS: Final[Mapping[str, Workload]] = {
    "W1": Workload(
        name="W1", samples=400, cameras=6, height=900, width=1600, quality=90, grain=(1.3, 3.9), distinct_images=180,
        points=(33_000, 35_000), distinct_sweeps=200, steps=100,
    ),
    "W2": Workload(
        name="W2", samples=4_000, cameras=1, height=375, width=500, quality=94, grain=(8.5, 17.5), distinct_images=300,
    ),
    "W3": Workload(name="W3", samples=200_000, steps=100),
    "W4": Workload(name="W4", samples=1_000, points=(33_000, 35_000), distinct_sweeps=1_000),
}  # fmt: skip


def workload(
    name: str, *, samples: int | None = None, cameras: int | None = None, image: tuple[int, int] | None = None,
    points: int | None = None, seed: int | None = None,
) -> Workload:  # fmt: skip
    """Return a workload by name, scaled: samples, cameras, image (height, width), points of the largest sweep."""
    if name not in WORKLOADS:
        raise UsageError(f"unknown workload {name!r}: there are {', '.join(WORKLOADS)}")
    base = WORKLOADS[name]
    if not base.cameras and (cameras is not None or image is not None):
        raise UsageError(f"workload {name} has no images to scale")
    if points is not None and not base.distinct_sweeps:
        raise UsageError(f"workload {name} has no sweeps to scale")
    for what, value in (
        ("samples", samples),
        ("cameras", cameras),
        ("points", points),
        *(("image side", side) for side in image or ()),
    ):
        if value is not None and value < 1:
            raise UsageError(f"workload {name}: {what} must be at least 1, not {value}")
    count = base.samples if samples is None else samples
    eyes = base.cameras if cameras is None else cameras
    return replace(
        base,
        samples=count,
        cameras=eyes,
        height=base.height if image is None else image[0],
        width=base.width if image is None else image[1],
        distinct_images=min(base.distinct_images, count * eyes),
        distinct_sweeps=min(base.distinct_sweeps, count),
        points=base.points if points is None else (max(1, points * base.points[0] // base.points[1]), points),
        seed=base.seed if seed is None else seed,
    )


def jpeg(load: Workload, index: int) -> bytes:
    """Return distinct image `index`: a street-like picture whose compressed size follows real camera JPEGs."""
    rng = np.random.default_rng([load.seed, _IMAGE, index, load.height, load.width])
    picture = _street(rng, load.height, load.width, rng.uniform(*load.grain))
    data: bytes = simplejpeg.encode_jpeg(picture, quality=load.quality, colorspace="RGB", colorsubsampling="420")
    return data


def sweep(load: Workload, index: int) -> NDArray[np.float32]:
    """Return distinct sweep `index`: (N, 5) x y z intensity ring, a ground plane with things standing on it."""
    rng = np.random.default_rng([load.seed, _SWEEP, index])
    count = int(rng.integers(load.points[0], load.points[1] + 1))
    ring = np.arange(count) % 32
    azimuth = 2 * np.pi * (np.arange(count) // 32) / -(-count // 32)
    elevation = np.deg2rad(-30.67 + 1.333 * ring)
    # Distance to the nearest thing in each direction: buildings as a slow curve, cars as notches in it.
    wall = 26 + 14 * np.sin(2 * azimuth + rng.uniform(0, 6)) + 5 * np.sin(9 * azimuth + rng.uniform(0, 6))
    for _ in range(12):
        bearing, half, distance = rng.uniform(0, 2 * np.pi), rng.uniform(0.02, 0.12), rng.uniform(5, 30)
        turned = np.abs((azimuth - bearing + np.pi) % (2 * np.pi) - np.pi) < half
        wall = np.where(turned & (elevation < 0.04), np.minimum(wall, distance), wall)
    ground = np.where(elevation < -0.02, 1.84 / np.maximum(np.sin(-elevation), 0.02), np.inf)
    distance = np.maximum(np.minimum(ground, wall / np.cos(elevation)) + rng.normal(0, 0.02, count), 1.0)
    intensity = np.minimum(np.floor(rng.exponential(14, count)), 255)
    flat = distance * np.cos(elevation)
    return np.stack([flat * np.cos(azimuth), flat * np.sin(azimuth), distance * np.sin(elevation), intensity, ring], -1).astype(
        np.float32
    )


def sample_columns(load: Workload, index: int) -> Sample:
    """Return everything of sample `index` but its images and sweep, and which of those it uses."""
    rng = np.random.default_rng([load.seed, _SAMPLE, index])
    sample: Sample = {}
    if load.cameras:
        sample["images"] = rng.integers(0, load.distinct_images, load.cameras)
    if load.distinct_sweeps:
        sample["sweep"] = index % load.distinct_sweeps if load.name == "W4" else int(rng.integers(0, load.distinct_sweeps))
    if load.steps:
        # Random accelerations, integrated twice: position, velocity, acceleration as a tracker would log them.
        acceleration = rng.normal(0, 1, (load.steps, 2)).cumsum(0) * 0.02
        velocity = rng.normal(0, 6, 2) + acceleration.cumsum(0) * 0.1
        sample["trajectory"] = np.hstack([velocity.cumsum(0) * 0.1, velocity, acceleration]).astype(np.float32)
    if load.name == "W1":
        sample["calibration"] = rng.standard_normal((load.cameras, 25)).astype(np.float32)
        sample["boxes"] = rng.standard_normal((int(rng.integers(15, 46)), 9)).astype(np.float32)
    elif load.name == "W2":
        sample["label"] = int(rng.integers(0, 1000))
    elif load.name == "W3":
        sample |= {"speed": float(np.hypot(*sample["trajectory"][0, 2:4])), "stamp": index * 100_000_000, "command": index % 4}
    return sample


def _street(rng: np.random.Generator, height: int, width: int, grain: float) -> NDArray[np.uint8]:
    """Paint sky, ground, blocks and texture; texture is summed from octaves, coarse ones strongest, as in photographs."""
    luma = np.zeros((height, width), np.float32)
    chroma = np.zeros((height, width, 2), np.float32)
    side = 4
    while side < max(height, width):
        rows, columns = max(2, height * side // max(height, width)), max(2, width * side // max(height, width))
        amplitude = 40.0 * (4 / side) ** 0.62
        patch = rng.standard_normal((rows, columns, 3), np.float32) * np.float32(amplitude)
        grown = cv2.resize(patch, (width, height), interpolation=cv2.INTER_CUBIC)
        luma += grown[..., 0]
        chroma += 0.22 * grown[..., 1:]
        side *= 2
    luma += 118
    horizon = int(height * rng.uniform(0.28, 0.42))
    for _ in range(70):  # buildings, vehicles, signs, markings: hard edges at every size
        block_height, block_width = int(height * rng.uniform(0.01, 0.3)) + 2, int(width * rng.uniform(0.004, 0.16)) + 2
        top = int(rng.uniform(horizon - block_height, height - block_height))
        left = int(rng.uniform(-block_width / 2, width - block_width / 2))
        area = np.s_[max(top, 0) : max(top, 0) + block_height, max(left, 0) : max(left, 0) + block_width]
        luma[area] = 0.4 * luma[area] + rng.uniform(10, 150)
        chroma[area] += rng.uniform(-26, 26, 2).astype(np.float32)
    sky = np.clip((horizon - np.arange(height, dtype=np.float32)) / (0.06 * height), 0, 1)[:, None]
    luma = luma * (1 - sky) + sky * np.linspace(222, 176, height, dtype=np.float32)[:, None]
    chroma *= (1 - 0.9 * sky)[..., None]
    luma += (1 - 0.7 * sky) * rng.standard_normal((height, width), np.float32) * np.float32(grain)
    blue, red = chroma[..., 0], chroma[..., 1]
    rgb = np.stack([luma + 1.402 * red, luma - 0.344 * blue - 0.714 * red, luma + 1.772 * blue], -1)
    return np.clip(np.round(rgb), 0, 255).astype(np.uint8)

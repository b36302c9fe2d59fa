"""Images a second of one core, kernel only: the native core against simplejpeg + OpenCV + numpy on the same JPEGs.

`python -m headway.bench.kernels [--laps N] [--json FILE]`. Laps of all paths are interleaved and timed in CPU seconds of
the calling thread, so that a busy machine disturbs all alike; the best lap and the median are given. W1: 1600 × 900 q90,
lower part to 256 × 704; W2: 500 × 375, random crop to 224 × 224 with flips; both normalised to float32 CHW.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import cv2
import numpy as np
import simplejpeg
from numpy.typing import NDArray

from ..formats import kernel
from .machine import NoiseMeter
from .result import Result, Value, write_result
from .workloads import jpeg, workload

__all__ = ["measure"]

_MEAN, _STD = (123.675, 116.28, 103.53), (58.395, 57.12, 57.375)
_A = (1 / np.array(_STD)).astype(np.float32)
_B = (-np.array(_MEAN) / np.array(_STD)).astype(np.float32)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Case:
    """One workload's JPEGs and, for each, its affine."""

    name: str
    data: list[bytes]
    affine: NDArray[np.float64]
    height: int
    width: int
    source: tuple[int, int]

    def run(self, target: kernel.Target, *, check: bool) -> Callable[[], None]:
        """Return a lap of the native core: one call for all images, worked off by the caller."""
        out = np.zeros((len(self.data), 3, self.height, self.width), target.dtype)
        jobs = kernel.image_jobs(len(self.data))
        jobs["data"], jobs["length"] = kernel.addresses(self.data)
        jobs["out"] = out.ctypes.data + np.arange(len(self.data), dtype=np.uint64) * np.uint64(target.image_bytes)
        jobs["affine"] = self.affine
        if check:
            jobs["hash"], jobs["flags"] = [kernel.xxh3_64(data) for data in self.data], kernel.CHECK_HASH

        def lap() -> None:
            step = kernel.submit([target], jobs, keep=(self.data, out))
            assert step.wait(600)
            step.raise_first()

        return lap

    def peer(self) -> None:
        """Do the same in Python: decode (at the DCT scale that the target allows), crop and resize, normalise."""
        out = np.empty((3, self.height, self.width), np.float32)
        for data, affine in zip(self.data, self.affine, strict=True):
            scale = max(abs(affine[0, 0]), affine[1, 1])
            need = (int(np.ceil(self.source[0] * scale)), int(np.ceil(self.source[1] * scale)))
            picture = simplejpeg.decode_jpeg(data, "RGB", min_height=need[0], min_width=need[1], min_factor=1)
            factor = picture.shape[1] / self.source[1]
            top, left = (
                -affine[1, 2] / affine[1, 1],
                min(-affine[0, 2] / affine[0, 0], (self.width - affine[0, 2]) / affine[0, 0]),
            )
            rows = slice(round(top * factor), round((top + self.height / affine[1, 1]) * factor))
            columns = slice(round(left * factor), round((left + self.width / abs(affine[0, 0])) * factor))
            small = cv2.resize(picture[rows, columns], (self.width, self.height), interpolation=cv2.INTER_LINEAR)
            if affine[0, 0] < 0:
                small = small[:, ::-1]
            for channel in range(3):
                np.multiply(small[..., channel], _A[channel], out=out[channel])
                out[channel] += _B[channel]

    def decode_only(self) -> None:
        """What libjpeg-turbo alone takes for the whole picture at full size."""
        for data in self.data:
            simplejpeg.decode_jpeg(data, "RGB")


def _surround() -> _Case:
    load = workload("W1")
    affine = np.array([[704 / 1600, 0, 0], [0, 256 / 582, -318 * 256 / 582]])
    data = [jpeg(load, index) for index in range(12)]
    return _Case(name="W1", data=data, affine=np.tile(affine, (12, 1, 1)), height=256, width=704, source=(900, 1600))


def _single() -> _Case:
    load, rng, count = workload("W2"), np.random.default_rng(0), 60
    affine = np.zeros((count, 2, 3))
    for place in affine:
        area, ratio = 500 * 375 * rng.uniform(0.08, 1), float(np.exp(rng.uniform(-0.28768, 0.28768)))
        width, height = min(500, round((area * ratio) ** 0.5)), min(375, round((area / ratio) ** 0.5))
        left, top = rng.integers(0, 500 - width + 1), rng.integers(0, 375 - height + 1)
        across, down = 224 / width, 224 / height
        place[:] = [[across, 0, -left * across], [0, down, -top * down]]
        if rng.random() < 0.5:
            place[0] = [-across, 0, 224 + left * across]
    data = [jpeg(load, index) for index in range(count)]
    return _Case(name="W2", data=data, affine=affine, height=224, width=224, source=(375, 500))


def measure(laps: int = 7) -> list[dict[str, Value]]:
    """Return a row for each workload and path: images a second of one core, best lap and median."""
    cv2.setNumThreads(1)
    before = kernel.threads()
    kernel.set_threads(0)
    rows: list[dict[str, Value]] = []
    for case in (_surround(), _single()):
        normalised: dict[str, Any] = {"width": case.width, "height": case.height, "mean": _MEAN, "std": _STD}  # Any: Target's
        paths: dict[str, Callable[[], None]] = {
            "native float32, hash checked": case.run(kernel.Target(**normalised, dtype="float32"), check=True),
            "native float32": case.run(kernel.Target(**normalised, dtype="float32"), check=False),
            "native uint8": case.run(kernel.Target(width=case.width, height=case.height), check=False),
            "simplejpeg + OpenCV + numpy": case.peer,
            "simplejpeg, whole picture only": case.decode_only,
        }
        rates: dict[str, list[float]] = {path: [] for path in paths}
        for _ in range(laps + 1):
            for path, lap in paths.items():
                started = time.thread_time()
                lap()
                rates[path].append(len(case.data) / (time.thread_time() - started))
        for path, found in rates.items():  # the first lap warms up
            rows.append({"workload": case.name, "path": path, "images_per_core_s": median(found[1:]), "best": max(found[1:])})
    kernel.set_threads(before)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--laps", type=int, default=7)
    parser.add_argument("--json", type=Path, default=None)
    options = parser.parse_args()
    started = time.monotonic()
    with NoiseMeter() as meter:
        rows = measure(options.laps)
    for row in rows:
        print(f"{row['workload']}  {row['path']:<32} {row['images_per_core_s']:8.0f} images/s (best {row['best']:.0f})")
    if options.json is not None:
        conditions: dict[str, Value] = {"laps": options.laps, "clock": "CPU seconds of the calling thread"}
        wall = time.monotonic() - started
        write_result(
            Result(bench="kernels", rows=rows, conditions=conditions, summary={}, wall_s=wall, noise=meter.noise), options.json
        )


if __name__ == "__main__":
    main()

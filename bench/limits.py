"""This node's own ceilings for one set: what its parts could do alone, per core, at the set's own sizes.

Each figure is the median of interleaved laps, per CPU second of the one thread that does the work, which stays true on a shared
machine; reads are per wall second. A loader that reaches a ceiling cannot be made faster without moving the ceiling.
"""

from __future__ import annotations

import mmap
import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import simplejpeg

from ..formats import kernel
from ..formats.image_header import image_size
from ..formats.packed_set import PackedSet
from ..loader.decode import Decoder, ImageJobs, PortableDecoder
from ..loader.draws import key
from ..loader.image_draw import ImageDraw
from ..loader.images import Images
from ..loader.native_decode import NativeDecoder
from .machine import describe

__all__ = ["Limit", "measure_limits", "read_whole"]

_LAPS = 5
_IMAGES = 24
_DRAWS = 8
_COPY_BYTES = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """One ceiling."""

    what: str
    unit: str
    """Per second: "images", "points", "bytes", "rows"."""
    per_core: float
    """Median per CPU second (per wall second for reads)."""
    spread: float
    """Highest ÷ lowest lap."""


def measure_limits(packed: PackedSet, *, target: tuple[int, int] = (256, 704), augment: ImageDraw | None = None) -> list[Limit]:
    """Measure every ceiling that the set's sensors have; images go to `target` (height, width), as `augment` draws them."""
    laps: dict[tuple[str, str], Callable[[], float]] = {}
    images: list[bytes] = []
    for sensor in packed.schema.sensors:
        timeline = packed.timeline(sensor.name)
        rows = (
            np.linspace(0, max(len(timeline) - 1, 0), min(_IMAGES, len(timeline))).astype(int).tolist() if len(timeline) else []
        )
        if sensor.kind == "image" and sensor.codec == "jpeg" and rows and not any("decode" in what for what, _ in laps):
            data = images = [bytes(timeline.payload(row)) for row in rows]
            hashes = timeline.refs(np.array(rows)).hash
            width, height = image_size(data[0], "jpeg")
            name = f"{width} × {height} JPEG"
            laps[f"decode {name}, whole", "images"] = lambda data=data: _count(
                [simplejpeg.decode_jpeg(each, colorspace="RGB") for each in data]
            )  # type: ignore[misc]  # defaults bind the loop's variables
            look = Images(sensor.name, size=target, dtype="float32", augment=augment)
            laps[f"{name} → {target[1]} × {target[0]} float32, portable", "images"] = _decoding(
                data, hashes, look, PortableDecoder()
            )
            if kernel.available():
                kernel.set_threads(0)  # whoever waits does the work, so that its CPU time is the work's
                laps[f"{name} → {target[1]} × {target[0]} float32, native", "images"] = _decoding(
                    data, hashes, look, NativeDecoder()
                )
        elif sensor.kind == "points" and rows:
            few = rows[:8]
            laps[f"decode {sensor.name} ({sensor.codec})", "points"] = lambda t=timeline, r=few: float(
                sum(len(t.value(row)) for row in r)
            )  # type: ignore[misc]  # as above
        elif sensor.codec is None and sensor.columns and len(timeline) > 1:
            column = max(sensor.columns, key=lambda column: column.width).name
            index = np.random.default_rng(0).integers(0, len(timeline), 4096)
            laps[f"gather {sensor.name}.{column}", "rows"] = lambda t=timeline, c=column, i=index: float(len(t.take(c, i)))  # type: ignore[misc]  # as above
    source, sink = np.ones(_COPY_BYTES, np.uint8), np.empty(_COPY_BYTES, np.uint8)
    laps["memcpy", "bytes"] = lambda: _copy(source, sink)
    limits = [_limit(what, unit, _laps(work, time.thread_time)) for (what, unit), work in laps.items()]
    location = packed.location if isinstance(packed.location, Path) else None  # None: in a store
    limits += _gpu_limits(images, target) if images else []
    shard = location / packed.manifest.shards[0].data_name if location and packed.manifest.shards else None
    if shard is not None:
        limits.append(_limit("read a shard from page cache", "bytes", _laps(lambda: read_whole(shard), time.monotonic)))
        cold = _cold_read(shard)
        if cold is not None:
            limits.append(_limit("read a shard from disk (O_DIRECT)", "bytes", [cold]))
    return limits


def _gpu_limits(data: list[bytes], target: tuple[int, int]) -> list[Limit]:
    """Return the ceilings of the first GPU, per wall second: copies to it and its decoders; none where there is no GPU."""
    if not describe().gpus:
        return []
    import torch

    from ..gpu_decode import capabilities
    from .decode import usable_decoders

    if not torch.cuda.is_available():
        return []
    host = torch.ones(_COPY_BYTES, dtype=torch.uint8).pin_memory()

    def copied() -> float:
        host.to("cuda", non_blocking=True)
        torch.cuda.synchronize()
        return float(host.nbytes)

    limits = [_limit("host to device, pinned", "bytes", _laps(copied, time.monotonic))]
    on_gpu = {each.name for each in capabilities() if each.usable and each.name.endswith(("-gpu", "-cuda"))}
    look, hashes = Images("camera", size=target, dtype="float32"), np.zeros(len(data), np.uint64)
    for name, decoder in usable_decoders().items():
        if name in on_gpu:
            limits.append(
                _limit(f"decode on the GPU, {name}", "images", _laps(_decoding(data, hashes, look, decoder), time.monotonic))
            )
    return limits


def _laps(work: Callable[[], float], clock: Callable[[], float]) -> list[float]:
    work()
    rates = []
    for _ in range(_LAPS):
        start = clock()
        amount = work()
        rates.append(amount / max(clock() - start, 1e-9))
    return rates


def _limit(what: str, unit: str, rates: Sequence[float]) -> Limit:
    return Limit(what=what, unit=unit, per_core=statistics.median(rates), spread=max(rates) / min(rates))


def _count(done: Sequence[Any]) -> float:
    return float(len(done))


def _copy(source: np.ndarray[Any, Any], sink: np.ndarray[Any, Any]) -> float:
    np.copyto(sink, source)
    return float(source.nbytes)


def _jobs(data: Sequence[bytes], hashes: np.ndarray[Any, Any], look: Images) -> ImageJobs:
    assert look.size is not None
    height, width = look.size
    if look.augment is not None:  # few draws would be a matter of luck
        data, hashes = list(data) * _DRAWS, np.tile(hashes, _DRAWS)
    source = np.array([image_size(each, "jpeg") for each in data])
    affine = np.stack([look.affine(*each) for each in source.tolist()])
    if look.augment is not None:
        keys = key(0, 0, np.arange(len(data)), 0, look.augment.purpose)
        affine = look.augment.affines(affine, source=source, target=look.size, keys=keys)
    return ImageJobs(
        data=[memoryview(each) for each in data],
        hashes=hashes,
        codecs=["jpeg"] * len(data),
        affine=np.ascontiguousarray(affine[:, :2]),
        out=np.zeros((len(data), 3, height, width), np.float32),
        index=np.arange(len(data)),
        look=look,
    )


def _decoding(data: Sequence[bytes], hashes: np.ndarray[Any, Any], look: Images, decoder: Decoder) -> Callable[[], float]:
    jobs = _jobs(data, hashes, look)

    def work() -> float:
        status = decoder.decode(jobs)
        return float((status == 0).sum())

    return work


def read_whole(path: Path) -> float:
    """Read a file through the page cache, which then holds it; return its bytes."""
    with open(path, "rb") as file:
        total = 0
        buffer = bytearray(8 << 20)
        while count := file.readinto(buffer):
            total += count
    return float(total)


def _cold_read(path: Path, most: int = 256 << 20) -> float | None:
    """Return bytes per second past the page cache, or None where the file system has no direct reads."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
    except OSError:
        return None
    try:
        with mmap.mmap(-1, 8 << 20) as buffer:  # direct reads want aligned memory, and a mapping is
            start, total = time.monotonic(), 0
            while total < most and (count := os.readv(descriptor, [buffer])):
                total += count
            return total / max(time.monotonic() - start, 1e-9)
    except OSError:
        return None
    finally:
        os.close(descriptor)

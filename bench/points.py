"""How small and how fast real sweeps are under each points codec, beside what others would give.

One row a codec and sweep: ratio, encode and decode rate of one core in MB/s of decoded bytes, maximum error. Decoding is the
best of many runs on this thread's CPU clock, into memory that is there already. blosc2 and pcodec appear where installed.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from ..formats import UsageError
from ..formats.points import decode_points, encode_points, maximum_error_m
from ..formats.schema import Column, Sensor
from .result import Value

__all__ = ["best_of", "measure_points", "read_sweep"]

_FIELDS: Final = (("x", "m"), ("y", "m"), ("z", "m"), ("intensity", ""), ("ring", ""))


def read_sweep(path: Path) -> NDArray[np.float32]:
    """Return (N, C) float32 of a raw sweep: five columns in nuScenes' `.pcd.bin`, four in KITTI's `.bin`."""
    columns = 5 if path.name.endswith(".pcd.bin") else 4
    values = np.fromfile(path, "<f4")
    if not path.name.endswith(".bin") or len(values) == 0 or len(values) % columns:
        raise UsageError(f"{path}: {path.stat().st_size} bytes are no .pcd.bin of 20-byte points or .bin of 16-byte points")
    return values.reshape(-1, columns)


def measure_points(name: str, sweep: NDArray[np.float32], *, repeats: int = 50) -> Iterator[dict[str, Value]]:
    """Yield one row for each codec on one sweep (N, C): x, y, z in metres, intensity, ring."""
    for codec, encode, decode in _contenders(np.ascontiguousarray(sweep)):
        payload, encode_s = best_of(encode, max(repeats // 10, 1))
        error, decode_s = best_of(lambda decode=decode, payload=payload: decode(payload), repeats)  # type: ignore[misc]  # early binding
        yield {
            "sweep": name,
            "codec": codec,
            "points": len(sweep),
            "bytes": len(payload),
            "ratio": round(sweep.nbytes / len(payload), 3),
            "encode_mb_s": round(sweep.nbytes / encode_s / 1e6),
            "decode_mb_s": round(sweep.nbytes / decode_s / 1e6),
            "max_error_m": error,
        }


def best_of(call: Callable[[], Any], repeats: int) -> tuple[Any, float]:  # Any: whatever the call returns
    """Return the answer of a call and the CPU seconds of this thread that its fastest repetition took."""
    best = float("inf")
    for _ in range(repeats):
        started = time.thread_time()
        answer = call()
        best = min(best, time.thread_time() - started)
    return answer, max(best, 1e-9)


def _contenders(sweep: NDArray[np.float32]) -> Iterator[tuple[str, Callable[[], bytes], Callable[[bytes], float]]]:
    for codec, step in (("points-raw", 1), ("points-lossless", 1), ("points-quantised", 1), ("points-quantised", 5)):
        name = f"{codec} {step} mm" if codec == "points-quantised" else codec
        yield name, *_ours(sweep, codec, step)
    yield "zstd-3 interleaved", *_zstd(sweep, lambda values: values.tobytes())
    yield "zstd-3 columns shuffled", *_zstd(sweep, _shuffled)
    for module, peer in (("blosc2", _blosc2), ("pcodec", _pcodec)):
        try:
            found = importlib.import_module(module)
        except ImportError:
            continue
        yield module, *peer(sweep, found)


def _ours(
    sweep: NDArray[np.float32], codec: Any, step: int
) -> tuple[Callable[[], bytes], Callable[[bytes], float]]:  # Any: a Literal
    fields = tuple(Column(name=name, dtype="float32", unit=unit) for name, unit in _FIELDS[: sweep.shape[1]])
    sensor = Sensor(name="lidar", kind="points", codec=codec, fields=fields)
    records = sweep.view(sensor.record_dtype)[:, 0]
    out = np.empty_like(records)

    def decode(payload: bytes) -> float:
        decode_points(payload, sensor, out=out)
        return maximum_error_m(payload, sensor)

    return lambda: encode_points(records, sensor, precision_mm=step), decode


def _zstd(
    sweep: NDArray[np.float32], arrange: Callable[[NDArray[np.float32]], bytes]
) -> tuple[Callable[[], bytes], Callable[[bytes], float]]:
    """Decode includes putting the columns back, as a user of numpy would."""

    def decode(payload: bytes) -> float:
        raw = zstandard.ZstdDecompressor().decompress(payload)
        if arrange is _shuffled:
            planes = np.frombuffer(raw, np.uint8).reshape(sweep.shape[1], 4, -1)
            np.ascontiguousarray(planes.transpose(2, 0, 1))
        return 0.0

    return lambda: zstandard.ZstdCompressor(level=3).compress(arrange(sweep)), decode


def _shuffled(sweep: NDArray[np.float32]) -> bytes:
    return sweep.view(np.uint8).reshape(len(sweep), sweep.shape[1], 4).transpose(1, 2, 0).tobytes()


def _blosc2(
    sweep: NDArray[np.float32], blosc2: Any
) -> tuple[Callable[[], bytes], Callable[[bytes], float]]:  # Any: untyped, optional
    blosc2.set_nthreads(1)

    def encode() -> bytes:
        packed = [
            blosc2.compress2(np.ascontiguousarray(column), typesize=4, clevel=1, codec=blosc2.Codec.ZSTD) for column in sweep.T
        ]
        return _framed(packed)

    def decode(payload: bytes) -> float:
        out = np.empty_like(sweep)
        for k, part in enumerate(_unframed(payload)):
            out[:, k] = np.frombuffer(blosc2.decompress2(part), np.float32)
        return 0.0

    return encode, decode


def _pcodec(
    sweep: NDArray[np.float32], pcodec: Any
) -> tuple[Callable[[], bytes], Callable[[bytes], float]]:  # Any: untyped, optional
    standalone = importlib.import_module("pcodec.standalone")

    def encode() -> bytes:
        return _framed([standalone.simple_compress(np.ascontiguousarray(column), pcodec.ChunkConfig()) for column in sweep.T])

    def decode(payload: bytes) -> float:
        out = np.empty_like(sweep)
        for k, part in enumerate(_unframed(payload)):
            out[:, k] = standalone.simple_decompress(part)
        return 0.0

    return encode, decode


def _framed(parts: Sequence[bytes]) -> bytes:
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


def _unframed(payload: bytes) -> Iterator[bytes]:
    at = 0
    while at < len(payload):
        size = int.from_bytes(payload[at : at + 4], "little")
        yield payload[at + 4 : at + 4 + size]
        at += 4 + size

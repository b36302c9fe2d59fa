"""How small and how fast generic arrays are under zstd's levels, as they are and with their bytes shuffled.

What sets store as `array` is one zstd frame of level 3 (`formats/codec.py`); this is the table behind that choice. Rates are one
core's, in MB/s of plain bytes, with every call that the packer and the loader make, so small arrays show what a call costs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from ..formats import UsageError
from .points import best_of
from .result import Value

__all__ = ["LEVELS", "measure_array", "read_arrays", "typical_arrays"]

Array = NDArray[Any]  # Any: every dtype is measured
LEVELS: Final = (1, 3, 9, 19)


def typical_arrays(seed: int = 0) -> Mapping[str, Array]:
    """Return what driving sets hold as arrays, made from a seed: poses, CAN, IMU, a trajectory, actions, depth, classes."""
    rng = np.random.default_rng(seed)
    time = np.arange(2000) / 50
    yaw = np.cumsum(rng.normal(0, 0.004, len(time)))
    path = np.cumsum(np.stack([np.cos(yaw), np.sin(yaw), 0.01 * np.sin(time)], 1) * 0.3, 0)
    path += np.array([411_000, 1_180_000, 12])
    still = np.zeros_like(yaw)
    poses = np.concatenate([path, np.stack([np.cos(yaw / 2), still, still, np.sin(yaw / 2)], 1)], 1)
    can = np.round(np.cumsum(rng.normal(0, 0.2, (2000, 24)), 0), 2)
    inertial = (np.sin(time)[:, None] + rng.normal(0, 0.05, (2000, 6))).astype(np.float32)
    depth = np.repeat(np.repeat(rng.integers(500, 40_000, (30, 40)), 16, 0), 16, 1) + rng.integers(0, 12, (480, 640))
    return {
        "ego poses": poses,
        "CAN signals": can,
        "IMU": inertial,
        "trajectory": poses[:100, :6].astype(np.float32),
        "actions": np.cumsum(rng.normal(0, 0.01, (50, 14)), 0).astype(np.float32),
        "depth": depth.astype(np.uint16),
        "classes": np.repeat(np.repeat(rng.integers(0, 19, (45, 80), np.uint8), 20, 0), 20, 1),
    }


def read_arrays(path: Path) -> Mapping[str, Array]:
    """Return the arrays of a `.npy` or `.npz` file, or the numbers of a text file, one row a line."""
    try:
        if path.suffix in (".npy", ".npz"):
            found = np.load(path, allow_pickle=False)
            return {path.name: found} if isinstance(found, np.ndarray) else {f"{path.name}/{name}": found[name] for name in found}
        return {path.name: np.loadtxt(path)}
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {str(path)!r} as arrays: {error}; give .npy, .npz, or numbers as text") from error


def measure_array(name: str, array: Array, *, repeats: int = 20) -> Iterator[dict[str, Value]]:
    """Yield one row a level and layout: ratio, and one core's rates of encoding and decoding."""
    array = np.ascontiguousarray(array)
    for level in LEVELS:
        for shuffled in (False, True) if array.itemsize > 1 else (False,):
            compressor = zstandard.ZstdCompressor(level=level, write_checksum=True)
            decoder = zstandard.ZstdDecompressor()
            data, encode_s = best_of(_encoder(array, compressor, shuffled=shuffled), max(repeats // 5, 1))
            back, decode_s = best_of(_decoder(array, data, decoder, shuffled=shuffled), repeats)
            assert np.array_equal(back.view(np.uint8), array.ravel().view(np.uint8))
            yield {
                "array": name,
                "codec": f"zstd-{level}" + ", shuffled" * shuffled,
                "bytes": array.nbytes,
                "ratio": round(array.nbytes / len(data), 3),
                "encode_mb_s": round(array.nbytes / encode_s / 1e6),
                "decode_mb_s": round(array.nbytes / decode_s / 1e6),
            }


def _encoder(array: Array, compressor: zstandard.ZstdCompressor, *, shuffled: bool) -> Callable[[], bytes]:
    def encode() -> bytes:
        planes = np.ascontiguousarray(array.view(np.uint8).reshape(-1, array.itemsize).T) if shuffled else array
        return compressor.compress(planes.tobytes())

    return encode


def _decoder(array: Array, data: bytes, decoder: zstandard.ZstdDecompressor, *, shuffled: bool) -> Callable[[], Array]:
    def decode() -> Array:
        plain = np.frombuffer(decoder.decompress(data), np.uint8)
        return np.ascontiguousarray(plain.reshape(array.itemsize, -1).T).ravel() if shuffled else plain

    return decode

"""Random draws that depend only on what they are for: (seed, epoch, item, occurrence, purpose).

Whichever rank, thread or restart asks, the answer is the same; a repeat of an item (another occurrence) gets another one.
The mixing is splitmix64's finaliser (Steele, Lea, Flood, OOPSLA 2014), applied once per part of the key. Not for secrets.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

__all__ = ["below", "key", "mix", "purpose_key", "rng", "uniform"]

_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 0xFFFFFFFFFFFFFFFF


def mix(value: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return each 64-bit value scrambled by a fixed bijection; nearby values come out unrelated."""
    value = value ^ (value >> np.uint64(30))
    value *= np.uint64(0xBF58476D1CE4E5B9)
    value ^= value >> np.uint64(27)
    value *= np.uint64(0x94D049BB133111EB)
    value ^= value >> np.uint64(31)
    return value


@lru_cache(maxsize=256)
def purpose_key(purpose: str, seed: int, epoch: int) -> int:
    """Return the 64-bit key of a purpose in one epoch: the part of `key` that is the same for all items."""
    text = f"{purpose}\0{seed}\0{epoch}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8, person=b"headway").digest(), "little")


def key(seed: int, epoch: int, item: ArrayLike, occurrence: ArrayLike, purpose: str) -> NDArray[np.uint64]:
    """Return the uint64 keys of draws, broadcast over `item` and `occurrence`.

    `purpose` is a short name such as "sweeps"; draws for different purposes are unrelated.
    """
    return fold(purpose_key(purpose, seed, epoch), item, occurrence)


def fold(base: int | NDArray[np.uint64], *parts: ArrayLike) -> NDArray[np.uint64]:
    """Return `base` with each integer part mixed in, in order; broadcasts."""
    folded = np.asarray(base, np.uint64)
    with np.errstate(over="ignore"):  # numpy warns where a scalar wraps around, which is meant here
        for part in parts:
            folded = mix((folded ^ np.asarray(part).astype(np.int64).astype(np.uint64)) + np.uint64(_GOLDEN))
    return folded


def rng(seed: int, epoch: int, item: int, occurrence: int, purpose: str) -> np.random.Generator:
    """Return a numpy Generator (Philox) for one item and purpose: as many draws as needed, of any distribution."""
    low = int(key(seed, epoch, item, occurrence, purpose))
    return np.random.Generator(np.random.Philox(key=low | purpose_key("rng", low, 0) << 64))


def uniform(keys: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Return one float64 in [0, 1) per key (53 bits)."""
    return (keys >> np.uint64(11)).astype(np.float64) * 2.0**-53


def below(keys: NDArray[np.uint64], bound: int | NDArray[np.int64]) -> NDArray[np.int64]:
    """Return one integer in [0, bound) per key: the high word of key × bound, exact to 2⁻⁶⁴ for any run of integers."""
    limit = np.asarray(bound).astype(np.uint64)
    half, low = np.uint64(32), np.uint64(0xFFFFFFFF)
    with np.errstate(over="ignore"):
        lower = (keys & low) * (limit & low)
        middle = (keys >> half) * (limit & low) + (lower >> half)
        cross = (keys & low) * (limit >> half) + (middle & low)
        high: NDArray[np.uint64] = (keys >> half) * (limit >> half) + (middle >> half) + (cross >> half)
    return high.astype(np.int64)

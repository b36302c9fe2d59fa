"""A keyed bijection on [0, n) for any n up to 2⁴⁸, computed index by index: a shuffle without a stored permutation.

A Feistel network on 2^p × b ≥ n points (p about half of n's bits, b as small as possible), with cycle walking for the fewer
than 2^p points beyond n. Everything is vectorised; n and key may differ per index. Changing a constant here changes every
order ever planned: raise `state.ORDER` with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["LARGEST", "permute", "unpermute"]

LARGEST = 2**48
"""Largest n: the halves then have at most 25 bits, so their products with 32-bit hashes stay within 64 bits."""

Word: TypeAlias = NDArray[np.uint64]
Key: TypeAlias = int | NDArray[np.uint64]
Turn: TypeAlias = Callable[[Word, Word, Word, Word], Word]

# One constant per half round, added to the key: digits of pi.
_ROUND_KEYS = tuple(
    np.uint64(word)
    for word in (
        0x243F6A8885A308D3, 0x13198A2E03707344, 0xA4093822299F31D0, 0x082EFA98EC4E6C89,
        0x452821E638D01377, 0xBE5466CF34E90C6C, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917,
    )
)  # fmt: skip
_FIRST, _SECOND = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)


def permute(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key) -> NDArray[np.int64]:
    """Return where the permutation of `key` sends each index of [0, n); broadcasts."""
    return _walk(index, n, key, _forward)


def unpermute(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key) -> NDArray[np.int64]:
    """Return the index that `permute` sends to each given one; broadcasts."""
    return _walk(index, n, key, _backward)


def _walk(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key, turn: Turn) -> NDArray[np.int64]:
    keys: Word = np.asarray(key, np.uint64)
    sizes = np.asarray(n, np.int64)
    shape = np.broadcast_shapes(np.shape(index), sizes.shape, keys.shape)
    bits = np.frexp((sizes - 1).astype(np.float64))[1]  # exact bit length below 2⁵³
    power = (bits >> 1).astype(np.uint64)
    base = ((sizes + (np.int64(1) << (bits >> 1)) - 1) >> (bits >> 1)).astype(np.uint64)
    point = np.array(np.broadcast_to(index, shape), np.uint64).reshape(-1)
    limit = _flat(sizes.astype(np.uint64), shape)
    power, base, keys = _flat(power, shape), _flat(base, shape), _flat(keys, shape)
    point = turn(point, power, base, keys)
    astray = np.flatnonzero(point >= limit)
    while astray.size:
        again = turn(point[astray], *(_pick(value, astray) for value in (power, base, keys)))
        point[astray] = again
        astray = astray[again >= _pick(limit, astray)]
    return point.reshape(shape).astype(np.int64)


def _flat(value: Word, shape: tuple[int, ...]) -> Word:
    return value.reshape(()) if value.size == 1 else np.broadcast_to(value, shape).reshape(-1)


def _pick(value: Word, chosen: NDArray[np.intp]) -> Word:
    return value if value.ndim == 0 else value[chosen]


def _hash(half: Word, key: Word, round_key: np.uint64) -> Word:
    """Return 32 well-mixed bits of (half, key)."""
    word = half + (key ^ round_key)
    word *= _FIRST
    word ^= word >> _HALF
    word *= _SECOND
    word >>= _HALF
    return word


def _forward(point: Word, power: Word, base: Word, key: Word) -> Word:
    mask = (np.uint64(1) << power) - np.uint64(1)
    left, right = point & mask, point >> power
    for even, odd in zip(_ROUND_KEYS[::2], _ROUND_KEYS[1::2], strict=True):
        left ^= _hash(right, key, even) & mask
        step = _hash(left, key, odd)
        step *= base
        step >>= _HALF
        right += step
        np.minimum(right, right - base, out=right)  # modulo base: the difference wraps to something huge when right < base
    right <<= power
    right |= left
    return right


def _backward(point: Word, power: Word, base: Word, key: Word) -> Word:
    mask = (np.uint64(1) << power) - np.uint64(1)
    left, right = point & mask, point >> power
    for even, odd in zip(_ROUND_KEYS[-2::-2], _ROUND_KEYS[-1::-2], strict=True):
        step = _hash(left, key, odd)
        step *= base
        step >>= _HALF
        right -= step
        np.minimum(right, right + base, out=right)
        left ^= _hash(right, key, even) & mask
    right <<= power
    right |= left
    return right

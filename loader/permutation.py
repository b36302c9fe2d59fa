"""A keyed bijection on [0, n) for any n up to 2⁴⁸, computed index by index: a shuffle without a stored permutation.

A Feistel network on 2^p × b ≥ n points (p below half of n's bits, b as small as possible), with cycle walking for the fewer
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
Turn: TypeAlias = Callable[[Word, "_Network"], Word]

_ROUNDS = 4
"""Rounds, of two half rounds each. From 48 points on, 4 make pairs and triples of images uniform within what 200,000 keys
can tell apart; 3 do not (tests/loader/test_permutation.py holds the statistics)."""
_SMALL, _PASSES = 64, 3
"""Fewer points than this need more rounds (all 120 orders of 5 items are even after 12, not after 4): the whole network is
passed three times, each time with another key."""
# One odd multiplier per half round, then one for all: pi, the golden ratio, and what hash functions commonly use.
_MULTIPLIERS = tuple(
    np.uint64(word)
    for word in (
        0x243F6A8885A308D3, 0x13198A2E03707345, 0xA4093822299F31D1, 0x082EFA98EC4E6C89,
        0x452821E638D01377, 0xBE5466CF34E90C6D, 0xC0AC29B7C97C50DD, 0x3F84D5B5B5470917,
    )
)  # fmt: skip
_SECOND = np.uint64(0xD6E8FEB86659FD93)
_HALF = np.uint64(32)
_ONE = np.uint64(1)


def permute(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key) -> NDArray[np.int64]:
    """Return where the permutation of `key` sends each index of [0, n); broadcasts."""
    return _apply(index, n, key, _forward, range(_PASSES))


def unpermute(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key) -> NDArray[np.int64]:
    """Return the index that `permute` sends to each given one; broadcasts."""
    return _apply(index, n, key, _backward, range(_PASSES)[::-1])


class _Network:
    """The shape and key of the network at each point: left half of `power` bits, right half of `base` values."""

    __slots__ = ("base", "key", "mask", "power", "sizes")

    def __init__(self, sizes: Word, power: Word, base: Word, mask: Word, key: Word) -> None:
        self.sizes, self.power, self.base, self.mask, self.key = sizes, power, base, mask, key

    @classmethod
    def over(cls, sizes: Word, key: Word) -> _Network:
        # The exponent of a float64 is the bit length of an integer below 2⁵³; 1,022 is its bias for a fraction in [½, 1).
        bits = np.maximum(((sizes - _ONE).astype(np.float64).view(np.int64) >> 52) - 1022, 0)
        # Somewhat less than half of the bits where n is large: then hardly any point is beyond n and has to walk on.
        power = ((bits >> 1) - (bits >> 3)).astype(np.uint64)
        mask = (_ONE << power) - _ONE
        return cls(sizes, power, (sizes + mask) >> power, mask, key)

    def at(self, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> _Network:
        return _Network(*(_at(value, chosen) for value in (self.sizes, self.power, self.base, self.mask, self.key)))

    def rekeyed(self, number: int) -> _Network:
        key = self.key ^ _MULTIPLIERS[number] if number else self.key
        return _Network(self.sizes, self.power, self.base, self.mask, key)

    def hash(self, half: Word, multiplier: np.uint64, out: Word, spare: Word) -> None:
        """Fill `out` with 32 well-mixed bits of (half, key)."""
        np.add(half, self.key, out=out)
        out *= multiplier
        np.right_shift(out, _HALF, out=spare)
        out ^= spare
        out *= _SECOND
        out >>= _HALF


def _apply(index: NDArray[np.int64], n: int | NDArray[np.int64], key: Key, turn: Turn, passes: range) -> NDArray[np.int64]:
    sizes, keys = np.asarray(n).astype(np.uint64), np.asarray(key, np.uint64)
    shape = np.broadcast_shapes(np.shape(index), sizes.shape, keys.shape)
    if sizes.size > 1 and sizes.min() == sizes.max():
        sizes = sizes[(0,) * sizes.ndim]  # one shape of network for all is much cheaper
    network = _Network.over(_flat(sizes, shape), _flat(keys, shape))
    point = np.broadcast_to(index, shape).reshape(-1).astype(np.uint64)
    few = network.sizes < _SMALL
    for number in passes:
        if number == 0 or few.ndim == 0:
            if number == 0 or few:
                point = _walk(point, network.rekeyed(number), turn)
        elif few.any():
            point[few] = _walk(point[few], network.at(few).rekeyed(number), turn)
    return point.view(np.int64).reshape(shape)


def _walk(point: Word, network: _Network, turn: Turn) -> Word:
    """Return the points turned until they are below n again, which a turn restricted to [0, n) must be some time."""
    point = turn(point, network)
    astray = np.flatnonzero(point >= network.sizes)
    while astray.size:
        remaining = network.at(astray)
        again = turn(point[astray], remaining)
        point[astray] = again
        astray = astray[again >= remaining.sizes]
    return point


def _flat(value: Word, shape: tuple[int, ...]) -> Word:
    return value.reshape(()) if value.size == 1 else np.broadcast_to(value, shape).reshape(-1)


def _at(value: Word, chosen: NDArray[np.intp] | NDArray[np.bool_]) -> Word:
    return value if value.ndim == 0 else value[chosen]


# Every array operation writes into one of four buffers: fresh ones cost a third of the time in page faults.
def _forward(point: Word, network: _Network) -> Word:
    left, right, word, spare = point & network.mask, point >> network.power, np.empty_like(point), point
    for turn in range(_ROUNDS):
        network.hash(right, _MULTIPLIERS[2 * turn], word, spare)
        word &= network.mask
        left ^= word
        network.hash(left, _MULTIPLIERS[2 * turn + 1], word, spare)
        word *= network.base
        word >>= _HALF
        right += word
        # Modulo base: where right < base the difference wraps around to something huge.
        np.subtract(right, network.base, out=spare)
        np.minimum(right, spare, out=right)
    right <<= network.power
    right |= left
    return right


def _backward(point: Word, network: _Network) -> Word:
    left, right, word, spare = point & network.mask, point >> network.power, np.empty_like(point), point
    for turn in reversed(range(_ROUNDS)):
        network.hash(left, _MULTIPLIERS[2 * turn + 1], word, spare)
        word *= network.base
        word >>= _HALF
        right -= word
        np.add(right, network.base, out=spare)
        np.minimum(right, spare, out=right)
        network.hash(right, _MULTIPLIERS[2 * turn], word, spare)
        word &= network.mask
        left ^= word
    right <<= network.power
    right |= left
    return right

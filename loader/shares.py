"""How a mixture deals its positions out to sets: after any number of items each set is within one item of its share.

Shares are n / 65,536. The j-th item of a set with share s falls on one of the positions ⌊(j − 1)/s⌋ … ⌈j/s⌉ − 1; serving the
earliest deadline first meets all of them (Baruah, Cohen, Plaxton, Varvel: "Proportionate progress", 1996). The sequence
repeats, so one table of prefix counts answers for every position.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from ..formats.errors import UsageError
from .slots import Integers

__all__ = ["WHOLE", "Deal", "shares"]

WHOLE = 65_536


def shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Return weights as numbers that add up to 65,536, each within one of its exact share and at least 1."""
    total = math.fsum(weights)
    if not weights or not all(math.isfinite(weight) and weight > 0 for weight in weights) or not math.isfinite(total):
        raise UsageError(f"cannot mix sets with weights {list(weights)!r}: expected finite numbers above 0")
    exact = [weight / total * WHOLE for weight in weights]
    if min(exact) < 0.5:
        raise UsageError(f"cannot mix sets with weights {list(weights)!r}: the smallest is below a share of 1 / {2 * WHOLE}")
    given = [max(1, math.floor(share)) for share in exact]
    by_rest = sorted(range(len(given)), key=lambda index: (given[index] - exact[index], index))
    for index in range(WHOLE - sum(given)):
        given[by_rest[index % len(by_rest)]] += 1
    while sum(given) > WHOLE:
        given[max(range(len(given)), key=lambda index: given[index])] -= 1
    return tuple(given)


class Deal:
    """Prefix counts of a mixture."""

    def __init__(self, parts: tuple[int, ...]) -> None:
        divisor = math.gcd(*parts)
        self._parts = np.array(parts, np.int64) // divisor
        self._period = WHOLE // divisor
        self._table = _prefix_counts(tuple(self._parts.tolist()))

    def counts(self, position: int | Integers) -> Integers:
        """Return how many of the first `position` items are of each set: (…, sets)."""
        position = np.asarray(position, np.int64)
        return (position // self._period)[..., None] * self._parts + self._table[position % self._period]


@lru_cache(maxsize=8)
def _prefix_counts(parts: tuple[int, ...]) -> Integers:
    """Return (period, sets): items of each set among the first 0, 1, … period − 1."""
    period = sum(parts)
    due = [(-(-period // part), index, 1) for index, part in enumerate(parts)]  # (deadline, set, its j-th item)
    heapq.heapify(due)
    waiting: dict[int, list[tuple[int, int, int]]] = {}
    sequence = np.empty(period, np.int64)
    for position in range(period):
        for entry in waiting.pop(position, ()):
            heapq.heappush(due, entry)
        _, index, number = heapq.heappop(due)
        sequence[position] = index
        release = number * period // parts[index]
        entry = (-(-(number + 1) * period // parts[index]), index, number + 1)
        if release <= position + 1:
            heapq.heappush(due, entry)
        else:
            waiting.setdefault(release, []).append(entry)
    counts = np.zeros((period, len(parts)), np.int64)
    for index in range(len(parts)):
        counts[1:, index] = np.cumsum(sequence[:-1] == index)
    return counts

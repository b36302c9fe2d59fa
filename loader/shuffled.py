"""Each item once an epoch, shuffled so that a batch meets many drives while each slot reads few places at a time.

Blocks of L consecutive items are permuted; the permuted items, laid end to end, are cut into slots; each slot walks its part
span by span, a span being a few whole blocks, which take turns: each gives one of its items a row, in an order of its own. All
closed form: a position costs a handful of integer operations, whatever the number of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..formats import kernel
from ..formats.errors import UsageError
from .draws import fold, purpose_key
from .permutation import permute, unpermute
from .sampler import Json, Planned, ViewInfo
from .slots import Cut, Integers, holder, start, taken, trace

__all__ = ["BlockLine", "Shuffled"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Shuffled:
    """Each item once an epoch, in an order that changes with seed and epoch.

    >>> Shuffled(span_blocks=4).drop_last
    False
    """

    block_items: int | None = None
    """L: consecutive items that stay together on disk and in the cache; None: a quarter of the mean drive, 1 to 64.
    Never more than a slot's share of the epoch. Larger reads better from object stores and mixes less."""
    span_blocks: int = 8
    """Blocks that are shuffled together inside a slot: the one knob between quality and locality. Each slot holds this many
    blocks open, so an epoch keeps B × span_blocks × L items within reach; distinct drives over neighbouring batches grow
    with it (`headway bench plan` prints the table). 1 reads block after block."""
    drop_last: bool = False
    """Leave out an incomplete last batch instead of padding it; which items are left out differs each epoch."""

    kind: ClassVar[str] = "shuffled"

    def __post_init__(self) -> None:
        for name, value in (("block_items", self.block_items), ("span_blocks", self.span_blocks)):
            if value is not None and not 1 <= value <= 2**31:
                raise UsageError(f"cannot shuffle with {name}={value!r}: expected 1 or more")

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on."""
        return {
            "kind": self.kind,
            "block_items": self.block_items or default_block_items(view),
            "span_blocks": self.span_blocks,
            "drop_last": self.drop_last,
        }

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> ShuffledOrder:
        """Return the order of one epoch."""
        line = BlockLine(
            items=view.items,
            slots=batch_size,
            block_items=self.block_items or default_block_items(view),
            span_blocks=self.span_blocks,
        )
        return ShuffledOrder(line, purpose_key("shuffled", seed, epoch))


def default_block_items(view: ViewInfo) -> int:
    """Return a quarter of the view's mean drive: long enough to read in one go, short enough to spread a drive out."""
    return max(1, min(64, view.items // (4 * max(1, len(view.drive_starts) - 1))))


class ShuffledOrder:
    """The order of one epoch."""

    def __init__(self, line: BlockLine, key: int) -> None:
        self.items = line.items
        self._line = line
        self._key = np.asarray(key, np.uint64)
        self._short_end = line.short_end(self._key)

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        position, valid = chain[which].position(slot, step)
        return Planned.of(self._line.item(trace(chain, which, position), self._key, self._short_end), slot, valid)


class BlockLine:
    """Permuted blocks laid end to end, cut into slots, shuffled within spans.

    Only the last block may be short. With it at place q of the permuted sequence, every place before q begins at a multiple
    of L, and every place after q begins L − r earlier than it would. Counting as if it were whole ("full" positions, which
    skip L − r numbers after q) turns place and span borders into plain multiples again.

    `key` and `short_end` are one for all positions, or one per position (mixtures go through many epochs at once).
    """

    def __init__(self, *, items: int, slots: int, block_items: int, span_blocks: int) -> None:
        self.items = items
        self.slots = slots
        self.block_items = min(block_items, max(1, items // slots))
        self.span_blocks = span_blocks
        self.blocks = -(-items // self.block_items)
        self.missing = self.blocks * self.block_items - items
        """L − r: what the last block lacks."""
        self._fits_core = self.block_items * span_blocks < 2**60

    def short_end(self, key: NDArray[np.uint64]) -> Integers:
        """Return the position where the short block ends, under each key."""
        place = unpermute(np.asarray(self.blocks - 1), self.blocks, fold(key, _BLOCKS))
        return (place + 1) * self.block_items - self.missing

    def item(self, position: Integers, key: NDArray[np.uint64], short_end: Integers) -> Integers:
        """Return the item at each position of the line; the native core, where it is there, does the same sums."""
        if key.ndim == 0 and self._fits_core and kernel.available():
            line = (self.items, self.slots, self.block_items, self.span_blocks)
            table = _permutations(self.block_items) if self.block_items <= _LONG else _NO_TABLE
            return kernel.shuffled(line, int(short_end), int(key), table, position)
        return self.item_by_numpy(position, key, short_end)

    def item_by_numpy(self, position: Integers, key: NDArray[np.uint64], short_end: Integers) -> Integers:
        """Return the same, for any mix of keys: what the order is defined by."""
        full = self._full(self._within_span(position, fold(key, _SPANS), short_end), short_end)
        place = full // self.block_items
        item = permute(place, self.blocks, fold(key, _BLOCKS)) - place
        item *= self.block_items
        item += full
        return item

    def _within_span(self, position: Integers, key: NDArray[np.uint64], short_end: Integers) -> Integers:
        """Return the position whose item is read at `position`: a permutation of each span, clipped to its slot."""
        slot = holder(position, self.items, self.slots)
        width = self.span_blocks * self.block_items
        # Golden-ratio phases: any run of slots, hence any rank, meets its span borders spread over time.
        phase = ((slot * 0x9E3779B1 & 0xFFFFFFFF) * self.span_blocks >> 32) * self.block_items
        begin = self._full(position, short_end)
        begin += phase
        begin //= width
        begin *= width
        begin -= phase
        end = np.minimum(self._plain(begin + width, short_end), start(slot + 1, self.items, self.slots))
        begin = np.maximum(self._plain(begin, short_end), start(slot, self.items, self.slots))
        # Spans do not overlap, so where one begins is its name.
        return begin + self._walk(position - begin, end - begin, fold(key, begin))

    def _walk(self, turn: Integers, items: Integers, key: NDArray[np.uint64]) -> Integers:
        """Return the place in its span (of so many items) that is read at each turn."""
        whole = items == self.span_blocks * self.block_items
        if whole.all():
            return self._walk_whole(turn, key)
        place = np.empty(turn.shape, np.int64)
        place[whole] = self._walk_whole(turn[whole], key[whole])
        clipped = ~whole
        place[clipped] = self._walk_clipped(turn[clipped], items[clipped], key[clipped])
        return place

    def _walk_whole(self, turn: Integers, key: NDArray[np.uint64]) -> Integers:
        """Every row asks each block once, beginning with another one; row r of a block is item r of its own permutation."""
        columns, length = self.span_blocks, self.block_items
        row = turn // columns
        column = turn - row * columns
        column += _below(_word(key, row), columns)
        column -= (column >= columns) * np.int64(columns)
        word = _word(key, ~column)
        if length > _LONG:
            place = permute(row, length, word)
        else:
            place = _permutations(length)[word & np.uint64(_PERMUTATIONS - 1), row] + _below(word, length)
            place -= (place >= length) * np.int64(length)
        column *= length
        column += place
        return column

    def _walk_clipped(self, turn: Integers, items: Integers, key: NDArray[np.uint64]) -> Integers:
        """The same for spans that a slot's border or the short block clips: cut into equal columns instead of into blocks."""
        columns = -(-items // self.block_items)
        column, row = taken(turn, items, columns)
        turned = (column + _below(_word(key, row), columns)) % columns
        column = np.where(row < items // columns, turned, column)
        first = start(column, items, columns)
        return first + permute(row, start(column + 1, items, columns) - first, _word(key, ~column))

    def _full(self, position: Integers, short_end: Integers) -> Integers:
        """Return (a copy of) positions counted as if the short block were whole."""
        full: Integers = position + (position >= short_end) * np.int64(self.missing)
        return full

    def _plain(self, full: Integers, short_end: Integers) -> Integers:
        """Return the position of a full position; one inside the gap is the end of the short block."""
        beyond: Integers = full - short_end
        np.minimum(beyond, self.missing, out=beyond)
        np.maximum(beyond, 0, out=beyond)
        np.subtract(full, beyond, out=beyond)
        return beyond


_BLOCKS, _SPANS = 1, 2
"""What the two keys derived from an epoch's are for."""

_LONG, _PERMUTATIONS = 64, 256
"""Blocks of up to 64 items draw one of 256 permutations, then turn it: a look-up takes a tenth of the time of a Feistel network
of three passes. Turning makes every place exactly as likely as any other."""

_NO_TABLE = np.zeros((0, 0), np.uint8)


@lru_cache(maxsize=8)
def _permutations(length: int) -> NDArray[np.uint8]:
    """Return (256, length) permutations, the same on every machine."""
    keys = fold(0, np.arange(_PERMUTATIONS), length)
    return permute(np.arange(length)[None, :], length, keys[:, None]).astype(np.uint8)


def _word(key: NDArray[np.uint64], number: Integers) -> NDArray[np.uint64]:
    """Return 64 bits that depend on a well-mixed key and a number: less mixing than `fold`, at a third of its cost."""
    word: NDArray[np.uint64] = number.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    word ^= key
    word *= np.uint64(0xD6E8FEB86659FD93)
    word ^= word >> np.uint64(32)
    word *= np.uint64(0xD6E8FEB86659FD93)
    return word


def _below(word: NDArray[np.uint64], bound: int | Integers) -> Integers:
    """Return one number in [0, bound) per word, from its upper 32 bits."""
    return ((word >> np.uint64(32)) * np.asarray(bound, np.uint64) >> np.uint64(32)).view(np.int64)

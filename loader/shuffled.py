"""Each item once an epoch, shuffled so that a batch meets many drives while each slot reads few places at a time.

Blocks of L consecutive items are permuted; the permuted items, laid end to end, are cut into slots; each slot walks its part
span by span, a span being a few whole blocks whose items are permuted. All closed form: a position costs a handful of
integer operations, whatever the number of items.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import UsageError
from .draws import fold, purpose_key
from .permutation import permute, unpermute
from .sampler import Json, Planned, ViewInfo
from .slots import Cut, Integers, holder, start, trace

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

    def describe(self, view: ViewInfo) -> dict[str, Json]:
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
        return ShuffledOrder(view.items, line, purpose_key("shuffled", seed, epoch))


def default_block_items(view: ViewInfo) -> int:
    """Return a quarter of the view's mean drive: long enough to read in one go, short enough to spread a drive out."""
    return max(1, min(64, view.items // (4 * max(1, len(view.drive_starts) - 1))))


@dataclass(frozen=True, slots=True)
class ShuffledOrder:
    """The order of one epoch."""

    items: int
    line: BlockLine
    key: int

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        position, valid = chain[which].position(slot, step)
        items = self.line.item(trace(chain, which, position), np.asarray(self.key, np.uint64))
        return Planned(
            items=np.where(valid, items, -1),
            slots=np.broadcast_to(slot, items.shape),
            occurrence=np.zeros_like(items),
        )


class BlockLine:
    """Permuted blocks laid end to end, cut into slots, shuffled within spans.

    Only the last block may be short. With it at place q of the permuted sequence, every place before q begins at a multiple
    of L, and every place after q begins L − r earlier than it would. Counting as if it were whole ("full" positions, which
    skip L − r numbers after q) turns place and span borders into plain multiples again.
    """

    def __init__(self, *, items: int, slots: int, block_items: int, span_blocks: int) -> None:
        self.items = items
        self.slots = slots
        self.block_items = min(block_items, max(1, items // slots))
        self.span_blocks = span_blocks
        self.blocks = -(-items // self.block_items)
        self.missing = self.blocks * self.block_items - items
        """L − r: what the last block lacks."""

    def item(self, position: Integers, key: NDArray[np.uint64]) -> Integers:
        """Return the item at each position of the line; `key` is one for all or one per position."""
        length = self.block_items
        block_key = fold(key, 1)
        short = unpermute(np.asarray(self.blocks - 1), self.blocks, block_key)
        short_end = (short + 1) * length - self.missing
        position = self._within_span(position, fold(key, 2), short_end)
        full = self._full(position, short_end)
        place = full // length
        return permute(place, self.blocks, block_key) * length + (full - place * length)

    def _within_span(self, position: Integers, key: NDArray[np.uint64], short_end: Integers) -> Integers:
        """Return the position whose item is read at `position`: a permutation of each span clipped to its slot."""
        slot = holder(position, self.items, self.slots)
        width = self.span_blocks * self.block_items
        # Golden-ratio phases: any run of slots, hence any rank, meets its span borders spread over time.
        phase = ((slot * 0x9E3779B1 & 0xFFFFFFFF) * self.span_blocks >> 32) * self.block_items
        span = (self._full(position, short_end) + phase) // width
        begin = np.maximum(self._plain(span * width - phase, short_end), start(slot, self.items, self.slots))
        end = np.minimum(self._plain((span + 1) * width - phase, short_end), start(slot + 1, self.items, self.slots))
        return begin + permute(position - begin, end - begin, fold(key, slot, span))

    def _full(self, position: Integers, short_end: Integers) -> Integers:
        """Return positions counted as if the short block were whole."""
        return position + np.where(position >= short_end, self.missing, 0)

    def _plain(self, full: Integers, short_end: Integers) -> Integers:
        """Return the position of a full position; one inside the gap is the end of the short block."""
        return full - np.clip(full - short_end, 0, self.missing)

"""Each slot follows drives frame by frame, for recurrent training: what a slot sees next continues what it saw before.

Permuted drives (or chunks of them) are laid end to end and cut into slots, so a drive may be cut. `is_first` tells the model
to forget: it is set unless the slot's previous item is the frame directly before in the same drive.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import UsageError
from .draws import purpose_key
from .permutation import permute
from .sampler import Json, Planned, ViewInfo
from .slots import Cut, Integers, trace

__all__ = ["SlotSticky"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SlotSticky:
    """Each item once an epoch, every slot walking through drives in their own order.

    Slot j of one step continues slot j of the step before; the batch carries slot ids and `is_first`. After a change of the
    batch size every slot begins anew. The `replace` fault policy does not go with it: a replaced frame would break the walk.

    >>> SlotSticky(chunk_items=20).drop_last
    False
    """

    chunk_items: int | None = None
    """Cut drives into chunks of at most this many items and permute those: mixes better, forgets more often. None: whole
    drives. Memory of the plan grows with the number of drives or chunks."""
    drop_last: bool = False
    """Leave out an incomplete last batch instead of padding it."""

    kind: ClassVar[str] = "sticky"

    def __post_init__(self) -> None:
        if self.chunk_items is not None and self.chunk_items < 1:
            raise UsageError(f"cannot cut drives into chunks of {self.chunk_items} items: expected 1 or more, or None")

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on."""
        return {"kind": self.kind, "chunk_items": self.chunk_items, "drop_last": self.drop_last}

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> StickyOrder:
        """Return the order of one epoch."""
        return StickyOrder(view, self.chunk_items, purpose_key("sticky", seed, epoch))


class StickyOrder:
    """The order of one epoch: chunks permuted and laid end to end."""

    def __init__(self, view: ViewInfo, chunk_items: int | None, key: int) -> None:
        self.items = view.items
        self._view = view
        starts = _chunks(view.drive_starts, chunk_items)
        lengths = np.diff(starts)
        chosen = permute(np.arange(len(lengths)), max(1, len(lengths)), key)
        self._first_item = starts[chosen]
        self._line_start = np.cumsum(lengths[chosen]) - lengths[chosen]

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        items, valid = self._items(chain, which, step, slot)
        before, _ = self._items(chain, which, np.maximum(step - 1, 0), slot)
        is_first = (step == 0) | (items != before + 1) | self._apart(before, items)
        planned = Planned.of(items, slot, valid)
        return replace(planned, is_first=is_first if valid is None else is_first | ~valid)

    def _items(
        self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers
    ) -> tuple[Integers, NDArray[np.bool_] | None]:
        position, valid = chain[which].position(slot, step)
        position = trace(chain, which, position)
        chunk = np.searchsorted(self._line_start, position, side="right") - 1
        return self._first_item[chunk] + position - self._line_start[chunk], valid

    def _apart(self, before: Integers, items: Integers) -> NDArray[np.bool_]:
        """Return whether two items next to one another in the view are of two drives, or not of neighbouring frames."""
        starts = self._view.drive_starts
        drive = np.searchsorted(starts, items, side="right")
        apart: NDArray[np.bool_] = np.searchsorted(starts, before, side="right") != drive
        frames = self._view.frames
        if frames is not None:
            apart |= (frames(items.ravel()) != frames(before.ravel()) + 1).reshape(items.shape)
        return apart


def _chunks(drive_starts: NDArray[np.int64], chunk_items: int | None) -> Integers:
    """Return where chunks of at most `chunk_items` items start, every drive starting one, and the end."""
    starts: Integers = drive_starts[np.append(np.diff(drive_starts) > 0, True)]  # a drive without items is no chunk
    if chunk_items is None:
        return starts
    lengths = np.diff(starts)
    pieces = -(-lengths // chunk_items)
    number = np.arange(pieces.sum()) - np.repeat(np.cumsum(pieces) - pieces, pieces)
    begins: Integers = np.append(np.repeat(starts[:-1], pieces) + number * chunk_items, starts[-1])
    return begins

"""Where a line of items is cut into the slots of a batch, and cut again when the batch size changes.

One rule does all of it: M items cut into B slots give slot j the positions [⌊jM/B⌋, ⌊(j+1)M/B⌋). An epoch is a chain of such
cuts, one per batch size. After s steps each slot's rest begins s positions further on, so the rests laid end to end begin at
⌊jM/B⌋ − js = ⌊j(M − sB)/B⌋: where the same rule would cut them. A position is traced back to the first cut in closed form.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import StateError, UsageError

__all__ = ["Cut", "cuts", "holder", "start", "taken", "trace"]

Integers = NDArray[np.int64]

SEGMENTS = 64
"""Most batch sizes in one epoch: bounds the state, and the work of `trace`."""


def start(slot: Integers, items: int | Integers, slots: int | Integers) -> Integers:
    """Return the first position of each slot when `items` are cut into `slots`."""
    return slot * items // slots


def holder(position: Integers, items: int | Integers, slots: int | Integers) -> Integers:
    """Return the slot that owns each position: the last one that starts at or before it."""
    return ((position + 1) * slots - 1) // items


def taken(count: Integers, items: int | Integers, slots: int | Integers) -> tuple[Integers, Integers]:
    """Return (slot, position within the slot) of the `count`-th item taken when the slots take turns.

    All slots are asked in order, again and again; in the last round only those that hold one item more answer.
    """
    rounds, turn = count // slots, count % slots
    longer = items % slots
    last = rounds == items // slots
    return np.where(last, ((turn + 1) * slots - 1) // np.maximum(longer, 1), turn), rounds


@dataclass(frozen=True, slots=True)
class Cut:
    """The items left when a batch size came into force, and how many steps were done with it."""

    items: int
    """M: items not yet handed out when this cut was made."""
    slots: int
    """B: the global batch size."""
    first_step: int
    """Steps of the epoch done before this cut."""
    items_before: int
    """Items of the epoch handed out before this cut."""
    steps: int
    """Steps done since. The last cut goes on after them."""

    def position(self, slot: Integers, step: Integers) -> tuple[Integers, NDArray[np.bool_] | None]:
        """Return (position in the line, valid) of each slot's item at `step`, counted from this cut.

        Where a slot has no item left, valid is False and the position some position of the line; None: all are valid.
        """
        begin = start(slot, self.items, self.slots)
        if step.max(initial=0) < self.items // self.slots:
            return begin + step, None
        valid = step < start(slot + 1, self.items, self.slots) - begin
        return begin + np.where(valid, step, 0), valid


def cuts(items: int, segments: Sequence[tuple[int, int]]) -> tuple[Cut, ...]:
    """Return the chain of cuts of an epoch of `items`, one per (batch size, steps done)."""
    if not 1 <= len(segments) <= SEGMENTS:
        raise StateError(
            f"cannot plan an epoch with {len(segments)} segments: expected 1 to {SEGMENTS} batch sizes in one epoch; "
            "finish the epoch with one of the sizes it already had"
        )
    chain: list[Cut] = []
    left, steps_before = items, 0
    for number, (slots, steps) in enumerate(segments):
        if slots < 1:
            raise UsageError(f"cannot cut {items} items into batches of {slots}: expected 1 or more")
        whole = number + 1 < len(segments)
        if steps < 0 or steps > (left // slots if whole else -(-left // slots)):
            raise StateError(
                f"cannot plan from segment {number} of {list(segments)!r}: {left} items are left there, which is fewer than "
                f"{steps} steps of {slots}; the state belongs to another view or was edited"
            )
        if items * slots >= 2**63:
            raise UsageError(f"cannot cut {items} items into batches of {slots}: expected items × batch below 2⁶³")
        chain.append(Cut(left, slots, steps_before, items - left, steps))
        left, steps_before = left - steps * slots, steps_before + steps
        if whole and left < 1:
            raise StateError(f"cannot plan from {list(segments)!r}: nothing is left of the epoch after segment {number}")
    return tuple(chain)


def trace(chain: Sequence[Cut], which: int, position: Integers) -> Integers:
    """Return the position in the line of the first cut of what lies at `position` in the line of cut `which`."""
    for number in range(which, 0, -1):
        items, before = chain[number].items, chain[number - 1]
        slot = holder(position, items, before.slots)
        position = position - start(slot, items, before.slots) + start(slot, before.items, before.slots) + before.steps
    return position

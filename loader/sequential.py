"""Items in the order of the view: step by step, slot by slot, for checks, exports and evaluation.

Position m = items of earlier steps + step · B + slot; a change of the batch size goes on at the next m.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from .sampler import Json, Planned, ViewInfo
from .slots import Cut, Integers

__all__ = ["Evaluation", "Sequential", "stream"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequential:
    """Each item once, in the view's own order.

    >>> Sequential().drop_last
    False
    """

    drop_last: bool = False
    """Leave out an incomplete last batch instead of padding it."""

    kind: ClassVar[str] = "sequential"

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on."""
        return {"kind": self.kind, "drop_last": self.drop_last}

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> StreamOrder:
        """Return the order of one epoch."""
        return StreamOrder(view.items)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """Each item exactly once, in the view's own order: nothing is dropped and nothing replaced.

    Batches carry item ids, so results gathered from all ranks can be put in order and checked for completeness.

    >>> Evaluation().drop_last
    False
    """

    kind: ClassVar[str] = "evaluation"

    @property
    def drop_last(self) -> bool:
        """Never."""
        return False

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on."""
        return {"kind": self.kind}

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> StreamOrder:
        """Return the order of one epoch."""
        return StreamOrder(view.items)


@dataclass(frozen=True, slots=True)
class StreamOrder:
    """Position m holds item m."""

    items: int

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        position, valid = stream(chain[which], step, slot)
        return Planned.of(position, slot, valid)


def stream(cut: Cut, step: Integers, slot: Integers) -> tuple[Integers, NDArray[np.bool_]]:
    """Return (m, valid) for orders that deal one stream of positions out to the slots."""
    offset = step * cut.slots + slot
    return cut.items_before + offset, offset < cut.items

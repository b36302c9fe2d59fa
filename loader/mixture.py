"""Several sets in fixed proportions: every step holds each set's share, each set goes through its own shuffled epochs.

`shares` says how many items of each set a step holds; sets fill the slots in set order. The n-th item of a set is the n-th in
(step, slot) order of the set's own shuffled plan over a fixed number of virtual slots, on into its next set-epoch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import UsageError
from .draws import fold, purpose_key
from .sampler import Json, Planned, ViewInfo
from .shares import Deal, shares
from .shuffled import BlockLine, default_block_items
from .slots import Cut, Integers, start, taken

__all__ = ["Mixture"]

_MOST_SETS = 32
"""More would not fit a state of 4 KiB with 64 segments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Items of several sets, each set with a fixed share of every step.

    Goes with `headway.mix`, whose datasets are in the order of the weights.

    >>> Mixture(weights=(2, 1)).shares
    (43691, 21845)
    """

    weights: tuple[float, ...]
    """One number above 0 per set; only their proportions count, in steps of 1 / 65,536."""
    epoch_items: int | None = None
    """Items of a mixture epoch; None: those of all sets together."""
    virtual_slots: int = 256
    """Slots of each set's own plan. Set it to about the most items of one set in a global batch, or somewhat more: more keep
    more blocks open, fewer bring neighbouring items into one batch. It does not follow the batch size, so that a change of
    that changes no set's order."""
    block_items: int | None = None
    """As for `Shuffled`, for each set."""
    span_blocks: int = 8
    """As for `Shuffled`, for each set."""
    drop_last: bool = False
    """Leave out an incomplete last batch instead of padding it."""

    kind: ClassVar[str] = "mixture"

    def __post_init__(self) -> None:
        if not 1 <= len(self.weights) <= _MOST_SETS:
            raise UsageError(f"cannot mix {len(self.weights)} sets: expected 1 to {_MOST_SETS} weights")
        for name in ("epoch_items", "virtual_slots", "block_items", "span_blocks"):
            value = getattr(self, name)
            if value is not None and not 1 <= value < 2**48:
                raise UsageError(f"cannot mix sets with {name}={value!r}: expected 1 or more")
        shares(self.weights)

    @property
    def shares(self) -> tuple[int, ...]:
        """Each set's share of all items, in 1 / 65,536."""
        return shares(self.weights)

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on; "sets": each set's (virtual slots, set-epoch, position)."""
        order = self.order(view, seed=0, epoch=epoch, batch_size=1)
        return {
            "kind": self.kind,
            "shares": list(self.shares),
            "epoch_items": order.items,
            "block_items": [self.block_items or default_block_items(part) for part in view.sets],
            "span_blocks": self.span_blocks,
            "drop_last": self.drop_last,
            "sets": [[part.line.slots, *divmod(part.begun, part.line.items)] for part in order.parts],
        }

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> MixtureOrder:
        """Return the order of one epoch."""
        if len(view.sets) != len(self.weights) or any(part.items < 1 for part in view.sets):
            raise UsageError(
                f"cannot mix view {view.view_id!r} with {len(self.weights)} weights: it is made of sets of "
                f"{[part.items for part in view.sets]} items, expected as many sets as weights, none of them empty; "
                "make the dataset with headway.mix"
            )
        items = self.epoch_items or view.items
        if (epoch + 1) * items >= 2**62:
            raise UsageError(f"cannot mix sets in epoch {epoch} of {items} items: expected fewer than 2⁶² items up to its end")
        deal = Deal(self.shares)
        each_epoch = deal.counts(items)
        first_items = np.cumsum([0, *(part.items for part in view.sets)])
        parts = tuple(
            _Part(
                line=BlockLine(
                    items=part.items,
                    slots=min(self.virtual_slots, part.items),
                    block_items=self.block_items or default_block_items(part),
                    span_blocks=self.span_blocks,
                ),
                first_item=int(first_items[number]),
                begun=epoch * int(each_epoch[number]),
                key=purpose_key(f"mixture {number}", seed, 0),
            )
            for number, part in enumerate(view.sets)
        )
        return MixtureOrder(items, deal, parts)


@dataclass(frozen=True, slots=True)
class _Part:
    """One set of the mixture."""

    line: BlockLine
    first_item: int
    """Item number of the joined view where the set begins."""
    begun: int
    """Items of the set handed out before this mixture epoch."""
    key: int

    def at(self, number: Integers) -> tuple[Integers, Integers]:
        """Return (item of the joined view, set-epoch) of the set's `number`-th item since epoch 0: (n,)."""
        set_epoch, within = np.divmod(number, self.line.items)
        slot, walked = taken(within, self.line.items, self.line.slots)
        position = start(slot, self.line.items, self.line.slots) + walked
        epochs, which = np.unique(set_epoch, return_inverse=True)
        keys: NDArray[np.uint64] = fold(self.key, epochs)
        return self.first_item + self.line.item(position, keys[which], self.line.short_end(keys)[which]), set_epoch


@dataclass(frozen=True, slots=True)
class MixtureOrder:
    """The order of one mixture epoch."""

    items: int
    deal: Deal
    parts: tuple[_Part, ...]

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        cut = chain[which]
        begin = cut.items_before + step[:, 0] * cut.slots
        before = self.deal.counts(begin)
        ends = np.cumsum(self.deal.counts(np.minimum(begin + cut.slots, self.items)) - before, axis=1)
        shape = (len(begin), slot.shape[1])
        items, occurrence = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        set_index = np.full(shape, -1, np.int32)
        first = np.zeros_like(begin)
        for number, part in enumerate(self.parts):
            last = ends[:, number]
            here = (slot >= first[:, None]) & (slot < last[:, None])
            nth = (part.begun + before[:, number] - first)[:, None] + slot
            items[here], occurrence[here] = part.at(nth[here])
            set_index[here] = number
            first = last
        return Planned(items=items, slots=np.broadcast_to(slot, shape).copy(), occurrence=occurrence, set_index=set_index)

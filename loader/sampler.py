"""What a sampler is to the plan: parameters that the order depends on, and the order itself.

A sampler is a small frozen description handed to `DataLoader(sampler=…)`. Its `order` for one epoch answers which item lies
at a slot and step; it holds no position. Samplers: `sequential`, `shuffled`, `weighted`, `mixture`, `sticky`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol, TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

from .slots import Cut, Integers

__all__ = ["Json", "Order", "Planned", "Sampler", "ViewInfo"]

Scalar = TypeVar("Scalar", bound=np.generic)
Json: TypeAlias = int | float | str | bool | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ViewInfo:
    """What the plan needs to know of a view; no payloads, no paths."""

    view_id: str
    items: int
    drive_starts: NDArray[np.int64]
    """(D + 1,): item numbers where drives start; the last entry is `items`."""
    frames: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    """Item numbers → global frame numbers. None: items of a drive are frames directly after one another."""
    sets: Sequence[ViewInfo] = ()
    """The views that this one is made of, end to end (mixtures)."""

    @classmethod
    def joined(cls, views: Sequence[ViewInfo]) -> ViewInfo:
        """Return the view of several laid end to end: item numbers of a view begin where those of the one before end."""
        offsets = np.cumsum([0, *(view.items for view in views)])
        starts = [view.drive_starts[:-1] + offset for view, offset in zip(views, offsets, strict=False)]
        names = "\0".join(view.view_id for view in views)
        return cls(
            view_id=hashlib.sha256(names.encode()).hexdigest(),
            items=int(offsets[-1]),
            drive_starts=np.concatenate([*starts, offsets[-1:]]).astype(np.int64),
            frames=None if all(view.frames is None for view in views) else partial(_frames_end_to_end, tuple(views), offsets),
            sets=tuple(views),
        )

    def sets_of(self, items: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return which of `sets` each item is from; −1 for padding (−1)."""
        starts = np.cumsum([0, *(view.items for view in self.sets)])
        return (np.searchsorted(starts, items, side="right") - 1).astype(np.int32)

    def range_of(self, item: int) -> tuple[int, int]:
        """Return the items that may stand in for `item`: those of its set, else all."""
        if not self.sets:
            return 0, self.items
        starts = np.cumsum([0, *(view.items for view in self.sets)])
        which = int(np.searchsorted(starts, item, side="right")) - 1
        return int(starts[which]), int(starts[which + 1])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Planned:
    """Which item each slot gets: arrays (slots,) for one step, (steps, slots) for a look-ahead."""

    items: NDArray[np.int64]
    """Item numbers of the view; −1 is padding."""
    slots: NDArray[np.int64]
    """Positions in the global batch."""
    occurrence: NDArray[np.int64]
    """Which repeat of the item this is, for keyed draws; 0 unless the sampler repeats items."""
    is_first: NDArray[np.bool_] | None = None
    """Slot-sticky only: the slot's previous item is not the frame directly before in this drive."""
    set_index: NDArray[np.int32] | None = None
    """Mixtures only: the set the item is from; −1 for padding."""

    @classmethod
    def of(cls, items: Integers, slot: Integers, valid: NDArray[np.bool_] | None) -> Planned:
        """Return the plan of items that come once an epoch, padded where not valid (None: valid everywhere)."""
        return cls(
            items=items if valid is None else np.where(valid, items, -1),
            slots=np.broadcast_to(slot, items.shape).copy(),
            occurrence=np.zeros(items.shape, np.int64),
        )

    @classmethod
    def stacked(cls, parts: Sequence[Planned]) -> Planned:
        """Return the steps of all parts, one after another."""
        first = parts[0]
        return cls(
            items=np.concatenate([part.items for part in parts]),
            slots=np.concatenate([part.slots for part in parts]),
            occurrence=np.concatenate([part.occurrence for part in parts]),
            is_first=None if first.is_first is None else np.concatenate([_given(part.is_first) for part in parts]),
            set_index=None if first.set_index is None else np.concatenate([_given(part.set_index) for part in parts]),
        )

    def row(self, step: int) -> Planned:
        """Return one step of a look-ahead: arrays (slots,)."""
        return Planned(
            items=self.items[step],
            slots=self.slots[step],
            occurrence=self.occurrence[step],
            is_first=None if self.is_first is None else self.is_first[step],
            set_index=None if self.set_index is None else self.set_index[step],
        )


def _frames_end_to_end(views: Sequence[ViewInfo], offsets: NDArray[np.int64], items: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return frame numbers that follow on one another where those of a view do; what they are counted from differs by view."""
    frames = np.empty(items.shape, np.int64)
    for view, begin, end in zip(views, offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
        here = (items >= begin) & (items < end)
        own = items[here] - begin
        frames[here] = own if view.frames is None else view.frames(own)
    return frames


def _given(value: NDArray[Scalar] | None) -> NDArray[Scalar]:
    assert value is not None, "parts of one order have the same fields"
    return value


class Order(Protocol):
    """The order of one epoch; what `Plan` asks."""

    @property
    def items(self) -> int:
        """Items that the epoch hands out, before drop_last."""
        ...

    def at(self, chain: Sequence[Cut], which: int, step: Integers, slot: Integers) -> Planned:
        """Return what lies at `step` (counted from cut `which` of the chain, (steps, 1)) and `slot` ((1, slots))."""
        ...


class Sampler(Protocol):
    """The description of an order."""

    kind: ClassVar[str]

    @property
    def drop_last(self) -> bool:
        """Whether an incomplete last batch is left out."""
        ...

    def describe(self, view: ViewInfo, *, epoch: int) -> dict[str, Json]:
        """Return every parameter that the order depends on, defaults resolved: what the state keeps and compares."""
        ...

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> Order:
        """Return the order of an epoch that begins with global batches of `batch_size`."""
        ...

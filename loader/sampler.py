"""What a sampler is to the plan: parameters that the order depends on, and the order itself.

A sampler is a small frozen description handed to `DataLoader(sampler=…)`. Its `order` for one epoch answers which item lies
at a slot and step; it holds no position. Samplers: `sequential`, `shuffled`, `weighted`, `mixture`, `sticky`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from .slots import Cut, Integers

__all__ = ["Json", "Order", "Planned", "Sampler", "ViewInfo"]

Json: TypeAlias = int | float | str | bool | list["Json"] | dict[str, "Json"] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewInfo:
    """What the plan needs to know of a view; no payloads, no paths."""

    view_id: str
    items: int
    drive_starts: NDArray[np.int64]
    """(D + 1,): item numbers where drives start; the last entry is `items`."""
    frames: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = field(default=None, compare=False)
    """Item numbers → global frame numbers. None: items of a drive are frames directly after one another."""
    sets: Sequence[ViewInfo] = ()
    """The views that this one is made of, end to end (mixtures)."""


@dataclass(frozen=True, slots=True, kw_only=True)
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


class Order(Protocol):
    """The order of one epoch; what `Plan` asks."""

    items: int
    """Items that the epoch hands out, before drop_last."""

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

    def describe(self, view: ViewInfo) -> dict[str, Json]:
        """Return every parameter that the order depends on, defaults resolved: what the state keeps and compares."""
        ...

    def order(self, view: ViewInfo, *, seed: int, epoch: int, batch_size: int) -> Order:
        """Return the order of an epoch that begins with global batches of `batch_size`."""
        ...

"""Which item every slot of the global batch gets at every step: the order of an epoch as a pure function.

A plan depends on the view, the sampler, seed, epoch and the segments of batch sizes, and on nothing else: not on ranks,
threads, prefetch depth, cache or clock. It does no I/O, keeps no position, and its memory does not grow with the view.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from ..formats.errors import UsageError
from .permutation import LARGEST
from .sampler import Planned, Sampler, ViewInfo
from .slots import cuts

__all__ = ["Plan", "Planned", "ViewInfo"]


class Plan:
    """The order of one epoch.

    Args:
        view: what is read.
        sampler: in which order.
        seed: any integer; another seed gives another order.
        epoch: counted from 0.
        segments: (global batch size, steps done with it), in order; the last is the current one. A new epoch is [(B, 0)].

    >>> import numpy as np
    >>> from headway.loader.shuffled import Shuffled
    >>> view = ViewInfo(view_id="v", items=10, drive_starts=np.array([0, 10]))
    >>> plan = Plan(view, Shuffled(), seed=1, epoch=0, segments=[(4, 0)])
    >>> plan.steps
    3
    >>> sorted(plan.look_ahead(0, 3, 0, 4).items.ravel().tolist())
    [-1, -1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    """

    def __init__(self, view: ViewInfo, sampler: Sampler, *, seed: int, epoch: int, segments: Sequence[tuple[int, int]]) -> None:
        if not 1 <= view.items <= LARGEST:
            raise UsageError(
                f"cannot plan view {view.view_id!r}: found {view.items} items, expected 1 to 2⁴⁸; "
                "check the view's filter and gap policy"
            )
        self.view = view
        self.sampler = sampler
        self.seed = seed
        self.epoch = epoch
        self.segments = tuple((int(slots), int(steps)) for slots, steps in segments)
        if not self.segments or self.segments[0][0] < 1:
            raise UsageError(f"cannot plan from segments {list(segments)!r}: expected a batch size of 1 or more")
        self._order = sampler.order(view, seed=seed, epoch=epoch, batch_size=self.segments[0][0])
        self._chain = cuts(self._order.items, self.segments)
        last = self._chain[-1]
        self.batch_size = last.slots
        """The current global batch size B."""
        self.first_step = last.first_step + last.steps
        """Steps of the epoch that are done."""
        self.items = self._order.items
        """Items that the epoch hands out if none is dropped."""
        self.steps = last.first_step + (last.items // last.slots if sampler.drop_last else -(-last.items // last.slots))
        """Steps of the whole epoch, those done included."""

    def step(self, step: int, first_slot: int = 0, last_slot: int | None = None) -> Planned:
        """Return what slots [first_slot, last_slot) get at `step` of the epoch."""
        return self.look_ahead(step, 1, first_slot, last_slot).row(0)

    def look_ahead(self, first_step: int, steps: int, first_slot: int = 0, last_slot: int | None = None) -> Planned:
        """Return what slots [first_slot, last_slot) get at `steps` steps from `first_step` on: arrays (steps, slots).

        Steps already done may be asked for, too. Asking for many steps at once is far cheaper than one by one.
        """
        last_slot = self.batch_size if last_slot is None else last_slot
        if not 0 <= first_step <= first_step + steps <= self.steps:
            raise UsageError(
                f"cannot plan steps {first_step} to {first_step + steps} of epoch {self.epoch}: it has steps 0 to {self.steps}"
            )
        slots = np.arange(first_slot, last_slot, dtype=np.int64)[None, :]
        parts = [
            self._order.at(self._chain, which, local[:, None], slots)
            for which, local in self._by_cut(first_step, steps, first_slot, last_slot)
        ]
        if not parts:
            parts = [self._order.at(self._chain, len(self._chain) - 1, np.zeros((0, 1), np.int64), slots)]
        return parts[0] if len(parts) == 1 else Planned.stacked(parts)

    def _by_cut(self, first_step: int, steps: int, first_slot: int, last_slot: int) -> Iterator[tuple[int, NDArray[np.int64]]]:
        """Yield (cut, its local steps) for a run of steps of the epoch."""
        for which, cut in enumerate(self._chain):
            end = self.steps if which + 1 == len(self._chain) else cut.first_step + cut.steps
            begin, end = max(first_step, cut.first_step), min(first_step + steps, end)
            if begin < end:
                if not 0 <= first_slot <= last_slot <= cut.slots:
                    raise UsageError(
                        f"cannot plan slots {first_slot} to {last_slot} at step {begin}: the global batch there has "
                        f"{cut.slots} slots"
                    )
                yield which, np.arange(begin - cut.first_step, end - cut.first_step, dtype=np.int64)

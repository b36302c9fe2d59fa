"""One pass over (the rest of) an epoch of a packed set: batches with the state after each, counted and paced."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable
from functools import partial

from ..formats.packed_set import PackedSet
from .batch import Batch
from .packed_engines import Making
from .plan import Plan
from .recorder import Sources
from .state import State
from .stats import LoaderStats
from .store_values import store_values

__all__ = ["PackedIterator"]


class PackedIterator:
    """Owns what makes its batches, which ends with it.

    Args:
        making: not started yet.
        start: where `plan` begins.
        accumulate: micro-batches a step.
        ranks: that share a step.
        moved: told the position after each batch that is handed over.
        packed: whose store is reported.
    """

    def __init__(
        self,
        making: Making,
        plan: Plan,
        start: State,
        *,
        accumulate: int,
        ranks: int,
        stats: LoaderStats,
        moved: Callable[[State], None],
        packed: PackedSet,
    ) -> None:
        self.plan, self._start, self._accumulate, self._ranks = plan, start, accumulate, ranks
        self._stats, self._moved = stats, moved
        self._number = start.first_batch(accumulate)
        self.is_done = False
        self._engine, self._pacer, self.fetch = making.engine, making.pacer, making.fetch
        weakref.finalize(self, self._engine.close, wait=False).atexit = False
        weakref.finalize(self, self._pacer.close)
        if self.fetch is not None:
            weakref.finalize(self, self.fetch.close)
        self._engine.start()
        stats.begun(Sources(partial(_values, making, packed), self._engine.awaited))

    def __iter__(self) -> PackedIterator:
        return self

    def __len__(self) -> int:
        return self.plan.steps * self._accumulate

    def __next__(self) -> Batch:
        ready = self._engine.ready
        self._stats.asked(ready)
        self._pacer.asked(time.monotonic(), ready)
        if self.fetch is not None:
            self.fetch.asked(self._number)
        try:
            batch = self._engine.next()
        except StopIteration:
            self._end()
            self._stats.ended()
            raise
        except BaseException:
            if self._engine.has_failed:  # it has closed itself, or hangs and is not to be waited for
                self._leave()
            raise
        step, micro = divmod(self._number, self._accumulate)
        self._number += 1
        position = self._start.after(self.plan, step=step, micro=micro, ranks=self._ranks, accumulation=self._accumulate)
        batch["state"] = position.to_json()
        self._moved(position)
        trail = self._engine.trail or self._stats.trail()
        if self._number == len(self):
            trail.begin("end")
            self._engine.close()  # the threads go with the last batch: a loop that stops by count ends them, too
            trail.end()
        size = batch.nbytes
        self._stats.delivered(batch.samples, size, trail)
        self._pacer.delivered(time.monotonic(), size)
        if self.fetch is not None:
            self.fetch.delivered()
        self._engine.prefetch = self._pacer.batches
        if self._number == len(self):
            self._end()
        return batch

    def _end(self) -> None:
        if not self.is_done:
            self._engine.close()
            self._leave()

    def _leave(self) -> None:
        """Be under way no more, even where a traceback keeps this iterator alive."""
        if not self.is_done:
            self.is_done = True
            self._pacer.close()
            if self.fetch is not None:
                self.fetch.close()
            self._stats.ended()


def _values(making: Making, packed: PackedSet) -> dict[str, float]:
    """Return what is chosen and held now, by its name in `metrics`."""
    ahead = {} if making.fetch is None else making.fetch.values()
    return making.engine.values() | making.pacer.values() | store_values(packed, time.monotonic()) | ahead

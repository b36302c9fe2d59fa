"""Tells the node cache when this node's ranks will next need what they have fetched, in this epoch and in the next.

For each shard that was read, the extents of every item in it are looked up once; the plans say at which step an item comes.
Both are arrays over the whole set, so what is published is exact as far as shards were opened here; for bigger sets than
`_MOST_ITEMS` nothing is published, and the cache keeps what came last. Runs in a thread of its own, and is never waited for.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from numpy.typing import NDArray

from ..formats import HeadwayError
from ..formats.next_uses import REFRESH_S, PublishedUses, extent_keys
from ..formats.range_cache import EXTENT
from .image_field import ImagePart
from .plan import Plan
from .view import View

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet

__all__ = ["PlanUses"]

_MOST_ITEMS: Final = 20_000_000  # 80 MB for each of the two tables of steps
_CHUNK_ITEMS: Final = 65_536
_EACH_S: Final = 1.0  # between two publications; or a twentieth of the time, where they take long
_REST_S: Final = 0.002  # between two pieces of work, so that decoding is not slowed
_JOIN_S: Final = 5.0


class PlanUses:
    """Publishes uses for the slots [first, last) that this node's ranks own. `start` and `close` it."""

    def __init__(self, packed: PackedSet, view: View, reads: Sequence[ImagePart]) -> None:
        self._packed, self._view, self._reads = packed, view, reads
        self._changed = threading.Condition()  # guards the next four
        self._epochs: tuple[Plan, Plan | None, int, tuple[int, int], int] | None = None
        self._new_shards: list[int] = []
        self._seen: set[int] = set()
        self._closed = False
        self._position, self._step_s = 0, 0.0
        self._keys: list[NDArray[np.uint64]] = []
        self._items: list[NDArray[np.int64]] = []
        self._published: PublishedUses | None = None
        self._pid = os.getpid()
        self._thread = threading.Thread(target=self._run, name="headway-uses", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def begin(self, now: Plan, after: Plan | None, *, base: int, slots: tuple[int, int], accumulate: int) -> None:
        """Steps from `base` on are those of plan `now`, then those of `after`; batches count, `accumulate` a step."""
        with self._changed:
            self._epochs = (now, after, base, slots, accumulate)
            self._changed.notify_all()

    def seen(self, shards: Sequence[int]) -> None:
        """Payloads of these shards are being read."""
        if not self._seen.issuperset(shards):
            with self._changed:
                fresh = set(shards) - self._seen
                self._seen |= fresh
                self._new_shards += fresh
                self._changed.notify_all()

    def advance(self, position: int, step_s: float) -> None:
        """Batches before `position` (counted from the base) are in memory; a step takes so long."""
        self._position, self._step_s = position, step_s
        published = self._published
        if published is not None:
            published.advance(position, step_s)

    def close(self) -> None:
        """End the thread and take back what was published."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, and not the thread
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        if self._published is not None:
            self._published.close()

    def _run(self) -> None:
        tables: list[tuple[NDArray[np.int32], int]] = []
        known = None
        while True:
            with self._changed:
                while not self._closed and not self._new_shards and known is self._epochs:
                    self._changed.wait(REFRESH_S)
                    if self._published is not None:
                        self._published.refresh()
                if self._closed:
                    return
                epochs, shards = self._epochs, self._new_shards
                self._new_shards = []
            began = time.monotonic()
            with contextlib.suppress(HeadwayError):  # who reads for good raises it
                if epochs is not known and epochs is not None:
                    now, after, base, slots, accumulate = epochs
                    tables = [(self._steps(now, slots, accumulate), base)]
                    if after is not None:
                        tables.append((self._steps(after, slots, accumulate), base + now.steps * accumulate))
                    known = epochs
                for shard in shards:
                    self._add(shard)
                    time.sleep(_REST_S)
                if tables and self._keys:
                    self._publish(tables)
            took = time.monotonic() - began
            with self._changed:
                self._changed.wait_for(lambda: self._closed, max(_EACH_S, 20 * took))

    def _steps(self, plan: Plan, slots: tuple[int, int], accumulate: int) -> NDArray[np.int32]:
        """Return (items,) the first batch of the rest of an epoch in which an item comes to one of the node's slots; −1: none."""
        items = plan.view.items
        if items > _MOST_ITEMS:
            return np.full(0, -1, np.int32)
        found = np.full(items, -1, np.int32)
        low, high = slots
        run = max(1, _CHUNK_ITEMS // (high - low))
        # Backwards, so that of several steps the first stays.
        for start in reversed(range(plan.first_step, plan.steps, run)):
            steps = min(run, plan.steps - start)
            planned = plan.look_ahead(start, steps, low, high).items[::-1]
            at = np.repeat(np.arange(start + steps - 1, start - 1, -1), high - low)
            flat = planned.ravel()
            found[flat[flat >= 0]] = (at * accumulate)[flat >= 0]
            time.sleep(_REST_S)
        return found

    def _add(self, shard: int) -> None:
        """Look up which extents the items of a shard read."""
        table = self._packed.part_table(None)
        parts = np.flatnonzero(table.shard == shard)
        if self._view.info.items > _MOST_ITEMS or not len(parts):
            return
        frames = np.concatenate([np.arange(table.starts[part], table.starts[part + 1]) for part in parts.tolist()])
        items = self._view.items_of(frames)
        windows = self._view.resolve(items, seed=0, epoch=0)
        for part in self._reads:
            rows = windows[part.window].rows[..., part.place]
            there = rows >= 0
            owner = np.broadcast_to(items[:, None], rows.shape)[there]
            timeline = part.reader.timeline
            refs = timeline.refs(rows[there])
            if not len(owner):
                continue
            first, last = refs.offset // EXTENT, (refs.offset + np.maximum(refs.length, 1) - 1) // EXTENT
            for more in range(int((last - first).max()) + 1):
                reach = first + more <= last
                shas = [self._sha(number) for number in refs.shard[reach].tolist()]
                self._keys.append(extent_keys(shas, first[reach] + more))
                self._items.append(owner[reach])

    def _sha(self, shard: int) -> bytes:
        found = self._packed.remote_shard(shard)
        return b"" if found is None else bytes.fromhex(found[0].manifest.shards[found[1]].data.sha256)

    def _publish(self, tables: Sequence[tuple[NDArray[np.int32], int]]) -> None:
        keys, items = np.concatenate(self._keys), np.concatenate(self._items)
        self._keys, self._items = [keys], [items]
        all_keys, all_steps = [], []
        for table, base in tables:
            steps = table[items] if len(table) else np.full(len(items), -1, np.int32)
            comes = (steps >= 0) & (steps.astype(np.int64) + base >= self._position)
            all_keys.append(keys[comes])
            all_steps.append(steps[comes].astype(np.int64) + base)
        cache = next((found[0].payloads.cache for found in map(self._packed.remote_shard, self._seen) if found is not None), None)
        if cache is None:
            return
        before = self._published
        with contextlib.suppress(OSError):  # a full disk: the cache then keeps what came last
            self._published = PublishedUses(cache.uses, np.concatenate(all_keys), np.concatenate(all_steps), step_s=self._step_s)
            self._published.advance(self._position, self._step_s)
            if before is not None:
                before.close()

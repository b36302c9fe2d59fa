"""What a node cache would download for a plan: with whole foresight (Belady's bound), or evicting what was used longest ago.

The trace is the extents that all ranks of the node read, step by step, each once a step, as the loader's own plan and index
say. An extent that is needed later than everything that is held need not be kept; extents are of one size but for the last of a
shard, so that farthest-next-use is the least that can be downloaded.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping, Sequence

import numpy as np

from ..formats.packed_set import PackedSet
from ..formats.range_cache import EXTENT
from ..loader.image_field import ImagePart
from ..loader.plan import Plan
from ..loader.view import View

__all__ = ["Extent", "belady", "extent_sizes", "extent_trace", "least_recently_used"]

Extent = tuple[int, int]
"""(shard, number)"""
Trace = Sequence[Sequence[Extent]]


def extent_trace(view: View, reads: Sequence[ImagePart], plan: Plan) -> list[list[Extent]]:
    """Return the extents that each step of an epoch reads, over all ranks."""
    trace = []
    for step in range(plan.steps):
        items = plan.step(step).items
        windows = view.resolve(items[items >= 0], seed=plan.seed, epoch=plan.epoch)
        found: set[Extent] = set()
        for part in reads:
            rows = windows[part.window].rows[..., part.place].ravel()
            refs = part.reader.timeline.refs(np.unique(rows[rows >= 0]))
            last = (refs.offset + np.maximum(refs.length, 1) - 1) // EXTENT
            for shard, begin, end in zip(refs.shard.tolist(), (refs.offset // EXTENT).tolist(), last.tolist(), strict=True):
                found.update((shard, number) for number in range(begin, end + 1))
        trace.append(sorted(found))
    return trace


def extent_sizes(packed: PackedSet) -> dict[Extent, int]:
    """Return the bytes of every extent of a set's data files."""
    return {
        (number, extent): min(EXTENT, shard.data.bytes - extent * EXTENT)
        for number, shard in enumerate(packed.manifest.shards)
        for extent in range(-(-shard.data.bytes // EXTENT))
    }


def belady(trace: Trace, sizes: Mapping[Extent, int], limit_bytes: int) -> list[int]:
    """Return the bytes downloaded at each step by a cache that evicts what is needed again last."""
    uses: dict[Extent, deque[int]] = defaultdict(deque)
    for step, extents in enumerate(trace):
        for extent in extents:
            uses[extent].append(step)
    held: dict[Extent, int] = {}
    farthest: list[tuple[int, Extent]] = []  # (−next use, extent); entries that are no longer true are skipped
    size, fetched = 0, []
    for extents in trace:
        fetched.append(0)
        for extent in extents:
            uses[extent].popleft()
            following = uses[extent][0] if uses[extent] else len(trace)
            if extent not in held:
                fetched[-1] += sizes[extent]
                size += sizes[extent]
            held[extent] = following
            heapq.heappush(farthest, (-following, extent))
            while size > limit_bytes:
                when, victim = heapq.heappop(farthest)
                if held.get(victim) == -when:
                    del held[victim]
                    size -= sizes[victim]
    return fetched


def least_recently_used(trace: Trace, sizes: Mapping[Extent, int], limit_bytes: int) -> list[int]:
    """Return the bytes downloaded at each step by a cache that evicts what was used longest ago."""
    held: OrderedDict[Extent, None] = OrderedDict()
    size, fetched = 0, []
    for extents in trace:
        fetched.append(0)
        for extent in extents:
            if extent not in held:
                fetched[-1] += sizes[extent]
                size += sizes[extent]
            held[extent] = None
            held.move_to_end(extent)
            while size > limit_bytes:
                victim, _ = held.popitem(last=False)
                size -= sizes[victim]
    return fetched

"""The node cache against a plan: within 5 % of what whole foresight would download, and far below least-recently-used."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.bench.extent_trace import Extent, belady, least_recently_used
from headway.formats.next_uses import PublishedUses, extent_keys
from headway.formats.range_cache import CacheOptions
from headway.loader.plan import Plan
from headway.loader.sampler import ViewInfo
from headway.loader.shuffled import Shuffled

SHARD = "ab" * 32
SIZE = 64
PER_EXTENT = 4  # items


def planned_trace(items: int, slots: int, epochs: int) -> tuple[list[list[Extent]], int]:
    """Return the extents of every step of some epochs, and the steps of one."""
    view = ViewInfo(view_id="v", items=items, drive_starts=np.arange(0, items + 1, 40))
    trace: list[list[Extent]] = []
    for epoch in range(epochs):
        plan = Plan(view, Shuffled(drop_last=True), seed=4, epoch=epoch, segments=[(slots, 0)])
        for step in range(plan.steps):
            trace.append(sorted({(0, item // PER_EXTENT) for item in plan.step(step).items.tolist()}))
    return trace, plan.steps


@pytest.mark.slow
def test_what_is_downloaded_is_near_the_least_possible(tmp_path: Path) -> None:
    trace, steps = planned_trace(items=1600, slots=4, epochs=3)
    extents = 1600 // PER_EXTENT
    limit = extents * SIZE // 2
    cache = CacheOptions(directory=tmp_path / "cache", limit_bytes=limit).open()
    assert cache is not None
    out, data = memoryview(bytearray(SIZE)), memoryview(bytes(SIZE))
    fetched = []
    uses: PublishedUses | None = None
    for step, wanted in enumerate(trace):
        if step % steps == 0:  # as `PlanUses` publishes: this epoch and the next
            pairs = [(at, number) for at in range(step, min(step + 2 * steps, len(trace))) for _, number in trace[at]]
            keys = extent_keys([bytes.fromhex(SHARD)] * len(pairs), np.array([number for _, number in pairs], np.int64))
            fresh = PublishedUses(cache.uses, keys, np.array([at for at, _ in pairs], np.int64), step_s=0.1)
            if uses is not None:
                uses.close()
            uses = fresh
        assert uses is not None
        fetched.append(0)
        for _, number in wanted:
            if not cache.read_into(SHARD, number, 0, out, SIZE):
                fetched[-1] += SIZE
                uses.advance(step + 1, 0.1)
                cache.publish(SHARD, number, data)
        uses.advance(step + 1, 0.1)
        assert cache.held_bytes <= limit
    sizes = {(0, number): SIZE for number in range(extents)}
    second = slice(steps, 2 * steps)
    least, recent = sum(belady(trace, sizes, limit)[second]), sum(least_recently_used(trace, sizes, limit)[second])
    found = sum(fetched[second])
    assert least <= found <= 1.05 * least
    assert found <= 0.75 * recent


def test_the_bound_is_one() -> None:
    rng = np.random.default_rng(7)
    trace = [[(0, int(number)) for number in np.unique(rng.integers(0, 12, 2))] for _ in range(200)]
    sizes = {(0, number): 10 for number in range(12)}
    assert sum(belady(trace, sizes, 50)) < sum(least_recently_used(trace, sizes, 50))
    assert sum(belady(trace, sizes, 120)) == 120 == sum(least_recently_used(trace, sizes, 120))
    assert sum(belady(trace, sizes, 0)) == 10 * sum(len(step) for step in trace)

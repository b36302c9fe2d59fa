"""The shuffled order: blocks stay together in a slot, spans are what they say, neighbours do not meet."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.bench.shuffles import headway, ideal_same_drive, quality
from headway.formats import UsageError
from headway.loader.draws import fold
from headway.loader.permutation import permute
from headway.loader.plan import Plan, ViewInfo
from headway.loader.shuffled import BlockLine, Shuffled
from tests.laws.plans import view_of


def line_of_blocks(line: BlockLine, key: int) -> list[int]:
    """Return the permuted blocks laid end to end, as a list."""
    order = permute(np.arange(line.blocks), line.blocks, int(fold(key, 1)))
    items = range(line.items)
    return [item for block in order.tolist() for item in items[block * line.block_items : (block + 1) * line.block_items]]


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    items=st.integers(1, 300), slots=st.integers(1, 50), block=st.integers(1, 30), spans=st.integers(1, 9), key=st.integers(0, 99)
)
def test_a_slot_reads_its_part_of_the_blocks_span_by_span(items: int, slots: int, block: int, spans: int, key: int) -> None:
    line = BlockLine(items=items, slots=slots, block_items=block, span_blocks=spans)
    keys = np.asarray(key, np.uint64)
    read = line.item(np.arange(items), keys, line.short_end(keys)).tolist()
    laid = line_of_blocks(line, key)
    for j in range(slots):
        part = slice(j * items // slots, (j + 1) * items // slots)
        assert sorted(read[part]) == sorted(laid[part])
        # Within a window of one span on either side: a span never reaches further.
        reach = spans * line.block_items
        where = {item: place for place, item in enumerate(laid[part])}
        assert all(abs(where[item] - place) < reach for place, item in enumerate(read[part]))


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(items=st.integers(1, 400), slots=st.integers(1, 60), block=st.integers(1, 40), seed=st.integers(0, 99))
def test_a_block_belongs_to_at_most_two_slots(items: int, slots: int, block: int, seed: int) -> None:
    plan = Plan(view_of(items), Shuffled(block_items=block), seed=seed, epoch=0, segments=[(slots, 0)])
    ahead = plan.look_ahead(0, plan.steps)
    length = min(block, max(1, items // slots))
    owners: dict[int, set[int]] = {}
    for item, slot in zip(ahead.items.ravel().tolist(), ahead.slots.ravel().tolist(), strict=True):
        if item >= 0:
            owners.setdefault(item // length, set()).add(slot)
    assert max(len(slots_) for slots_ in owners.values()) <= 2


def test_a_slot_holds_at_most_span_blocks_open() -> None:
    plan = Plan(view_of(28_130), Shuffled(block_items=10, span_blocks=4), seed=1, epoch=0, segments=[(16, 0)])
    walk = plan.look_ahead(0, plan.first_step + 28_130 // 16, 3, 4).items.ravel() // 10
    first: dict[int, int] = {}
    last: dict[int, int] = {}
    for step, block in enumerate(walk.tolist()):
        first.setdefault(block, step)
        last[block] = step
    held = [sum(first[block] <= step <= last[block] for block in first) for step in range(0, len(walk), 7)]
    assert max(held) <= 4


@pytest.mark.parametrize(("block", "spans"), [(10, 8), (7, 3), (1, 5), (100, 4)])
def test_blocks_of_a_span_take_turns_and_each_permutes_its_items(block: int, spans: int) -> None:
    line = BlockLine(items=block * spans * 40, slots=2, block_items=block, span_blocks=spans)
    keys = np.asarray(9, np.uint64)
    # Slot 0 begins with phase 0, so its spans are whole from the first on.
    walk = line.item(np.arange(line.items // 2), keys, line.short_end(keys))
    rows = (walk // block).reshape(-1, block, spans)
    assert all(len(set(row)) == spans for row in rows.reshape(-1, spans).tolist())
    assert all(len(np.unique(span)) == spans for span in rows)
    within = [(walk % block)[walk // block == number].tolist() for number in np.unique(walk // block).tolist()]
    assert all(sorted(order) == list(range(block)) for order in within)
    assert block == 1 or len(set(map(tuple, within))) > len(within) // 2


def test_each_place_of_a_block_is_read_in_each_row_equally_often() -> None:
    line = BlockLine(items=5 * 4 * 4000, slots=1, block_items=5, span_blocks=4)
    keys = np.asarray(3, np.uint64)
    walk = line.item(np.arange(line.items), keys, line.short_end(keys)).reshape(-1, 5, 4)
    for row in range(5):
        counts = np.bincount(walk[:, row].ravel() % 5, minlength=5)
        assert ((counts - 3200) ** 2 / 3200).sum() < 18.5  # chi-square, 4 degrees of freedom, p = 0.001


@pytest.mark.slow
def test_span_borders_are_spread_over_slots() -> None:
    # New blocks per step must not come in waves: each rank would wait for its spans at once.
    plan = Plan(view_of(200_000), Shuffled(block_items=10), seed=1, epoch=0, segments=[(64, 0)])
    blocks = plan.look_ahead(200, 400).items // 10
    seen = set((plan.look_ahead(0, 200).items // 10).ravel().tolist())
    fresh = []
    for row in blocks.tolist():
        fresh.append(len(set(row) - seen))
        seen.update(row)
    assert max(fresh) < 3 * np.mean(fresh)


def test_seed_epoch_and_nothing_else_change_the_order() -> None:
    def order(seed: int, epoch: int, name: str = "view") -> list[int]:
        plan = Plan(view_of(500, name=name), Shuffled(), seed=seed, epoch=epoch, segments=[(8, 0)])
        return plan.look_ahead(0, plan.steps).items.ravel().tolist()

    assert order(0, 0) == order(0, 0, "another windowing of the same frames")
    assert len({tuple(order(seed, epoch)) for seed in range(3) for epoch in range(3)}) == 9


def test_dropped_items_differ_each_epoch() -> None:
    dropped = set()
    for epoch in range(6):
        plan = Plan(view_of(103), Shuffled(drop_last=True), seed=0, epoch=epoch, segments=[(10, 0)])
        dropped.add(tuple(sorted(set(range(103)) - set(plan.look_ahead(0, plan.steps).items.ravel().tolist()))))
    assert all(len(left) == 3 for left in dropped)
    assert len(dropped) == 6


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UsageError, match="block_items"):
        Shuffled(block_items=0)
    with pytest.raises(UsageError, match="span_blocks"):
        Shuffled(span_blocks=0)


@pytest.mark.slow
@pytest.mark.parametrize("batch_size", [8, 64, 512])
@pytest.mark.parametrize("drives", ["equal", "uneven"])
def test_items_of_a_drive_meet_in_a_batch_no_more_than_in_an_ideal_shuffle(batch_size: int, drives: str) -> None:
    rng = np.random.default_rng(5)
    lengths = np.full(700, 40) if drives == "equal" else rng.integers(5, 120, 450)
    starts = np.append(0, np.cumsum(lengths))
    items = int(starts[-1])
    drive = np.repeat(np.arange(len(lengths)), lengths)
    view = ViewInfo(view_id="v", items=items, drive_starts=starts)
    for block in (1, 7, 10, 40, 1000):
        for spans in (1, 8):
            found = [
                quality(
                    headway(view, batch_size=batch_size, sampler=Shuffled(block_items=block, span_blocks=spans), seed=seed),
                    batch_size=batch_size,
                    drive=drive,
                    unit_items=1,
                ).same_drive
                for seed in range(3)
            ]
            steps = items // batch_size
            # About as many pairs of one drive as expected, so their share scatters like a Poisson count.
            pairs = 3 * steps * batch_size * (batch_size - 1) / 2 * ideal_same_drive(drive)
            assert np.mean(found) <= ideal_same_drive(drive) * (1.05 + 4 / np.sqrt(pairs)), (block, spans)

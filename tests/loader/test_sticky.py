"""Slot-sticky orders: slots walk drives frame by frame, and `is_first` is set exactly where a walk breaks."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.loader.plan import Plan, ViewInfo
from headway.loader.state import State
from headway.loader.sticky import SlotSticky
from tests.laws.plans import views


def check_is_first(view: ViewInfo, plan: Plan, *, begin: int) -> None:
    """Compare with the definition: not first only if the slot's previous item is the frame before in the same drive."""
    drive = np.repeat(np.arange(len(view.drive_starts) - 1), np.diff(view.drive_starts))
    ahead = plan.look_ahead(begin, plan.steps - begin)
    assert ahead.is_first is not None
    for slot in range(plan.batch_size):
        previous = -1
        for item, first in zip(ahead.items[:, slot].tolist(), ahead.is_first[:, slot].tolist(), strict=True):
            follows = previous >= 0 and item == previous + 1 and drive[item] == drive[previous]
            assert first == (item < 0 or not follows)
            previous = item


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(view=views(), size=st.integers(1, 20), chunk=st.none() | st.integers(1, 9), other=st.integers(1, 20))
def test_is_first_is_set_exactly_where_a_walk_breaks(view: ViewInfo, size: int, chunk: int | None, other: int) -> None:
    sampler = SlotSticky(chunk_items=chunk)
    plan = Plan(view, sampler, seed=0, epoch=1, segments=[(size, 0)])
    check_is_first(view, plan, begin=0)
    done = plan.steps // 2
    if done and done * size < view.items:
        changed = Plan(view, sampler, seed=0, epoch=1, segments=[(size, done), (other, 0)])
        check_is_first(view, changed, begin=done)
        first = changed.step(done).is_first
        assert first is not None
        assert first.all()  # a slot of another batch size continues nothing


@pytest.mark.slow
@settings(max_examples=20, deadline=None)
@given(view=views(), size=st.integers(1, 9), stop=st.integers(1, 30))
def test_a_resume_with_equal_batch_size_does_not_set_it(view: ViewInfo, size: int, stop: int) -> None:
    start = State.start(view, SlotSticky(), seed=0, epoch=0, batch_size=size)
    plan = start.plan(view, SlotSticky())
    if stop >= plan.steps:
        return
    again, through = start.after(plan, step=stop - 1).plan(view, SlotSticky()).step(stop), plan.step(stop)
    assert again.is_first is not None
    assert through.is_first is not None
    assert np.array_equal(again.is_first, through.is_first)
    assert np.array_equal(again.items, through.items)


def test_a_gap_in_the_view_is_a_break() -> None:
    frames = np.array([0, 1, 2, 5, 6, 7])  # a filter took frames 3 and 4
    view = ViewInfo(view_id="v", items=6, drive_starts=np.array([0, 6]), frames=lambda items: frames[items])
    plan = Plan(view, SlotSticky(), seed=0, epoch=0, segments=[(1, 0)])
    first = plan.look_ahead(0, 6).is_first
    assert first is not None
    assert first.ravel().tolist() == [True, False, False, True, False, False]


def test_drives_are_walked_from_their_start() -> None:
    starts = np.array([0, 10, 25, 60, 100])
    plan = Plan(ViewInfo(view_id="v", items=100, drive_starts=starts), SlotSticky(), seed=2, epoch=0, segments=[(1, 0)])
    items = plan.look_ahead(0, 100).items.ravel()
    heads = items[np.flatnonzero(np.append(True, np.diff(items) != 1))]
    assert set(heads.tolist()) <= {0, 10, 25, 60}


def test_chunks_are_at_most_as_long_as_asked() -> None:
    view = ViewInfo(view_id="v", items=100, drive_starts=np.array([0, 33, 33, 100]))
    with pytest.raises(UsageError, match="chunks of 0"):
        SlotSticky(chunk_items=0)
    plan = Plan(view, SlotSticky(chunk_items=10), seed=2, epoch=0, segments=[(1, 0)])
    items = plan.look_ahead(0, 100).items.ravel()
    assert sorted(items.tolist()) == list(range(100))
    assert len(np.flatnonzero(np.diff(items) != 1)) >= 5

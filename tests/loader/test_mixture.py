"""Mixtures: proportions at every step's end, sets in slot order, set-epochs that go on, any batch size."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import StateError, UsageError
from headway.loader.mixture import Mixture
from headway.loader.plan import Plan, ViewInfo
from headway.loader.shares import WHOLE, Deal, shares
from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from tests.laws.plans import view_of

SIZES = (50, 7, 123)
VIEW = ViewInfo.joined([view_of(size, name=str(size)) for size in SIZES])
MIXTURE = Mixture(weights=(3, 1, 2), virtual_slots=8, block_items=3)


def test_a_joined_view_lays_sets_end_to_end() -> None:
    assert VIEW.items == 180
    assert VIEW.drive_starts[[0, -1]].tolist() == [0, 180]
    assert {0, 50, 57} <= set(VIEW.drive_starts.tolist())


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(weights=st.lists(st.integers(1, 1000), min_size=1, max_size=6))
def test_every_prefix_is_within_one_item_of_its_shares(weights: list[int]) -> None:
    parts = shares(weights)
    assert sum(parts) == WHOLE
    positions = np.arange(0, WHOLE + 100)
    counts = Deal(parts).counts(positions)
    assert np.array_equal(counts.sum(axis=1), positions)
    assert (np.diff(counts, axis=0) >= 0).all()
    assert np.abs(counts * WHOLE - positions[:, None] * np.array(parts)).max() < WHOLE


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(sizes=st.lists(st.integers(1, 64), min_size=1, max_size=3), epoch=st.integers(0, 3))
def test_proportions_hold_at_each_steps_end(sizes: list[int], epoch: int) -> None:
    sampler = Mixture(weights=(5, 2, 1), virtual_slots=8, epoch_items=3000)
    segments = [(size, 5) for size in sizes]
    plan = Plan(VIEW, sampler, seed=0, epoch=epoch, segments=segments)
    parts, counts, handed = np.array(sampler.shares), np.zeros(3), 0
    for step in range(plan.first_step):
        size = sizes[step // 5]
        row = plan.step(step, 0, size)
        assert row.set_index is not None
        assert (np.diff(row.set_index) >= 0).all()  # sets fill slots in set order
        counts += np.bincount(row.set_index, minlength=3)
        handed += size
        assert np.abs(counts - handed * parts / WHOLE).max() < 1


def set_streams(segments: list[tuple[int, int]], epochs: int) -> list[list[int]]:
    """Return the items of each set in the order they are handed out, over several mixture epochs."""
    streams: list[list[int]] = [[], [], []]
    for epoch in range(epochs):
        plan = Plan(VIEW, MIXTURE, seed=3, epoch=epoch, segments=segments)
        for step in range(plan.steps):
            size = segments[0][0] if step < segments[0][1] else plan.batch_size
            row = plan.step(step, 0, size)
            assert row.set_index is not None
            for item, number in zip(row.items.tolist(), row.set_index.tolist(), strict=True):
                if number >= 0:
                    streams[number].append(item)
    return streams


@pytest.mark.slow
def test_each_set_goes_through_its_own_epochs_whatever_the_batch_size() -> None:
    streams = set_streams([(11, 2), (7, 0)], epochs=6)
    assert streams == set_streams([(30, 0)], epochs=6)
    begin = 0
    for stream, size in zip(streams, SIZES, strict=True):
        rounds = [stream[first : first + size] for first in range(0, len(stream) - size + 1, size)]
        assert rounds
        assert all(sorted(round_) == list(range(begin, begin + size)) for round_ in rounds)
        assert len({tuple(round_) for round_ in rounds}) == len(rounds)
        begin += size


def test_occurrence_is_the_set_epoch() -> None:
    plan = Plan(VIEW, MIXTURE, seed=3, epoch=0, segments=[(180, 0)])
    row = plan.step(0)
    assert row.set_index is not None
    small = row.set_index == 1
    assert row.occurrence[small].tolist() == [number // 7 for number in range(int(small.sum()))]
    pairs = list(zip(row.items.tolist(), row.occurrence.tolist(), strict=True))
    assert len(set(pairs)) == len(pairs)


def test_the_state_says_where_each_set_stands() -> None:
    state = State.start(VIEW, MIXTURE, seed=3, epoch=5, batch_size=6)
    assert state.sampler["sets"] == [[8, 9, 0], [7, 21, 3], [8, 2, 54]]
    assert state.resume(VIEW, MIXTURE, seed=3, batch_size=6) == state
    for other, field in (
        (Mixture(weights=(1, 1, 1), virtual_slots=8, block_items=3), "shares"),
        (Mixture(weights=(3, 1, 2), virtual_slots=9, block_items=3), "sets"),
        (Mixture(weights=(3, 1, 2), virtual_slots=8, block_items=4), "block_items"),
    ):
        with pytest.raises(StateError, match=rf"sampler\.{field}"):
            state.resume(VIEW, other, seed=3, batch_size=6)


def test_a_set_alone_is_mixed_like_a_shuffled_view() -> None:
    one = ViewInfo.joined([view_of(1000)])
    plan = Plan(one, Mixture(weights=(1,), virtual_slots=16, block_items=10), seed=0, epoch=0, segments=[(16, 0)])
    blocks = plan.look_ahead(0, 10).items // 10
    assert np.mean([len(set(row)) for row in blocks.tolist()]) > 14
    alone = Plan(view_of(1000), Shuffled(block_items=10), seed=0, epoch=0, segments=[(16, 0)])
    assert np.array_equal(np.sort(plan.look_ahead(0, 63).items, axis=None), np.sort(alone.look_ahead(0, 63).items, axis=None))


def test_impossible_mixtures_are_refused() -> None:
    for weights in ((), (1, 0), (1, -1), (float("nan"),), (1, 1e-9), tuple(range(1, 34))):
        with pytest.raises(UsageError, match="cannot mix"):
            Mixture(weights=weights)
    with pytest.raises(UsageError, match="virtual_slots"):
        Mixture(weights=(1,), virtual_slots=0)
    with pytest.raises(UsageError, match="as many sets as weights"):
        Plan(view_of(10), Mixture(weights=(1,)), seed=0, epoch=0, segments=[(4, 0)])

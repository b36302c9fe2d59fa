"""Rows are filed under frames by one rule, and frame order is stamp order whatever the source ties."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import SourceError
from headway.formats.filing import file_rows
from headway.formats.shard_plan import plan_shards
from headway.formats.source import DriveListing


def ints(*values: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.array(values, np.int64)


def test_own_is_the_nearest_within_half_a_period_and_the_earlier_on_a_tie() -> None:
    filing = file_rows(ints(0, 100, 200), ints(10, 60, 95, 105, 251), None, what="x")
    assert filing.own.tolist() == [0, 2, -1]
    assert filing.starts.tolist() == [0, 2, 4, 5]


def test_a_payload_is_own_to_the_nearer_of_two_frames() -> None:
    filing = file_rows(
        ints(0, 100, 200),
        ints(
            52,
        ),
        None,
        what="x",
    )
    assert filing.own.tolist() == [-1, 0, -1]


def test_what_comes_before_the_first_frame_is_filed_under_it() -> None:
    filing = file_rows(ints(100, 200), ints(-70, 20, 130, 170), ints(-1, -1), what="x")
    assert filing.starts.tolist() == [0, 4, 4]


def test_rows_between_an_early_own_payload_and_its_frame_follow_it() -> None:
    # Row 1 is tied to frame 1 though it is 50 before it; row 2 lies between, and must not come before row 1.
    filing = file_rows(ints(0, 100), ints(0, 50, 70), ints(0, 1), what="x")
    assert filing.starts.tolist() == [0, 1, 3]


@pytest.mark.parametrize("own", [ints(1, 0), ints(0, 0), ints(0, 5), ints(-2, 0), ints(0)])
def test_impossible_ties_are_refused(own: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
    with pytest.raises(SourceError, match="cannot file x"):
        file_rows(ints(0, 100), ints(0, 90), own, what="x")


stamps = st.lists(st.integers(-(10**6), 10**6), unique=True, max_size=30).map(sorted)


@given(frames=stamps.filter(bool), rows=stamps, tie=st.booleans(), data=st.data())
def test_filing_keeps_stamp_order_and_every_row(frames: list[int], rows: list[int], tie: bool, data: st.DataObject) -> None:
    own = None
    if tie and rows:
        count = data.draw(st.integers(0, min(len(frames), len(rows))))
        chosen_frames = sorted(data.draw(st.permutations(range(len(frames))))[:count])
        chosen_rows = sorted(data.draw(st.permutations(range(len(rows))))[:count])
        own = np.full(len(frames), -1, np.int64)
        own[chosen_frames] = chosen_rows
    filing = file_rows(ints(*frames), ints(*rows), own, what="x")
    assert filing.starts[0] == 0
    assert filing.starts[-1] == len(rows)
    assert np.all(np.diff(filing.starts) >= 0)
    for frame, row in enumerate(filing.own.tolist()):
        assert row == -1 or filing.starts[frame] <= row < filing.starts[frame + 1]
    if own is not None:
        assert np.array_equal(filing.own, own)
    else:
        kept = filing.own[filing.own >= 0]
        assert len(np.unique(kept)) == len(kept)


@given(
    sizes=st.lists(st.integers(0, 10_000), min_size=1, max_size=20),
    shard_bytes=st.integers(1, 5_000),
    frames=st.integers(1, 50),
)
def test_the_plan_covers_every_frame_once_in_order(sizes: list[int], shard_bytes: int, frames: int) -> None:
    listings = [DriveListing(name=f"{at:03d}", source_bytes=size) for at, size in enumerate(sizes)]
    shards = plan_shards(listings, shard_bytes)
    covered = [(piece.drive, frame) for shard in shards for piece in shard for frame in piece.frames(frames)]
    assert covered == [(listing.name, frame) for listing in listings for frame in range(frames)]
    weight = {listing.name: listing.source_bytes for listing in listings}
    assert all(sum(weight[piece.drive] // piece.of for piece in shard) <= shard_bytes for shard in shards)

"""Rows of columns over many shards: the native core takes what numpy takes, and no index leads outside."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import kernel
from headway.formats.shard_column import ColumnPart, RowPlaces, ShardColumn, take_later, take_rows
from headway.formats.timeline import PartTable

native = pytest.mark.skipif(not kernel.available(), reason="the native core is not built")


def columns_of(counts: list[int], widths: list[int], seed: int = 0) -> tuple[list[ShardColumn], list[list[NDArray[np.uint8]]]]:
    rng = np.random.default_rng(seed)
    data = [[rng.integers(0, 256, (count, width), np.uint8) for count in counts] for width in widths]
    rows = np.array(counts, np.int64)
    columns = [
        ShardColumn(rows, np.dtype(np.uint8), (width,), lambda shard, shards=shards: ColumnPart(shards[shard]))  # type: ignore[misc]  # binds
        for width, shards in zip(widths, data, strict=True)
    ]
    return columns, data


@given(
    counts=st.lists(st.integers(0, 9), min_size=1, max_size=5),
    widths=st.lists(st.sampled_from([1, 3, 4, 8, 600]), min_size=1, max_size=4),
    rows=st.integers(0, 300),
    later=st.booleans(),
)
def test_rows_of_several_columns_are_those_at_their_places(counts: list[int], widths: list[int], rows: int, later: bool) -> None:
    columns, data = columns_of(counts, widths)
    pairs = [(shard, row) for shard, count in enumerate(counts) for row in range(count)]
    rng = np.random.default_rng(rows)
    chosen = np.array([pairs[k] for k in rng.integers(0, len(pairs), rows)] if pairs else [], np.int64).reshape(-1, 2)
    places = RowPlaces(shard=chosen[:, 0].copy(), row=chosen[:, 1].copy())
    outs = [column.empty(len(chosen)) for column in columns]
    if later and kernel.available():
        for column in columns:
            column.open(places.shard)
        assert take_later(columns, places, outs).wait(30)
    else:
        take_rows(columns, places, outs)
    for out, shards in zip(outs, data, strict=True):
        expected = [shards[shard][row] for shard, row in chosen.tolist()]
        assert np.array_equal(out, np.array(expected, np.uint8).reshape(out.shape))


@native
@pytest.mark.parametrize(("shard", "row"), [(0, 3), (0, -1), (2, 0), (-1, 0), (1, 2**62), (2**40, 0)])
@pytest.mark.parametrize("later", [False, True])
def test_a_row_that_there_is_not_is_refused(shard: int, row: int, later: bool) -> None:
    columns, _ = columns_of([3, 5], [8, 100])
    for column in columns:
        column.open(np.array([0, 1]))
    places = RowPlaces(shard=np.array([0, shard, 1]), row=np.array([2, row, 4]))
    outs = tuple(column.empty(3) for column in columns)
    homes = tuple(column.homes for column in columns)
    with pytest.raises(IndexError, match="row"):
        kernel.take(columns[0].counts, homes, places.shard, places.row, outs, later=later).wait(30)


@native
def test_a_shard_not_open_is_refused_and_opened_by_take_rows() -> None:
    columns, data = columns_of([3, 5], [8])
    places, out = RowPlaces(shard=np.array([1]), row=np.array([4])), columns[0].empty(1)
    with pytest.raises(IndexError):
        take_later(columns, places, [out]).wait(30)
    take_rows(columns, places, [out])
    assert np.array_equal(out[0], data[0][1][4])


@native
def test_arrays_that_do_not_belong_together_are_refused() -> None:
    numbers, two = np.zeros(3, np.int64), np.zeros(2, np.int64)
    homes = np.zeros(3, kernel.HOME)
    for counts, of_columns, shard, row, out in (
        (two, (homes[:2],), numbers, two, np.zeros(3)),
        (two, (homes,), numbers, numbers, np.zeros(3)),
        (two, (homes.view(np.uint8)[:24].view(np.void(24).dtype),), numbers, numbers, np.zeros(3)),
        (two, (homes[:2],), numbers, numbers, np.zeros(10, np.uint8)),
        (two, (), numbers, numbers, np.zeros(3)),
    ):
        with pytest.raises(ValueError, match=r"length|multiple|columns"):
            kernel.take(counts, of_columns, shard, row, (out,))


@native
def test_a_take_dropped_on_its_way_keeps_its_memory_until_it_is_done() -> None:
    columns, _ = columns_of([4096], [2400])
    columns[0].open(np.array([0]))
    places = RowPlaces(shard=np.zeros(4096, np.int64), row=np.arange(4096))
    before = kernel.threads()
    kernel.set_threads(2)
    try:
        for _ in range(20):
            take_later(columns, places, [columns[0].empty(4096)])
    finally:
        kernel.set_threads(before)


@given(lengths=st.lists(st.integers(0, 400), min_size=1, max_size=60), seed=st.integers(0, 9))
def test_rows_are_located_in_the_part_that_holds_them(lengths: list[int], seed: int) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    rng = np.random.default_rng(seed)
    offsets = rng.integers(0, 1000, len(lengths))
    table = PartTable(starts=starts, shard=np.arange(len(lengths)), offset=offsets)
    rows = rng.integers(0, max(1, starts[-1]), 200) if starts[-1] else np.zeros(0, np.int64)
    part, local = table.locate(rows, "row")
    expected = np.searchsorted(starts, rows, side="right") - 1
    assert np.array_equal(part, expected)
    assert np.array_equal(local, rows - starts[expected] + offsets[expected])

"""The native core walks a shuffled order exactly as numpy defines it."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import kernel
from headway.loader.draws import purpose_key
from headway.loader.shuffled import BlockLine

pytestmark = pytest.mark.skipif(not kernel.available(), reason="the native core is not built")


@given(
    items=st.integers(1, 400) | st.integers(1, 10**6) | st.integers(2**30, 2**40),
    slots=st.integers(1, 9) | st.integers(1, 5000),
    block_items=st.integers(1, 80) | st.integers(1, 10**6),
    span_blocks=st.integers(1, 20) | st.integers(1, 10**6),
    seed=st.integers(0, 2**40),
)
def test_items_are_those_of_the_definition(items: int, slots: int, block_items: int, span_blocks: int, seed: int) -> None:
    line = BlockLine(items=items, slots=slots, block_items=block_items, span_blocks=span_blocks)
    key = np.asarray(purpose_key("shuffled", seed, 1), np.uint64)
    short_end = line.short_end(key)
    rng = np.random.default_rng(seed)
    edges = [0, items - 1, *(max(0, min(items - 1, int(short_end) + shift)) for shift in (-1, 0, 1))]
    positions = np.concatenate([edges, rng.integers(0, items, 300)]).astype(np.int64).reshape(5, 61)
    found = line.item(positions, key, short_end)
    assert np.array_equal(found, line.item_by_numpy(positions, key, short_end))


def test_a_whole_small_line_is_a_permutation_of_its_items() -> None:
    line = BlockLine(items=1003, slots=7, block_items=10, span_blocks=4)
    key = np.asarray(purpose_key("shuffled", 5, 0), np.uint64)
    assert sorted(line.item(np.arange(1003), key, line.short_end(key)).tolist()) == list(range(1003))


@pytest.mark.parametrize("position", [-1, 10, 2**62])
def test_a_position_off_the_line_is_refused(position: int) -> None:
    line = BlockLine(items=10, slots=2, block_items=3, span_blocks=2)
    key = np.asarray(1, np.uint64)
    with pytest.raises(IndexError, match="not one of the line's 10"):
        line.item(np.array([position]), key, line.short_end(key))

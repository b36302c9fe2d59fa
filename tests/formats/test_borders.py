"""Looking up which range holds a number agrees with a binary search, whatever the ranges are."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from headway.formats.borders import Borders


@given(lengths=st.lists(st.integers(0, 400) | st.integers(0, 100_000), min_size=1, max_size=60), seed=st.integers(0, 9))
def test_the_holder_is_the_last_range_that_starts_at_or_before(lengths: list[int], seed: int) -> None:
    starts = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(starts[-1])
    edges = np.concatenate([starts[:-1], starts[1:] - 1])
    numbers = np.concatenate([edges, np.random.default_rng(seed).integers(0, max(total, 1), 200)])
    numbers = numbers[(numbers >= 0) & (numbers < total)]
    assert np.array_equal(Borders(starts).holder(numbers), np.searchsorted(starts, numbers, side="right") - 1)

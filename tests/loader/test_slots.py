"""Cuts against lists: who owns a position, whose turn it is, and where a rest lies after the batch size changed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import StateError, UsageError
from headway.loader.slots import SEGMENTS, cuts, holder, start, taken, trace

sizes = st.integers(1, 300)


def parts(line: list[int], slots: int) -> list[list[int]]:
    """Cut a line into slots, as lists."""
    return [line[j * len(line) // slots : (j + 1) * len(line) // slots] for j in range(slots)]


@pytest.mark.slow
@settings(deadline=None)
@given(items=sizes, slots=sizes)
def test_every_position_has_the_holder_whose_part_it_lies_in(items: int, slots: int) -> None:
    owner = [j for j, part in enumerate(parts(list(range(items)), slots)) for _ in part]
    assert holder(np.arange(items), items, slots).tolist() == owner
    lengths = np.diff(start(np.arange(slots + 1), items, slots))
    assert lengths.max() - lengths.min() <= 1


@pytest.mark.slow
@settings(deadline=None)
@given(items=sizes, slots=sizes)
def test_taking_turns_takes_each_item_once(items: int, slots: int) -> None:
    owned = parts(list(range(items)), slots)
    turns = [(j, r) for r in range(-(-items // slots)) for j in range(slots) if r < len(owned[j])]
    slot, place = taken(np.arange(items), items, slots)
    assert list(zip(slot.tolist(), place.tolist(), strict=True)) == turns


@pytest.mark.slow
@settings(deadline=None, max_examples=60)
@given(items=sizes, data=st.data())
def test_a_rest_is_where_lists_say(items: int, data: st.DataObject) -> None:
    line, segments = list(range(items)), []
    for _ in range(data.draw(st.integers(0, 5))):
        slots = data.draw(st.integers(1, 40))
        steps = data.draw(st.integers(0, max(0, (len(line) - 1) // slots)))
        segments.append((slots, steps))
        line = [item for part in parts(line, slots) for item in part[steps:]]
    chain = cuts(items, [*segments, (data.draw(st.integers(1, 40)), 0)])
    assert chain[-1].items == len(line)
    assert trace(chain, len(chain) - 1, np.arange(len(line))).tolist() == line


def test_impossible_segments_are_refused() -> None:
    with pytest.raises(StateError, match="another view or was edited"):
        cuts(100, [(10, 11)])
    with pytest.raises(StateError, match="nothing is left"):
        cuts(100, [(10, 10), (5, 0)])
    with pytest.raises(StateError, match="65 segments"):
        cuts(10**9, [(8, 1)] * (SEGMENTS + 1))
    with pytest.raises(UsageError, match="2⁶³"):
        cuts(2**48, [(2**15, 0)])

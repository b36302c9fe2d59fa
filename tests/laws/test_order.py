"""Laws of order: each item once, the same global batches on any topology, true lengths, padding only at the end."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loader.plan import Plan, ViewInfo
from headway.loader.sampler import Sampler
from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from headway.loader.sticky import SlotSticky

from .plans import Items, Topology, once_samplers, orders, received, topologies, view_of, views


def walk(view: ViewInfo, sampler: Sampler, sizes: list[int], cuts: list[float]) -> tuple[list[Items], Plan]:
    """Return the global batches of an epoch whose batch size changes at the given fractions of what is left."""
    segments: list[tuple[int, int]] = []
    batches: list[Items] = []
    for number, size in enumerate(sizes):
        plan = Plan(view, sampler, seed=5, epoch=2, segments=[*segments, (size, 0)])
        left = plan.steps - plan.first_step
        last = number + 1 == len(sizes)
        steps = left if last else int(cuts[number] * left)
        if not last and steps == left:  # a change must leave something of the epoch
            steps = max(0, left - 1)
        if steps:
            batches.extend(plan.look_ahead(plan.first_step, steps).items)
            segments.append((size, steps))
    return batches, Plan(view, sampler, seed=5, epoch=2, segments=[*segments] or [(sizes[-1], 0)])


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(view=views(), sampler=once_samplers(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=6), data=st.data())
def test_each_item_comes_exactly_once_whatever_the_batch_sizes(
    view: ViewInfo, sampler: Sampler, sizes: list[int], data: st.DataObject
) -> None:
    fraction = st.floats(0, 1)
    cuts = data.draw(st.lists(fraction, min_size=len(sizes), max_size=len(sizes)))
    batches, _ = walk(view, sampler, sizes, cuts)
    items = np.concatenate(batches)
    assert sorted(items[items >= 0].tolist()) == list(range(view.items))


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [Shuffled(block_items=3, span_blocks=2), Shuffled(drop_last=True), SlotSticky(chunk_items=2)])
def test_every_small_epoch_is_covered(sampler: Sampler) -> None:
    for items in range(1, 9):
        for size in range(1, 11):
            plan = Plan(view_of(items, drive=3), sampler, seed=1, epoch=1, segments=[(size, 0)])
            found = plan.look_ahead(0, plan.steps).items
            there = found[found >= 0].tolist()
            assert len(there) == len(set(there)) == (items // size * size if sampler.drop_last else items)
            assert plan.steps == (items // size if sampler.drop_last else -(-items // size))


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(view=views(), sampler=once_samplers(), sizes=st.lists(st.integers(1, 9), min_size=64, max_size=64))
def test_sixty_four_batch_sizes_in_one_epoch_lose_nothing(view: ViewInfo, sampler: Sampler, sizes: list[int]) -> None:
    items = np.concatenate(walk(view, sampler, sizes, [0.05] * 64)[0])
    assert sorted(items[items >= 0].tolist()) == list(range(view.items))


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(order=orders(), sizes=st.lists(st.integers(1, 40), min_size=1, max_size=4), data=st.data())
def test_padding_comes_only_in_the_last_step(order: tuple[ViewInfo, Sampler], sizes: list[int], data: st.DataObject) -> None:
    view, sampler = order
    cuts = data.draw(st.lists(st.floats(0, 1), min_size=len(sizes), max_size=len(sizes)))
    batches, _ = walk(view, sampler, sizes, cuts)
    assert all((batch >= 0).all() for batch in batches[:-1])
    if batches:
        assert (batches[-1] >= 0).any()
        assert not sampler.drop_last or (batches[-1] >= 0).all()


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(order=orders(), size=st.integers(1, 40), other=st.integers(1, 40), part=st.floats(0, 1))
def test_drop_last_leaves_less_than_one_batch(order: tuple[ViewInfo, Sampler], size: int, other: int, part: float) -> None:
    view, sampler = order
    first = Plan(view, sampler, seed=1, epoch=0, segments=[(size, 0)])
    steps = min(int(part * first.steps), first.items // size)
    if steps * size == first.items:
        return
    plan = Plan(view, sampler, seed=1, epoch=0, segments=[(size, steps), (other, 0)])
    rest = plan.items - steps * size
    assert plan.steps == steps + (rest // other if sampler.drop_last else -(-rest // other))


def check_topology(order: tuple[ViewInfo, Sampler], topology: Topology, done: int, ahead: int, data: st.DataObject) -> None:
    view, sampler = order
    segments = [(topology.batch_size, 0)]
    start = Plan(view, sampler, seed=9, epoch=1, segments=[(7, 0)])
    if 0 < done < start.steps and done * 7 < start.items:
        segments = [(7, done), *segments]
    plan = Plan(view, sampler, seed=9, epoch=1, segments=segments)
    begin = data.draw(st.integers(plan.first_step, plan.steps))
    steps = range(begin, min(plan.steps, begin + 6))
    reference = plan.look_ahead(steps.start, len(steps)).items.tolist()
    assert [batch.tolist() for batch in received(plan, topology, ahead=ahead, steps=steps)] == reference


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(order=orders(), topology=topologies(), done=st.integers(0, 9), ahead=st.integers(1, 6), data=st.data())
def test_global_batches_are_the_same_on_any_topology(
    order: tuple[ViewInfo, Sampler], topology: Topology, done: int, ahead: int, data: st.DataObject
) -> None:
    check_topology(order, topology, done, ahead, data)


@pytest.mark.full
@pytest.mark.timeout(1800)
@settings(max_examples=2500, deadline=None)
@given(order=orders(), topology=topologies(), done=st.integers(0, 9), ahead=st.integers(1, 6), data=st.data())
def test_global_batches_are_the_same_on_2500_topologies(
    order: tuple[ViewInfo, Sampler], topology: Topology, done: int, ahead: int, data: st.DataObject
) -> None:
    check_topology(order, topology, done, ahead, data)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(order=orders(), epochs=st.tuples(st.integers(0, 5), st.integers(6, 9)))
def test_a_plan_is_a_pure_function(order: tuple[ViewInfo, Sampler], epochs: tuple[int, int]) -> None:
    view, sampler = order
    one, again = (Plan(view, sampler, seed=3, epoch=epochs[0], segments=[(8, 0)]) for _ in range(2))
    again.look_ahead(max(0, again.steps - 1), min(1, again.steps))  # what was asked before does not matter
    assert np.array_equal(one.look_ahead(0, one.steps).items, again.look_ahead(0, again.steps).items)


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(order=orders(), size=st.integers(1, 16))
def test_len_is_true(order: tuple[ViewInfo, Sampler], size: int) -> None:
    view, sampler = order
    state = State.start(view, sampler, seed=0, epoch=0, batch_size=size)
    plan = state.plan(view, sampler)
    steps = 0
    while state.epoch == 0 and steps < plan.steps:
        state = state.after(plan, step=steps)
        steps += 1
    assert steps == plan.steps
    assert not plan.steps or state == State.start(view, sampler, seed=0, epoch=1, batch_size=size)

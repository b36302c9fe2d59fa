"""Laws of resuming: chains of stops and starts on other ranks, accumulations and batch sizes lose and repeat nothing."""

from __future__ import annotations

import json
import random
import warnings

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.loader.plan import ViewInfo
from headway.loader.sampler import Sampler
from headway.loader.state import State

from .plans import Topology, once_samplers, orders, topologies, view_of, views


def run(state: State, view: ViewInfo, sampler: Sampler, topology: Topology, micros: int) -> tuple[list[list[int]], State]:
    """Receive micro-batches (all ranks together) from a state on, at most `micros` or to the epoch's end."""
    plan = state.plan(view, sampler)
    steps = min(plan.steps - plan.first_step, -(-micros // topology.accumulation) + 1)
    ahead = plan.look_ahead(plan.first_step, steps).items
    share = topology.batch_size // topology.ranks
    epoch = state.epoch
    batches: list[list[int]] = []
    while len(batches) < micros and state.epoch == epoch and state.steps_done < plan.steps:
        step, micro = state.steps_done, state.inside.micro if state.inside else 0
        by_rank = ahead[step - plan.first_step].reshape(topology.ranks, share)
        batches.append(by_rank[:, micro * topology.size : (micro + 1) * topology.size].ravel().tolist())
        state = state.after(plan, step=step, micro=micro, ranks=topology.ranks, accumulation=topology.accumulation)
    return batches, state


def stored(state: State) -> State:
    """Return the state as another process reads it."""
    text = json.dumps(state.to_json())
    assert len(text) <= 4096
    return State.from_json(json.loads(text))


def resumed(state: State, view: ViewInfo, sampler: Sampler, topology: Topology) -> State:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # a changed batch size warns; tests/loader/test_state.py checks that
        return stored(state).resume(
            view,
            sampler,
            seed=state.seed,
            batch_size=topology.batch_size,
            ranks=topology.ranks,
            accumulation=topology.accumulation,
        )


def check_chain(view: ViewInfo, sampler: Sampler, hops: list[tuple[Topology, int]]) -> None:
    first = hops[0][0]
    state = State.start(view, sampler, seed=4, epoch=0, batch_size=first.batch_size)
    items: list[int] = []
    for topology, micros in hops:
        if state.epoch:
            break
        state = resumed(state, view, sampler, topology)
        # Whole steps only: the next hop has another topology.
        batches, state = run(state, view, sampler, topology, micros * topology.accumulation)
        items += [item for batch in batches for item in batch]
    if not state.epoch:
        state = resumed(state, view, sampler, first)
        items += [item for batch in run(state, view, sampler, first, 10**9)[0] for item in batch]
    assert sorted(item for item in items if item >= 0) == list(range(view.items))


chains = st.lists(st.tuples(topologies(most=24), st.integers(0, 3)), min_size=10, max_size=10)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(view=views(), sampler=once_samplers(), hops=chains)
def test_ten_hops_lose_and_repeat_nothing(view: ViewInfo, sampler: Sampler, hops: list[tuple[Topology, int]]) -> None:
    check_chain(view, sampler, hops)


@pytest.mark.full
@pytest.mark.timeout(1800)
@settings(max_examples=1500, deadline=None)
@given(view=views(), sampler=once_samplers(), hops=chains)
def test_1500_chains_of_ten_hops_lose_and_repeat_nothing(
    view: ViewInfo, sampler: Sampler, hops: list[tuple[Topology, int]]
) -> None:
    check_chain(view, sampler, hops)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(order=orders(), seed=st.integers(0, 10**6))
def test_hops_with_equal_batch_size_give_the_uninterrupted_order(order: tuple[ViewInfo, Sampler], seed: int) -> None:
    view, sampler = order
    random_ = random.Random(seed)
    batch_size = random_.choice([4, 6, 8, 12])
    state = State.start(view, sampler, seed=4, epoch=0, batch_size=batch_size)
    plan = state.plan(view, sampler)
    expected = [plan.step(step).items.tolist() for step in range(plan.steps)]
    steps: list[list[int]] = []
    while state.epoch == 0 and state.steps_done < plan.steps:
        ranks = random_.choice([value for value in (1, 2, 3, 4) if batch_size % value == 0])
        topology = Topology(ranks, 1, batch_size // ranks)
        batches, state = run(resumed(state, view, sampler, topology), view, sampler, topology, random_.randrange(1, 4))
        steps += batches
    assert steps == expected


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(order=orders(), topology=topologies(), stop=st.integers(1, 40))
def test_a_stop_inside_a_step_resumes_with_equal_ranks_and_accumulation(
    order: tuple[ViewInfo, Sampler], topology: Topology, stop: int
) -> None:
    view, sampler = order
    start = State.start(view, sampler, seed=4, epoch=0, batch_size=topology.batch_size)
    whole, end = run(start, view, sampler, topology, 10**9)
    head, middle = run(start, view, sampler, topology, stop)
    if middle.epoch:
        return
    tail, last = run(resumed(middle, view, sampler, topology), view, sampler, topology, 10**9)
    assert head + tail == whole
    assert last == end


def test_state_size_does_not_depend_on_the_number_of_items() -> None:
    sizes = set()
    for items in (10**3, 10**6, 10**9):
        view = ViewInfo(view_id="0" * 64, items=items, drive_starts=np.array([0, items]))
        state = State.start(view, once(view), seed=0, epoch=0, batch_size=8)
        sizes.add(len(json.dumps(state.to_json())))
    assert len(sizes) == 1
    assert sizes.pop() < 400


def once(view: ViewInfo) -> Sampler:
    from headway.loader.shuffled import Shuffled

    return Shuffled()


@pytest.mark.slow
def test_the_largest_state_fits_4_kib() -> None:
    from headway.loader.mixture import Mixture

    sets = [view_of(10**6 + number, drive=10**5, name=f"{number:064d}") for number in range(32)]
    view = ViewInfo.joined(sets)
    mixture = Mixture(weights=tuple(range(1, 33)))
    state = State.start(view, mixture, seed=2**63, epoch=10**6, batch_size=65_536)
    segments = tuple((65_536 - number, 10**6) for number in range(64))
    full = State(view=state.view, seed=state.seed, epoch=state.epoch, sampler=state.sampler, segments=segments)
    assert len(json.dumps(full.to_json())) <= 4096

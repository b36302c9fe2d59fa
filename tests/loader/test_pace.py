"""The scheduler's decisions: within their bounds for any input, monotone, starving nobody, and settling in closed loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.formats.stores.hedged import Traffic
from headway.loader.fetch import PacedHedging
from headway.loader.pace import (
    Governor,
    InFlight,
    Pace,
    Round,
    deadline,
    govern,
    hedge_after,
    hold,
    may_hedge,
    needed_rate,
    ramp,
    shares,
    slack,
    steer,
)

seconds = st.floats(-10, 10, allow_nan=False)
few = st.integers(0, 12)


@st.composite
def nodes(draw: st.DrawFn) -> tuple[list[float], list[int], int]:
    """Slack and demand of a node's ranks, and its slots."""
    ranks = draw(st.integers(1, 9))
    return draw(st.lists(seconds, min_size=ranks, max_size=ranks)), draw(st.lists(few, min_size=ranks, max_size=ranks)), draw(few)


@given(nodes())
def test_shares_are_within_demand_and_slots_and_leave_nothing_idle(node: tuple[list[float], list[int], int]) -> None:
    slacks, demand, slots = node
    got = shares(np.array(slacks), np.array(demand), slots)
    assert (got <= demand).all()
    assert (got >= 0).all()
    assert got.sum() == min(slots, sum(demand))


@given(nodes())
def test_everybody_gets_one_before_anybody_gets_two(node: tuple[list[float], list[int], int]) -> None:
    slacks, demand, slots = node
    got = shares(np.array(slacks), np.array(demand), slots)
    if (got > 1).any():
        assert (got[np.array(demand) > 0] > 0).all()


@given(nodes())
def test_less_slack_never_gets_less_of_the_same_demand(node: tuple[list[float], list[int], int]) -> None:
    slacks, demand, slots = node
    got = shares(np.array(slacks), np.full(len(demand), demand[0]), slots)
    assert (np.diff(got[np.argsort(slacks, kind="stable")]) <= 0).all()


@given(nodes(), st.integers(1, 5))
def test_more_slots_take_from_nobody(node: tuple[list[float], list[int], int], more: int) -> None:
    slacks, demand, slots = node
    few_slots, many_slots = (shares(np.array(slacks), np.array(demand), count) for count in (slots, slots + more))
    assert (many_slots >= few_slots).all()


@given(nodes())
def test_nodes_in_one_call_are_as_each_alone(node: tuple[list[float], list[int], int]) -> None:
    slacks, demand, slots = node
    alone = shares(np.array(slacks), np.array(demand), slots)
    both = shares(np.array([slacks, slacks[::-1]]), np.array([demand, demand[::-1]]), np.array([slots, slots + 1]))
    assert both[0].tolist() == alone.tolist()


@given(st.integers(2, 9), st.integers(1, 3), st.lists(st.floats(0.01, 2), min_size=9, max_size=9))
def test_with_too_few_slots_no_rank_starves(ranks: int, slots: int, steps: list[float]) -> None:
    """Each round the ranks that got a slot produce a step; deadlines move on, and slack with them."""
    step_s, made = np.array(steps[:ranks]), np.zeros(ranks, np.int64)
    last = np.zeros(ranks)
    for now in np.arange(0, 15, 0.1):
        got = shares(slack(deadline(0.0, step_s, made), now, 0.01), np.ones(ranks), slots)
        made += got
        last = np.where(got > 0, now, last)
        if now > 7:
            assert (now - last < 2 * step_s.max() * ranks + 1).all()


@given(
    st.floats(0.1, 30),
    st.floats(0.001, 5),
    st.integers(1, 1 << 30),
    st.integers(1, 1 << 28),
    st.integers(1, 1 << 34),
)
def test_what_is_held_fits_the_memory(headway_s: float, step_s: float, batch: int, encoded: int, memory: int) -> None:
    held = hold(headway_s, step_s, batch_bytes=batch, encoded_bytes=encoded, memory_bytes=memory)
    assert 1 <= held.batches <= 4
    assert held.steps >= 0
    if (held.batches, held.steps) != (1, 0):
        assert (held.batches + 1) * batch + held.steps * encoded <= memory
        assert held.batches + held.steps <= np.ceil(headway_s / step_s)


@given(st.floats(0.1, 30), st.floats(0.001, 5), st.integers(1, 1 << 24), st.integers(1, 1 << 34))
def test_more_memory_or_headway_never_holds_fewer_seconds(headway_s: float, step_s: float, encoded: int, memory: int) -> None:
    def total(headway: float, budget: int) -> int:
        held = hold(headway, step_s, batch_bytes=8 * encoded, encoded_bytes=encoded, memory_bytes=budget)
        return int(held.batches + held.steps)

    assert total(headway_s, 2 * memory) >= total(headway_s, memory)
    assert total(2 * headway_s, memory) >= total(headway_s, memory)


def test_two_seconds_are_four_batches_and_the_rest_encoded() -> None:
    held = hold(2.0, 0.1, batch_bytes=50 << 20, encoded_bytes=5 << 20, memory_bytes=1 << 30)
    assert held == (4, 16)
    assert hold(2.0, 1.5, batch_bytes=50 << 20, encoded_bytes=5 << 20, memory_bytes=1 << 30) == (2, 0)
    assert hold(2.0, 0.1, batch_bytes=50 << 20, encoded_bytes=5 << 20, memory_bytes=1 << 30, batches=7) == (7, 13)
    assert hold(2.0, 0.1, batch_bytes=60 << 20, encoded_bytes=5 << 20, memory_bytes=128 << 20) == (1, 1)
    tight = hold(2.0, 0.1, batch_bytes=50 << 20, encoded_bytes=5 << 20, memory_bytes=300 << 20)
    assert tight == (3, 17)  # encoded steps come first: a batch's memory holds ten


def test_the_first_batch_is_alone_and_then_it_fills() -> None:
    assert [int(ramp(done, 20)) for done in range(12)] == [1, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 20]
    assert ramp(np.array([0, 1, 30]), 4).tolist() == [1, 2, 4]


def test_need_is_the_pace_and_twice_that_while_headway_is_missing() -> None:
    assert needed_rate(6, 0.1, ready_s=2.0, headway_s=2.0) == pytest.approx(60)
    assert needed_rate(6, 0.1, ready_s=1.0, headway_s=2.0) == pytest.approx(90)
    assert needed_rate(6, 0.1, ready_s=0.0, headway_s=2.0) == np.inf
    assert needed_rate(6, 0.0, ready_s=1.0, headway_s=2.0) == np.inf
    rates = [needed_rate(6, 0.1, ready_s=ready, headway_s=2.0) for ready in np.linspace(0.01, 4, 50)]
    assert (np.diff(rates) <= 0).all()


def store(limit: float, *, base_s: float, served: float) -> Round:
    """A store that serves `served` requests a second at most, each in `base_s` at least."""
    latency = max(base_s, limit / served)
    return Round(in_flight=limit, rate=limit / latency, latency_s=latency)


@given(st.floats(0.002, 0.5), st.floats(5, 3000))
def test_requests_settle_where_the_store_is_full_and_does_not_queue(base_s: float, served: float) -> None:
    state, seen = InFlight(), []
    for _ in range(120):
        answer = store(float(state.limit), base_s=base_s, served=served)
        state = steer(state, answer, most=4096)
        seen.append(answer)
    late = seen[60:]
    assert np.mean([answer.rate for answer in late]) >= 0.85 * min(served, 1 / base_s * 4096) - 1
    assert np.mean([answer.in_flight for answer in late]) <= 1.8 * served * base_s + 3


@given(st.floats(0.002, 0.5), st.floats(0.05, 0.7))
def test_requests_settle_at_the_need_below_the_stores_limit(base_s: float, share: float) -> None:
    served = 400 / base_s
    need, state = share * served, InFlight()
    for _ in range(60):
        state = steer(state, store(float(state.limit), base_s=base_s, served=served), need=need, most=4096)
    load = need * base_s
    assert load <= float(state.limit) <= 1.15 * (load + 2 * load**0.5 + 2)


def test_a_store_that_became_slow_is_not_starved() -> None:
    state = InFlight()
    for turn in range(80):
        base_s = 0.02 if turn < 30 else 0.2  # answers take ten times as long from then on, whoever asks
        state = steer(state, store(float(state.limit), base_s=base_s, served=1e6), need=1000, most=4096)
    assert float(state.limit) / 0.2 >= 1000


def test_a_store_that_recovers_is_asked_less() -> None:
    state = InFlight()
    for turn in range(120):
        state = steer(state, store(float(state.limit), base_s=0.2 if turn < 60 else 0.02, served=1e6), need=1000, most=4096)
    assert float(state.limit) <= 20 + 2 * 20**0.5 + 2


def test_refusals_shrink_and_bounds_hold() -> None:
    state = InFlight(limit=100.0, base_s=0.02)
    assert steer(state, Round(100, 1000, 0.02, refused=0.1)).limit == pytest.approx(70)
    assert steer(state, Round(100, 1000, 0.02), most=16).limit == 16
    assert steer(state, Round(100, 1000, 0.02), least=8, most=8).limit == 8  # how an override is put
    assert steer(state, Round(100, 0, np.nan)) == state  # nothing came back: nothing was learnt


@given(st.lists(st.tuples(st.floats(0, 500), st.floats(0, 1e5), st.floats(0, 60), st.floats(0, 1)), max_size=30))
def test_any_measurements_keep_the_limit_in_bounds(rounds: list[tuple[float, float, float, float]]) -> None:
    state = InFlight()
    for seen in rounds:
        state = steer(state, Round(*seen), need=100, least=2, most=64)
        assert 2 <= state.limit <= 64


def test_arrays_steer_as_numbers_do() -> None:
    states: Any = [InFlight(), InFlight()]  # Any: of numbers, then of arrays
    both = InFlight(*(np.array([value, value], np.float64) for value in InFlight()))
    for _ in range(40):
        seen = [store(float(state.limit), base_s=base, served=500) for state, base in zip(states, (0.01, 0.1), strict=True)]
        states = [steer(state, one) for state, one in zip(states, seen, strict=True)]
        both = steer(both, Round(*(np.array(pair) for pair in zip(*seen, strict=True))))
    assert [float(state.limit) for state in states] == both.limit.tolist()


@given(st.floats(0.001, 1), st.floats(1, 100), st.floats(-5, 60))
def test_a_hedge_waits_a_median_and_no_longer_than_the_tail(p50_s: float, times: float, left_s: float) -> None:
    after = hedge_after(p50_s=p50_s, p98_s=p50_s * times, left_s=left_s)
    assert p50_s <= after <= p50_s * times
    assert after <= hedge_after(p50_s=p50_s, p98_s=p50_s * times, left_s=left_s + 1)
    if left_s >= p50_s + p50_s * times:
        assert after == p50_s * times


@given(st.floats(0, 0.5), st.lists(st.booleans(), max_size=400))
def test_hedges_stay_within_their_share(share: float, wished: list[bool]) -> None:
    hedged = 0
    for sent, wish in enumerate(wished, 1):
        hedged += wish and may_hedge(sent, hedged, share=share)
        assert hedged <= max(1, share * sent)
    assert share or not hedged


def consumer(threads: int, *, step_s: float, work_s: float, free: int, cost: float) -> tuple[float, float]:
    """Own step time and wait, where each thread beyond the `free` cores slows the consumer by `cost`."""
    own = step_s * (1 + cost * max(0, threads - free))
    return own, max(0.0, work_s / threads - own)


@given(st.integers(1, 16), st.floats(0.1, 1), st.floats(0.1, 0.9))
def test_threads_back_off_to_what_slows_nobody_when_they_are_not_needed(free: int, cost: float, load: float) -> None:
    state = Governor(16)
    seen = []
    for _ in range(120):
        own, wait = consumer(int(state.threads), step_s=0.1, work_s=0.1 * load, free=free, cost=cost)
        state = govern(state, own_s=own, wait_s=wait, most=16)
        seen.append(own)
    assert np.mean(seen[60:]) <= 0.1 * (1 + max(0.1, 0.25 * cost))


@given(st.integers(2, 16))
def test_threads_come_back_when_the_consumer_waits(needed: int) -> None:
    state = Governor(1, base_s=0.1)
    for _ in range(60):
        own, wait = consumer(int(state.threads), step_s=0.1, work_s=0.1 * needed, free=16, cost=0)
        state = govern(state, own_s=own, wait_s=wait, most=16)
    assert state.threads >= needed


def test_a_number_of_threads_that_did_not_suffice_is_not_tried_again_soon() -> None:
    """Two threads are needed and both slow the consumer: it waits with one, and then hardly ever again."""
    state, waited = Governor(2, base_s=0.1), 0
    for _ in range(64):
        own, wait = consumer(int(state.threads), step_s=0.1, work_s=0.15, free=1, cost=0.2)
        waited += wait > 0
        state = govern(state, own_s=own, wait_s=wait, most=2)
    assert waited == 1


def test_longer_steps_of_the_consumer_itself_cost_no_threads() -> None:
    state, seen = Governor(8), []
    for turn in range(80):
        state = govern(state, own_s=0.1 if turn < 20 else 0.3, wait_s=0.0, most=8)
        seen.append(int(state.threads))
    assert min(seen) >= 7  # now and then it looks whether fewer help
    assert np.mean(seen) > 7.8


@given(st.lists(st.tuples(st.floats(0, 10), st.floats(0, 10)), max_size=40), st.integers(1, 8))
def test_any_step_times_keep_threads_in_bounds(times: list[tuple[float, float]], most: int) -> None:
    state = Governor(most)
    for own, wait in times:
        state = govern(state, own_s=own, wait_s=wait, most=most)
        assert 1 <= state.threads <= most


@pytest.mark.parametrize("wrong", [{"headway_s": 0}, {"requests": 5000}, {"hedge_after_s": 0}, {"hedge_share": 1.5}], ids=str)
def test_a_pace_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        Pace(**wrong)


def test_a_late_ranks_requests_leave_second_ones_for_what_hangs() -> None:
    hedging, traffic = PacedHedging(Pace()), Traffic(requests=1000)
    in_a_hurry = {"p98_s": 0.3, "left_s": -1.0}
    while hedging.allows(traffic, waited_s=0.03, **in_a_hurry):
        traffic.hedged += 1
    assert traffic.hedged == 5
    while hedging.allows(traffic, waited_s=0.3, **in_a_hurry):
        traffic.hedged += 1
    assert traffic.hedged == 20
    assert not hedging.allows(Traffic(requests=1000, hedged=10), waited_s=0.3, p98_s=0.3, left_s=2.0)

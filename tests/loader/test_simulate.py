"""The simulation against what can be worked out by hand, within the stated tolerance, and its shape at scale."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from headway.formats import UsageError
from headway.loader.pace import Pace
from headway.loader.plan import Plan
from headway.loader.sampler import ViewInfo
from headway.loader.scenario import BatchCost, Job, Machine, Scenario, StoreModel
from headway.loader.shuffled import Shuffled
from headway.loader.simulate import Outcome, simulate

MB = 1e6
TOLERANCE = 0.02


def scenario(
    *, job: Job | None = None, machine: Machine | None = None, store: StoreModel | None = None, pace: Pace | None = None
) -> Scenario:
    """Batches of four: 80 ms of decoding, 40 MB decoded, 4 MB encoded."""
    return Scenario(
        job=job or Job(step_s=0.1),
        cost=BatchCost(parallel_s=0.08, cpu_s=0.08, decoded_bytes=40 * MB, encoded_bytes=4 * MB),
        machine=machine or Machine(cores=4, threads=4),
        store=store or StoreModel(),
        pace=pace or Pace(),
    )


def plan_of(items: int, batch: int, **order: int) -> Plan:
    view = ViewInfo(view_id="simulated", items=items, drive_starts=np.array([0, items]))
    return Plan(view, Shuffled(drop_last=True, **order), seed=1, epoch=0, segments=[(batch, 0)])


def near(value: float) -> object:
    return pytest.approx(value, rel=TOLERANCE)


def test_consumer_bound() -> None:
    """80 ms over four threads is less than a step: nobody waits."""
    found = simulate(scenario())
    assert found.samples_per_s == near(4 / 0.1)
    assert found.stall_share == pytest.approx(0, abs=0.001)
    assert found.binding == "consumer"


def test_decode_bound() -> None:
    """A consumer of 10 ms waits for one thread's 80 ms."""
    found = simulate(scenario(job=Job(step_s=0.01), machine=Machine(cores=4, threads=1)))
    assert found.samples_per_s == near(4 / 0.08)
    assert found.stall_share == near(0.07 / 0.08)
    assert found.binding == "decode threads"
    assert found.utilisation["decode threads"] == near(1.0)


def test_ranks_share_the_cores_of_their_node() -> None:
    """Four ranks of two threads each on four cores: together they get four cores' worth."""
    found = simulate(scenario(job=Job(ranks=8, ranks_per_node=4, step_s=0.01), machine=Machine(cores=4, threads=2)))
    assert found.samples_per_s == near(2 * 4 * 4 / 0.08)
    assert found.binding == "cores"
    assert found.utilisation["cores"] == near(1.0)


def test_bandwidth_bound() -> None:
    """20 MB/s a node, a megabyte a sample, two nodes."""
    store = StoreModel(latency_s=0.01, bandwidth=20 * MB, request_bytes=MB)
    job = Job(ranks=4, ranks_per_node=2, step_s=0.01)
    found = simulate(scenario(job=job, store=store), plan_of(100_000, 16))
    assert found.samples_per_s == near(2 * 20)
    assert found.binding == "bandwidth"


def test_latency_bound_by_so_many_requests_in_flight() -> None:
    """Eight requests in flight, each a sample after 200 ms."""
    store = StoreModel(latency_s=0.2, request_bytes=MB)
    found = simulate(scenario(job=Job(step_s=0.01), store=store, pace=Pace(requests=8)), plan_of(100_000, 4))
    assert found.samples_per_s == near(8 / 0.2)
    assert found.binding == "store latency"


def test_latency_hides_behind_deep_prefetch() -> None:
    """The same store without a fixed number: as many in flight as it takes, and the consumer never waits."""
    store = StoreModel(latency_s=0.2, request_bytes=MB)
    found = simulate(scenario(store=store), plan_of(100_000, 4))
    assert found.samples_per_s == near(4 / 0.1)
    assert found.stall_share < 0.01
    assert 4 * 0.2 / 0.1 <= found.requests_in_flight <= 20
    assert found.headway_s == pytest.approx(2.0, abs=0.4)


def test_memory_for_two_batches_stops_overlap_where_the_consumer_keeps_its_own() -> None:
    """Making a batch (20 ms) overlaps with the step (100 ms), so it costs nothing; with longer ones the rest shows."""
    tight = Machine(cores=4, threads=1, memory_bytes=85 * MB)
    found = simulate(scenario(job=Job(step_s=0.1), machine=tight))
    assert found.samples_per_s == near(4 / 0.1)
    assert found.batches_ahead == 1


def test_the_slowest_rank_sets_the_pace() -> None:
    """All ranks wait for the last one of each step: the expected largest of many normal steps."""
    job = Job(ranks=64, ranks_per_node=8, step_s=0.1, step_spread=0.1)
    found = simulate(scenario(job=job, machine=Machine(cores=64, threads=4)), steps=2000)
    largest = np.random.default_rng(5).standard_normal((4000, 64)).max(axis=1).mean()
    assert found.samples_per_s == near(64 * 4 / (0.1 * (1 + 0.1 * largest)))


def test_second_requests_save_a_job_from_stalled_ones() -> None:
    store = StoreModel(latency_s=0.03, latency_p99_s=0.4, stall_share=0.01, stall_s=3.0, request_bytes=MB)
    job = Job(ranks=8, ranks_per_node=4, step_s=0.2)

    def run(pace: Pace) -> Outcome:
        return simulate(scenario(job=job, machine=Machine(cores=16, threads=4), store=store, pace=pace), plan_of(1_000_000, 32))

    hedged, alone = run(Pace()), run(Pace(hedge_after_s=float("inf")))
    assert hedged.stall_share < 0.02 < alone.stall_share
    assert 0 < hedged.hedged <= 0.02 * hedged.requests
    assert alone.hedged == 0


def test_ranges_are_read_once_and_only_the_cache_saves_any() -> None:
    store = StoreModel(latency_s=0.01, request_bytes=4 * MB)
    epoch = plan_of(6400, 16, block_items=8, span_blocks=4)
    whole = simulate(scenario(job=Job(ranks=4, ranks_per_node=4), store=store), epoch, steps=epoch.steps)
    assert whole.read_bytes == near(6400 * MB)
    assert whole.cache_bytes == 16 * 4 * 8 * MB
    half = dataclasses.replace(store, cached_share=0.5)
    again = simulate(scenario(job=Job(ranks=4, ranks_per_node=4), store=half), epoch, steps=epoch.steps)
    assert again.read_bytes == pytest.approx(3200 * MB, rel=0.1)


def test_the_first_batch_takes_one_answer_and_one_decode() -> None:
    store = StoreModel(latency_s=0.2, request_bytes=MB)
    found = simulate(scenario(store=store), plan_of(1000, 4), steps=10)
    assert found.first_batch_s == pytest.approx(0.2 + 0.08 / 4, rel=0.01)


def test_a_thousand_ranks_over_a_billion_items() -> None:
    """The figure of `headway bench predict` with fewer steps."""
    job = Job(ranks=1024, ranks_per_node=8, batch_size=4, step_s=0.2)
    store = StoreModel(latency_s=0.03, latency_p99_s=0.1, bandwidth=3e9)
    found = simulate(
        scenario(job=job, machine=Machine(cores=64, threads=7), store=store), plan_of(10**9, 4096), steps=40, warm=20
    )
    assert found.stall_share < 0.05
    assert found.samples_per_s == pytest.approx(4096 / 0.2, rel=0.05)


def test_the_first_batch_of_an_epoch_is_waited_for() -> None:
    """Every tenth step waits for a whole batch, 20 ms with four threads."""
    found = simulate(scenario(job=Job(step_s=0.1, epoch_steps=10)), steps=550)
    assert found.stall_share == near(0.02 / (10 * 0.1 + 0.02))


def test_an_iterator_that_takes_its_time_to_begin_does_so_each_epoch() -> None:
    once = scenario(job=Job(step_s=0.1, epoch_steps=10))
    found = simulate(dataclasses.replace(once, cost=dataclasses.replace(once.cost, first_s=0.5)), steps=550)
    assert found.first_batch_s == pytest.approx(0.5)
    assert found.stall_share == near(0.5 / (10 * 0.1 + 0.5))


def test_jobs_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="do not fill nodes"):
        Job(ranks=10, ranks_per_node=4)
    with pytest.raises(UsageError, match="count from 1"):
        Job(ranks=0)

"""A job's input pipeline, step by step, for up to thousands of ranks: what it delivers, who waits, and what for.

Every decision is one of `pace`'s own functions and every item comes from the real plan; only the world is a model. A step is the
unit of events: for step n and all ranks at once, each stage begins when what it needs is there (a free place ahead, the
stage before, the batch before it, a share of cores or bandwidth) and ends a cost later, and the latest of these is what the
step is waited for. Ranks step together. The order within one step of one rank is not modelled.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from .pace import Hold, InFlight, Round, deadline, hedge_after, hold, needed_rate, ramp, shares, slack, steer
from .plan import Plan
from .scenario import Scenario

__all__ = ["RESOURCES", "Outcome", "simulate"]

Seconds = NDArray[np.float64]

RESOURCES: Final = ("consumer", "decode threads", "cores", "store latency", "bandwidth", "memory")
"""What can bind."""
_CONSUMER, _THREADS, _CORES, _LATENCY, _BANDWIDTH, _MEMORY = range(len(RESOURCES))
_CHUNK_SLOTS: Final = 1 << 16  # slots planned in one call
_MOST_REQUESTS: Final = 256  # of one rank, as `steer` allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What came of it; of the steps after the warm-up where nothing else is said."""

    steps: int
    samples_per_s: float
    """Of all ranks."""
    stall_share: float
    """Share of the time that the job waited for its slowest rank's input."""
    stall_by: dict[str, float]
    """The same, by what was waited for."""
    binding: str
    """What bounds the rate; one of RESOURCES."""
    utilisation: dict[str, float]
    """Share of each resource in use; of the busiest node."""
    headway_s: float
    """Seconds by which a step's batch (from a store: its payloads) was there before it was asked for; median, of the rank
    that has least."""
    first_batch_s: float
    requests: int
    """In all, second ones included."""
    hedged: int
    read_bytes: float
    requests_in_flight: float
    """Mean limit of a rank at the end."""
    memory_bytes: float
    """Of a rank: batches and encoded payloads ahead, and the batch in use."""
    cache_bytes: float
    """Of a node: blocks whose items are still to come, which a cache must hold so that nothing is read twice in an epoch."""
    batches_ahead: int
    steps_ahead: int
    """Further ones, encoded."""


def simulate(
    scenario: Scenario,
    plan: Plan | None = None,
    *,
    steps: int = 400,
    warm: int = 50,
    progress: Callable[[int], None] | None = None,
) -> Outcome:
    """Return what `steps` steps of the job come to.

    Args:
        plan: whose items are read; its global batch is the job's. None: each step reads as much, which is right for local sets.
        warm: first steps, which the rates leave out.
        progress: told how many more steps are done.
    """
    reads = _Reads(scenario, plan)
    run = _Run(scenario, steps=steps, warm=min(warm, steps // 2), range_items=reads.range_items, cache_bytes=reads.cache_bytes)
    for step, requests in enumerate(reads.counts(steps)):
        run.step(step, requests)
        if progress is not None:
            progress(1)
    return run.outcome()


class _Reads:
    """How many ranges each rank reads at each step: those of its items that were not read before in the epoch."""

    def __init__(self, scenario: Scenario, plan: Plan | None) -> None:
        self._of, self._plan = scenario, plan
        job, store = scenario.job, scenario.store
        item_bytes = scenario.cost.encoded_bytes / job.batch_size
        told = {} if plan is None else plan.sampler.describe(plan.view, epoch=plan.epoch)
        # At most a slot's share of the epoch, as in the plan itself.
        block = int(str(told.get("block_items", 1)))
        self.block_items = block if plan is None else max(1, min(block, plan.items // plan.batch_size))
        self.range_items = max(1, min(self.block_items, int(store.request_bytes // max(item_bytes, 1.0))))
        open_blocks = int(str(told.get("span_blocks", 0))) * job.batch_size * job.ranks_per_node
        self.cache_bytes = 0.0 if store.is_local else open_blocks * self.block_items * item_bytes

    def counts(self, steps: int) -> Iterator[NDArray[np.int64]]:
        """Yield requests by rank, (ranks,), step by step; after the plan's last step it begins anew."""
        plan, job = self._plan, self._of.job
        if plan is None or self._of.store.is_local:
            yield from (np.full(job.ranks, job.batch_size) for _ in range(steps))
            return
        per_block = -(-self.block_items // self.range_items)
        seen = np.zeros((-(-plan.view.items // self.block_items) * per_block >> 3) + 1, np.uint8)  # a bit a range
        chunk = max(1, _CHUNK_SLOTS // plan.batch_size)
        done = 0
        while done < steps:
            first = done % plan.steps
            if not first:
                seen[:] = 0
            rows = plan.look_ahead(first, min(chunk, steps - done, plan.steps - first)).items
            for items in rows:
                block, place = np.divmod(items, self.block_items)
                ranges, slots = np.unique(block * per_block + place // self.range_items, return_index=True)
                byte, bit = ranges >> 3, (1 << (ranges & 7)).astype(np.uint8)
                is_new = (items[slots] >= 0) & ((seen[byte] & bit) == 0) & ~self._is_cached(ranges)
                np.bitwise_or.at(seen, byte[is_new], bit[is_new])
                yield np.bincount(slots[is_new] // job.batch_size, minlength=job.ranks)
            done += len(rows)

    def _is_cached(self, ranges: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether the node's cache had each range from the start: the same ones in each call."""
        mixed = (ranges.astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)) >> np.uint64(40)
        return mixed < np.uint64(int(self._of.store.cached_share * (1 << 24)))


class _Run:
    """Times of all ranks (arrays (ranks,), seconds since the start) and what was counted."""

    def __init__(self, scenario: Scenario, *, steps: int, warm: int, range_items: int, cache_bytes: float) -> None:
        self.of, self.steps, self.warm = scenario, steps, warm
        self.range_items, self.cache_bytes = range_items, cache_bytes
        job, cost, machine = scenario.job, scenario.cost, scenario.machine
        self.shape = (job.nodes, job.ranks_per_node)
        self.random = np.random.default_rng(scenario.seed)
        ranks = job.ranks
        self.asked = np.zeros((steps + 1, ranks))  # when the batch of step n was asked for
        self.freed = np.zeros((steps + 1, ranks))  # when its memory came back
        self.fetched, self.decoded = np.zeros(ranks), np.zeros(ranks)  # the last step's
        self.queue_free = np.zeros(ranks)  # when the requests in flight leave room again
        self.cores_free, self.link_free = np.zeros(job.nodes), np.zeros(job.nodes)
        self.flight = InFlight(*(np.full(ranks, value, np.float64) for value in InFlight()))
        self.own_s = np.full(ranks, job.step_s)  # each consumer's recent step, without waits
        self.waits = np.zeros((steps, len(RESOURCES)))
        self.began = np.zeros(steps)
        self.used = np.zeros((len(RESOURCES), *self.shape))
        self.headways = np.zeros(steps)
        self.sent = self.hedged = 0
        self.read_bytes = 0.0
        self.per_step = 0.0  # mean requests a step of a rank
        self.buffers = max(2, int(machine.memory_bytes // max(cost.decoded_bytes, 1)))
        self.is_tight = False
        self.held = self._hold()

    def _hold(self) -> Hold:
        cost, machine = self.of.cost, self.of.machine
        held = hold(
            self.of.pace.headway_s,
            float(self.own_s.min()),
            batch_bytes=cost.decoded_bytes,
            encoded_bytes=0.0 if self.of.store.is_local else cost.encoded_bytes,
            memory_bytes=machine.memory_bytes,
            batches=machine.prefetch,
        )
        if self.of.store.is_local:
            held = held._replace(steps=0)  # the page cache holds what is encoded
        self.is_tight = (held.batches + 2) * cost.decoded_bytes > machine.memory_bytes
        return held

    def step(self, step: int, requests: NDArray[np.int64]) -> None:
        """Take all ranks through one step, which needs so many requests of each."""
        of, job = self.of, self.of.job
        if step % 16 == 0:
            self.held = self._hold()
        # How far ahead: a step may begin when the one so many before it was asked for; at the start fewer, so that the first
        # has everything to itself.
        ahead = int(ramp(step, int(self.held.batches + self.held.steps)))
        begin_fetch = self.asked[max(0, step - ahead)]
        due = deadline(self.asked[step], self.own_s, 0)
        fetched, slow = self._fetch(step, begin_fetch, requests, slack(due, begin_fetch, of.cost.parallel_s))
        epoch_began = step - step % job.epoch_steps if job.epoch_steps else 0
        place = self.asked[max(epoch_began, step - min(int(self.held.batches), ahead))]
        memory = self.freed[step - self.buffers] if step >= self.buffers else np.zeros(job.ranks)
        begin = np.maximum.reduce([fetched, place, memory, self.decoded])
        # Batches ahead are few because the pace allows no more, or because the memory does not hold them.
        behind = _MEMORY if self.is_tight else _THREADS
        why = np.where(
            begin <= self.decoded, _THREADS, np.where(begin <= place, behind, np.where(begin <= memory, _MEMORY, slow))
        )
        decoded, is_cores = self._decode(step, begin, due)
        if step == epoch_began:
            decoded = np.maximum(decoded, self.asked[step] + of.cost.first_s)
        ready = decoded if of.store.is_local else fetched
        self.headways[step] = float((self.asked[step] - ready).min())
        self.fetched, self.decoded = fetched, decoded
        self._consume(step, decoded, np.where(is_cores, _CORES, why))

    def _fetch(self, step: int, begin: Seconds, requests: NDArray[np.int64], spare: Seconds) -> tuple[Seconds, NDArray[np.int64]]:
        """Return when each rank's payloads are there, and what that was waited for."""
        store, ranks = self.of.store, self.of.job.ranks
        slow = np.full(ranks, _LATENCY)
        if store.is_local:
            return begin, slow
        slowest, mean, median = self._answers(requests, spare)
        issued = np.maximum(begin, self.queue_free)
        # n in flight at this latency serve n / latency a second: the next step's requests follow behind these.
        serving = requests * mean / np.maximum(self.flight.limit, 1.0)
        self.queue_free = issued + serving
        asks = requests > 0
        moving = requests * self._range_bytes() / store.bandwidth
        answered = issued + np.where(asks, np.maximum(slowest, serving) + moving, 0.0)
        # The node's link serves the least slack first.
        order = np.argsort(spare.reshape(self.shape), axis=1, kind="stable")
        arrives = np.where(asks, issued + store.latency_s, np.inf).reshape(self.shape).min(axis=1)
        first = np.maximum(self.link_free, np.where(np.isfinite(arrives), arrives, 0.0))
        moved = np.take_along_axis(moving.reshape(self.shape), order, axis=1).cumsum(axis=1)
        through = np.empty(self.shape)
        np.put_along_axis(through, order, first[:, None] + moved, axis=1)
        self.link_free = first + moved[:, -1]
        there = np.where(asks, through.ravel(), 0.0)
        if step >= self.warm:
            self.used[_BANDWIDTH] += moving.reshape(self.shape)
            self.used[_LATENCY] += serving.reshape(self.shape)
        self._steer(step, requests, median + np.maximum(0.0, there - answered), mean)
        return np.maximum(answered, there), np.where(there > answered, _BANDWIDTH, slow)

    def _range_bytes(self) -> float:
        return self.range_items * self.of.cost.encoded_bytes / self.of.job.batch_size

    def _answers(self, requests: NDArray[np.int64], spare: Seconds) -> tuple[Seconds, Seconds, Seconds]:
        """Draw a latency for every request; return each rank's slowest, mean and median, after second requests."""
        store, pace, count = self.of.store, self.of.pace, int(requests.sum())
        ranks = len(requests)
        if not count:
            return np.zeros(ranks), np.zeros(ranks), np.zeros(ranks)
        latency, again = (self._latencies(count) for _ in range(2))
        p50, p98 = store.latency_s, store.quantile(0.98)
        owner = np.repeat(np.arange(ranks), requests)
        if pace.hedge_after_s is None:
            after = np.array([hedge_after(p50_s=p50, p98_s=p98, left_s=value) for value in spare.tolist()])[owner]
        else:
            after = np.full(count, pace.hedge_after_s)
        late = np.flatnonzero(latency > after)
        late = late[np.argsort(spare[owner[late]], kind="stable")]
        allowed = max(0, int(pace.hedge_share * (self.sent + count)) - self.hedged)
        late = late[:allowed]
        latency[late] = np.minimum(latency[late], after[late] + again[late])
        self.sent += count + len(late)
        self.hedged += len(late)
        self.read_bytes += count * self._range_bytes()
        starts = np.concatenate(([0], np.cumsum(requests)[:-1]))
        some = requests > 0
        slowest, total = np.zeros(ranks), np.zeros(ranks)
        slowest[some] = np.maximum.reduceat(latency, starts[some])
        total[some] = np.add.reduceat(latency, starts[some])
        mean = np.where(some, total / np.maximum(requests, 1), p50)
        return slowest, mean, np.full(ranks, float(np.median(latency)))

    def _latencies(self, count: int) -> Seconds:
        store = self.of.store
        drawn = store.latency_s * np.exp(store.sigma * self.random.standard_normal(count))
        return np.where(self.random.random(count) < store.stall_share, np.maximum(drawn, store.stall_s), drawn)

    def _steer(self, step: int, requests: NDArray[np.int64], latency: Seconds, mean: Seconds) -> None:
        """Let each rank choose its number of requests in flight."""
        pace, job = self.of.pace, self.of.job
        self.per_step += (float(requests.mean()) - self.per_step) / min(step + 1, 64)
        if pace.requests is not None:
            self.flight = self.flight._replace(limit=np.full(job.ranks, float(pace.requests)))
            return
        seen = requests > 0
        ready = np.maximum(self.asked[step] - self.fetched, 0.0)
        need = needed_rate(self.per_step, self.own_s, ready_s=ready, headway_s=pace.headway_s)
        # In flight as long as there is more to ask for than answers come: all that are allowed.
        busy = np.minimum(self.flight.limit, np.maximum(requests, need * mean))
        rate = np.where(seen, busy / np.maximum(mean, 1e-9), 0.0)
        self.flight = steer(self.flight, Round(busy, rate, latency), need=need, most=_MOST_REQUESTS)

    def _decode(self, step: int, begin: Seconds, due: Seconds) -> tuple[Seconds, NDArray[np.bool_]]:
        """Return when each rank's batch is decoded, and whether the node's cores, not its own threads, decided that."""
        cost, machine, job = self.of.cost, self.of.machine, self.of.job
        factor = 1 + cost.spread * self.random.standard_normal(job.ranks) if cost.spread else np.ones(job.ranks)
        factor = np.maximum(factor, 0.1)
        spare = slack(due, begin, cost.serial_s + cost.parallel_s / machine.threads).reshape(self.shape)
        most = machine.threads if job.ranks_per_node == 1 else 2 * machine.threads
        slots = machine.threads * job.ranks_per_node
        threads = np.maximum(shares(spare, np.full(self.shape, most), slots), 1).ravel()
        alone = begin + (cost.serial_s + cost.parallel_s / threads) * factor
        order = np.argsort(spare, axis=1, kind="stable")
        first = np.maximum(self.cores_free, begin.reshape(self.shape).min(axis=1))
        work = (cost.cpu_s * factor).reshape(self.shape) / machine.cores
        together = np.empty(self.shape)
        np.put_along_axis(together, order, first[:, None] + np.take_along_axis(work, order, axis=1).cumsum(axis=1), axis=1)
        self.cores_free = first + work.sum(axis=1)
        decoded = np.maximum(alone, together.ravel())
        if step >= self.warm:
            self.used[_CORES] += work
            self.used[_THREADS] += ((cost.serial_s + cost.parallel_s / machine.threads) * factor).reshape(self.shape)
        return decoded, together.ravel() > alone

    def _consume(self, step: int, ready: Seconds, why: NDArray[np.int64]) -> None:
        job, asked = self.of.job, self.asked[step]
        begin = np.maximum(asked, ready)
        together = float(begin.max())  # the first collective of the step waits for the last rank
        slowest = int(begin.argmax())
        self.began[step] = together
        self.waits[step, why[slowest]] = max(0.0, together - float(asked.max()))
        own = np.full(job.ranks, job.step_s + self.of.cost.handover_s)
        if job.step_spread:
            own = own * np.maximum(1 + job.step_spread * self.random.standard_normal(job.ranks), 0.1)
        end = together + own.max()
        self.asked[step + 1] = end
        self.freed[step] = end if job.holds_batch else begin
        self.own_s += 0.1 * (own - self.own_s)

    def outcome(self) -> Outcome:
        """Return the totals."""
        job, cost = self.of.job, self.of.cost
        warm, end = self.warm, float(self.asked[self.steps].max())
        start = float(self.asked[warm].max())
        wall, steps = max(end - start, 1e-12), self.steps - warm
        waited = self.waits[warm:].sum(axis=0)
        stall = float(waited.sum()) / wall
        binding = _CONSUMER if stall < 0.01 else int(waited.argmax())
        busy = {
            name: float(self.used[which].sum(axis=1).max()) / wall
            for which, name in ((_CORES, "cores"), (_BANDWIDTH, "bandwidth"))
        }
        busy["decode threads"] = float(self.used[_THREADS].max()) / wall
        busy["store latency"] = float(self.used[_LATENCY].max()) / wall
        busy["consumer"] = (job.step_s + cost.handover_s) * steps / wall
        held = self.held
        return Outcome(
            steps=steps,
            samples_per_s=job.ranks * job.batch_size * steps / wall,
            stall_share=stall,
            stall_by={name: float(waited[which]) / wall for which, name in enumerate(RESOURCES) if waited[which] > 0},
            binding=RESOURCES[binding],
            utilisation=busy,
            headway_s=float(np.median(np.maximum(self.headways[warm:], 0.0))),
            first_batch_s=float(self.began[0]),
            requests=self.sent,
            hedged=self.hedged,
            read_bytes=self.read_bytes,
            requests_in_flight=float(np.mean(self.flight.limit)),
            memory_bytes=float((held.batches + 1) * cost.decoded_bytes + held.steps * cost.encoded_bytes),
            cache_bytes=self.cache_bytes,
            batches_ahead=int(held.batches),
            steps_ahead=int(held.steps),
        )

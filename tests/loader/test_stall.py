"""The stall ledger: its sums are exact, and what it names is what the batch was in."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import headway
from headway import DataLoader, LoaderOptions
from headway.loader.buffers import BufferPool
from headway.loader.draft import Task
from headway.loader.engine import Engine
from headway.loader.stall import STAGES, Booked, Span, Stage, StallLedger, Trail, cut, now_ns, on_disk, within
from headway.loader.transforms import Transforms

SIZE = 100_000
spans_strategy = st.lists(
    st.tuples(st.sampled_from(STAGES), st.integers(0, 30), st.integers(0, 10)).map(
        lambda drawn: (drawn[0], drawn[1], drawn[1], drawn[1] + drawn[2], 1)
    ),
    max_size=7,
)


def waited_for(moment: int, spans: Sequence[Span]) -> Stage:
    """The definition, moment by moment: of what is under way, what ends last; else what comes next; else the handover."""
    real = [span for span in spans if span[1] < span[3]]
    under_way = [span for span in real if span[1] <= moment < span[3]]
    if under_way:
        return max(under_way, key=lambda span: span[3])[0]
    later = [span for span in real if span[1] > moment]
    first = min((span[1] for span in later), default=0)
    return max((span for span in later if span[1] == first), key=lambda span: span[3])[0] if later else "handover"


@given(spans=spans_strategy, asked=st.integers(0, 30), waited=st.integers(0, 20))
def test_a_wait_is_cut_as_defined_and_its_pieces_add_up(spans: list[Span], asked: int, waited: int) -> None:
    got = asked + waited
    spans = [(stage, queued, started, min(ended, got), 1) for stage, queued, started, ended, _ in spans if queued < got]
    found = cut(asked, got, spans)
    assert sum(found.values()) == waited
    expected: dict[Stage, int] = {}
    for moment in range(asked, got):
        stage = waited_for(moment, spans)
        expected[stage] = expected.get(stage, 0) + 1
    assert found == expected


@given(
    waits=st.dictionaries(st.sampled_from(STAGES), st.integers(1, 10**9)),
    cpu_ns=st.integers(0, 2 * 10**9),
    faults=st.integers(0, 3),
)
def test_what_is_moved_to_the_disk_leaves_the_sum(waits: dict[Stage, int], cpu_ns: int, faults: int) -> None:
    found = on_disk(waits, cpu_ns=cpu_ns, faults=faults)
    assert sum(found.values()) == sum(waits.values())
    assert all(ns >= 0 for ns in found.values())
    if not faults:
        assert found == waits


def test_pages_read_while_no_thread_is_on_a_core_are_the_disk() -> None:
    assert on_disk({"decode": 80, "store": 20}, cpu_ns=30, faults=1) == {"decode": 30, "disk": 50, "store": 20}
    assert on_disk({"decode": 80}, cpu_ns=200, faults=9) == {"decode": 80}


class Steps:
    """A recipe whose stages run what the test hands in."""

    def __init__(self, *, plan: Callable[[int], None], work: Sequence[tuple[Stage, Callable[[int], None]]], last: Stage) -> None:
        self.plan, self.work, self.last = plan, work, last

    def begin(self, step: int) -> Begun:
        self.plan(step)
        return Begun(self, step)


class Begun:
    def __init__(self, recipe: Steps, step: int) -> None:
        self.recipe, self.step = recipe, step
        self.what, self.sizes, self.changes = f"batch {step}", [SIZE], False

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        self.memory = memory[0]
        middle = [work for work in self.recipe.work if work[0] != self.recipe.last]
        return [Task(lambda call=call: call(self.step), stage, stage=stage) for stage, call in middle]  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def finish(self) -> NDArray[np.uint8]:
        for stage, call in self.recipe.work:
            if stage == self.recipe.last:
                with within(stage):
                    call(self.step)
        return self.memory


def nothing(step: int) -> None:
    """Take no time."""


def engine_of(recipe: Steps, *, steps: int, threads: int, blocks: int = 8) -> Engine[NDArray[np.uint8]]:
    pool = BufferPool(blocks * (1 << 17))
    return Engine(recipe, pool, first=0, last=steps, threads=threads, prefetch=2, stall_s=30)


@settings(max_examples=12)
@given(
    plan=st.lists(st.integers(0, 2000), min_size=6, max_size=6),
    work=st.lists(st.integers(0, 3000), min_size=6, max_size=6),
    last=st.lists(st.integers(0, 2000), min_size=6, max_size=6),
    own=st.lists(st.integers(0, 3000), min_size=6, max_size=6),
    threads=st.integers(0, 3),
)
def test_waits_and_the_consumers_time_are_the_loops_wall_time(
    plan: list[int], work: list[int], last: list[int], own: list[int], threads: int
) -> None:
    def sleeps(microseconds: list[int]) -> Callable[[int], None]:
        return lambda step: time.sleep(microseconds[step] / 1e6)

    recipe = Steps(
        plan=sleeps(plan), work=[("decode", sleeps(work)), ("store", sleeps(own)), ("transform", sleeps(last))], last="transform"
    )
    engine, ledger = engine_of(recipe, steps=6, threads=threads), StallLedger()
    stamps = [now_ns()]
    ledger.begin()
    engine.start()
    ledger.begun()
    entries = []
    for step in range(6):
        stamps.append(now_ns())
        ledger.asked(is_ready=engine.ready > 0)
        engine.next()
        entries.append(ledger.delivered(engine.trail))
        stamps.append(now_ns())
        time.sleep(own[step] / 1e6)
    engine.close()
    for at, entry in enumerate(entries):
        assert sum(entry.waits.values()) == entry.waited_ns
        start = entry.waits.get("start", 0)
        assert 0 <= entry.waited_ns - start <= stamps[2 * at + 2] - stamps[2 * at + 1]  # not more than was seen from outside
        assert stamps[2 * at + 1] <= entry.asked_ns <= stamps[2 * at + 2]
        if at:
            assert entry.consumer_ns >= stamps[2 * at + 1] - stamps[2 * at]  # and the consumer not less
    assert sum(ledger.waits_ns.values()) == ledger.waited_ns == sum(entry.waited_ns for entry in entries)
    assert ledger.waited_ns + ledger.consumer_ns == ledger.wall_ns
    assert ledger.wall_ns <= stamps[-1] - stamps[0]


@pytest.mark.parametrize("stage", ["plan", "store", "decompress", "decode", "transform", "transfer"])
def test_what_holds_the_batch_up_is_named(stage: Stage) -> None:
    """What is held until after the consumer asked is booked at least from when it asked to when it was let go."""
    entered, go = threading.Event(), threading.Event()

    def held(step: int) -> None:
        entered.set()
        assert go.wait(20)

    is_plan = stage == "plan"
    recipe = Steps(
        plan=held if is_plan else nothing,
        work=[] if is_plan else [(stage, held)],
        last="transform" if stage == "transform" else "transfer",
    )
    engine, ledger = engine_of(recipe, steps=1, threads=2), StallLedger()
    ledger.begin()
    engine.start()
    ledger.begun()
    assert entered.wait(20)
    assert engine.awaited() == stage
    booked, until_free = next_once(go.set, engine, ledger)
    engine.close()
    assert booked.waits[stage] >= until_free
    assert sum(booked.waits.values()) == booked.waited_ns


def next_once(free: Callable[[], object], engine: Engine[Any], ledger: StallLedger) -> tuple[Booked, int]:
    """Ask for a batch that comes after `free`, called meanwhile; return its entry and the ns from asking until then."""
    released: list[int] = []

    def let_go() -> None:
        time.sleep(0.02)
        released.append(now_ns())
        free()

    helper = threading.Thread(target=let_go)
    asked = ledger.asked(is_ready=False)
    helper.start()
    engine.next()
    booked = ledger.delivered(engine.trail)
    helper.join()
    return booked, released[0] - asked


def test_full_buffers_are_named() -> None:
    engine, ledger = engine_of(Steps(plan=nothing, work=[], last="transfer"), steps=3, threads=1, blocks=2), StallLedger()
    ledger.begin()
    engine.start()
    ledger.begun()
    held = [engine.next(), engine.next()]  # all there is
    booked, until_free = next_once(held.clear, engine, ledger)
    engine.close()
    assert booked.waits["memory"] >= until_free


def test_a_consumer_that_is_late_waits_for_nothing_but_the_handover() -> None:
    engine, ledger = (
        engine_of(Steps(plan=nothing, work=[("decode", nothing)], last="transfer"), steps=2, threads=1),
        StallLedger(),
    )
    ledger.begin()
    engine.start()
    ledger.begun()
    while not engine.ready:
        time.sleep(0.001)
    ledger.asked(is_ready=True)
    engine.next()
    booked = ledger.delivered(engine.trail)
    engine.close()
    assert set(booked.waits) <= {"start", "handover"}


def test_a_stage_inside_another_divides_it() -> None:
    trail = Trail()
    trail.begin("assemble")
    with within("transform"):
        pass
    trail.end()
    assert [span[0] for span in trail.spans] == ["assemble", "transform", "assemble"]
    assert [span[3] <= after[2] for span, after in zip(trail.spans, trail.spans[1:], strict=False)] == [True, True]
    with within("store"):  # no step: nobody is waiting
        pass
    assert len(trail.spans) == 3


def slow_sample(sample: dict[str, object]) -> dict[str, object]:
    time.sleep(0.01)
    return sample


@pytest.mark.slow
@pytest.mark.parametrize("processes", [0, 2])
def test_a_loaders_ledger_is_exact_and_sees_into_its_processes(drives_set: Path, processes: int) -> None:
    options = LoaderOptions(seed=3, transforms=Transforms(sample=slow_sample, processes=processes))
    loader = DataLoader(headway.open(drives_set), 3, True, num_workers=2, options=options)
    for _ in range(2):
        for _ in loader:
            pass
    stats, ledger = loader.stats(), loader._loading.counted.ledger
    assert ledger.waited_ns + ledger.consumer_ns == ledger.wall_ns
    assert stats["waited_s"] == pytest.approx(sum(stats[f"waited_{stage}_s"] for stage in STAGES))
    assert stats["waited_transform_s"] > 0.02  # of 36 samples, at least those of a first batch

"""The engine by itself: order, leases, errors and deadlines, over a recipe whose work the test controls."""

from __future__ import annotations

import gc
import logging
import threading
import time
from collections.abc import Callable, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import StalledError, UsageError, WorkerDied
from headway.loader.buffers import BufferPool
from headway.loader.draft import Task
from headway.loader.engine import Engine

SIZE = 100_000
Hook = Callable[[int, int], None]


class Numbers:
    """A recipe whose batch n is SIZE bytes of n; `hook` runs in every task."""

    def __init__(self, tasks: int = 3, hook: Hook | None = None, redo: int = 0) -> None:
        self.task_count, self.hook, self.redo = tasks, hook, redo
        self.begun: list[int] = []

    def begin(self, step: int) -> Begun:
        self.begun.append(step)
        return Begun(self, step)

    def let_go(self, step: int) -> None:
        """A step that is to be redone has no memory now."""


class Begun:
    def __init__(self, recipe: Numbers, step: int) -> None:
        self.recipe, self.step, self.redo = recipe, step, recipe.redo
        self.what = f"batch {step}"
        self.sizes = [SIZE]

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        self.memory = memory[0]
        return [Task(lambda number=number: self.work(number), f"part {number}") for number in range(self.recipe.task_count)]  # type: ignore[misc]  # mypy cannot infer a lambda's default

    def work(self, number: int) -> None:
        if self.recipe.hook is not None:
            self.recipe.hook(self.step, number)
        self.memory[number :: self.recipe.task_count] = self.step % 251

    @property
    def changes(self) -> bool:
        return self.redo > 0

    def finish(self) -> NDArray[np.uint8] | None:
        if self.redo:
            self.redo -= 1
            del self.memory
            self.recipe.let_go(self.step)
            return None
        return self.memory


def engine_of(
    recipe: Numbers, steps: int, *, threads: int = 2, prefetch: int = 2, blocks: int = 64, stall_s: float = 20
) -> Engine[NDArray[np.uint8]]:
    pool = BufferPool(blocks * (1 << 17))
    engine: Engine[NDArray[np.uint8]] = Engine(
        recipe, pool, first=0, last=steps, threads=threads, prefetch=prefetch, stall_s=stall_s
    )
    engine.start()
    return engine


def drain(engine: Engine[NDArray[np.uint8]]) -> list[int]:
    """Return the number each batch shows, having checked that it shows no other."""
    shown: list[int] = []
    while True:
        try:
            batch = engine.next()
        except StopIteration:
            return shown
        assert (batch == batch[0]).all()
        shown.append(int(batch[0]))


@settings(max_examples=25)
@given(st.integers(0, 3), st.integers(0, 5), st.integers(0, 4), st.integers(0, 12), st.integers(0, 2))
def test_every_step_comes_once_in_order(threads: int, prefetch: int, tasks: int, steps: int, redo: int) -> None:
    recipe = Numbers(tasks or 1, redo=redo)
    engine = engine_of(recipe, steps, threads=threads, prefetch=prefetch)
    try:
        assert drain(engine) == list(range(steps))
        assert recipe.begun == list(range(steps))
    finally:
        engine.close()


def test_held_batches_are_never_overwritten() -> None:
    engine = engine_of(Numbers(), 40, blocks=64)
    held = [engine.next() for _ in range(40)]
    for number, batch in enumerate(held):
        assert (batch == number).all()
    engine.close()


def test_memory_is_recycled_when_batches_are_dropped() -> None:
    engine = engine_of(Numbers(), 50, blocks=4)
    assert drain(engine) == list(range(50))
    engine.close()


@pytest.mark.parametrize("threads", [0, 2])
def test_holding_more_than_the_budget_waits_and_says_whose_memory_it_is(threads: int) -> None:
    engine = engine_of(Numbers(), 10, threads=threads, blocks=3, stall_s=0.2)
    held = [engine.next() for _ in range(3)]
    with pytest.raises(StalledError, match="still holds"):
        engine.next()
    assert [int(batch[0]) for batch in held] == [0, 1, 2]


@pytest.mark.slow
def test_a_slow_consumer_is_no_stall() -> None:
    engine = engine_of(Numbers(), 4, blocks=2, prefetch=3, stall_s=0.1)
    first = engine.next()
    other = threading.Event()
    assert not other.wait(0.4)  # the engine waits for memory far longer than stall_s, and nobody waits for it
    del first
    assert drain(engine) == [1, 2, 3]
    engine.close()


@pytest.mark.slow
def test_a_batch_in_a_reference_cycle_is_found(caplog: pytest.LogCaptureFixture) -> None:
    engine = engine_of(Numbers(), 3, blocks=2, prefetch=1)
    gc.disable()
    try:
        for number in range(3):
            with caplog.at_level(logging.WARNING, "headway"):
                knot: list[object] = [engine.next()]
            knot.append(knot)
            assert int(knot[0][0]) == number  # type: ignore[index]  # an array
            del knot
    finally:
        gc.enable()
        engine.close()
    assert "waited" in caplog.text


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_an_error_comes_in_order_with_its_traceback_and_stays(threads: int) -> None:
    def fail(step: int, number: int) -> None:
        if step == 3 and number == 1:
            raise LookupError("no such thing")

    engine = engine_of(Numbers(hook=fail), 10, threads=threads)
    assert [int(engine.next()[0]) for _ in range(3)] == [0, 1, 2]
    for _ in range(2):
        with pytest.raises(LookupError, match="no such thing") as caught:
            engine.next()
    assert any(entry.name == "fail" for entry in caught.traceback)
    assert "batch 3" in "".join(caught.value.__notes__)


def test_an_exit_in_a_thread_does_not_end_the_consumer() -> None:
    def leave(step: int, number: int) -> None:
        raise SystemExit(3)

    with pytest.raises(WorkerDied, match="SystemExit"):
        engine_of(Numbers(hook=leave), 3).next()


def test_an_error_while_planning_is_raised() -> None:
    class Bad(Numbers):
        def begin(self, step: int) -> Begun:
            raise LookupError("no plan")

    with pytest.raises(LookupError, match="no plan"):
        engine_of(Bad(), 3).next()


def test_memory_of_a_step_that_is_redone_is_not_for_later_ones() -> None:
    """The consumer keeps a batch, and there is memory for two: whoever took the other would wait for the step without."""

    class Once(Numbers):
        def begin(self, step: int) -> Begun:
            self.redo = int(step == 1)
            return super().begin(step)

        def let_go(self, step: int) -> None:
            while 2 not in self.begun:
                time.sleep(0.001)
            time.sleep(0.05)  # the next step's thread looks for memory every 2 ms

    engine = engine_of(Once(), 4, prefetch=1, blocks=2, stall_s=2)
    kept = engine.next()
    for step in range(1, 4):
        kept = engine.next()
        assert (kept == step).all()
    engine.close()


def test_a_hang_is_told_with_the_stack_and_what_was_being_done() -> None:
    release = threading.Event()

    def hang(step: int, number: int) -> None:
        if step == 1:
            release.wait(30)

    engine = engine_of(Numbers(tasks=1, hook=hang), 4, stall_s=0.2)
    try:
        engine.next()
        with pytest.raises(StalledError, match=r"batch 1: part 0[\s\S]*release\.wait"):
            engine.next()
    finally:
        release.set()


def test_less_than_two_batches_of_memory_is_refused_with_the_need() -> None:
    with pytest.raises(UsageError, match=r"memory_bytes=\d+.*two batches"):
        engine_of(Numbers(), 3, blocks=1).next()


def test_nothing_runs_ahead_of_the_prefetch() -> None:
    recipe = Numbers()
    engine = engine_of(recipe, 30, prefetch=2, threads=1)
    engine.next()
    engine.close()
    assert max(recipe.begun) <= 3


def test_closing_twice_and_asking_after_it_is_harmless() -> None:
    engine = engine_of(Numbers(), 5)
    engine.next()
    engine.close()
    engine.close()
    with pytest.raises(StopIteration):
        engine.next()

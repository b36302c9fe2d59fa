"""The engine without threads of Python's: order, leases, errors and deadlines, over work that the test controls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

import headway
from headway import DataLoader, LoaderOptions
from headway.bench.make_data import make_data
from headway.bench.workloads import workload
from headway.formats import StalledError, kernel
from headway.formats.adapters import SourceSpec
from headway.formats.packer import pack
from headway.loader.buffers import BufferPool
from headway.loader.caller_engine import CallerEngine
from headway.loader.draft import Task
from tests.loader.test_engine import drain

SIZE = 100_000
Hook = Callable[[int], None]


class Filling:
    """Work that is done at the n-th wait."""

    def __init__(self, memory: NDArray[np.uint8], step: int, waits: int, hook: Hook | None) -> None:
        self.memory, self.step, self.left, self.hook = memory, step, waits, hook

    def is_done(self) -> bool:
        return self.left == 0

    def wait(self, timeout_s: float) -> bool:
        if self.left:
            self.left -= 1
            return False
        if self.hook is not None:
            self.hook(self.step)
        self.memory[:] = self.step % 251
        return True


class Numbers:
    """A recipe whose batch n is SIZE bytes of n."""

    def __init__(self, *, waits: int = 0, redo: int = 0, hook: Hook | None = None) -> None:
        self.waits, self.redo, self.hook = waits, redo, hook
        self.begun: list[int] = []

    def begin(self, step: int) -> Begun:
        self.begun.append(step)
        return Begun(self, step)


class Begun:
    def __init__(self, recipe: Numbers, step: int) -> None:
        self.recipe, self.step, self.redo = recipe, step, recipe.redo
        self.what, self.sizes = f"batch {step}", [SIZE]

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> list[Task]:
        self.memory, recipe = memory[0], self.recipe
        return [Task(self.never, "filling", start=lambda: Filling(self.memory, self.step, recipe.waits, recipe.hook))]

    def never(self) -> None:
        raise AssertionError("what can be started is not run")

    @property
    def changes(self) -> bool:
        return self.redo > 0

    def finish(self) -> NDArray[np.uint8] | None:
        if self.redo:
            self.redo -= 1
            del self.memory
            return None
        return self.memory


def engine_of(
    recipe: Numbers, steps: int, *, prefetch: int = 2, blocks: int = 64, stall_s: float = 5
) -> CallerEngine[NDArray[np.uint8]]:
    pool = BufferPool(blocks * (1 << 17))
    engine = CallerEngine[NDArray[np.uint8]](recipe, pool, first=0, last=steps, threads=0, prefetch=prefetch, stall_s=stall_s)
    engine.start()
    return engine


@settings(max_examples=20)
@given(st.integers(0, 5), st.integers(0, 2), st.integers(0, 12), st.integers(0, 2), st.sampled_from([3, 64]))
def test_every_step_comes_once_in_order(prefetch: int, waits: int, steps: int, redo: int, blocks: int) -> None:
    recipe = Numbers(waits=waits, redo=redo)
    engine = engine_of(recipe, steps, prefetch=prefetch, blocks=blocks)
    assert drain(engine) == list(range(steps))
    assert recipe.begun == list(range(steps))


def test_no_more_steps_are_begun_than_asked_for() -> None:
    recipe = Numbers(waits=1)
    engine = engine_of(recipe, 10, prefetch=3)
    engine.next()
    assert recipe.begun == [0, 1, 2, 3]
    assert engine.ready == 0


def test_held_batches_are_never_overwritten_and_wait_for_memory_in_the_end() -> None:
    engine = engine_of(Numbers(), 40, blocks=6, stall_s=0.2)
    held = [engine.next() for _ in range(7)]  # of 104 KiB each, of 768 KiB
    with pytest.raises(StalledError, match="memory_bytes"):
        engine.next()
    for number, batch in enumerate(held):
        assert (batch == number).all()


def test_an_error_comes_with_its_own_batch_and_again() -> None:
    def fail(step: int) -> None:
        if step == 2:
            raise ValueError("no")

    engine = engine_of(Numbers(hook=fail), 10)
    assert [int(engine.next()[0]) for _ in range(2)] == [0, 1]
    for _ in range(2):
        with pytest.raises(ValueError, match="no") as caught:
            engine.next()
        assert caught.value.__notes__ == ["while making batch 2"]


def test_an_interrupt_leaves_no_batch_out_unnoticed() -> None:
    def interrupt(step: int) -> None:
        raise KeyboardInterrupt

    engine = engine_of(Numbers(hook=interrupt), 10)
    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            engine.next()


def test_work_that_makes_no_progress_is_raised() -> None:
    engine = engine_of(Numbers(waits=10**9), 10, stall_s=0.01)
    with pytest.raises(StalledError, match="no progress on batch 0"):
        engine.next()


@pytest.mark.skipif(not kernel.available(), reason="the native core is not built")
@pytest.mark.parametrize("name", ["W3", "W4"])
def test_columns_and_raw_points_are_the_same_with_and_without_looking_ahead(tmp_path: Path, name: str) -> None:
    make_data(workload(name, samples=300 if name == "W3" else 24), tmp_path / "data")
    pack(SourceSpec(kind="headway.bench.workload_source:open_source", path=str(tmp_path / "data")), tmp_path / "set")
    dataset = headway.open(tmp_path / "set")
    loaders = [
        DataLoader(dataset, 8, True, num_workers=threads, options=LoaderOptions(seed=3, prefetch=ahead))
        for threads, ahead in ((0, 0), (1, 1), (2, 4))
    ]
    for batches in zip(*loaders, strict=True):
        assert len({str(batch["state"]) for batch in batches}) == 1
        key, field = ("sample", "trajectory") if name == "W3" else ("lidar", "points")
        for batch in batches[1:]:
            assert torch.equal(batch[key][field], batches[0][key][field])
            assert torch.equal(batch["id"], batches[0]["id"])
            assert torch.equal(batch["stamp"], batches[0]["stamp"])

"""What is added to torch's loader over plain datasets: positions, wait times, a watch over long waits; nothing else changes."""

from __future__ import annotations

import gc
import inspect
import logging
import multiprocessing
import os
import pickle
import threading
import time
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader as TorchLoader
from torch.utils.data import Dataset, IterableDataset
from torch.utils.data.dataloader import _BaseDataLoaderIter

from headway import DataLoader, LoaderOptions, StateError

forks = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")  # fork after threads, which torch itself does


class Numbers(Dataset[int]):
    """Items 0 to length − 1, and which of them were loaded here."""

    def __init__(self, length: int = 11, bad: int = -1) -> None:
        self.length, self.bad, self.loaded = length, bad, list[int]()

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> int:
        if index == self.bad:
            raise LookupError(f"item {index} is bad")
        self.loaded.append(index)
        return index


class Blocked(Numbers):
    """Waits in item 2 until a file exists."""

    def __init__(self, gate: str) -> None:
        super().__init__(4)
        self.gate = gate

    def __getitem__(self, index: int) -> int:
        while index == 2 and not os.path.exists(self.gate):
            time.sleep(0.01)
        return index


class Counting(IterableDataset[int]):
    """A stream with a state of its own."""

    def __init__(self) -> None:
        self.at = 0

    def __iter__(self) -> Iterator[int]:
        while self.at < 10:
            self.at += 1
            yield self.at
        self.at = 0

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def lists(batches: Any) -> list[Any]:
    return [batch.tolist() for batch in batches]


@pytest.mark.slow
@forks
@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("seeded", [False, True])
def test_a_shuffled_epoch_and_the_next_resume_from_everywhere(workers: int, seeded: bool) -> None:
    """Lightning-AI/litData#24, NVIDIA/Megatron-Energon#79: the same with no workers and with some."""

    def make() -> DataLoader:
        generator = torch.Generator().manual_seed(5) if seeded else None
        return DataLoader(Numbers(), 3, True, num_workers=workers, generator=generator)

    torch.manual_seed(4)
    loader = make()
    iterator = iter(loader)
    states = [loader.state_dict()]
    batches = []
    for batch in iterator:
        batches.append(batch.tolist())
        states.append(loader.state_dict())
    states[-1] = loader.state_dict()  # taken behind the end: the next epoch follows
    following = lists(loader)
    expected = [batches[number:] for number in range(4)] + [following]
    for state, rest in zip(states, expected, strict=True):
        torch.manual_seed(99)
        again = make()
        again.load_state_dict(state)
        assert lists(again) == rest


def test_what_was_delivered_is_not_loaded_again() -> None:
    """huggingface/datasets#5454: resuming read everything passed over."""
    loader = DataLoader(Numbers(), 2)
    state = [loader.state_dict() for _ in zip(range(3), loader, strict=False)][-1]
    dataset = Numbers()
    again = DataLoader(dataset, 2)
    again.load_state_dict(state)
    assert lists(again) == [[6, 7], [8, 9], [10]]
    assert dataset.loaded == [6, 7, 8, 9, 10]


def test_a_state_behind_a_bad_batch_goes_on_behind_it() -> None:
    loader = DataLoader(Numbers(bad=3), 2)
    iterator = iter(loader)
    next(iterator)
    with pytest.raises(LookupError):
        next(iterator)
    assert next(iterator).tolist() == [4, 5]
    again = DataLoader(Numbers(bad=3), 2)
    again.load_state_dict(loader.state_dict())
    assert lists(again) == [[6, 7], [8, 9], [10]]


def test_a_stream_with_a_state_resumes_by_it() -> None:
    loader = DataLoader(Counting(), 2)
    iterator = iter(loader)
    next(iterator), next(iterator)
    state = loader.state_dict()
    assert state["dataset"] == {"at": 4}
    stream = Counting()
    again = DataLoader(stream, 2)
    again.load_state_dict(state)
    assert lists(again) == [[5, 6], [7, 8], [9, 10]]


@pytest.mark.skipif("in_order" not in inspect.signature(TorchLoader).parameters, reason="torch before 2.6 has no in_order")
def test_an_order_that_nothing_repeats_has_no_state() -> None:
    loader = DataLoader(Numbers(), num_workers=2, in_order=False)
    with pytest.raises(StateError, match="in_order"):
        loader.state_dict()


@pytest.mark.slow
@forks
def test_workers_that_stay_see_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    """pytorch/pytorch#73603, huggingface/datasets#6673: with persistent workers, epochs differed by run, or not at all."""
    orders: dict[bool, list[Any]] = {}
    for persistent in (True, False):
        torch.manual_seed(3)
        sampler: Any = torch.utils.data.DistributedSampler(Numbers(), num_replicas=1, rank=0)
        loader = DataLoader(Numbers(), 3, sampler=sampler, num_workers=2, persistent_workers=persistent)
        orders[persistent] = []
        for epoch in range(3):
            loader.set_epoch(epoch)
            orders[persistent].append(lists(loader))
    assert orders[True] == orders[False]
    assert orders[True][0] != orders[True][1] != orders[True][2]


@pytest.mark.slow
@forks
def test_leaving_a_loop_ends_the_workers() -> None:
    """Only the iterator holds them, as torch has it: the loader keeps none."""
    loader = DataLoader(Numbers(100), num_workers=2)
    for _ in loader:
        break
    gc.collect()
    assert not multiprocessing.active_children()


def test_iterators_are_torchs_and_pickle_as_torchs_do() -> None:
    loader = DataLoader(Numbers(), 4)
    iterator = iter(loader)
    assert isinstance(iterator, _BaseDataLoaderIter)
    assert len(iterator) == 3
    next(iterator)
    copy = pickle.loads(pickle.dumps(loader))  # noqa: S301  # our own bytes
    assert copy.state_dict()["delivered"] == 1
    assert lists(copy) == lists(TorchLoader(Numbers(), 4))


def test_loops_within_loops_are_torchs() -> None:
    def nested(kind: Any) -> list[Any]:
        torch.manual_seed(1)
        loader = kind(Numbers(5), 2, True)
        return [(outer.tolist(), [inner.tolist() for inner in loader]) for outer in loader]

    assert nested(DataLoader) == nested(TorchLoader)


@pytest.mark.parametrize("batch_size", [3, None])
def test_waits_are_counted_as_for_packed_sets(batch_size: int | None) -> None:
    loader = DataLoader(Numbers(), batch_size)
    assert loader.stats()["steps"] == 0
    list(loader)
    found = loader.stats()
    assert (found["steps"], found["samples"]) == (4 if batch_size else 11, 11)
    assert 0 < found["waited_s"] <= found["active_s"]
    assert found["bytes"] == (11 * 8 if batch_size else 0)


@pytest.mark.slow
@forks
def test_ready_batches_of_workers_are_seen() -> None:
    loader = DataLoader(Numbers(6), num_workers=1, prefetch_factor=3)
    iterator = iter(loader)
    next(iterator)
    queue = iterator._data_queue  # type: ignore[attr-defined]  # torch's
    deadline = time.monotonic() + 30
    while queue.qsize() < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    next(iterator)
    assert loader.stats()["ready"] > 0


@pytest.mark.slow
@forks
@pytest.mark.parametrize("workers", [0, 1])
def test_a_long_wait_is_told_with_stacks_and_items(workers: int, tmp_path: Any, caplog: pytest.LogCaptureFixture) -> None:
    """RolnickLab/ami-data-companion#140: the process looked healthy and made no progress."""
    gate = tmp_path / "gate"
    loader = DataLoader(Blocked(str(gate)), num_workers=workers, options=LoaderOptions(stall_s=0.2))
    received: list[Any] = []
    with caplog.at_level(logging.WARNING, "headway"):
        reader = threading.Thread(target=lambda: received.extend(lists(loader)), name="reader")
        reader.start()
        deadline = time.monotonic() + 60
        # On a busy machine a worker's start takes long enough to be told, too.
        while not (told := [text for text in caplog.messages if "items [2]" in text]) and time.monotonic() < deadline:
            time.sleep(0.02)
        gate.touch()
        reader.join(60)
    assert received == [[0], [1], [2], [3]]
    (text,) = told
    assert "waiting for a batch of Blocked" in text
    assert f"process {os.getpid()}" in text
    assert "in __getitem__" in text if workers == 0 else "from worker 0 (pid" in text


def test_the_watch_ends_with_its_iterator() -> None:
    loader = DataLoader(Numbers(), 2, options=LoaderOptions(stall_s=0.1))
    iterator = iter(loader)
    next(iterator)
    (thread,) = [thread for thread in threading.enumerate() if thread.name == "headway-watch"]
    gone = weakref.ref(iterator)
    del iterator
    gc.collect()
    assert gone() is None
    thread.join(30)
    assert not thread.is_alive()

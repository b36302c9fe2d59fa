"""Feeder processes that die, hang or outlive: what is raised, and that nothing is left. Real processes, real signals."""

from __future__ import annotations

import ctypes
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import headway
from headway import DataLoader, LoaderOptions, StalledError, Transforms, UsageError, Window, WorkerDied
from headway.formats import DecodeError

from . import transform_functions as functions
from .drives import JPEG

ROOT = Path(__file__).parents[2]
PROMISED_S = 2.0


def loader_of(location: Path, call: Any, *, processes: int = 1, **more: Any) -> DataLoader:
    options = LoaderOptions(seed=3, transforms=Transforms(sample=call, processes=processes), **more)
    return DataLoader(headway.open(location, windows=[Window("note")]), 2, num_workers=2, options=options)


def feeders(loader: DataLoader) -> list[int]:
    engine: Any = loader._packed.iterator._engine  # type: ignore[union-attr]  # under way
    return [child.process.pid for child in engine._feeder.children]


def gone(pid: int, timeout_s: float) -> bool:
    try:
        watched = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        return bool(select.select([watched], [], [], timeout_s)[0])
    finally:
        os.close(watched)


@contextmanager
def program(location: Path, start: str) -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    command = [sys.executable, "-m", "tests.loader.feeder_program", str(location), start]
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as running:
        try:
            assert running.stdout is not None
            pids = json.loads(running.stdout.readline())
            assert len(pids) == 2
            # The directory itself is everybody's: what counts is that nothing of ours is in it.
            assert not any("/dev/shm/" in Path(f"/proc/{pid}/maps").read_text() for pid in (running.pid, *pids))
            yield running, pids
        finally:
            running.kill()


@pytest.mark.parametrize(
    ("call", "how"),
    [
        (functions.killed_when_told, "was killed by SIGKILL"),
        (functions.vanish, "ended with exit code 3"),
        (functions.crash, r"was killed by SIGSEGV[\s\S]*in crash"),
        (functions.out_of_memory, "MemoryError"),
    ],
)
def test_a_dead_feeder_is_named_with_signal_and_item(drives_set: Path, call: Any, how: str) -> None:
    loader = loader_of(drives_set, call)
    batches = iter(loader)
    (pid,) = feeders(loader)
    with pytest.raises(WorkerDied, match=how) as caught:
        list(batches)
    assert f"process {pid}" in str(caught.value)
    assert "last item 7" in str(caught.value)
    with pytest.raises(WorkerDied):
        next(batches)
    assert gone(pid, 10)


def test_a_hang_is_told_with_the_stacks_of_the_process(drives_set: Path) -> None:
    with pytest.raises(StalledError, match=r"transforming batch 3, last item 7[\s\S]*in never_return"):
        list(loader_of(drives_set, functions.never_return, stall_s=0.5))


@pytest.mark.parametrize("end", ["break", "finish", "drop"])
def test_processes_end_with_their_iterator(drives_set: Path, end: str) -> None:
    loader = loader_of(drives_set, functions.name_process, processes=2)
    batches = iter(loader)
    next(batches)
    pids = feeders(loader)
    if end == "finish":
        list(batches)
    elif end == "break":
        batches._engine.close()  # type: ignore[attr-defined]  # what a break comes to
    del batches
    assert all(gone(pid, 10) for pid in pids)


def test_many_short_loops_leave_no_descriptor_and_no_thread(drives_set: Path) -> None:
    loader = loader_of(drives_set, functions.name_process)
    list(loader)
    before = len(os.listdir("/proc/self/fd")), threading.active_count()
    for _ in range(3):
        list(loader)
        next(iter(loader))
    until = time.monotonic() + 10
    while threading.active_count() > before[1] and time.monotonic() < until:
        threading.Event().wait(0.01)  # an iterator that is dropped does not wait for its thread
    assert (len(os.listdir("/proc/self/fd")), threading.active_count()) == before


def test_memory_is_recycled_within_the_budget(drives_set: Path) -> None:
    options = LoaderOptions(memory_bytes=2 << 20, transforms=Transforms(sample=functions.change_everything, processes=1))
    dataset = headway.open(drives_set, images=headway.Images("CAM_[BF]*", size=JPEG))
    loader = DataLoader(dataset, 1, num_workers=1, options=options)
    batches = iter(loader)
    file = (engine := batches._engine)._feeder.children[0]  # type: ignore[attr-defined]  # under way
    path = f"/proc/{file.process.pid}/fd"
    arena = next(
        os.path.join(path, name) for name in os.listdir(path) if "memfd:headway " in os.readlink(os.path.join(path, name))
    )
    most = 0
    for batch in batches:
        if batch["state"]["epoch"] == 0 and engine._next < 18:
            most = max(most, os.stat(arena).st_blocks * 512)
        del batch
    assert 0 < most <= 2 << 20


def test_a_batch_too_big_for_the_budget_is_refused_with_the_need(drives_set: Path) -> None:
    options = LoaderOptions(memory_bytes=1 << 18, transforms=Transforms(sample=functions.touch_nothing, processes=1))
    dataset = headway.open(drives_set, images=headway.Images("CAM_[BF]*", size=(200, 300)))
    with pytest.raises(UsageError, match="memory_bytes"):
        list(DataLoader(dataset, 2, num_workers=1, options=options))


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_faults_are_decided_and_counted_as_in_threads(broken_set: Path, tmp_path: Path, on_error: Any) -> None:
    def run(processes: int, **more: Any) -> list[tuple[list[int], list[int], list[bool]]]:
        options = LoaderOptions(seed=2, on_error=on_error, transforms=Transforms(processes=processes), **more)
        dataset = headway.open(broken_set, images=headway.Images("CAM_B*", size=JPEG))
        loader = DataLoader(dataset, 4, True, num_workers=2, options=options)
        return [(batch["id"].tolist(), batch["replaced"].tolist(), batch["valid"].tolist()) for batch in loader]

    assert run(2, quarantine=tmp_path / "processes") == run(0, quarantine=tmp_path / "threads")
    lines = [sorted((tmp_path / name).read_text().splitlines()) for name in ("processes", "threads")]
    assert lines[0] == lines[1]
    with pytest.raises(DecodeError, match="max_bad allows 1"):
        run(2, max_bad=1)


@pytest.mark.slow
def test_a_killed_parent_takes_its_processes_along(drives_set: Path) -> None:
    with program(drives_set, "fork") as (running, pids):
        running.kill()
        assert all(gone(pid, 20) for pid in pids)


@pytest.mark.slow
def test_a_signal_ends_everything(drives_set: Path) -> None:
    with program(drives_set, "fork") as (running, pids):
        running.terminate()
        assert running.wait(20) != 0
        assert all(gone(pid, 20) for pid in pids)


@pytest.mark.full
@pytest.mark.timeout(1800)
def test_deaths_are_noticed_as_fast_as_promised(drives_set: Path) -> None:
    for round_number in range(100):
        loader = loader_of(drives_set, functions.name_process, processes=1 + round_number % 3, prefetch=0)
        batches = iter(loader)
        next(batches)
        pids = feeders(loader)
        started = time.monotonic()
        for pid in pids:
            os.kill(pid, (signal.SIGKILL, signal.SIGSEGV, signal.SIGBUS)[round_number % 3])
        with pytest.raises(WorkerDied):
            list(batches)
        assert time.monotonic() - started <= PROMISED_S


@pytest.mark.full
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("start", ["fork", "spawn", "forkserver"])
def test_ends_are_as_fast_as_promised(drives_set: Path, start: str) -> None:
    for signum, allowed_s in ((signal.SIGKILL, PROMISED_S), (signal.SIGTERM, 5.0), (signal.SIGINT, 5.0)) * 3:
        with program(drives_set, start) as (running, pids):
            started = time.monotonic()
            running.send_signal(signum)
            assert all(gone(pid, 30) for pid in pids)
            running.wait(30)
            assert time.monotonic() - started <= allowed_s


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")  # the end is what is tested
def test_a_decode_thread_that_ends_is_noticed(drives_set: Path) -> None:
    loader = DataLoader(headway.open(drives_set, windows=[Window("note")]), 2, num_workers=1, options=LoaderOptions(prefetch=0))
    batches = iter(loader)
    next(batches)
    for thread in batches._engine._threads:  # type: ignore[attr-defined]  # under way
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(SystemExit))
    with pytest.raises(WorkerDied, match="headway-decode-0"):
        list(batches)

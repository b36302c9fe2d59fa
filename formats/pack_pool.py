"""Pack workers in processes: tasks out, results back, progress and cancelling through two shared words.

A worker that dies, however it dies, ends the whole run with `WorkerDied`. Workers die with their parent.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from multiprocessing import get_context
from typing import Any, Final

from .errors import WorkerDied
from .pack_worker import PackedShards, ShardTask, pack_shard
from .source import Source

__all__ = ["run_tasks"]

_PR_SET_PDEATHSIG: Final = 1
# How often the progress display is fed; it has no influence on the work.
_POLL_S: Final = 0.2

# Bytes done, a slot per task, and the cancel word. Plain memory without locks: a worker killed while it held one would hang
# all others. Each slot has one writer. Set once per worker process. Any: ctypes arrays have no useful public type.
_shared: tuple[Any, Any] | None = None


def run_tasks(
    tasks: Sequence[ShardTask], workers: int, advance: Callable[[int], None], source: Source
) -> Generator[tuple[int, PackedShards], None, None]:
    """Yield the number and result of each task as it comes, in no particular order; one worker means this process.

    Raises:
        WorkerDied: a worker process ended; whatever an exception in a worker was, otherwise.
    """
    if workers <= 1 or len(tasks) <= 1:
        for task in tasks:
            yield task.number, pack_shard(task, advance, source)
        return
    # spawn: forking a process with threads (progress display, BLAS) can deadlock in the child.
    context = get_context("spawn")
    done, cancelled = context.RawArray("q", len(tasks)), context.RawValue("b", 0)
    pool = ProcessPoolExecutor(
        min(workers, len(tasks)), mp_context=context, initializer=_start, initargs=(done, cancelled, os.getpid())
    )
    try:
        seen = 0
        for result in _in_flight(pool, tasks, 2 * workers):
            seen, before = sum(done), seen
            if seen != before:
                advance(seen - before)
            if result is not None:
                yield result.result()
    except BrokenProcessPool as error:
        raise WorkerDied(
            "cannot pack: a pack worker ended without having been asked to (killed, or out of memory); nothing was published. "
            "Use fewer workers or smaller shards, and run again"
        ) from error
    finally:
        cancelled.value = 1
        pool.shutdown(wait=True, cancel_futures=True)


def _in_flight(
    pool: ProcessPoolExecutor, tasks: Sequence[ShardTask], most: int
) -> Iterator[Future[tuple[int, PackedShards]] | None]:
    """Finished futures, and None from time to time; few tasks are in flight at once, so that an error ends the rest soon."""
    waiting, running = iter(enumerate(tasks)), set[Future[tuple[int, PackedShards]]]()
    while True:
        for at, task in waiting:
            with _interrupts_held():
                running.add(pool.submit(_work, at, task))
            if len(running) >= most:
                break
        if not running:
            return
        finished = wait(running, timeout=_POLL_S, return_when=FIRST_COMPLETED).done
        running -= finished
        yield from finished or (None,)


@contextmanager
def _interrupts_held() -> Iterator[None]:
    """Hold Ctrl-C and SIGTERM back while processes start, so that none is left half told what to do.

    The new processes inherit that Ctrl-C is blocked: it reaches the whole group, and they would print a traceback each if it
    came before `_start` has run. A mask does not protect this process, whose other threads may take the signal.
    """
    held: list[int] = []
    handlers = {}
    if threading.current_thread() is threading.main_thread():  # no other may set handlers
        for number in (signal.SIGINT, signal.SIGTERM):
            if signal.getsignal(number) is not None:  # None: not set from Python, and could not be put back
                handlers[number] = signal.signal(number, lambda number, frame: held.append(number))
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        for number, handler in handlers.items():
            signal.signal(number, handler)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        for received in held[:1]:
            signal.raise_signal(received)


def _start(done: Any, cancelled: Any, parent: int) -> None:
    """Prepare a worker process of process `parent`."""
    global _shared
    _shared = done, cancelled
    # An interrupt at the terminal reaches the whole group; the parent decides, and cancels the workers itself.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died while this process started: no signal will come, nor will a task
        os._exit(1)


def _work(at: int, task: ShardTask) -> tuple[int, PackedShards]:
    assert _shared is not None
    done, cancelled = _shared

    def advance(amount: int) -> None:
        if cancelled.value:
            raise KeyboardInterrupt
        done[at] += amount

    return task.number, pack_shard(task, advance)

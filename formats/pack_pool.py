"""Pack workers in processes: tasks out, results back, progress and cancelling through two shared words.

`run_tasks` has as many workers as it is told; `run_adaptively` packs here, and starts workers once they pay. A worker that
dies, however it dies, ends the whole run with `WorkerDied`. Workers die with their parent.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import ExitStack, closing, contextmanager
from multiprocessing import get_context
from typing import Any, Final

from .errors import WorkerDied
from .pack_worker import PackedShards, ShardTask, pack_in_turn, pack_shard
from .parent_death import die_with_parent
from .source import Source

__all__ = ["run_adaptively", "run_tasks"]

# How often the progress display is fed; it has no influence on the work.
_POLL_S: Final = 0.2

# Work of this process that is worth starting others: each costs half a second of a core before it packs its first byte.
_WORTH_S: Final = 5.0

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
    with _Pool(workers, len(tasks), advance) as pool:
        waiting = deque(tasks)
        while pool.busy or waiting:
            pool.fill(waiting)
            yield from pool.finished(timeout_s=_POLL_S)


def run_adaptively(
    tasks: Sequence[ShardTask], most: int, advance: Callable[[int], None], source: Source
) -> Generator[tuple[int, PackedShards], None, None]:
    """Yield as `run_tasks` does. This process packs; up to `most` − 1 more join it if what is left would take it long."""
    waiting, started = deque(tasks), time.monotonic()
    with ExitStack() as stack, closing(pack_in_turn(_taken(waiting), advance, source)) as here:
        pool: _Pool | None = None
        for done, result in enumerate(here, 1):
            yield result
            left_s = len(waiting) * (time.monotonic() - started) / (done + 1)  # one more is read already
            if pool is None and most > 1 and left_s > _WORTH_S:
                pool = stack.enter_context(_Pool(most - 1, len(tasks), advance))
            if pool is not None:
                pool.fill(waiting)
                yield from pool.finished(timeout_s=0)
        while pool is not None and (pool.busy or waiting):
            pool.fill(waiting)
            yield from pool.finished(timeout_s=_POLL_S)


def _taken(waiting: deque[ShardTask]) -> Iterator[ShardTask]:
    while waiting:
        yield waiting.popleft()


class _Pool:
    """Worker processes, with few tasks in flight at once, so that an error ends the rest soon."""

    def __init__(self, workers: int, tasks: int, advance: Callable[[int], None]) -> None:
        # spawn: forking a process with threads (progress display, BLAS) can deadlock in the child.
        context = get_context("spawn")
        self._workers = min(workers, tasks)
        self._advance = advance
        self._done, self._cancelled = context.RawArray("q", tasks), context.RawValue("b", 0)
        self._seen = 0
        self._slots = iter(range(tasks))
        self._running: set[Future[tuple[int, PackedShards]]] = set()
        self._executor = ProcessPoolExecutor(
            self._workers, mp_context=context, initializer=_start, initargs=(self._done, self._cancelled, os.getpid())
        )

    @property
    def busy(self) -> bool:
        """Whether a task has not come back."""
        return bool(self._running)

    def fill(self, waiting: deque[ShardTask]) -> None:
        """Take tasks until every worker has one and another is ready for it."""
        while waiting and len(self._running) < 2 * self._workers:
            with _interrupts_held(), _deaths_told():
                self._running.add(self._executor.submit(_work, next(self._slots), waiting.popleft()))

    def finished(self, *, timeout_s: float) -> Iterator[tuple[int, PackedShards]]:
        """Yield what came back, after waiting at most `timeout_s` for it, and tell of progress."""
        found = wait(self._running, timeout=timeout_s, return_when=FIRST_COMPLETED).done
        self._running -= found
        seen, self._seen = self._seen, sum(self._done)
        if self._seen != seen:
            self._advance(self._seen - seen)
        with _deaths_told():
            for future in found:
                yield future.result()

    def __enter__(self) -> _Pool:
        return self

    def __exit__(self, *error: object) -> None:
        self._cancelled.value = 1
        self._executor.shutdown(wait=True, cancel_futures=True)


@contextmanager
def _deaths_told() -> Iterator[None]:
    try:
        yield
    except BrokenProcessPool as error:
        raise WorkerDied(
            "cannot pack: a pack worker ended without having been asked to (killed, or out of memory); nothing was published. "
            "Use fewer workers or smaller shards, and run again"
        ) from error


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
    die_with_parent(parent)


def _work(at: int, task: ShardTask) -> tuple[int, PackedShards]:
    assert _shared is not None
    done, cancelled = _shared

    def advance(amount: int) -> None:
        if cancelled.value:
            raise KeyboardInterrupt
        done[at] += amount

    return task.number, pack_shard(task, advance)

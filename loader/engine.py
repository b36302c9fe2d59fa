"""Batches ahead of the consumer: steps are planned in order, worked on in any order by a few threads, delivered in order.

Threads live in the caller's process from `start` to `close`. There is one lock; whoever holds it only looks at or changes
the list of open steps, and work is done outside it. The consumer's wait has a deadline that every finished task pushes
back; when it passes, the error says what every thread was doing.
"""

from __future__ import annotations

import atexit
import gc
import logging
import os
import sys
import threading
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Generic, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..formats import StalledError, UsageError, WorkerDied
from .buffers import POLL_S, SMALL_BYTES, BufferPool, block_bytes
from .cores import Claim
from .draft import Task, Work
from .stall import Stage, Trail, now_ns

__all__ = ["Begun", "Engine", "Recipe", "Step"]

log = logging.getLogger("headway")
B_co = TypeVar("B_co", covariant=True)
B = TypeVar("B")

_FIRST_WORD_S: Final = 2.0
_JOIN_S: Final = 5.0


class Begun(Protocol[B_co]):
    """One step between plan and delivery; used by one thread at a time, its tasks by any."""

    @property
    def what(self) -> str:
        """Which batch this is, for messages."""
        ...

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece of batch memory that the step needs."""
        ...

    @property
    def changes(self) -> bool:
        """After all tasks: whether `finish` will let go of the memory, and the step is to be redone."""
        ...

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> Sequence[Task]:
        """Return the work, given memory of `sizes`."""
        ...

    def finish(self) -> B_co | None:
        """After all tasks: return the batch, or None if the step has changed (a sample was replaced) and is to be redone."""
        ...


class Recipe(Protocol[B_co]):
    """What is to be made; called by one thread at a time, step by step."""

    def begin(self, step: int) -> Begun[B_co]:
        """Plan a step: which rows, how much memory. Reads columns, no payloads."""
        ...


@dataclass(slots=True, eq=False)
class Step(Generic[B]):
    """A step that was begun and not yet handed out."""

    number: int
    tasks: deque[Task] = field(default_factory=deque)
    left: int = 0
    """Tasks not yet finished; guarded by the engine's lock."""
    begun: Begun[B] | None = None
    batch: B | None = None
    error: BaseException | None = None
    done: bool = False
    waits_for_memory: str = ""
    is_redone: bool = False
    """It has let go of its memory, or is about to, and needs as much again: nothing for later steps until it has it."""
    trail: Trail = field(default_factory=Trail)
    submitted_ns: int = 0
    """When its tasks could first be worked on."""
    works: list[tuple[Task, Work]] = field(default_factory=list)
    """Tasks that native threads are at (`CallerEngine`)."""


class Engine(Generic[B]):
    """Makes steps `first` to `last` (exclusive) of a recipe and hands them out one by one.

    With `threads` 0 each batch is made by the caller when it asks. Not to be shared by several consumers.
    """

    def __init__(
        self,
        recipe: Recipe[B],
        pool: BufferPool,
        *,
        first: int,
        last: int,
        threads: int,
        prefetch: int,
        stall_s: float,
        claim: Claim | None = None,
        trail: Callable[[], Trail] = Trail,
        is_here: Callable[[int], bool] | None = None,
    ) -> None:
        self._is_here = is_here
        """Whether a step may be begun, as what it reads is here; None: always. Who knows better calls `wake`."""
        self._trail = trail
        self.trail: Trail | None = None
        """What was done on the batch that `next` returned last."""
        self._recipe, self._pool = recipe, pool
        self._next, self._last = first, last
        self.prefetch, self._stall_s = prefetch, stall_s
        """Steps to have open beyond the one asked for; may be changed at any time."""
        self._threads_wanted, self._claim = threads, claim
        # An RLock: the consumer's iterator may be finalised, and close us, in a thread that holds it.
        lock = threading.RLock()
        self._changed = threading.Condition(lock)  # the consumer waits here
        # The threads wait here. All are woken, as any but one may be beyond what this loader may use; a batch done wakes none.
        self._has_work = threading.Condition(lock)
        self._steps: deque[Step[B]] = deque()
        self._planned: Begun[B] | None = None  # looked up, and without memory so far (`CallerEngine`)
        self._planning = False
        self._waiting = False
        self._closed = False
        self._failed: BaseException | None = None
        self._progress = 0  # counts finished tasks; guarded by the lock
        self._threads: list[threading.Thread] = []
        self._doing: dict[int, str] = {}
        self._pid = os.getpid()

    @property
    def ready(self) -> int:
        """Batches that could be handed out without waiting."""
        with self._changed:
            return sum(step.done for step in self._steps)

    def awaited(self) -> Stage:
        """Return what the batch that is to be handed out next is in."""
        with self._changed:
            if not self._steps and self._is_here is not None and not self._is_here(self._next):
                return "store"
            return self._steps[0].trail.now if self._steps else "plan"

    def wake(self) -> None:
        """Look again whether the next step may be begun."""
        with self._changed:
            self._progress += 1
            self._has_work.notify_all()

    def values(self) -> dict[str, float]:
        """Return what is held now, by its name in `metrics`."""
        pool = self._pool
        return {
            "memory_bytes": float(pool.budget_bytes),
            "memory_held_bytes": float(pool.held_bytes),
            "memory_leased_bytes": float(pool.leased_bytes),
        }

    @property
    def has_failed(self) -> bool:
        """Whether every later `next` raises."""
        return self._failed is not None

    def start(self) -> None:
        """Start the threads."""
        _live.add(self)
        for number in range(self._threads_wanted):
            thread = threading.Thread(target=self._work, args=(number,), name=f"headway-decode-{number}", daemon=True)
            self._threads.append(thread)
            thread.start()

    def next(self) -> B:
        """Return the next batch in order; StopIteration after the last.

        An error met while making it is raised here, with its own traceback; it ends the engine, and is raised again by
        every later call, because what follows is not known to be what was planned.
        """
        if self._failed is not None:
            raise self._failed
        if os.getpid() != self._pid:
            raise WorkerDied(
                "this iterator came here by a fork, and its threads did not; make a new one in this process: iter(loader)"
            )
        if self._closed or (self._next >= self._last and not self._steps):
            raise StopIteration
        try:
            step = self._in_caller() if not self._threads_wanted else self._head()
        except (StalledError, WorkerDied) as error:
            self._failed = error
            self.close(wait=False)  # whoever stalls does not come when called
            _live.discard(self)
            raise
        if step.error is not None:
            self._failed = step.error
            if not isinstance(step.error, Exception):  # a SystemExit in there must not end the consumer
                self._failed = WorkerDied(f"a decode thread was told to end by {step.error!r} while making batch {step.number}")
                self._failed.__cause__ = step.error
            self.close()
            raise self._failed
        assert step.batch is not None
        self.trail = step.trail
        return step.batch

    def close(self, *, wait: bool = True) -> None:
        """End the threads and let go of everything not yet handed out; harmless when repeated.

        With wait=False (finalisers) threads end by themselves after the task they are in.
        """
        if os.getpid() != self._pid:
            return  # a forked child has the object, and none of the threads
        with self._changed:
            self._closed = True
            self._steps.clear()
            self._changed.notify_all()
            self._has_work.notify_all()
        if self._claim is not None:
            self._claim.end()
        if wait:
            for thread in self._threads:
                if thread is not threading.current_thread():
                    thread.join(_JOIN_S)
            _live.discard(self)  # else its threads are joined at exit

    def _head(self) -> Step[B]:
        """Wait for the first open step to be done and take it."""
        started = last = time.monotonic()
        slice_s = min(1.0, self._stall_s / 4)
        idle_s, progress, warned = 0.0, self._progress, False
        with self._changed:
            self._waiting = True
            self._has_work.notify_all()
            try:
                while not (self._steps and self._steps[0].done):
                    self._changed.wait(slice_s)
                    # A process that was stopped for an hour has not waited for an hour.
                    now = time.monotonic()
                    idle_s, last = idle_s + min(now - last, 2 * slice_s), now
                    if progress != self._progress:
                        idle_s, progress = 0.0, self._progress
                    blocked = self._steps[0].waits_for_memory if self._steps else ""
                    if idle_s > _FIRST_WORD_S and not warned and blocked:
                        warned = True
                        gc.collect()  # a batch caught in a reference cycle is free memory nobody has noticed
                        log.warning("headway: %s", self._pool.why(blocked, now - started))
                    ended = [thread.name for thread in self._threads if not thread.is_alive()]
                    if ended and not (self._steps and self._steps[0].done):
                        raise WorkerDied(f"{', '.join(ended)} ended unasked while batch {self._awaited()} was waited for")
                    if idle_s > self._stall_s:
                        raise StalledError(self._stalled(now - started))
            finally:
                self._waiting = False
            step = self._steps.popleft()
            self._has_work.notify_all()
        return step

    def _in_caller(self) -> Step[B]:
        step: Step[B] = Step(self._next, trail=self._trail())
        self._next += 1
        try:
            step.trail.begin("plan")
            begun = self._recipe.begin(step.number)
            step.trail.end()
            while step.batch is None:
                self._check_budget(begun)
                step.trail.begin("memory")
                memory = self._try_lease(begun) or self._lease(begun, timeout_s=self._stall_s)
                step.trail.end()
                tasks = deque(begun.tasks(memory))
                del memory
                while tasks:  # no name of a task outlives it: a step that is redone needs the memory
                    step.trail.begin(tasks[0].stage)
                    tasks.popleft().run()
                    step.trail.end()
                step.trail.begin("assemble")
                step.batch = begun.finish()
                step.trail.end()
        except StalledError:
            raise
        except Exception as error:
            error.add_note(f"while making batch {step.number}")
            step.error = error
        except BaseException as error:  # Ctrl-C: who asks again must not get the batch after this one
            self._failed = error
            self.close(wait=False)
            raise
        return step

    def _work(self, number: int) -> None:
        me = threading.get_ident()
        while True:
            with self._changed:
                while (picked := self._pick(number)) is None:
                    if self._closed:
                        return
                    self._has_work.wait()
            step, task = picked
            try:
                if task is None:
                    self._doing[me] = f"planning batch {step.number}"
                    self._begin(step)
                else:
                    self._doing[me] = f"batch {step.number}: {task.what}"
                    step.trail.begin(task.stage, step.submitted_ns)
                    task.run()
                    step.trail.end()
            except BaseException as error:  # whatever it is, the consumer gets it
                self._fail(step, error)
            self._doing.pop(me, None)
            is_task = task is not None
            # A thread that waits must not keep a batch alive, nor one that redoes a step its first attempt: the memory would
            # not come back.
            del task, picked
            if is_task:
                self._task_done(step)
            del step

    def _pick(self, number: int) -> tuple[Step[B], Task | None] | None:
        """Return a task of the earliest step that has one, else a step to plan, for a thread; the caller holds the lock."""
        if self._closed or (self._claim is not None and number >= self._claim.allowed()):
            return None
        for step in self._steps:
            if step.tasks:
                return step, step.tasks.popleft()
        room = self.prefetch + self._waiting
        is_open = not self._planning and self._next < self._last and len(self._steps) < room
        if is_open and (self._is_here is None or self._is_here(self._next)):
            self._planning = True
            step = Step(self._next, trail=self._trail())
            self._next += 1
            self._steps.append(step)
            return step, None
        return None

    def _begin(self, step: Step[B]) -> None:
        try:
            step.trail.begin("plan")
            step.begun = self._recipe.begin(step.number)
            step.trail.end()
            # Memory is given out in the order of the plan: a later batch that took the last of it would wait for this one.
            memory = self._memory(step)
        finally:
            with self._changed:
                self._planning = False
                self._has_work.notify_all()
        self._submit(step, memory)

    def _memory(self, step: Step[B]) -> list[NDArray[np.uint8]]:
        begun = step.begun
        assert begun is not None
        self._check_budget(begun)
        step.trail.begin("memory")
        while (memory := self._in_turn(step)) is None:
            step.waits_for_memory = begun.what
            time.sleep(POLL_S)
        step.waits_for_memory = ""
        step.trail.end()
        return memory

    def _in_turn(self, step: Step[B]) -> list[NDArray[np.uint8]] | None:
        """Return memory for a step if there is some that no earlier one is waiting for; empty if we are closed."""
        with self._changed:
            if self._closed:
                return []
            if any(earlier.is_redone for earlier in self._steps if earlier.number < step.number):
                return None
            assert step.begun is not None
            memory = self._try_lease(step.begun)
            step.is_redone = step.is_redone and memory is None
            return memory

    def _submit(self, step: Step[B], memory: list[NDArray[np.uint8]]) -> None:
        if self._closed:
            return
        assert step.begun is not None
        tasks = step.begun.tasks(memory)
        memory.clear()  # from here on only the batch itself keeps it
        quick = deque(task for task in tasks if task.is_quick)
        step.submitted_ns = now_ns()
        with self._changed:
            step.tasks.extend(task for task in tasks if not task.is_quick)
            step.left = len(step.tasks) + 1  # + 1: this call, so that a step without tasks is finished, too
            self._has_work.notify_all()
        del tasks
        if quick:
            step.trail.begin("assemble")
            while quick:
                quick.popleft().run()
            step.trail.end()
        self._task_done(step)

    def _task_done(self, step: Step[B]) -> None:
        with self._changed:
            self._progress += 1
            step.left -= 1
            if step.left or step.done:
                return
            step.is_redone = step.begun is not None and step.begun.changes
        try:
            assert step.begun is not None
            step.trail.begin("assemble")
            batch = step.begun.finish()
            step.trail.end()
            if batch is None:
                self._submit(step, self._memory(step))
                return
        except BaseException as error:  # whatever it is, the consumer gets it
            self._fail(step, error)
            return
        with self._changed:
            step.batch, step.begun = batch, None
            step.done = True
            self._changed.notify_all()

    def _fail(self, step: Step[B], error: BaseException) -> None:
        error.add_note(f"while making batch {step.number} in thread {threading.current_thread().name}")
        with self._changed:
            if step.error is None:
                step.error = error
            step.tasks.clear()
            step.done = True
            self._next = self._last  # nothing after a failed batch is handed out
            self._changed.notify_all()

    def _try_lease(self, begun: Begun[B]) -> list[NDArray[np.uint8]] | None:
        """Return memory of the step's sizes, big pieces from the pool, small ones from malloc; None: there is none now."""
        leased = self._pool.try_lease([size for size in begun.sizes if size > SMALL_BYTES])
        return None if leased is None else _with_small(begun.sizes, leased)

    def _lease(self, begun: Begun[B], *, timeout_s: float) -> list[NDArray[np.uint8]]:
        """Return the same, all pieces at once, when there is enough; empty if we are closed meanwhile."""
        big = [size for size in begun.sizes if size > SMALL_BYTES]
        leased = self._pool.lease(big, what=begun.what, timeout_s=timeout_s, cancelled=lambda: self._closed)
        return [] if len(leased) < len(big) else _with_small(begun.sizes, leased)

    def _check_budget(self, begun: Begun[B]) -> None:
        if 4 * sum(begun.sizes) <= self._pool.budget_bytes:
            return  # far below, whatever a block is larger than what it serves
        need = 2 * sum(block_bytes(size) for size in begun.sizes if size > SMALL_BYTES)
        if need > self._pool.budget_bytes:
            raise UsageError(
                f"{begun.what}: memory_bytes={self._pool.budget_bytes} does not hold two batches, which take {need} bytes; "
                f"set LoaderOptions(memory_bytes={need}) or more, or make batch_size or the images smaller"
            )

    def _awaited(self) -> int:
        """Return the number of the batch that is to be handed out next."""
        return self._steps[0].number if self._steps else self._next

    def _stalled(self, waited: float) -> str:
        head = self._steps[0] if self._steps else None
        if head is not None and head.waits_for_memory:
            return self._pool.why(head.waits_for_memory, waited)
        frames = sys._current_frames()
        doing = [
            f"  {thread.name}: {self._doing.get(thread.ident or 0, 'waiting for work')}\n"
            + "".join(traceback.format_stack(frames[thread.ident]) if thread.ident in frames else ["    (ended)\n"])
            for thread in self._threads
        ]
        return (
            f"no progress on batch {self._awaited()} for {self._stall_s:g} s "
            f"(asked for {waited:.0f} s ago); the storage or a decoder hangs; raise LoaderOptions.stall_s if it is only slow. "
            "Threads:\n" + "".join(doing)
        )


def _with_small(sizes: Sequence[int], big: Sequence[NDArray[np.uint8]]) -> list[NDArray[np.uint8]]:
    pieces = iter(big)
    return [next(pieces) if size > SMALL_BYTES else np.empty(size, np.uint8) for size in sizes]


_live: weakref.WeakSet[Engine[Any]] = weakref.WeakSet()  # Any: engines of whatever


@atexit.register
def _close_all() -> None:
    """Join all threads before the interpreter goes: one that comes back from C code afterwards would crash it."""
    for engine in list(_live):
        engine.close()

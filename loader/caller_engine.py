"""The engine for steps that are native work only: no thread of Python's, and one call a step into the native core.

The consumer's own thread plans the coming steps and hands each one's work to the native threads, which are at it while the
consumer is at its own; by the time it asks again, the next batch is usually there. Planning a step takes less time than handing
it from one Python thread to another would. Order, errors and deadlines are those of `Engine`.
"""

from __future__ import annotations

import gc
import logging
import time
from collections.abc import Sequence
from typing import Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..formats import StalledError
from .draft import Task, Work
from .engine import Begun, Engine, Step

__all__ = ["CallerEngine"]

log = logging.getLogger("headway")
B = TypeVar("B")

_FIRST_WORD_S: Final = 2.0
_SLICE_S: Final = 1.0


class CallerEngine(Engine[B], Generic[B]):
    """Makes steps in the caller, with native threads ahead of it; `Engine` with 0 threads is the same without looking ahead."""

    @property
    def ready(self) -> int:
        """Batches that could be handed out without waiting."""
        count = 0
        for step in self._steps:
            for _, work in step.works:
                if not work.is_done():
                    return count
            count += 1
        return count

    def _in_caller(self) -> Step[B]:
        steps = self._steps
        while self._next < self._last and len(steps) <= self.prefetch and self._begin_next():
            pass
        step = steps[0]
        try:
            if step.error is None:
                self._finish(step)
        except StalledError:
            raise
        except Exception as error:
            self._note(step, error)
        except BaseException as error:
            # Ctrl-C, say: half a batch cannot be gone on with, and leaving it out would go unnoticed.
            self._failed = error
            self.close(wait=False)
            raise
        steps.popleft()
        return step

    def _begin_next(self) -> bool:
        """Plan a step and start its work; False where that has to wait until something is handed out."""
        step: Step[B] = Step(self._next, trail=self._trail())
        try:
            if self._planned is None:
                step.trail.begin("plan")
                self._planned = self._recipe.begin(step.number)
                step.trail.end()
            step.begun = self._planned
            self._check_budget(step.begun)
            step.trail.begin("memory")
            memory = self._try_lease(step.begun)
            if memory is None:
                if self._steps:
                    step.trail.drop()
                    return False
                memory = self._wait_for_memory(step.begun)
            step.trail.end()
            self._start_work(step, step.begun.tasks(memory))
        except StalledError:
            raise
        except Exception as error:
            self._note(step, error)
        self._planned = None
        self._next = self._last if step.error is not None else self._next + 1
        self._steps.append(step)
        return True

    def _start_work(self, step: Step[B], tasks: Sequence[Task]) -> None:
        step.works = [(task, task.start()) for task in tasks if task.start is not None]
        for task in tasks:
            if task.start is None:
                step.trail.begin(task.stage)
                task.run()
                step.trail.end()

    def _finish(self, step: Step[B]) -> None:
        assert step.begun is not None
        while True:
            self._wait(step)
            step.trail.begin("assemble")
            step.batch = step.begun.finish()
            step.trail.end()
            if step.batch is not None:
                step.begun = None
                return
            # Nothing here may keep the memory of the first attempt: there may be no other.
            self._start_work(step, step.begun.tasks(self._try_lease(step.begun) or self._wait_for_memory(step.begun)))

    def _wait(self, step: Step[B]) -> None:
        """Wait for all work on a step, and forget it."""
        for task, work in step.works:
            step.trail.begin(task.stage)
            self._wait_for(step, work)
            step.trail.end()
        step.works = []

    def _wait_for(self, step: Step[B], work: Work) -> None:
        waited = 0.0
        slice_s = min(_SLICE_S, self._stall_s)
        while not work.wait(slice_s):
            waited += slice_s  # not by the clock: a process that was stopped for an hour has not waited for an hour
            if waited >= self._stall_s:
                raise StalledError(
                    f"no progress on batch {step.number} for {self._stall_s:g} s: the storage hangs under its mapped files; "
                    "raise LoaderOptions.stall_s if it is only slow"
                )

    def _wait_for_memory(self, begun: Begun[B]) -> list[NDArray[np.uint8]]:
        """Return memory when there is enough again, having said so after a while."""
        started = time.monotonic()
        try:
            return self._lease(begun, timeout_s=min(_FIRST_WORD_S, self._stall_s))
        except StalledError:
            if self._stall_s <= _FIRST_WORD_S:
                raise
        gc.collect()  # a batch caught in a reference cycle is free memory nobody has noticed
        log.warning("headway: %s", self._pool.why(begun.what, time.monotonic() - started))
        return self._lease(begun, timeout_s=self._stall_s - _FIRST_WORD_S)

    def _note(self, step: Step[B], error: Exception) -> None:
        error.add_note(f"while making batch {step.number}")
        step.error = error

"""A thread that does one kind of work on batches of bytes, in the order they come, a bounded number of bytes behind."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence

__all__ = ["Lane"]

Batch = Sequence[memoryview]


class Lane:
    """`add` hands over a batch, `drain` waits for all; either raises what went wrong in the work. `stop` ends the thread."""

    def __init__(self, work: Callable[[Batch], None], *, most_bytes: int) -> None:
        self._work = work
        self._most = most_bytes
        # One lock guards all that follows.
        self._changed = threading.Condition()
        self._waiting: deque[tuple[Batch, int]] = deque()
        self._bytes = 0
        self._error: BaseException | None = None
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="headway-write", daemon=True)
        self._thread.start()

    def add(self, batch: Batch, size: int) -> None:
        """Hand over a batch of `size` bytes, waiting while too many are behind."""
        with self._changed:
            while self._bytes > self._most and self._error is None:
                self._changed.wait()
            self._raise()
            self._waiting.append((batch, size))
            self._bytes += size
            self._changed.notify_all()

    def drain(self) -> None:
        """Return when everything handed over is done."""
        with self._changed:
            while self._bytes and self._error is None:
                self._changed.wait()
            self._raise()

    def stop(self) -> None:
        """Drop what is not begun and end the thread; a second call does nothing."""
        with self._changed:
            self._stopped = True
            self._waiting.clear()
            self._changed.notify_all()
        self._thread.join()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        while True:
            with self._changed:
                while not self._waiting and not self._stopped:
                    self._changed.wait()
                if self._stopped:
                    return
                batch, size = self._waiting.popleft()
            try:
                self._work(batch)
            except BaseException as error:  # whatever it is, it belongs to whoever handed the batch over
                with self._changed:
                    self._error = error
                    self._changed.notify_all()
                return
            with self._changed:
                self._bytes -= size
                self._changed.notify_all()

"""Forks while no thread of ours is inside OpenCV.

OpenCV takes a lock of its own whenever a thread uses it for the first time, and again when such a thread ends, which is after
Python counts it as joined. A process forked in between has that lock taken and no thread that would give it back: its first
picture never comes. So every fork of this process, whoever asks for it (feeder processes, torch's workers, a user's own), waits
for the pictures being decoded, and for threads that have decoded some and are ending.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from typing import Final

__all__ = ["ForkGate", "gate"]

_PATIENCE_S: Final = 2.0
"""A picture takes milliseconds. Whoever takes longer is not waited for: a fork that may go wrong is better than none."""


class ForkGate:
    """Held open by those who decode, shut by who forks; both may be in several threads at once."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._inside = 0
        self._shut = 0
        self._users: set[int] = set()  # threads of the system that have been inside
        self._own = threading.local()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Be in a library that must not be forked."""
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._inside += 1
            if not hasattr(self._own, "thread"):
                self._own.thread = threading.get_native_id()
                self._users = {self._own.thread, *filter(_exists, self._users)}
        try:
            yield
        finally:
            with self._changed:
                self._inside -= 1
                if self._shut:
                    self._changed.notify_all()

    def shut(self) -> None:
        """Wait until nobody is inside or on the way out, and let nobody in; `_PATIENCE_S` at most."""
        until = time.monotonic() + _PATIENCE_S
        with self._changed:
            self._shut += 1
            self._changed.wait_for(lambda: not self._inside, _PATIENCE_S)
            alive = {thread.native_id for thread in threading.enumerate()}
            ending = [thread for thread in self._users if thread not in alive]
            self._users.difference_update(ending)
        for thread in ending:
            while _exists(thread) and time.monotonic() < until:
                time.sleep(0)

    def open(self) -> None:
        """Let them in again."""
        with self._changed:
            self._shut -= 1
            self._changed.notify_all()


def _exists(thread: int) -> bool:
    return os.path.exists(f"/proc/self/task/{thread}")


gate: Final = ForkGate()

# What the child inherits is as it was in the middle of all this.
os.register_at_fork(before=gate.shut, after_in_parent=gate.open, after_in_child=gate.__init__)  # type: ignore[misc]  # anew

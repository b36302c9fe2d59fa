"""How well a rank is fed: what it waited for, how fast batches came, and how many seconds of input lie ready ahead."""

from __future__ import annotations

import time
from collections import deque
from statistics import median
from typing import Final

__all__ = ["LoaderStats"]

_RECENT: Final = 50


class LoaderStats:
    """Counts one loader's deliveries; written by the consumer's thread only."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.bytes = 0
        self.waited_s = 0.0
        self.first_batch_s = 0.0
        self.last_wait_s = 0.0
        self._ready: deque[int] = deque(maxlen=_RECENT)
        self._paces: deque[float] = deque(maxlen=_RECENT)
        self._active_s = 0.0
        self._asked = 0.0
        self._started = 0.0

    def begin(self) -> None:
        """An iterator starts: pauses between epochs are nobody's wait."""
        self._started, self._asked = time.monotonic(), 0.0

    def asked(self, ready: int) -> None:
        """The consumer asks for a batch while `ready` lie ready."""
        now = time.monotonic()
        if self._asked:
            self._paces.append(now - self._asked)
        self._asked = now
        self._ready.append(ready)

    def delivered(self, samples: int, size: int) -> None:
        """A batch of `samples` samples and `size` bytes was handed over."""
        now = time.monotonic()
        self.last_wait_s = now - self._asked
        self.waited_s += self.last_wait_s
        if not self.steps:
            self.first_batch_s = now - self._started
        self.steps += 1
        self.samples += samples
        self.bytes += size

    def ended(self) -> None:
        """The iterator is done or dropped."""
        if self._started:
            self._active_s += time.monotonic() - self._started
            self._started = 0.0

    def report(self) -> dict[str, float]:
        """Return the numbers: rates over the time between iterators' starts and ends, s and bytes elsewhere.

        headway_s: batches ready when the consumer last asked (median of the recent steps) × the recent time of a step.
        """
        active = self._active_s + (time.monotonic() - self._started if self._started else 0.0)
        step_s = median(self._paces) if self._paces else 0.0
        ready = median(self._ready) if self._ready else 0.0
        return {
            "steps": float(self.steps),
            "samples": float(self.samples),
            "bytes": float(self.bytes),
            "active_s": active,
            "samples_per_s": self.samples / active if active else 0.0,
            "bytes_per_s": self.bytes / active if active else 0.0,
            "waited_s": self.waited_s,
            "waited_share": self.waited_s / active if active else 0.0,
            "last_wait_s": self.last_wait_s,
            "first_batch_s": self.first_batch_s,
            "step_s": step_s,
            "ready": float(ready),
            "headway_s": ready * step_s,
        }

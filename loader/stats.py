"""How well a rank is fed: what it waited for, how fast batches came, and how many seconds of input lie ready ahead."""

from __future__ import annotations

from collections import deque
from statistics import median
from typing import Final

from . import stall
from .stall import STAGES, Booked, StallLedger, Trail

__all__ = ["LoaderStats"]

_RECENT: Final = 50
_S: Final = 1e-9


class LoaderStats:
    """Counts one loader's deliveries; written by the consumer's thread only."""

    def __init__(self) -> None:
        self.steps = 0
        self.samples = 0
        self.bytes = 0
        self.ledger = StallLedger()
        self.first_batch_s = 0.0
        self.last_wait_s = 0.0
        self._ready: deque[int] = deque(maxlen=_RECENT)
        self._paces: deque[int] = deque(maxlen=_RECENT)
        self._active_ns = 0
        self._asked = 0
        self._started = 0

    def begin(self) -> None:
        """An iterator starts: pauses between epochs are nobody's wait."""
        self._started, self._asked = stall.now_ns(), 0
        self.ledger.begin()

    def begun(self) -> None:
        """The iterator is there."""
        self.ledger.begun()

    def asked(self, ready: int) -> None:
        """The consumer asks for a batch while `ready` lie ready."""
        now = self.ledger.asked(is_ready=ready > 0)
        if self._asked:
            self._paces.append(now - self._asked)
        self._asked = now
        self._ready.append(ready)

    def delivered(self, samples: int, size: int, trail: Trail | None = None) -> Booked:
        """A batch of `samples` samples and `size` bytes, made as `trail` says, is handed over; returns its entry."""
        booked = self.ledger.delivered(trail)
        self.last_wait_s = booked.waited_ns * _S
        if not self.steps:
            self.first_batch_s = booked.waited_ns * _S
        self.steps += 1
        self.samples += samples
        self.bytes += size
        return booked

    def ended(self) -> None:
        """The iterator is done or dropped."""
        self.ledger.ended()
        if self._started:
            self._active_ns += stall.now_ns() - self._started
            self._started = 0

    @property
    def step_s(self) -> float:
        """Recent time of a step."""
        return median(self._paces) * _S if self._paces else 0.0

    @property
    def headway_s(self) -> float:
        """Batches ready when the consumer asked (median of the recent steps) × the recent time of a step."""
        return (median(self._ready) if self._ready else 0.0) * self.step_s

    def report(self) -> dict[str, float]:
        """Return the numbers: rates over the time between iterators' starts and ends, s and bytes elsewhere.

        waited_s is all waits (starting an iterator's threads included), waited_<stage>_s its parts; see `stall.Stage`.
        """
        active = (self._active_ns + (stall.now_ns() - self._started if self._started else 0)) * _S
        waited = self.ledger.waited_ns * _S
        return {
            "steps": float(self.steps),
            "samples": float(self.samples),
            "bytes": float(self.bytes),
            "active_s": active,
            "samples_per_s": self.samples / active if active else 0.0,
            "bytes_per_s": self.bytes / active if active else 0.0,
            "waited_s": waited,
            "waited_share": waited / active if active else 0.0,
            "last_wait_s": self.last_wait_s,
            "first_batch_s": self.first_batch_s,
            "step_s": self.step_s,
            "ready": float(median(self._ready) if self._ready else 0.0),
            "headway_s": self.headway_s,
            **{f"waited_{stage}_s": self.ledger.waits_ns.get(stage, 0) * _S for stage in STAGES},
        }

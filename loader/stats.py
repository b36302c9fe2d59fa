"""How well a rank is fed: what it waited for, how fast batches came, and how many seconds of input lie ready ahead."""

from __future__ import annotations

import weakref
from collections import deque
from statistics import median
from typing import Final

from . import stall
from .ranges import ranges_of
from .recorder import Recorder, Sources, Step
from .stall import STAGES, Ranges, StallLedger, Trail
from .telemetry import Telemetry
from .topology import Topology

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
        self._epoch = self._number = 0
        self._ranges: Ranges | None = None
        self.recorder: Recorder | None = None
        """What writes the ledger down, if asked for."""

    def begin(self, *, epoch: int = 0, number: int = 0) -> None:
        """An iterator starts, with batch `number` of `epoch`: pauses between epochs are nobody's wait."""
        self._started, self._asked = stall.now_ns(), 0
        self._epoch, self._number = epoch, number
        self.ledger.begin()

    def begun(self, sources: Sources | None = None) -> None:
        """The iterator is there."""
        if self.recorder is not None and sources is not None:
            self.recorder.begin(sources)
        self.ledger.begun()

    def show(self, telemetry: Telemetry | None, place: Topology) -> None:
        """Have what is counted written and shown as `telemetry` says; harmless when repeated."""
        if telemetry is None:
            return
        self._ranges = self._ranges or ranges_of(telemetry)
        if telemetry.directory is not None and self.recorder is None:
            self.recorder = Recorder(telemetry, place)
            weakref.finalize(self, self.recorder.close)

    def trail(self) -> Trail:
        """Return a new step's trail."""
        return Trail(self._ranges)

    def asked(self, ready: int) -> None:
        """The consumer asks for a batch while `ready` lie ready."""
        if self._ranges is not None:
            self._ranges.push("wait")
        now = self.ledger.asked(is_ready=ready > 0)
        if self.recorder is not None:
            self.recorder.asked(now)
        if self._asked:
            self._paces.append(now - self._asked)
        self._asked = now
        self._ready.append(ready)

    def delivered(self, samples: int, size: int, trail: Trail | None = None) -> None:
        """A batch of `samples` samples and `size` bytes, made as `trail` says, is handed over."""
        booked = self.ledger.delivered(trail)
        self.last_wait_s = booked.waited_ns * _S
        if not self.steps:
            self.first_batch_s = booked.waited_ns * _S
        self.steps += 1
        self.samples += samples
        self.bytes += size
        if self._ranges is not None:
            self._ranges.pop()
        if self.recorder is not None:
            step = Step(self._epoch, self._number, booked, self._ready[-1], samples, size, trail)
            self.recorder.delivered(step)
        self._number += 1

    def ended(self) -> None:
        """The iterator is done or dropped."""
        booked = self.ledger.ended()
        if booked is not None and self._ranges is not None:
            self._ranges.pop()
        if self.recorder is not None:
            self.recorder.ended(booked)
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

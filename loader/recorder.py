"""Writes one rank's ledger: the consumer leaves an entry a step, and a thread of its own makes lines of them twice a second.

What the consumer pays is one append. Nothing here can stop training: a file that cannot be written is given up with one
warning. Lines are described in `run_files`.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import platform
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from ..formats import UsageError
from ..formats.cores import usable_cores
from .chrome_trace import ChromeTrace
from .prometheus import Exporter
from .run_files import LEDGER_VERSION, file_name
from .stall import Booked, Stage, Trail, now_ns
from .telemetry import Telemetry
from .topology import Topology

__all__ = ["Recorder", "Sources", "Step"]

log = logging.getLogger("headway")

_PERIOD_S: Final = 0.5
_JOIN_S: Final = 5.0
_LINE_STEPS: Final = 256
_RECENT: Final = 50  # steps, of which headway is the median: as in `stats`
_LONG_NS: Final = 1_000_000_000  # a wait that is reported before it is over
_RATE_NS: Final = 400_000_000  # over which a rate is taken: about what is between two lines
_MOST_WAITING: Final = 1 << 16  # steps not yet written: some minutes of the fastest consumer

Line = dict[str, Any]  # Any: JSON


class Step(NamedTuple):
    """What the consumer's thread leaves for each batch."""

    epoch: int
    number: int
    booked: Booked
    ready: int
    samples: int
    size: int
    trail: Trail | None


class Sources(NamedTuple):
    """Where the recorder's thread looks for what is not in the entries; asked from that thread."""

    values: Callable[[], Mapping[str, float]]
    """Current value of everything that was chosen or is held, by its name in `metrics`."""
    awaited: Callable[[], Stage]
    """What the batch that is asked for is in."""


class Recorder:
    """The ledger file of one loader on one rank, its trace and its node's endpoint; from `begin` to `close`."""

    def __init__(self, telemetry: Telemetry, place: Topology) -> None:
        assert telemetry.directory is not None
        self._telemetry, self._place = telemetry, place
        self._directory = Path(telemetry.directory)
        self._path = self._directory / file_name(telemetry.name, place.rank)
        self._steps: deque[Step] = deque(maxlen=_MOST_WAITING)
        self._sources: Sources | None = None
        self._asked_ns = 0  # 0: the consumer does not wait
        self._ends: deque[Booked] = deque()
        # Held while lines are made, so that closing does not cut into them. An RLock: a loader may be collected, which closes
        # this, in the very thread that makes lines.
        self._lock = threading.RLock()
        self._file = -1
        self._size = self._written_ns = 0
        self._counts: dict[str, int] = {"steps": 0, "samples": 0, "bytes": 0, "consumer_ns": 0}
        self._waits: dict[Stage, int] = {}
        self._busy: dict[Stage, int] = {}
        self._ready: deque[int] = deque(maxlen=_RECENT)
        self._paces: deque[int] = deque(maxlen=_RECENT)
        self._values: dict[str, float] = {}
        self._rate, self._rated, self._rated_ns = 0.0, 0, now_ns()
        self._trace: ChromeTrace | None = None
        self._traced = 0
        self._exporter: Exporter | None = None
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        self._header: Line = {
            "headway_ledger": LEDGER_VERSION,
            "name": telemetry.name,
            "rank": place.rank,
            "ranks": place.size,
            "local_rank": place.local_rank,
            "local_size": place.local_size,
            "node": place.node,
            "nodes": place.nodes,
            "host": platform.node(),
            "pid": self._pid,
            "cores": usable_cores(),
            "started_unix_s": time.time(),
            "monotonic_ns": now_ns(),
        }

    def begin(self, sources: Sources) -> None:
        """An iterator starts. The first one makes the files.

        Raises:
            UsageError: the directory cannot be written, or another loader writes this rank's file.
            MissingExtra: an endpoint was asked for without prometheus-client.
        """
        self._sources = sources
        if self._thread is not None:
            return
        self._open_first()
        telemetry = self._telemetry
        if telemetry.trace_steps:
            self._trace = ChromeTrace(self._path.with_suffix(".trace.json"), rank=self._place.rank)
        if telemetry.prometheus_port is not None and self._place.local_rank == 0:
            self._exporter = Exporter(
                self._directory,
                node=self._place.node,
                address=telemetry.prometheus_address,
                port=telemetry.prometheus_port,
            ).start()
        self._thread = threading.Thread(target=self._work, name="headway-ledger", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int | None:
        """Where this node's metrics are served, if by this process."""
        return None if self._exporter is None or not self._exporter.port else self._exporter.port

    def asked(self, at_ns: int) -> None:
        """The consumer begins to wait."""
        self._asked_ns = at_ns

    def delivered(self, step: Step) -> None:
        """It got its batch."""
        self._asked_ns = 0
        self._steps.append(step)

    def ended(self, booked: Booked | None) -> None:
        """An iterator is over, and the consumer may have waited to hear it; what is known by now is written at once."""
        self._asked_ns = 0
        if booked is not None:
            self._ends.append(booked)
        self._flush(final=True)
        self._sources = None

    def close(self) -> None:
        """Write what is left and end the thread; harmless when repeated."""
        if os.getpid() != self._pid:
            return  # a forked child has the object and not the thread
        thread, self._thread = self._thread, None
        self._sources = None
        if thread is not None:
            self._wake.set()
            if thread is not threading.current_thread():
                thread.join(_JOIN_S)
            self._flush(final=True)
        with self._lock:
            if self._exporter is not None:
                self._exporter.close()
                self._exporter = None
            if self._trace is not None:
                self._trace.close()
                self._trace = None
            if self._file >= 0:
                _let_go(self._file)
                self._file = -1

    def _work(self) -> None:
        while not self._wake.wait(_PERIOD_S):
            self._flush()

    def _flush(self, *, final: bool = False) -> None:
        if os.getpid() != self._pid:
            return
        with self._lock:
            if self._file < 0:  # given up
                self._steps.clear()
                return
            try:
                self._write_steps(final=final)
            except Exception as error:  # whatever it is: a report is not worth a training run
                log.warning(
                    "headway: cannot go on with the ledger %s: %s: %s; training goes on without it",
                    self._path,
                    type(error).__name__,
                    error,
                )
                if self._file >= 0:
                    _let_go(self._file)
                self._file = -1

    def _write_steps(self, *, final: bool) -> None:
        run: list[Step] = []
        said = False
        while self._steps:
            step = self._steps.popleft()
            follows = run and (step.epoch, step.number) == (run[-1].epoch, run[-1].number + 1)
            if run and (not follows or len(run) == _LINE_STEPS):
                self._write(self._line_of(run))
                run = []
            run.append(step)
            self._count(step)
        if run:
            self._write(self._line_of(run))
            said = True
        if self._trace is not None:
            self._trace.flush()
        while self._ends:
            self._add(self._ends.popleft())
            said = False
        since = self._asked_ns
        waiting = since and now_ns() - since > _LONG_NS and now_ns() - self._written_ns > _LONG_NS
        if not said and (final or waiting):
            self._write(self._closing_line())

    def _count(self, step: Step) -> None:
        counts, booked = self._counts, step.booked
        counts["steps"] += 1
        counts["samples"] += step.samples
        counts["bytes"] += step.size
        self._add(booked)
        spans = () if step.trail is None else tuple(step.trail.spans)
        for stage, _, started, ended, _ in spans:
            self._busy[stage] = self._busy.get(stage, 0) + ended - started
        self._ready.append(step.ready)
        self._paces.append(booked.consumer_ns + booked.waited_ns)
        if self._trace is not None:
            self._trace.add(step.number, booked, spans)
            self._traced += 1
            if self._traced == self._telemetry.trace_steps:
                self._trace.close()
                self._trace = None

    def _add(self, booked: Booked) -> None:
        self._counts["consumer_ns"] += booked.consumer_ns
        for stage, ns in booked.waits.items():
            self._waits[stage] = self._waits.get(stage, 0) + ns

    def _line_of(self, run: list[Step]) -> Line:
        booked = [step.booked for step in run]
        stages = dict.fromkeys(stage for each in booked for stage in each.waits)
        return {
            "epoch": run[0].epoch,
            "first": run[0].number,
            "asked_ns": [each.asked_ns for each in booked],
            "consumer_ns": [each.consumer_ns for each in booked],
            "waited_ns": [each.waited_ns for each in booked],
            "waits_ns": {stage: [each.waits.get(stage, 0) for each in booked] for stage in stages},
            "ready": [step.ready for step in run],
            **self._closing_line(),
        }

    def _closing_line(self) -> Line:
        sources, since = self._sources, self._asked_ns
        if sources is not None:
            self._values = dict(sources.values())
        at_ns = now_ns()
        if at_ns - self._rated_ns >= _RATE_NS:
            self._rate = (self._counts["samples"] - self._rated) / (at_ns - self._rated_ns) * 1e9
            self._rated, self._rated_ns = self._counts["samples"], at_ns
        step_s = median(self._paces) * 1e-9 if self._paces else 0.0
        ready = self._ready[-1] if self._ready else 0
        now: dict[str, Any] = {  # Any: numbers and one stage
            "at_ns": at_ns,
            "samples_per_s": self._rate,
            "ready": ready,
            "step_s": step_s,
            "headway_s": (median(self._ready) if self._ready else 0) * step_s,
            **self._values,
        }
        if sources is not None and since and now["at_ns"] - since > _LONG_NS:
            now |= {"waiting_s": round((now["at_ns"] - since) * 1e-9, 3), "waiting_for": sources.awaited()}
        return {"total": {**self._counts, "waits_ns": dict(self._waits), "busy_ns": dict(self._busy)}, "now": now}

    def _write(self, line: Line) -> None:
        if self._file < 0:
            return
        data = json.dumps(line, separators=(",", ":")).encode() + b"\n"
        if self._size + len(data) > self._telemetry.file_bytes:
            _let_go(self._file)
            self._file = -1
            self._open()
        self._size += os.write(self._file, data)  # in one call, so that a kill leaves whole lines
        self._written_ns = now_ns()

    def _open_first(self) -> None:
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._open()
        except BlockingIOError as error:
            raise UsageError(
                f"cannot write the ledger {str(self._path)!r}: another loader does; give each loader of a process its own "
                "Telemetry(name=…), and each job its own directory"
            ) from error
        except OSError as error:
            raise UsageError(f"cannot write the ledger of Telemetry(directory={str(self._directory)!r}): {error}") from error

    def _open(self) -> None:
        """Begin the file anew; what was there is put aside. BlockingIOError: somebody writes it."""
        try:
            before = os.open(self._path, os.O_RDWR | os.O_CLOEXEC)
        except FileNotFoundError:
            pass
        else:
            try:
                fcntl.flock(before, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._path.replace(self._path.with_name(file_name(self._telemetry.name, self._place.rank, old=True)))
            finally:
                os.close(before)
        file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        self._file = file
        self._size = os.write(file, json.dumps(self._header).encode() + b"\n")


def _let_go(file: int) -> None:
    """Close a ledger for good: processes forked meanwhile hold it open, and would hold its lock."""
    fcntl.flock(file, fcntl.LOCK_UN)
    os.close(file)

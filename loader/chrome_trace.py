"""Steps as a trace for Perfetto (ui.perfetto.dev) and chrome://tracing: what each thread did for which batch, and the waits.

Times are the machine's monotonic clock, so that traces of its ranks, concatenated, line up.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from .stall import Booked, Span

__all__ = ["ChromeTrace"]

_CONSUMER: Final = 0

Event = dict[str, Any]  # Any: JSON


class ChromeTrace:
    """Writes the JSON array format to a file of its own, which is whole after each `flush`."""

    def __init__(self, path: Path, *, rank: int) -> None:
        self._file, self._rank = path.open("wb"), rank
        self._lanes: dict[int, int] = {}
        self._events: list[str] = []
        self._end = self._file.write(b"[")
        self._write({"name": "process_name", "ph": "M", "pid": rank, "tid": _CONSUMER, "args": {"name": f"rank {rank}"}})
        self._name(_CONSUMER, "consumer")

    def add(self, step: int, booked: Booked, spans: Iterable[Span]) -> None:
        """Add one step: its pieces of work, and the consumer's own time and wait before it."""
        asked = booked.asked_ns
        if booked.consumer_ns:
            self._complete("consumer", _CONSUMER, asked - booked.consumer_ns, asked, {})
        waited = {f"{stage}_us": ns / 1e3 for stage, ns in booked.waits.items()}
        begun = booked.waited_ns - booked.waits.get("start", 0)
        self._complete("wait", _CONSUMER, asked, asked + begun, {"step": step, **waited})
        for stage, queued, started, ended, where in spans:
            self._complete(stage, self._lane(where), started, ended, {"step": step, "queued_us": (started - queued) / 1e3})

    def flush(self) -> None:
        """Write what was added, over the end of the array, and the end anew."""
        if self._events:
            self._file.seek(self._end)
            begun = b",\n" if self._end > 1 else b"\n"
            self._end += self._file.write(begun + ",\n".join(self._events).encode())
            self._events.clear()
            self._file.write(b"\n]\n")
            self._file.flush()

    def close(self) -> None:
        """Write what is left; harmless when repeated."""
        if not self._file.closed:
            self.flush()
            self._file.close()

    def _complete(self, name: str, lane: int, begin_ns: int, end_ns: int, more: Event) -> None:
        duration = max(0, end_ns - begin_ns) / 1e3
        self._write(
            {"name": name, "ph": "X", "pid": self._rank, "tid": lane, "ts": begin_ns / 1e3, "dur": duration, "args": more}
        )

    def _lane(self, where: int) -> int:
        lane = self._lanes.get(where)
        if lane is None:
            lane = self._lanes[where] = len(self._lanes) + 1
            self._name(lane, f"worker {lane}")
        return lane

    def _name(self, lane: int, name: str) -> None:
        self._write({"name": "thread_name", "ph": "M", "pid": self._rank, "tid": lane, "args": {"name": name}})

    def _write(self, event: Event) -> None:
        self._events.append(json.dumps(event))

"""The stall ledger: how long the consumer waited for each batch, and what that batch was in meanwhile.

A step leaves a trail: what was done on it, from when to when, by one monotonic clock that all processes of a machine share.
When its batch is handed over, the wait is cut along that trail, last moment first: what ended last was waited for from when
it could have begun; before that, what it followed on. So the pieces of a wait add up to it exactly, in whole nanoseconds,
and waits and the consumer's own time to the loop's. Who works on a step calls `Trail.begin` and `end`; code further down that
does something of another kind says so by `within`.
"""

from __future__ import annotations

import resource
import threading
import time
from collections.abc import Iterable, Sequence
from operator import itemgetter
from types import TracebackType
from typing import Final, Literal, NamedTuple, Protocol, get_args

__all__ = [
    "STAGES",
    "Booked",
    "Ranges",
    "Span",
    "Stage",
    "StallLedger",
    "Trail",
    "attach",
    "cut",
    "note",
    "now_ns",
    "on_disk",
    "within",
]

Stage = Literal[
    "start",
    "plan",
    "memory",
    "store",
    "disk",
    "decompress",
    "decode",
    "assemble",
    "transform",
    "transfer",
    "handover",
    "end",
    "dataset",
]
"""What a batch may be in, in the order it meets them.

start: threads or processes are being started. plan: its rows are looked up, or it has not been begun. memory: buffers are full.
store: bytes are on their way from a store or its cache. disk: threads slept on pages of local files (estimated, see `on_disk`).
decompress: points and tables. decode: images. assemble: small arrays and tensors. transform: functions of the user's. transfer:
copies into pinned memory. handover: from one process or thread to the next. end: threads are being ended. dataset: over a plain
dataset, whatever torch's loader did.
"""
STAGES: Final[tuple[Stage, ...]] = get_args(Stage)

now_ns = time.monotonic_ns
get_ident = threading.get_ident

_LONG_NS: Final = 1_000_000
_ON_PAGES: Final[tuple[Stage, ...]] = ("plan", "decompress", "decode", "assemble")
"""Stages that read mapped files."""


Span = tuple[Stage, int, int, int, int]
"""One piece of work on a step: its stage, when it could have begun, when it began, when it ended, and the thread (or process of a
feeder) that did it. A plain tuple: making one is most of what the ledger costs."""


class Ranges(Protocol):
    """Told of every piece of work as it begins and ends, in the thread that does it: a profiler's annotations."""

    def push(self, stage: str) -> None:
        """`stage` begins."""
        ...

    def pop(self) -> None:
        """What began last ends."""
        ...


class Trail:
    """What was done on one step; any thread adds to it, one piece a thread at a time."""

    __slots__ = ("_ranges", "now", "spans")

    def __init__(self, ranges: Ranges | None = None) -> None:
        self.spans: list[Span] = []  # append only: needs no lock
        self._ranges = ranges
        self.now: Stage = "plan"
        """What was begun last."""

    def begin(self, stage: Stage, queued_ns: int = 0) -> None:
        """This thread begins a piece of work that could have begun at `queued_ns` (0: now)."""
        if self._ranges is not None:
            if _doing.piece is not None:  # an error came in between
                self._ranges.pop()
            self._ranges.push(stage)
        self.now = stage
        now = now_ns()
        _doing.piece = self, stage, queued_ns or now, now

    def end(self) -> None:
        """This thread is done with it."""
        piece = _doing.piece
        if piece is not None:
            self.spans.append((piece[1], piece[2], piece[3], now_ns(), get_ident()))
            _doing.piece = None
        if self._ranges is not None:
            self._ranges.pop()

    def drop(self) -> None:
        """This thread is done with it, and it is not to be on the trail: it only waited for what others note."""
        _doing.piece = None
        if self._ranges is not None:
            self._ranges.pop()


class _Doing(threading.local):
    piece: tuple[Trail, Stage, int, int] | None = None
    """Whose trail, which stage, since when it could have begun, since when it has."""


_doing = _Doing()


class within:
    """`with within("transfer"):` books what runs inside under another stage of the step that this thread works on."""

    __slots__ = ("_outer", "_stage")

    def __init__(self, stage: Stage) -> None:
        self._stage = stage

    def __enter__(self) -> None:
        self._outer: tuple[Trail, Stage] | None = None
        piece = _doing.piece
        if piece is not None:
            trail = piece[0]
            self._outer = trail, piece[1]
            trail.end()
            trail.begin(self._stage)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._outer is not None:
            trail, stage = self._outer
            trail.end()
            trail.begin(stage)


def attach(spans: Sequence[Span]) -> None:
    """Put what another process did on the trail, in place of this thread's waiting for it, which ends now."""
    piece, _doing.piece = _doing.piece, None
    if piece is not None:
        piece[0].spans.extend(spans)
        last = max((span[3] for span in spans), default=piece[3])
        piece[0].spans.append(("handover", last, max(last, piece[3]), now_ns(), get_ident()))


def note(stage: Stage, began_ns: int, ended_ns: int) -> None:
    """Put on the trail of the step that this thread works on what went on without any thread."""
    piece = _doing.piece
    if piece is not None:
        piece[0].spans.append((stage, began_ns, began_ns, ended_ns, 0))


_by_end = itemgetter(3)


def cut(asked_ns: int, got_ns: int, spans: Iterable[Span]) -> dict[Stage, int]:
    """Return the nanoseconds of a wait by what was waited for; they add up to `got_ns` − `asked_ns`.

    At each moment that is the piece under way that ended last; with none under way, the one that came next; after all of
    them, the handover.
    """
    waits: dict[Stage, int] = {}
    cursor = got_ns
    stage: Stage = "handover"
    for doing, queued, _, ended, _ in sorted(spans, key=_by_end, reverse=True):
        if cursor <= asked_ns:
            break
        ended = max(ended, asked_ns)
        if ended < cursor:
            waits[stage] = waits.get(stage, 0) + cursor - ended
            cursor = ended
        begun = max(queued, asked_ns)
        if begun < cursor:
            waits[doing] = waits.get(doing, 0) + cursor - begun
            cursor = begun
            stage = doing
    if cursor > asked_ns:
        waits[stage] = waits.get(stage, 0) + cursor - asked_ns
    return waits


def on_disk(waits: dict[Stage, int], *, cpu_ns: int, faults: int) -> dict[Stage, int]:
    """Return the waits with a part of what reads mapped files moved to "disk"; the sum stays.

    Where pages had to be read (`faults`), the time in which no thread of this process can have been on a core was spent on
    that. `cpu_ns` is of all threads, so the part is a lower bound.
    """
    working = sum(waits.get(stage, 0) for stage in _ON_PAGES)
    idle = working - cpu_ns
    if not faults or idle <= 0:
        return waits
    found = dict(waits)
    for stage in _ON_PAGES:
        if stage in found:
            part = found[stage] * idle // working
            found[stage] -= part
            found["disk"] = found.get("disk", 0) + part
    return found


class Booked(NamedTuple):
    """One step's entry."""

    asked_ns: int
    consumer_ns: int
    """What the consumer did since the batch before (since the iterator was there)."""
    waited_ns: int
    waits: dict[Stage, int]
    """Stage → ns; they add up to `waited_ns`."""


class StallLedger:
    """The waits of one loader; used by the consumer's thread alone.

    Between `begin` and the last stamp, `waits_ns` and `consumer_ns` add up to `wall_ns`.
    """

    def __init__(self) -> None:
        self.waits_ns: dict[Stage, int] = {}
        """By stage, since the loader was made."""
        self.consumer_ns = 0
        self.wall_ns = 0
        """From each iterator's beginning to its last stamp."""
        self._mark = 0
        self._start_ns = self._waited_ns = self._consumer_ns = 0
        self._usage: tuple[int, int] | None = None
        self._is_asked = False

    def begin(self) -> None:
        """An iterator is about to be made."""
        self._mark, self._is_asked = now_ns(), False

    def begun(self) -> None:
        """It is there; what that took is part of the first batch's wait."""
        self._start_ns += self._stamp()

    def asked(self, *, is_ready: bool) -> int:
        """The consumer asks for a batch, which lies ready or not; returns when."""
        took = self._stamp()
        self.consumer_ns += took
        self._consumer_ns = took
        self._is_asked = True
        # What a wait below a millisecond was for is not worth asking the system twice.
        self._usage = None if is_ready or self._waited_ns < _LONG_NS else _usage()
        return self._mark

    def delivered(self, trail: Trail | None) -> Booked:
        """It is about to get the batch that `trail` belongs to."""
        asked = self._mark
        waited = self._waited_ns = self._stamp()
        self._is_asked = False
        waits: dict[Stage, int] = {"dataset": waited} if trail is None else cut(asked, self._mark, tuple(trail.spans))
        if self._usage is not None:
            cpu_ns, faults = _usage()
            waits = on_disk(waits, cpu_ns=cpu_ns - self._usage[0], faults=faults - self._usage[1])
        if self._start_ns:
            waits["start"] = waits.get("start", 0) + self._start_ns
            waited, self._start_ns = waited + self._start_ns, 0
        for stage, ns in waits.items():
            self.waits_ns[stage] = self.waits_ns.get(stage, 0) + ns
        return Booked(asked, self._consumer_ns, waited, waits)

    def ended(self) -> Booked | None:
        """The iterator has no more batches, or failed: returns what the consumer waited to hear that, if it did ask."""
        if not self._is_asked:
            return None
        self._is_asked = False
        asked = self._mark
        waited, self._start_ns = self._stamp() + self._start_ns, 0
        self.waits_ns["end"] = self.waits_ns.get("end", 0) + waited
        return Booked(asked, self._consumer_ns, waited, {"end": waited})

    @property
    def waited_ns(self) -> int:
        """All waits."""
        return sum(self.waits_ns.values()) + self._start_ns

    def _stamp(self) -> int:
        now = now_ns()
        took, self._mark = now - self._mark, now
        self.wall_ns += took
        return took


def _usage() -> tuple[int, int]:
    """Return (ns on a core of all threads, page faults that had to read) of this process so far."""
    used = resource.getrusage(resource.RUSAGE_SELF)
    return int((used.ru_utime + used.ru_stime) * 1e9), used.ru_majflt

"""Payloads of coming steps, fetched before they are decoded: what stands between a set in a store and the engine.

A thread looks the steps of an epoch up, asks for the ranges that they read, the most urgent first, and keeps what came in memory
until the step's batch is made. The engine begins a step only once its bytes are here, so that decode threads never wait for a
store. How far ahead, how many requests at once and when a second one is sent is `pace`'s to decide. Towards the end of an epoch
the next one's first steps are fetched. A payload that nobody foresaw (of a replaced sample) is fetched by whoever needs it.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..formats import StalledError
from ..formats.open_shard import Place
from .draft import Task
from .engine import Begun
from .located import Located
from .pace import InFlight, Pace, Round, hedge_after, hedge_part, hold, may_hedge, needed_rate, ramp, steer
from .plan import Planned
from .plan_uses import PlanUses
from .stall import note, now_ns, within
from .steps import StepRecipe

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..formats.remote_set import RemoteSet
    from ..formats.stores.hedged import Traffic

__all__ = ["FetchAhead", "PacedHedging"]

B = TypeVar("B")

_LOOK_S: Final = 0.25
_ROUND_S: Final = 0.5
_RECENT: Final = 16
_PLACED_AHEAD: Final = 4  # steps looked up in one go: more would wait for the index of shards that are needed much later
_INDEX_STEPS: Final = 64  # steps whose shards are opened ahead
_JOIN_S: Final = 5.0


class PacedHedging:
    """Second requests as `Pace` says."""

    def __init__(self, pace: Pace) -> None:
        self._pace = pace

    def after_s(self, *, p50_s: float, p98_s: float, left_s: float) -> float:
        """Return the seconds without news after which a request gets a second one."""
        given = self._pace.hedge_after_s
        return hedge_after(p50_s=p50_s, p98_s=p98_s, left_s=left_s) if given is None else given

    def allows(self, traffic: Traffic, *, waited_s: float, p98_s: float, left_s: float) -> bool:
        """Whether one more stays within its part of the budget."""
        part = hedge_part(waited_s=waited_s, p98_s=p98_s, left_s=left_s)
        return may_hedge(traffic.requests, traffic.hedged, share=self._pace.hedge_share * part)


@dataclass(slots=True, eq=False)
class _Coming:
    """One step on its way."""

    number: int
    planned: Planned
    located: Located
    began_ns: int
    left: int = 1
    """Groups of payloads that are not here yet, + 1 while they are being asked for; guarded by the lock."""
    bytes: int = 0
    parts: list[tuple[RemoteSet, int, Sequence[Place]]] = field(default_factory=list)
    """What is held for it."""
    ended_ns: int = 0
    error: BaseException | None = None
    is_let_go: bool = False


class FetchAhead(Generic[B]):
    """Fetches what batches `first` to `last` (exclusive) of a recipe read; a recipe itself, whose steps begin when they can.

    Args:
        budget_bytes: of encoded payloads to hold; one step is held in any case.
        then: called once, when all steps have been asked for.
    """

    def __init__(
        self,
        recipe: StepRecipe[B],
        packed: PackedSet,
        *,
        first: int,
        last: int,
        budget_bytes: int,
        pace: Pace,
        stall_s: float,
        then: Callable[[FetchAhead[B]], None] | None = None,
    ) -> None:
        self.recipe, self.first, self.last = recipe, first, last
        self._packed = packed
        self.budget_bytes = budget_bytes
        """May be changed at any time."""
        self.uses: PlanUses | None = None
        self.base = 0
        """Told which steps are in memory, counted from `base`."""
        self.wake: Callable[[], None] | None = None
        """Called when a step's bytes are here."""
        self._pace, self._stall_s, self._then = pace, stall_s, then
        recipe.most_ahead = _PLACED_AHEAD
        self._changed = threading.Condition()
        self._coming: dict[int, _Coming] = {}
        self._held_bytes = 0
        self._landed = self._landed_before = 0
        self._next = self._indexed = first
        self._asked = first
        self._asked_s = self._delivered_s = 0.0
        self._own: deque[float] = deque(maxlen=_RECENT)
        self._sizes: deque[int] = deque(maxlen=_RECENT)
        self._closed = False
        self._pid = os.getpid()
        self._flight = InFlight()
        self._round: tuple[float, dict[RemoteSet, tuple[int, int]]] = (time.monotonic(), {})
        self._stores: set[RemoteSet] = set()
        self._thread = threading.Thread(target=self._run, name="headway-fetch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def follow(self, before: FetchAhead[B]) -> None:
        """Begin as the epoch after `before`, whose consumer's pace is known."""
        self._own.extend(before._own)
        self._asked, self._asked_s = self.first - (before.last - before._asked), before._asked_s

    def is_here(self, number: int) -> bool:
        """Whether a step is to be begun: its bytes are here, or they could not be fetched ahead and it is asked for now."""
        step = self._coming.get(number)
        return self._closed or (step is not None and step.ended_ns > 0 and (step.error is None or number <= self._asked))

    def begin(self, step: int) -> Begun[B]:
        """Begin a step, its bytes being here or soon; one that had failed before it was asked for is fetched again."""
        with within("store"):
            found = self._awaited(step)
            if found.error is not None and found.ended_ns < 1e9 * self._asked_s and not self._closed:
                self._let_go(found)
                self._fetch(step)
                found = self._awaited(step)
        if found.error is not None:
            raise found.error
        note("store", found.began_ns, found.ended_ns)
        return _Fetched(self.recipe.begun(step, found.planned, found.located), partial(self._let_go, found))

    def _awaited(self, number: int) -> _Coming:
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._has_ended(number), self._stall_s)
            found = self._coming.get(number)
        if found is None or not found.ended_ns:
            raise StalledError(f"the bytes of batch {number} did not come within {self._stall_s:g} s; the store hangs")
        return found

    def _has_ended(self, number: int) -> bool:
        step = self._coming.get(number)
        return step is not None and step.ended_ns > 0

    def asked(self, number: int) -> None:
        """The consumer asks for batch `number`."""
        now = time.monotonic()
        with self._changed:
            self._asked, self._asked_s = number, now
            if self._delivered_s:
                self._own.append(now - self._delivered_s)
            self._changed.notify_all()
            step = self._coming.get(number)
        if step is not None and step.error is not None and self.wake is not None:
            self.wake()  # it may be begun now

    def delivered(self) -> None:
        """It got it."""
        self._delivered_s = time.monotonic()

    @property
    def is_closed(self) -> bool:
        """Whether nobody wants its steps any more."""
        return self._closed

    @property
    def has_failed(self) -> bool:
        """Whether a step that is still to be begun could not be fetched."""
        return any(step.error is not None for step in list(self._coming.values()))

    def values(self) -> dict[str, float]:
        """Return what is chosen and held now, by its name in `metrics`."""
        readers = [remote.reader for remote in self._stores]
        return {
            "requests_in_flight": float(sum(reader.at_once for reader in readers)),
            "hedge_after_s": max((reader.percentiles()[1] for reader in readers), default=0.0),
            "encoded_bytes": float(self._held_bytes),
            "encoded_steps": float(sum(step.ended_ns > 0 for step in list(self._coming.values()))),
        }

    def close(self) -> None:
        """End the thread and let go of everything that is held; harmless when repeated."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, and not the thread
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(_JOIN_S)
        for step in list(self._coming.values()):
            self._let_go(step)

    def _run(self) -> None:
        for number in range(self.first, self.last):
            with self._changed:
                while not self._closed and not self._has_room(number):
                    self._changed.wait(_LOOK_S)
                    self._steer()
            if self._closed:
                return
            self._fetch(number)
            self._steer()
        if self._then is not None:
            self._then(self)
        with self._changed:
            while not self._closed and self._asked < self.last:
                self._changed.wait(_LOOK_S)
                self._steer()

    def _fetch(self, number: int) -> None:
        """Look a step up and ask for its bytes; what fails is kept as the step's error."""
        step = None
        try:
            self._prepare(number)
            began = now_ns()
            step = _Coming(number, *self.recipe.place(number), began)
            with self._changed:
                self._coming[number] = step
            self._ask_for(step)
        except BaseException as error:  # whatever it is, the consumer gets it
            if step is None:
                nothing: Any = None  # Any: a step that failed is never begun
                step = _Coming(number, nothing, nothing, now_ns())
                with self._changed:
                    self._coming[number] = step
            self._land(step, error=error)

    def _has_room(self, number: int) -> bool:
        """Whether one more step may be asked for; the caller holds the lock."""
        size = int(median(self._sizes)) if self._sizes else 0
        if self._coming and self._held_bytes + size > self.budget_bytes:
            return False
        step_s = self._step_s()
        ahead = hold(
            self._pace.headway_s,
            step_s,
            batch_bytes=0,
            encoded_bytes=size,
            memory_bytes=self.budget_bytes,
            batches=1,
        )
        most = int(ramp(self._landed, int(ahead.batches) + int(ahead.steps)))
        return number - max(self._asked, self.first) < max(1, most)

    def _step_s(self) -> float:
        return median(self._own) if len(self._own) >= 2 else 0.0

    def _want_by(self, number: int) -> float:
        return (self._asked_s or time.monotonic()) + (number - self._asked) * self._step_s()

    def _prepare(self, number: int) -> None:
        """Begin to bring the index of the shards that the steps from `number` on read."""
        if number < self._indexed - _INDEX_STEPS // 2 and number > self.first:
            return
        first = max(number, self._indexed)
        self._indexed = min(self.last, number + (_INDEX_STEPS if self._landed else 1))
        if first < self._indexed:
            view = self.recipe.assembler.view
            frames = view.frames(self.recipe.items_of(first, self._indexed))
            self._packed.prepare(np.unique(frames[frames >= 0]), want_by=self._want_by(number))

    def _ask_for(self, step: _Coming) -> None:
        assembler = self.recipe.assembler
        wanted: dict[tuple[RemoteSet, int], dict[int, Place]] = {}
        shards: set[int] = set()
        for part in assembler.reads:
            rows = step.located.windows[part.window].rows[..., part.place].ravel()
            rows = np.unique(rows[rows >= 0])
            if part.reader.sensor.codec == "video":
                rows = part.reader.timeline.packets_read(rows)
            refs = part.reader.timeline.refs(rows)
            shards.update(refs.shard.tolist())
            for shard, at, length, digest in zip(
                refs.shard.tolist(), refs.offset.tolist(), refs.length.tolist(), refs.hash.tolist(), strict=True
            ):
                owner = self._packed.remote_shard(shard)
                if owner is not None:
                    wanted.setdefault(owner, {})[at] = Place(at, at + length, digest)
        want_by = self._want_by(step.number)
        if self.uses is not None:
            self.uses.seen(list(shards))
        for (remote, shard), found in wanted.items():
            places = [found[at] for at in sorted(found)]
            self._adopt(remote)
            with self._changed:
                size = sum(place.stop - place.start for place in places)
                step.left, step.bytes, self._held_bytes = step.left + 1, step.bytes + size, self._held_bytes + size
            future = remote.payloads.submit(shard, places, want_by=want_by)
            future.add_done_callback(partial(self._came, step, remote, shard, places))
        self._sizes.append(step.bytes)
        self._land(step)

    def _came(
        self, step: _Coming, remote: RemoteSet, shard: int, places: Sequence[Place], future: Future[list[memoryview]]
    ) -> None:
        error: BaseException | None = None
        try:
            views = future.result()
        except BaseException as failure:  # whatever it is, the consumer gets it
            error = failure
        else:
            with self._changed:
                if not step.is_let_go and not self._closed:
                    remote.payloads.hold(shard, places, views)
                    step.parts.append((remote, shard, places))
        self._land(step, error=error)

    def _land(self, step: _Coming, *, error: BaseException | None = None) -> None:
        with self._changed:
            step.left -= 1
            step.error = step.error or error
            if step.ended_ns or (step.left and error is None):
                return
            step.ended_ns = now_ns()
            self._landed += 1
            self._changed.notify_all()
            awaited = min((each.number for each in self._coming.values() if not each.ended_ns), default=step.number + 1)
        if self.uses is not None:
            # Until its bytes are here, a step's extents are needed at once: by this rank, whoever fetches them.
            self.uses.advance(self.base + awaited, self._step_s())
        if self.wake is not None:
            self.wake()

    def _let_go(self, step: _Coming) -> None:
        with self._changed:
            if step.is_let_go:
                return
            step.is_let_go = True
            self._held_bytes -= step.bytes
            self._coming.pop(step.number, None)
            for remote, shard, places in step.parts:
                remote.payloads.release(shard, places)
            step.parts.clear()
            self._changed.notify_all()

    def _adopt(self, remote: RemoteSet) -> None:
        if remote not in self._stores:
            remote.reader.hedging = PacedHedging(self._pace)
            if self._pace.requests is not None:
                remote.reader.at_once = self._pace.requests
            self._stores.add(remote)

    def _steer(self) -> None:
        """Choose how many requests may be in flight, from what came since the last choice."""
        began, before = self._round
        now = time.monotonic()
        if now - began < _ROUND_S or self._pace.requests is not None:
            return
        seen: dict[RemoteSet, tuple[int, int]] = {}
        for remote in self._stores:
            reader, traffic = remote.reader, remote.reader.traffic
            seen[remote] = (traffic.requests, traffic.throttled)
            took = reader.answered(began)
            if not took:
                continue
            requests, throttled = before.get(remote, (0, 0))
            per_step = (traffic.requests - requests) / max(1, self._landed_since())
            need = needed_rate(per_step, self._step_s(), ready_s=self._ahead_s(), headway_s=self._pace.headway_s)
            self._flight = steer(
                self._flight,
                Round(
                    in_flight=sum(took) / (now - began),
                    rate=len(took) / (now - began),
                    latency_s=median(took),
                    refused=(traffic.throttled - throttled) / len(took),
                ),
                need=need,
            )
            reader.at_once = max(1, round(float(self._flight.limit)))
        self._round = (now, seen)

    def _landed_since(self) -> int:
        landed, self._landed_before = self._landed - self._landed_before, self._landed
        return landed

    def _ahead_s(self) -> float:
        return sum(step.ended_ns > 0 for step in list(self._coming.values())) * self._step_s()


class _Fetched(Generic[B]):
    """A begun step that lets its payloads go when its batch is made; see `engine.Begun`."""

    def __init__(self, begun: Begun[B], let_go: Callable[[], None]) -> None:
        self._begun, self._let_go = begun, let_go

    @property
    def what(self) -> str:
        """Which batch this is, for messages."""
        return self._begun.what

    @property
    def sizes(self) -> Sequence[int]:
        """Bytes of each piece of batch memory that the batch needs."""
        return self._begun.sizes

    @property
    def changes(self) -> bool:
        """Whether it is to be made again."""
        return self._begun.changes

    def tasks(self, memory: Sequence[NDArray[np.uint8]]) -> Sequence[Task]:
        """Return the work, given memory of `sizes`."""
        return self._begun.tasks(memory)

    def finish(self) -> B | None:
        """Return the batch, or None when it is to be made again."""
        batch = self._begun.finish()
        if batch is not None:
            self._let_go()
        return batch

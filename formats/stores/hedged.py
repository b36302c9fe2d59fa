"""Ranges of one store's objects, many at once, each answered by the fastest of at most two requests.

One thread runs an event loop; requests wait for their turn by the time their bytes are wanted. A request that hears nothing for
longer than almost all others did gets a second one (Dean and Barroso, "The Tail at Scale", 2013), within a budget. An answer
that breaks off goes on where it stopped, under the version it began with, so that two versions are never spliced.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Coroutine
from concurrent.futures import Future
from contextlib import aclosing
from dataclasses import dataclass
from statistics import quantiles
from typing import Any, Final, Protocol, TypeVar

from ..errors import StoreError, UsageError
from .remote import RemoteStore, classify
from .turns import Turns

__all__ = ["Answer", "ByPercentile", "Hedging", "RangeReader", "Traffic"]

Result = TypeVar("Result")

_AT_ONCE: Final = 16
_RECENT: Final = 256
_FEW: Final = 16  # answers from which on percentiles mean something
_UNKNOWN_S: Final = 1.0  # until then
_RECHECK_S: Final = 0.25
_SLOW_S: Final = 30.0
_SLOW_BYTES: Final = 30_000  # in _SLOW_S: below 1 kB/s an answer counts as stalled, and is asked for again
_THROTTLED_S: Final = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """Bytes of a range, and the version of the object that they belong to."""

    data: memoryview
    version: str


@dataclass(slots=True, kw_only=True)
class Traffic:
    """What was asked of a store so far."""

    requests: int = 0
    """Ranges asked for; second requests and repetitions are not in it."""
    hedged: int = 0
    """Second requests."""
    hedge_wins: int = 0
    """Second requests that answered first."""
    retried: int = 0
    throttled: int = 0
    """Answers 429, 503 SlowDown and the like."""
    bytes: int = 0
    """Received, including what was thrown away."""


class Hedging(Protocol):
    """Decides when a request gets a second one."""

    def after_s(self, *, p50_s: float, p98_s: float, left_s: float) -> float:
        """Return the seconds without any news after which that is; its bytes are wanted in `left_s`."""
        ...

    def allows(self, traffic: Traffic, *, waited_s: float, p98_s: float, left_s: float) -> bool:
        """Whether one more is within the budget, for a request without news for `waited_s` whose bytes are wanted in `left_s`."""
        ...


class ByPercentile:
    """Second requests at the 98th percentile of first answers, for at most `share` of all."""

    def __init__(self, share: float = 0.02) -> None:
        self.share = share

    def after_s(self, *, p50_s: float, p98_s: float, left_s: float) -> float:
        """Return the 98th percentile."""
        return p98_s

    def allows(self, traffic: Traffic, *, waited_s: float, p98_s: float, left_s: float) -> bool:
        """Whether one more stays within the share; the very first may be one."""
        return self.share > 0 and traffic.hedged + 1 <= max(1.0, self.share * traffic.requests)


@dataclass(slots=True)
class _Attempt:
    """One of at most two requests for the same range."""

    heard: float
    """When something came last; at first, when it was sent."""


class RangeReader:
    """Reads ranges of `store`, at most `at_once` together. Safe to use from several threads; its own starts at first use."""

    def __init__(self, store: RemoteStore, *, at_once: int = _AT_ONCE) -> None:
        self.store = store
        self._turns = Turns(at_once)
        self.hedging: Hedging = ByPercentile()
        self.traffic = Traffic()
        self._first: deque[float] = deque(maxlen=_RECENT)
        """Seconds to the first byte, of recent answers; used in the loop's thread."""
        self._whole: deque[tuple[float, float]] = deque(maxlen=_RECENT)
        """(when, seconds to the last byte), of recent answers; used in the loop's thread."""
        self._resume_at = 0.0
        self._is_throttled = False
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards _loop and _thread
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None

    @property
    def at_once(self) -> int:
        """Most ranges under way together; may be changed at any time."""
        return self._turns.at_once

    @at_once.setter
    def at_once(self, most: int) -> None:
        self._turns.at_once = most

    @property
    def running(self) -> int:
        """Ranges under way."""
        return self._turns.running

    def submit(self, work: Coroutine[Any, Any, Result]) -> Future[Result]:  # Any: asyncio's own types
        """Run a coroutine in the reader's thread."""
        if os.getpid() != self._pid:
            work.close()
            raise UsageError(
                f"store {self.store.url} was opened before a fork: its thread stayed in the parent; open the set again here"
            )
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="headway-store", daemon=True)
                self._thread.start()
            return asyncio.run_coroutine_threadsafe(work, self._loop)

    async def read(self, name: str, start: int, length: int, *, version: str = "", want_by: float = float("inf")) -> Answer:
        """Return a range; `want_by` (monotonic seconds) says how urgent it is. To be awaited in the reader's thread.

        Raises:
            StoreError: no answer within the retry deadline, or a failure that is final: missing, refused, changed.
        """
        async with self._turns.taken(want_by):
            began = time.monotonic()
            answer = await self._hedged(name, start, length, version, want_by)
            self._whole.append((time.monotonic(), time.monotonic() - began))
            return answer

    def percentiles(self) -> tuple[float, float]:
        """Return the median and the 98th percentile of the recent seconds to the first byte."""
        recent = sorted(self._first.copy())
        if len(recent) < _FEW:
            return (recent[len(recent) // 2] if recent else _UNKNOWN_S), max([_UNKNOWN_S, *recent])
        cuts = quantiles(recent, n=50)
        return cuts[24], cuts[48]

    def answered(self, since: float) -> list[float]:
        """Return the seconds that answers since then took, whole."""
        return [took for at, took in self._whole.copy() if at >= since]

    def close(self) -> None:
        """End the thread; what is under way ends with a StoreError."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, and not the thread
        with self._lock:
            loop, thread = self._loop, self._thread
            self._loop = self._thread = None
        if loop is not None and thread is not None:
            loop.call_soon_threadsafe(self._cancel_all, loop)
            if thread is not threading.current_thread():  # a finaliser may run in any
                thread.join(5)
                if not thread.is_alive():
                    loop.close()

    @staticmethod
    def _cancel_all(loop: asyncio.AbstractEventLoop) -> None:
        for task in asyncio.all_tasks(loop):
            task.cancel()
        loop.call_later(0.05, loop.stop)  # they end first

    async def _hedged(self, name: str, start: int, length: int, version: str, want_by: float) -> Answer:
        self.traffic.requests += 1
        attempts: dict[asyncio.Task[Answer], _Attempt] = {}

        def send() -> None:
            attempt = _Attempt(time.monotonic())
            attempts[asyncio.create_task(self._retried(name, start, length, version, attempt))] = attempt

        send()
        second: asyncio.Task[Answer] | None = None
        error: BaseException | None = None
        wait_s: float | None = 0.0
        try:
            while attempts:
                if second is None:
                    p50, p98 = self.percentiles()
                    now = time.monotonic()
                    after = self.hedging.after_s(p50_s=p50, p98_s=p98, left_s=want_by - now)
                    heard = max(attempt.heard for attempt in attempts.values())
                    wait_s = heard + after - now
                    if wait_s <= 0:
                        wait_s = _RECHECK_S
                        spare = {"waited_s": now - heard, "p98_s": p98, "left_s": want_by - now}
                        if not self._is_throttled and self.hedging.allows(self.traffic, **spare):
                            self.traffic.hedged += 1
                            send()
                            second = next(reversed(attempts))
                            wait_s = None
                done, _ = await asyncio.wait(attempts, timeout=wait_s, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if task.exception() is None:
                        self.traffic.hedge_wins += task is second
                        return task.result()
                    error = error or task.exception()
                    del attempts[task]
            assert error is not None
            raise error
        finally:
            for task in attempts:
                task.cancel()
            await asyncio.gather(*attempts, return_exceptions=True)

    async def _retried(self, name: str, start: int, length: int, version: str, attempt: _Attempt) -> Answer:
        """Return a range, asked for again from where it broke off while failures are transient and time is left."""
        retry, began, tries, at = self.store.retry, time.monotonic(), 0, 0
        what = f"reading {length} bytes at {start} of {name!r}"
        body = memoryview(bytearray(length))
        while True:
            if not await self._gate(began + retry.deadline_s):
                raise StoreError(
                    f"{self.store.url}: {what}: still throttled after {tries} attempts in {time.monotonic() - began:.1f} s: "
                    "the store asks for fewer requests than are waiting"
                )
            tries += 1
            sent, is_first = time.monotonic(), True
            pieces = self.store.chunks(name, start + at, length - at, version=version)
            try:
                async with asyncio.timeout(_SLOW_S) as patience, aclosing(pieces):
                    since = at
                    async for found, piece in pieces:
                        version = found
                        now = attempt.heard = time.monotonic()
                        if is_first:
                            is_first = self._is_throttled = False
                            self._first.append(now - sent)
                        self.traffic.bytes += len(piece)
                        body[at : at + len(piece)] = piece
                        at += len(piece)
                        if at - since >= _SLOW_BYTES:
                            since = at
                            patience.reschedule(asyncio.get_running_loop().time() + _SLOW_S)
                return Answer(data=body.toreadonly(), version=version)
            except asyncio.CancelledError:
                if is_first:  # it would have taken longer still: left out, the slow ones would not be seen as slow
                    self._first.append(time.monotonic() - sent)
                raise
            except Exception as error:
                failure = classify(error)
                if failure == "auth" and self.store.renew():
                    continue
                if failure not in ("transient", "throttled"):
                    raise self.store.failed(what, error) from error
                wait = retry.wait_s(tries, throttled=failure == "throttled")
                spent = time.monotonic() - began
                if spent + wait > retry.deadline_s:
                    raise StoreError(
                        f"{self.store.url}: {what}: still {failure} after {tries} attempts in {spent:.1f} s: "
                        f"{str(error).strip().partition(chr(10))[0][:300] or type(error).__name__}"
                    ) from error
                self.traffic.retried += 1
                if failure == "throttled":
                    self.traffic.throttled += 1
                    self._is_throttled = True
                    self._resume_at = max(self._resume_at, time.monotonic() + wait)
                else:
                    await asyncio.sleep(wait)
                attempt.heard = time.monotonic()

    async def _gate(self, until: float) -> bool:
        """While the store says that it is asked too much, let one request a second through, all together.

        Returns whether this one's turn comes before `until`.
        """
        while self._is_throttled:
            now = time.monotonic()
            if now >= self._resume_at:
                self._resume_at = now + _THROTTLED_S
                return True
            if now >= until:
                return False
            await asyncio.sleep(min(self._resume_at, until) - now)
        return True

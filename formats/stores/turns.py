"""Turns at what only a few may use at once: the most urgent of those who wait is next, and may become so while it waits."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Hashable
from contextlib import asynccontextmanager

__all__ = ["Turns"]


class Turns:
    """At most `at_once` hold a turn. For one event loop's thread; `at_once` may be changed from any."""

    def __init__(self, at_once: int) -> None:
        self.at_once = at_once
        self.running = 0
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._named: dict[Hashable, asyncio.Future[None]] = {}
        self._count = itertools.count()  # of equally urgent ones the first to come is next

    @property
    def waiting(self) -> int:
        """How many wait, at most: those who gave up are found when it would be their turn."""
        return len(self._waiting)

    @asynccontextmanager
    async def taken(self, want_by: float, name: Hashable = None) -> AsyncIterator[None]:
        """Wait for a turn and hold it; `want_by` says how urgent it is, by `name` `hurry` finds it."""
        await self._take(want_by, name)
        try:
            yield
        finally:
            self.running -= 1
            self._next()

    def hurry(self, name: Hashable, want_by: float) -> None:
        """Let who waits by that name be as urgent as `want_by`; nothing if nobody does."""
        turn = self._named.get(name)
        if turn is not None:
            heapq.heappush(self._waiting, (want_by, next(self._count), turn))  # the first of its places that comes up counts

    async def _take(self, want_by: float, name: Hashable) -> None:
        if self.running < self.at_once and not self._waiting:
            self.running += 1
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (want_by, next(self._count), turn))
        if name is not None:
            self._named[name] = turn
        self._next()  # the limit may have been raised meanwhile
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():
                self.running -= 1
                self._next()
            raise
        finally:
            if self._named.get(name) is turn:
                del self._named[name]

    def _next(self) -> None:
        while self._waiting and self.running < self.at_once:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                self.running += 1
                turn.set_result(None)

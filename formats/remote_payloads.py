"""Payloads of a set in a store: ranges of shards by way of the node cache, checked, in memory of their own.

What several want at once is fetched once: within a process by sharing what is under way, within the node by a lock for each
extent. Missing extents that follow each other are asked for together, up to 8 MiB. What came is handed on at once and kept by
the cache afterwards, as far as its disk keeps up. A payload that fails its hash is fetched again past the cache, twice; after
that it is handed out as it is, and whoever uses it raises the typed error.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Final, TypeVar

from .byte_locks import ByteLocks
from .errors import StoreError
from .integrity import payload_hash
from .manifest import Shard
from .open_shard import Place
from .range_cache import EXTENT, RangeCache
from .stores.hedged import RangeReader

__all__ = ["RemotePayloads"]

Result = TypeVar("Result")

log = logging.getLogger("headway")

# 8 MiB: what one connection to S3 carries in a tenth of a second, so that the first byte's 30 ms no longer dominate.
_REQUEST_EXTENTS: Final = 8
_DISK_THREADS: Final = 2
_MOST_KEEPING: Final = 64 << 20  # bytes that wait for the cache's disk; what comes while it is so far behind is not kept
_TRIES: Final = 3
_POLL_S: Final = (0.002, 0.1)
_TAKE_OVER_S: Final = 5.0  # another process that fetches an extent for so long may hang: it is fetched here, too


@dataclass(slots=True)
class _Part:
    """What one extent holds of one payload."""

    extent: int
    start: int
    """In the extent."""
    out: memoryview


class RemotePayloads:
    """Payloads of all shards of one set. Safe to use from several threads."""

    def __init__(self, reader: RangeReader, cache: RangeCache | None, shards: Sequence[Shard]) -> None:
        self.reader, self.cache, self._shards = reader, cache, shards
        self._versions: dict[int, str] = {}
        self._flying: dict[tuple[int, int], asyncio.Future[memoryview]] = {}  # used in the reader's thread, like the next one
        self._downloads: set[asyncio.Task[None]] = set()
        # Apart, so that neither what the cache holds nor hashes of what is in memory wait while its disk writes.
        self._disk = ThreadPoolExecutor(_DISK_THREADS, "headway-cache")
        self._keeper = ThreadPoolExecutor(1, "headway-keep")
        self._checker = ThreadPoolExecutor(1, "headway-check")
        self._keeping = 0  # bytes; used in the reader's thread
        self._has_no_locks = False  # and has said so
        self._pid = os.getpid()
        self._lock = threading.Lock()  # guards _held
        self._held: dict[tuple[int, int], tuple[memoryview, int]] = {}
        self.hits = self.misses = self.mended = 0
        """Payload parts found in the cache, and not; payloads that failed their hash and were fetched again."""

    def view(self, shard: int, place: Place) -> memoryview:
        """Return a payload, at once if it is held in memory, else fetched now."""
        if place.start == place.stop:
            return memoryview(b"")
        with self._lock:
            held = self._held.get((shard, place.start))
        if held is not None and len(held[0]) == place.stop - place.start:
            return held[0]
        return self.submit(shard, [place], want_by=time.monotonic()).result()[0]

    def submit(self, shard: int, places: Sequence[Place], *, want_by: float) -> Future[list[memoryview]]:
        """Begin to fetch payloads that are wanted by a time (monotonic seconds)."""
        return self.reader.submit(self._fetch(shard, places, want_by))

    def hold(self, shard: int, places: Sequence[Place], views: Sequence[memoryview]) -> None:
        """Keep payloads in memory until `release` was called as often."""
        with self._lock:
            for place, view in zip(places, views, strict=True):
                found, count = self._held.get((shard, place.start), (view, 0))
                self._held[shard, place.start] = (found, count + 1)

    def release(self, shard: int, places: Sequence[Place]) -> None:
        """Let go of what `hold` kept."""
        with self._lock:
            for place in places:
                found, count = self._held[shard, place.start]
                if count == 1:
                    del self._held[shard, place.start]
                else:
                    self._held[shard, place.start] = (found, count - 1)

    @property
    def held_count(self) -> int:
        """Payloads held in memory."""
        return len(self._held)

    def close(self) -> None:
        """End the threads."""
        if os.getpid() != self._pid:
            return  # a forked child has the object, and none of the threads
        self._keeper.shutdown()  # with what it has, while the locks are held
        self.reader.close()
        for each in (self._disk, self._checker):
            each.shutdown(cancel_futures=True)

    async def _fetch(self, shard: int, places: Sequence[Place], want_by: float) -> list[memoryview]:
        out = [memoryview(bytearray(place.stop - place.start)) for place in places]
        wrong = list(range(len(places)))
        for again in range(_TRIES):
            chosen = [places[at] for at in wrong]
            await self._fill(shard, chosen, [out[at] for at in wrong], want_by, fresh=again > 0)
            wrong = await self._in(self._checker, _differing, places, out, wrong)
            if not wrong:
                break
            self.mended += len(wrong)
            bad = {part.extent for at in wrong for part in _parts(places[at], out[at])}
            if self.cache is not None:
                for extent in bad:
                    await self._in(self._keeper, self.cache.drop, self._shards[shard].data.sha256, extent)
        return [view.toreadonly() for view in out]

    async def _fill(self, shard: int, places: Sequence[Place], out: Sequence[memoryview], want_by: float, *, fresh: bool) -> None:
        """Fill `out` with payloads, from the cache where they are there, unless they are to be `fresh`."""
        parts = [part for place, view in zip(places, out, strict=True) for part in _parts(place, view)]
        missing = parts
        if self.cache is not None and not fresh:
            missing = await self._in(self._disk, self._from_cache, shard, parts)
        self.hits += len(parts) - len(missing)
        self.misses += len(missing)
        if missing:
            extents = await self._extents(shard, sorted({part.extent for part in missing}), want_by, fresh=fresh)
            for part in missing:
                part.out[:] = extents[part.extent][part.start : part.start + len(part.out)]

    def _from_cache(self, shard: int, parts: Sequence[_Part]) -> list[_Part]:
        """Fill the parts whose extents are in the cache and return the others."""
        assert self.cache is not None
        sha = self._shards[shard].data.sha256
        return [
            part
            for part in parts
            if not self.cache.read_into(sha, part.extent, part.start, part.out, self._size(shard, part.extent))
        ]

    async def _extents(self, shard: int, extents: Sequence[int], want_by: float, *, fresh: bool) -> dict[int, memoryview]:
        mine = [extent for extent in extents if (shard, extent) not in self._flying]
        loop = asyncio.get_running_loop()
        for extent in mine:
            self._flying[shard, extent] = loop.create_future()
        waiting = {extent: self._flying[shard, extent] for extent in extents}
        if mine:
            task = loop.create_task(self._download(shard, mine, want_by, fresh=fresh))
            self._downloads.add(task)
            task.add_done_callback(self._downloads.discard)
        found: dict[int, memoryview] = {}
        again: list[int] = []
        for extent, future in waiting.items():
            try:
                found[extent] = await asyncio.shield(future)
            except Exception:
                if extent in mine:
                    raise
                again.append(extent)  # of a request that began before this one: the store may be well now
        return found | (await self._extents(shard, again, want_by, fresh=fresh) if again else {})

    async def _download(self, shard: int, mine: list[int], want_by: float, *, fresh: bool) -> None:
        """Land the extents `mine`, each fetched here or waited for while another process fetches it."""
        futures = {extent: self._flying[shard, extent] for extent in mine}
        left, began, poll_s = list(mine), time.monotonic(), _POLL_S[0]
        locks: ByteLocks | None = None
        try:
            locks = await self._in(self._disk, self._locks, shard)
            while left:
                late = time.monotonic() - began > _TAKE_OVER_S
                got = left if late or locks is None else self._take(locks, left)
                here = {} if fresh else await self._in(self._disk, self._whole_from_cache, shard, left)
                for extent, data in here.items():
                    futures[extent].set_result(data)
                if locks is not None:
                    locks.release(extent for extent in got if extent in here)
                need = [extent for extent in got if extent not in here]
                await asyncio.gather(*(self._request(shard, run, want_by, futures, locks) for run in _runs(need)))
                left = [extent for extent in left if extent not in here and extent not in need]
                if left:
                    await asyncio.sleep(poll_s)
                    poll_s = min(2 * poll_s, _POLL_S[1])
        except BaseException as error:
            ended = error if isinstance(error, Exception) else StoreError(errno.ECANCELED, "reading was ended")
            for future in futures.values():
                if not future.done():
                    future.set_exception(ended)
                    future.exception()  # whether anybody still waits or not
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            for extent in mine:
                self._flying.pop((shard, extent), None)
            if locks is not None:
                locks.close()

    async def _request(
        self,
        shard: int,
        run: Sequence[int],
        want_by: float,
        futures: dict[int, asyncio.Future[memoryview]],
        locks: ByteLocks | None,
    ) -> None:
        """Fetch extents that follow each other by one request, and keep them."""
        entry, start = self._shards[shard], run[0] * EXTENT
        sha = entry.data.sha256
        length = sum(self._size(shard, extent) for extent in run)
        known = self._versions.get(shard, "")
        answer = await self.reader.read(entry.data_name, start, length, version=known, want_by=want_by)
        if self._versions.setdefault(shard, answer.version) != answer.version:
            raise StoreError(
                errno.ESTALE, f"{self.reader.store.url}/{entry.data_name} was replaced while it was read; open the set again"
            )
        pieces = {extent: answer.data[extent * EXTENT - start :][: self._size(shard, extent)] for extent in run}
        for extent, data in pieces.items():
            futures[extent].set_result(data)
        if self.cache is not None and self._keeping + length <= _MOST_KEEPING:
            self._keeping += length
            try:
                # All handed over at once: what the keeper has is kept even if reading ends now.
                kept = {extent: self._in(self._keeper, self.cache.publish, sha, extent, data) for extent, data in pieces.items()}
                for extent, done in kept.items():
                    await done
                    if locks is not None:
                        locks.release([extent])
            finally:
                self._keeping -= length
        elif locks is not None:
            locks.release(run)

    def _locks(self, shard: int) -> ByteLocks | None:
        try:
            return None if self.cache is None else self.cache.locks(self._shards[shard].data.sha256)
        except OSError as error:
            self._without_locks(error)
            return None

    def _take(self, locks: ByteLocks, extents: list[int]) -> list[int]:
        """Return those of `extents` that are to be fetched here: all, where the file system has no locks."""
        try:
            return locks.take(extents)
        except OSError as error:
            self._without_locks(error)
            return extents

    def _without_locks(self, error: OSError) -> None:
        """What several processes fetch is still right: a full or broken disk only costs bandwidth."""
        if not self._has_no_locks:
            self._has_no_locks = True
            assert self.cache is not None
            log.warning(
                "cannot lock what is fetched into %s (%s); processes of this node may download the same twice: make room there, "
                "or name a folder on a local disk by CacheOptions(directory=…)",
                self.cache.root,
                error.strerror or error,
            )

    def _whole_from_cache(self, shard: int, extents: Sequence[int]) -> dict[int, memoryview]:
        found: dict[int, memoryview] = {}
        for extent in extents if self.cache is not None else ():
            assert self.cache is not None
            sha, size = self._shards[shard].data.sha256, self._size(shard, extent)
            if self.cache.has(sha, extent):
                data = memoryview(bytearray(size))
                if self.cache.read_into(sha, extent, 0, data, size):
                    found[extent] = data
        return found

    def _size(self, shard: int, extent: int) -> int:
        return min(EXTENT, self._shards[shard].data.bytes - extent * EXTENT)

    @staticmethod
    def _in(threads: ThreadPoolExecutor, call: Callable[..., Result], *args: object) -> asyncio.Future[Result]:
        return asyncio.get_running_loop().run_in_executor(threads, partial(call, *args))


def _parts(place: Place, out: memoryview) -> list[_Part]:
    """Divide a payload's memory by the extents that it lies in."""
    parts, at = [], place.start
    while at < place.stop:
        extent, start = divmod(at, EXTENT)
        end = min(place.stop, (extent + 1) * EXTENT)
        parts.append(_Part(extent, start, out[at - place.start : end - place.start]))
        at = end
    return parts


def _runs(extents: Sequence[int]) -> list[list[int]]:
    """Join extents that follow each other, as far as one request goes, in parts of equal size."""
    joined: list[list[int]] = []
    for extent in extents:
        if joined and joined[-1][-1] == extent - 1:
            joined[-1].append(extent)
        else:
            joined.append([extent])
    runs = []
    for run in joined:
        count = -(-len(run) // _REQUEST_EXTENTS)
        cuts = [len(run) * at // count for at in range(count + 1)]
        runs += [run[a:b] for a, b in pairwise(cuts)]
    return runs


def _differing(places: Sequence[Place], out: Sequence[memoryview], chosen: Sequence[int]) -> list[int]:
    """Return those of `chosen` whose bytes are not those of their hash."""
    return [at for at in chosen if payload_hash(out[at]) != places[at].hash]

"""Index files of a set in a store, brought here shard by shard when first touched; payloads stay where they are.

A tar's index is a file of its own and fetched whole. An arrow shard becomes a sparse file of the same size that has everything
but the payloads: first both ends, which say where the rest lies, then the rest. Files appear by rename once they are checked and
synced, one process of the node fetching each. What an earlier process left is compared with its hashes once and, where it is
damaged, fetched again.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import struct
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from .byte_locks import ByteLocks
from .cache_directory import keeping
from .errors import CorruptShard, SetError
from .integrity import CHUNK, ChunkedFile, MappedFile, payload_hash
from .manifest import Shard
from .process_name import process_name
from .schema import Schema
from .shard_arrow import ArrowIndex
from .stores.hedged import RangeReader
from .stores.turns import Turns
from .synced_file import private, write_synced

__all__ = ["RemoteIndex"]

Ranges = list[tuple[int, int]]
Result = TypeVar("Result")

_numbers = itertools.count()  # several sets of one process may bring the same index
_HEAD: Final = 256 << 10  # holds the metadata, and for short shards all columns
_TAIL: Final = 64 << 10
_NEAR: Final = 512 << 10  # a gap that costs less to read than another request
_TRIES: Final = 3
_POLL_S: Final = 0.02
_TAKE_OVER_S: Final = 30.0  # another process that fetches an index for so long may hang: it is fetched here, too
_AT_ONCE: Final = 16  # shards: each takes two descriptors, and a plan may touch hundreds


class RemoteIndex:
    """Index files below `directory`; used in the reader's thread."""

    def __init__(self, reader: RangeReader, directory: Path, schema: Schema) -> None:
        self._reader, self._directory, self._schema = reader, directory, schema
        self._few = Turns(_AT_ONCE)
        self._want_by: dict[int, float] = {}
        """How urgent those under way are, by number."""
        self._known_good: set[int] = set()

    def is_here(self, shard: Shard) -> bool:
        """Whether a shard can be opened without asking the store."""
        return (self._directory / shard.sums_name).exists() and (self._directory / shard.index_name).exists()

    async def fetch(self, number: int, shard: Shard, want_by: float) -> None:
        """Bring the index files of shard `number`, unless they are here.

        Raises:
            CorruptShard: what the store holds is not what the manifest says.
            StoreError: the store does not answer, or they cannot be kept here.
        """
        self._want_by[number] = want_by
        try:
            with keeping(f"the index of shard {shard.name!r}", self._directory):
                async with self._few.taken(want_by, number):
                    await self._fetch(number, shard)
        finally:
            del self._want_by[number]

    async def hurry(self, number: int, want_by: float) -> None:
        """Let what `fetch` brings be as urgent as `want_by`, ahead of what was asked for before."""
        if number in self._want_by:
            self._want_by[number] = min(want_by, self._want_by[number])
            self._few.hurry(number, want_by)

    async def _fetch(self, number: int, shard: Shard) -> None:
        if await _in_thread(self._is_whole, number, shard):
            return
        began = time.monotonic()
        with ByteLocks(self._directory / "lock") as lock:
            while not _take(lock, number) and time.monotonic() - began < _TAKE_OVER_S:
                await asyncio.sleep(_POLL_S)
            if await _in_thread(self._is_whole, number, shard):
                return  # another process brought it
            for left in reversed(range(_TRIES)):
                try:
                    await self._bring(number, shard)
                    self._known_good.add(number)
                    return
                except CorruptShard:
                    if not left:
                        raise

    def _is_whole(self, number: int, shard: Shard) -> bool:
        """Whether files of a shard are here, and are those of the manifest; compared once."""
        if not self.is_here(shard) or number in self._known_good:
            return self.is_here(shard)
        try:
            sums = (self._directory / shard.sums_name).read_bytes()
            if f"{payload_hash(sums):016x}" != shard.sums_xxh3:
                return False
            chunked = ChunkedFile(MappedFile(self._directory / shard.index_name, shard.index_entry.bytes), sums)
            for start, stop in self._indexed(shard, chunked):
                chunked.touch(start, stop)
        except (SetError, OSError):  # torn, rotten, gone meanwhile or on a disk that fails
            return False
        self._known_good.add(number)
        return True

    def _indexed(self, shard: Shard, chunked: ChunkedFile) -> Ranges:
        """Return which bytes of an index file are to be here: of an arrow shard, all but the payloads."""
        size = shard.index_entry.bytes
        if shard.index is not None:
            return [(0, size)]
        index = ArrowIndex(chunked, self._schema, shard.kind, shard.frames)
        holes = [(-(-start // CHUNK) * CHUNK, stop // CHUNK * CHUNK) for start, stop in index.payload_buffers()]
        return _between([hole for hole in holes if hole[0] < hole[1]], size)

    async def _bring(self, number: int, shard: Shard) -> None:
        index_bytes = shard.index_entry.bytes
        sums_bytes = -(-index_bytes // CHUNK) * 8
        aside = self._directory / f".{process_name()}-{next(_numbers)}-{shard.name}"
        try:
            with open(aside, "wb", opener=private) as file:
                file.truncate(index_bytes)
                if shard.index is not None:
                    ranges = _whole(index_bytes)
                elif index_bytes <= _HEAD + _TAIL + _NEAR:
                    ranges = [(0, index_bytes)]
                else:
                    ranges = [(0, _HEAD), (index_bytes - _TAIL, index_bytes)]
                sums, _ = await asyncio.gather(
                    self._read(number, shard.sums_name, 0, sums_bytes),
                    self._copy_all(number, shard.index_name, ranges, file.fileno()),
                )
                if f"{payload_hash(sums):016x}" != shard.sums_xxh3:
                    raise CorruptShard(
                        f"cannot open shard {shard.name!r}: {shard.sums_name!r} in {self._reader.store.url!r} is not the one "
                        "that the manifest states; copy it there again"
                    )
                if shard.index is None:
                    await self._complete(number, shard, aside, bytes(sums), file.fileno(), ranges)
                elif (found := hashlib.sha256(aside.read_bytes()).hexdigest()) != shard.index.sha256:
                    raise CorruptShard(
                        f"cannot use {shard.index_name!r} of {self._reader.store.url!r}: it has hash {found}, the manifest "
                        f"states {shard.index.sha256}; copy it there again"
                    )
                await _in_thread(os.fsync, file.fileno())
            os.replace(aside, self._directory / shard.index_name)
            await _in_thread(partial(write_synced, aside, sums, mode="wb", opener=private))
            os.replace(aside, self._directory / shard.sums_name)
        finally:
            aside.unlink(missing_ok=True)

    async def _complete(self, number: int, shard: Shard, path: Path, sums: bytes, file: int, have: Ranges) -> None:
        """Fetch what an arrow shard's metadata names, besides the payloads."""
        size = shard.data.bytes
        missing = _outside(_metadata(path, size), have)
        await self._copy_all(number, shard.data_name, missing, file)
        have = _joined(have + missing, near=0)
        chunked = ChunkedFile(MappedFile(path, size), sums)
        wanted = self._indexed(shard, chunked)
        missing = _joined(_outside(wanted, have), near=_NEAR)
        await self._copy_all(number, shard.data_name, missing, file)
        for start, stop in wanted:
            chunked.touch(start, stop)

    async def _copy_all(self, number: int, name: str, ranges: Ranges, file: int) -> None:
        await asyncio.gather(*(self._copy(number, name, start, stop, file) for start, stop in ranges))

    async def _copy(self, number: int, name: str, start: int, stop: int, file: int) -> None:
        data = await self._read(number, name, start, stop - start)
        done = 0
        while done < len(data):
            done += os.pwrite(file, data[done:], start + done)

    async def _read(self, number: int, name: str, start: int, length: int) -> memoryview:
        try:
            return (await self._reader.read(name, start, length, want_by=self._want_by[number])).data
        except FileNotFoundError as error:
            raise CorruptShard(
                f"cannot read {name!r} from {self._reader.store.url!r}: it is missing; copy it there again"
            ) from error


async def _in_thread(call: Callable[..., Result], *args: object) -> Result:
    """Do what waits for a disk while requests go on."""
    return await asyncio.get_running_loop().run_in_executor(None, call, *args)


def _take(lock: ByteLocks, number: int) -> bool:
    try:
        return bool(lock.take([number]))
    except OSError:
        return True  # a file system without locks: what is fetched twice is still right


def _whole(size: int) -> Ranges:
    """Cut a file into requests of at most 8 MiB."""
    step = 8 << 20
    return [(start, min(size, start + step)) for start in range(0, size, step)]


def _metadata(path: Path, size: int) -> Ranges:
    """Return where an Arrow file's metadata lies, as far as both ends of it say; what they say is checked later, by its hash."""
    with open(path, "rb") as file:
        file.seek(size - 10)
        (footer,) = struct.unpack("<i", file.read(4))
        found = [(max(0, size - 10 - max(0, footer)), size)]
        at = 8
        for _ in range(2):
            file.seek(at)
            _, length = struct.unpack("<Ii", file.read(8).ljust(8, b"\0"))
            at = min(size, at + 8 + max(0, length))
        found.append((0, min(size, at + 8)))
    return _joined([(start // CHUNK * CHUNK, min(size, -(-stop // CHUNK) * CHUNK)) for start, stop in found], near=0)


def _joined(ranges: Sequence[tuple[int, int]], *, near: int) -> Ranges:
    """Return ranges in order, those that touch or lie near each other as one."""
    found: Ranges = []
    for start, stop in sorted(ranges):
        if found and start <= found[-1][1] + near:
            found[-1] = (found[-1][0], max(stop, found[-1][1]))
        else:
            found.append((start, stop))
    return found


def _outside(wanted: Sequence[tuple[int, int]], have: Sequence[tuple[int, int]]) -> Ranges:
    """Return what of `wanted` is not in `have`, which is in order and does not overlap."""
    found: Ranges = []
    for start, stop in wanted:
        at = start
        for low, high in have:
            if low < stop and high > at:
                if at < low:
                    found.append((at, low))
                at = max(at, high)
        if at < stop:
            found.append((at, stop))
    return found


def _between(holes: Sequence[tuple[int, int]], size: int) -> Ranges:
    """Return [0, size) without `holes`."""
    return _outside([(0, size)], _joined(holes, near=0))

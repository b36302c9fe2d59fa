"""Index files of a set in a store, brought here shard by shard when first touched; payloads stay where they are.

A tar's index is a file of its own and fetched whole. An arrow shard becomes a sparse file of the same size that has everything
but the payloads: first both ends, which say where the rest lies, then the rest. Files appear by rename once they are checked,
one process of the node fetching each.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from .byte_locks import ByteLocks
from .errors import CorruptShard
from .integrity import CHUNK, ChunkedFile, MappedFile, payload_hash
from .manifest import Shard
from .next_uses import process_name
from .schema import Schema
from .shard_arrow import ArrowIndex
from .stores.hedged import RangeReader

__all__ = ["RemoteIndex"]

Ranges = list[tuple[int, int]]

_HEAD: Final = 256 << 10  # holds the metadata, and for short shards all columns
_TAIL: Final = 64 << 10
_NEAR: Final = 512 << 10  # a gap that costs less to read than another request
_TRIES: Final = 3
_POLL_S: Final = 0.02
_AT_ONCE: Final = 16  # shards: each takes two descriptors, and a plan may touch hundreds


class RemoteIndex:
    """Index files below `directory`; used in the reader's thread."""

    def __init__(self, reader: RangeReader, directory: Path, schema: Schema) -> None:
        self._reader, self._directory, self._schema = reader, directory, schema
        self._few = asyncio.Semaphore(_AT_ONCE)

    def is_here(self, shard: Shard) -> bool:
        """Whether a shard can be opened without asking the store."""
        return (self._directory / shard.sums_name).exists() and (self._directory / shard.index_name).exists()

    async def fetch(self, number: int, shard: Shard, want_by: float) -> None:
        """Bring the index files of shard `number`, unless they are here.

        Raises:
            CorruptShard: what the store holds is not what the manifest says.
        """
        async with self._few:
            await self._fetch(number, shard, want_by)

    async def _fetch(self, number: int, shard: Shard, want_by: float) -> None:
        with ByteLocks(self._directory / "lock") as lock:
            while not self.is_here(shard) and not lock.take([number]):
                await asyncio.sleep(_POLL_S)
            if self.is_here(shard):
                return
            for left in reversed(range(_TRIES)):
                try:
                    await self._bring(shard, want_by)
                    return
                except CorruptShard:
                    if not left:
                        raise

    async def _bring(self, shard: Shard, want_by: float) -> None:
        index_bytes = shard.index_entry.bytes
        sums_bytes = -(-index_bytes // CHUNK) * 8
        aside = self._directory / f".{process_name()}-{shard.name}"
        try:
            with open(aside, "wb", opener=_private) as file:
                file.truncate(index_bytes)
                if shard.index is not None:
                    ranges = _whole(index_bytes)
                elif index_bytes <= _HEAD + _TAIL + _NEAR:
                    ranges = [(0, index_bytes)]
                else:
                    ranges = [(0, _HEAD), (index_bytes - _TAIL, index_bytes)]
                sums, _ = await asyncio.gather(
                    self._read(shard.sums_name, 0, sums_bytes, want_by),
                    self._copy_all(shard.index_name, ranges, file.fileno(), want_by),
                )
                if f"{payload_hash(sums):016x}" != shard.sums_xxh3:
                    raise CorruptShard(
                        f"cannot open shard {shard.name!r}: {shard.sums_name!r} in {self._reader.store.url!r} is not the one "
                        "that the manifest states; copy it there again"
                    )
                if shard.index is None:
                    await self._complete(shard, aside, bytes(sums), file.fileno(), ranges, want_by)
                elif (found := hashlib.sha256(aside.read_bytes()).hexdigest()) != shard.index.sha256:
                    raise CorruptShard(
                        f"cannot use {shard.index_name!r} of {self._reader.store.url!r}: it has hash {found}, the manifest "
                        f"states {shard.index.sha256}; copy it there again"
                    )
            os.replace(aside, self._directory / shard.index_name)
            with open(aside, "wb", opener=_private) as file:
                file.write(sums)
            os.replace(aside, self._directory / shard.sums_name)
        finally:
            aside.unlink(missing_ok=True)

    async def _complete(self, shard: Shard, path: Path, sums: bytes, file: int, have: Ranges, want_by: float) -> None:
        """Fetch what an arrow shard's metadata names, besides the payloads."""
        size = shard.data.bytes
        missing = _outside(_metadata(path, size), have)
        await self._copy_all(shard.data_name, missing, file, want_by)
        have = _joined(have + missing, near=0)
        chunked = ChunkedFile(MappedFile(path, size), sums)
        index = ArrowIndex(chunked, self._schema, shard.kind, shard.frames)
        holes = [(-(-start // CHUNK) * CHUNK, stop // CHUNK * CHUNK) for start, stop in index.payload_buffers()]
        wanted = _between([hole for hole in holes if hole[0] < hole[1]], size)
        missing = _joined(_outside(wanted, have), near=_NEAR)
        await self._copy_all(shard.data_name, missing, file, want_by)
        for start, stop in wanted:
            chunked.touch(start, stop)

    async def _copy_all(self, name: str, ranges: Ranges, file: int, want_by: float) -> None:
        await asyncio.gather(*(self._copy(name, start, stop, file, want_by) for start, stop in ranges))

    async def _copy(self, name: str, start: int, stop: int, file: int, want_by: float) -> None:
        data = await self._read(name, start, stop - start, want_by)
        done = 0
        while done < len(data):
            done += os.pwrite(file, data[done:], start + done)

    async def _read(self, name: str, start: int, length: int, want_by: float) -> memoryview:
        try:
            return (await self._reader.read(name, start, length, want_by=want_by)).data
        except FileNotFoundError as error:
            raise CorruptShard(
                f"cannot read {name!r} from {self._reader.store.url!r}: it is missing; copy it there again"
            ) from error


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)


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

"""Publishing a set into an object store: shards go up as they are finished, the manifest last, and only if nobody was faster.

Shards are written to local temporary space. Once one is up, its payload bytes are given back to the disk here; index and
columns stay, for the set id is computed from them. A receipt beside the uploaded shards lets a later run, on any machine, go
on from there. Nobody can lock a bucket, so packers may race: the manifest is put under the condition that it is still what it
was at the start, one of them wins, and the others take back what they uploaded. What the winner sweeps was listed before its
manifest stood, so it belongs to older runs or to losers.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from .errors import HeadwayError, SetError, StoreError, UsageError
from .integrity import CHUNK
from .limits import DEFAULT_LIMITS, Limits
from .manifest import MANIFEST_NAME, Manifest, Shard
from .open_shard import OpenShard
from .pack_worker import PackedShards
from .receipts import Holes, decode_receipt, encode_receipt
from .schema import Schema
from .set_files import ATTACHED_FILE, SHARD_FILE, STAGING_NAME, set_files
from .shard import FinishedShard
from .stores import Entry, Store, open_store

__all__ = ["RemoteStaging"]

_RECEIPT: Final = re.compile(re.escape(STAGING_NAME) + r"/\d+\.receipt")
_PREFIX: Final = "headway-packing-"
_LOCK: Final = "lock"
_READ: Final = 16 << 20


class RemoteStaging:
    """Local temporary space for a set on its way into a store, and what of it is up already."""

    def __init__(self, destination: str, *, overwrite: bool, limits: Limits = DEFAULT_LIMITS) -> None:
        self.destination = destination
        self.overwrite = overwrite
        self.limits = limits
        self.path = Path()
        self._store: Store = open_store(destination)
        self._old: Entry | None = None  # the manifest that is to be replaced
        self._found: dict[str, Entry] = {}  # what lay there at the start
        self._up: set[str] = set()  # what this run put there, or found and relies on
        self._lock: int | None = None

    def open(self, *, keep: bool) -> None:
        """Look at the destination and make the local space; with `keep`, what an earlier run uploaded counts."""
        entries = {entry.name: entry for entry in self._store.list()}
        self._old = entries.pop(MANIFEST_NAME, None)
        if self._old is not None and not self.overwrite:
            raise UsageError(
                f"cannot pack into {self.destination!r}: a set is there already; choose another place, or --overwrite"
            )
        strangers = sorted(name for name in entries if not _ours(name))
        if strangers and self._old is None:
            raise UsageError(
                f"cannot pack into {self.destination!r}: it is not empty ({', '.join(strangers[:3])}"
                f"{', …' if len(strangers) > 3 else ''}) and holds no set; choose another prefix"
            )
        self._found = entries if keep else {}
        self._make_space()

    def find(self, number: int, fingerprint: str) -> PackedShards | None:
        """Return what an earlier run finished and uploaded under this number, its index and columns fetched; else None."""
        name = f"{STAGING_NAME}/{number:05d}.receipt"
        if name not in self._found:
            return None
        try:
            decoded = decode_receipt(self._whole(name), fingerprint)
            if decoded is None:
                return None
            done, holes, schema = decoded
            attached = {file.path: file.bytes for shard in done.shards for drive, _ in shard.drives for file in drive.attachments}
            wanted = attached | {name: size for shard in done.shards for name, size in _sizes(shard.shard).items()}
            if any(name not in self._found or self._found[name].size != size for name, size in wanted.items()):
                return None
            for shard in done.shards:
                self._fetch_index(shard, holes, schema)
        except HeadwayError:
            return None
        self._up.update(wanted)
        return done

    def keep(self, number: int, fingerprint: str, done: PackedShards, schema: Schema) -> None:
        """Upload the files of a finished task, then its receipt, and give back the local space of its payloads."""
        holes: Holes = {}
        for shard in done.shards:
            for name in (*shard.shard.file_names(), *(file.path for drive, _ in shard.drives for file in drive.attachments)):
                self._upload(name)
            name = shard.shard.data_name
            holes[name] = _payload_ranges(self.path, shard, schema, self.limits)
            _hollow(self.path / name, holes[name])
        receipt = f"{STAGING_NAME}/{number:05d}.receipt"
        self._store.put(receipt, encode_receipt(fingerprint, done, holes, schema))
        self._up.add(receipt)

    def publish(self, manifest: Manifest) -> Manifest:
        """Upload what is not up yet, commit the manifest, and sweep what it replaces.

        Raises:
            StoreError: another packer published here in the meantime, or removed what this one had uploaded.
        """
        wanted = set_files(manifest)
        for name in sorted(wanted):
            self._upload(name)
        there = {entry.name: entry.size for entry in self._store.list()}
        expected = {name: size for shard in manifest.shards for name, size in _sizes(shard).items()}
        lost = sorted(name for name in wanted if name not in there or there[name] != expected.get(name, there[name]))
        if lost:
            raise StoreError(
                errno.ESTALE,
                f"cannot publish {self.destination!r}: {lost[0]!r} was uploaded and is gone; another packer is at work there: "
                "let one run alone",
            )
        data = manifest.encode()
        self._commit(data)
        with suppress(StoreError):  # the set stands; what stays is swept by the next publication
            for name in sorted(there):
                if name not in wanted and _ours(name):
                    self._store.delete(name)
        self._up.clear()
        self.clear()
        return Manifest.decode(data, limits=self.limits)

    def clear(self) -> None:
        """Take back what this run uploaded, unless a set stands on it, and remove the local space."""
        mine = self._up - set(self._found)
        if mine:
            # A store that does not answer is left as it is: those files are swept by the next publication.
            with suppress(StoreError):
                taken = self._published_files()
                for name in sorted(mine - taken, reverse=True):
                    self._store.delete(name)
        self._up.clear()
        self.release()

    def release(self) -> None:
        """Remove the local space and leave the uploads, with their receipts, for a later run."""
        if self.path != Path():
            shutil.rmtree(self.path, ignore_errors=True)
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None
        self._store.close()

    def _make_space(self) -> None:
        """Make the local space, locked; what killed runs left beside it is removed."""
        for entry in Path(tempfile.gettempdir()).glob(_PREFIX + "*"):
            with suppress(OSError):
                if entry.lstat().st_uid == os.getuid():
                    handle = os.open(entry / _LOCK, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
                    try:
                        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(entry)
                    finally:
                        os.close(handle)
        self.path = Path(tempfile.mkdtemp(prefix=_PREFIX))
        fresh = self.path / (_LOCK + ".new")
        self._lock = os.open(fresh, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.replace(fresh, self.path / _LOCK)  # only now can another run see it, and it is locked

    def _upload(self, name: str) -> None:
        if name not in self._up:
            self._up.add(name)  # before the call: one that fails half-way is taken back, too
            self._store.put(name, self.path / name)

    def _commit(self, data: bytes) -> None:
        version = self._old.version if self._old is not None else ""
        try:
            self._store.put(MANIFEST_NAME, data, if_absent=self._old is None, if_version=version)
        except StoreError as error:
            if error.errno not in (errno.EEXIST, errno.ESTALE):
                raise
            # An answer that was lost on the way makes the repeated request fail over our own manifest.
            if self._whole(MANIFEST_NAME) == data:
                return
            raise StoreError(
                error.errno,
                f"cannot publish {self.destination!r}: another packer published a set there while this one was at work; "
                "that set stands: use it, or run again with --overwrite",
            ) from error

    def _published_files(self) -> set[str]:
        try:
            return set_files(Manifest.decode(self._whole(MANIFEST_NAME), limits=self.limits))
        except FileNotFoundError:
            return set()
        except SetError:
            return self._up  # a damaged manifest may name anything: leave everything

    def _whole(self, name: str) -> bytes:
        entry = self._store.head(name)
        if entry.size > self.limits.manifest_bytes:
            raise StoreError(errno.EFBIG, f"{self.destination}/{name} has {entry.size} bytes, limit {self.limits.manifest_bytes}")
        return bytes(self._store.read(name, 0, entry.size, version=entry.version))

    def _fetch_index(self, finished: FinishedShard, holes: Holes, schema: Schema) -> None:
        """Fetch an uploaded shard's files without its payloads, and compare what was fetched with its hashes."""
        shard = finished.shard
        for name, size in _sizes(shard).items():
            with open(self.path / name, "wb") as file:
                file.truncate(size)
                for start, stop in _between(holes.get(name, []), size):
                    for at in range(start, stop, _READ):
                        file.seek(at)
                        file.write(self._store.read(name, at, min(_READ, stop - at), version=self._found[name].version))
        index = _opened(self.path, finished, schema, self.limits).index
        for start, stop in _between(holes.get(shard.index_name, []), shard.index_entry.bytes):
            index.file.touch(start, stop)


def _ours(name: str) -> bool:
    """Whether a run may have put this here, by the form of its name."""
    folder, _, rest = name.rpartition("/")
    if folder == "attachments":
        return ATTACHED_FILE.fullmatch(rest) is not None
    return _RECEIPT.fullmatch(name) is not None or SHARD_FILE.fullmatch(name) is not None


def _sizes(shard: Shard) -> dict[str, int]:
    """Every file of a shard and its size."""
    index = shard.index_entry.bytes
    return {shard.data_name: shard.data.bytes, shard.index_name: index, shard.sums_name: -(-index // CHUNK) * 8}


def _opened(directory: Path, finished: FinishedShard, schema: Schema, limits: Limits) -> OpenShard:
    rows = tuple(sum(part.rows[at] for _, part in finished.drives) for at in range(len(schema.sensors)))
    return OpenShard(directory, finished.shard, schema=schema, rows=rows, limits=limits)


def _payload_ranges(directory: Path, finished: FinishedShard, schema: Schema, limits: Limits) -> list[tuple[int, int]]:
    """Byte ranges of a data file that hold nothing but payloads, in whole chunks: the set id does not need them."""
    shard = finished.shard
    if shard.index is not None:
        return [(0, shard.data.bytes)]
    opened, found = _opened(directory, finished, schema, limits), []
    for sensor in schema.sensors:
        table = opened.payloads(sensor) if sensor.codec is not None else None
        if table is not None and len(table.start):
            start, stop = -(-int(table.start.min()) // CHUNK) * CHUNK, int(table.stop.max()) // CHUNK * CHUNK
            if start < stop:
                found.append((start, stop))
    return sorted(found)


def _hollow(path: Path, holes: Sequence[tuple[int, int]]) -> None:
    """Replace a file by a sparse one of the same size that lacks the bytes of `holes`."""
    size, aside = path.stat().st_size, path.with_suffix(".tmp")
    with open(path, "rb") as source, open(aside, "wb") as sink:
        sink.truncate(size)
        for start, stop in _between(holes, size):
            source.seek(start)
            sink.seek(start)
            for at in range(start, stop, _READ):
                sink.write(source.read(min(_READ, stop - at)))
    os.replace(aside, path)


def _between(holes: Sequence[tuple[int, int]], size: int) -> Iterator[tuple[int, int]]:
    """Yield the ranges of [0, size) outside `holes`, which ascend."""
    at = 0
    for start, stop in holes:
        if at < start:
            yield at, start
        at = stop
    if at < size:
        yield at, size

"""A set in an object store, opened where it lies: the manifest at once, index files when touched, payloads by range."""

from __future__ import annotations

import hashlib
import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future, wait
from contextlib import suppress
from pathlib import Path

from .byte_locks import ByteLocks
from .cache_directory import cache_directory, keeping, private_directory
from .download import fetch_file, manifest_bytes
from .errors import CorruptShard, StoreError
from .limits import Limits
from .manifest import MANIFEST_NAME, AttachedFile, Manifest
from .process_name import process_name
from .range_cache import CacheOptions
from .remote_index import RemoteIndex
from .remote_payloads import RemotePayloads
from .stores.hedged import RangeReader
from .stores.remote import RemoteStore
from .synced_file import private, write_synced

__all__ = ["RemoteSet", "open_remote"]

_TRIES = 3


class RemoteSet:
    """What a `PackedSet` needs of a set that is not on this machine. Safe to use from several threads."""

    def __init__(self, url: str, manifest: Manifest, directory: Path, store: RemoteStore, cache: CacheOptions) -> None:
        self.url, self.manifest, self.directory, self.cache_options = url, manifest, directory, cache
        self.reader = RangeReader(store)
        self.payloads = RemotePayloads(self.reader, cache.open(), manifest.shards)
        self._index = RemoteIndex(self.reader, directory, manifest.schema)
        self._coming: dict[int, Future[None]] = {}
        self._lock = threading.Lock()  # guards _coming
        weakref.finalize(self, self.payloads.close)

    def prepare(self, shards: Iterable[int], *, want_by: float = float("inf")) -> None:
        """Begin to bring the index of shards, those that could not be brought before once more; nothing is waited for."""
        with self._lock:
            for shard in shards:
                self._begin(shard, want_by)

    def wait_for(self, shard: int) -> None:
        """Return once the index of a shard is here, ahead of those that nobody waits for."""
        with self._lock:
            before = self._coming.get(shard)
            coming = self._begin(shard, 0.0)
        if coming is before:
            if not coming.done():
                self.reader.submit(self._index.hurry(shard, 0.0))
            wait([coming])
            if not coming.cancelled() and coming.exception() is not None:
                with self._lock:  # begun when nobody needed it: by now the store may be well again
                    coming = self._begin(shard, 0.0)
        coming.result()

    def _begin(self, shard: int, want_by: float) -> Future[None]:
        """Return what brings the index of a shard, begun unless it is under way or done; the caller holds the lock."""
        found = self._coming.get(shard)
        if found is None or (found.done() and (found.cancelled() or found.exception() is not None)):
            found = self.reader.submit(self._index.fetch(shard, self.manifest.shards[shard], want_by))
            self._coming[shard] = found
        return found

    def is_open(self, shard: int) -> bool:
        """Whether a shard's index is here."""
        return self._index.is_here(self.manifest.shards[shard])

    def bring_attachment(self, file: AttachedFile) -> None:
        """Fetch an attachment into `directory`, unless it is there, whole."""
        target = self.directory / file.path
        with keeping(f"attachment {file.name!r}", self.directory):
            private_directory(self.directory / "attachments")
            with ByteLocks(self.directory / "lock") as lock:
                with suppress(OSError):  # a file system without locks: what is fetched twice is still right
                    lock.take([len(self.manifest.shards)], wait=True)  # beyond the shards' numbers
                if target.exists() and hashlib.sha256(target.read_bytes()).hexdigest() != file.sha256:
                    target.unlink()
                fetch_file(self.reader.store, self.directory, file.path, file.sha256)


def open_remote(url: str, *, limits: Limits, expect_digest: str | None, cache: CacheOptions) -> RemoteSet | Path:
    """Return the set at `url`, or the folder of a whole copy that this node already has.

    Raises:
        NotASet: nothing was published there.
        StoreError: there is no cache directory for the index files, or nothing can be written there.
    """
    root = cache_directory("index")
    if root is None:
        raise StoreError(f"cannot open {url!r}: no cache directory can be made for its index files; set XDG_CACHE_HOME")
    store = RemoteStore(url)
    manifest = None if expect_digest is None else _kept(root / expect_digest.lower(), expect_digest, limits)
    if manifest is None:
        data, manifest = _manifest(store, url, limits)
        manifest.check_pinned(url, expect_digest)
        with keeping(f"the manifest of {url!r}", root):
            private_directory(root / manifest.digest)
            _keep(root / manifest.digest / MANIFEST_NAME, data)
    whole = cache_directory("sets")
    if whole is not None and _kept(whole / manifest.digest, manifest.digest, limits) is not None:
        return whole / manifest.digest
    return RemoteSet(url, manifest, root / manifest.digest, store, cache)


def _kept(folder: Path, digest: str, limits: Limits) -> Manifest | None:
    """Return the manifest in a folder of the cache, None if there is none, or only a damaged one."""
    try:
        return Manifest.load(folder, limits=limits, expect_digest=digest) if (folder / MANIFEST_NAME).is_file() else None
    except (CorruptShard, OSError):
        return None


def _manifest(store: RemoteStore, url: str, limits: Limits) -> tuple[bytes, Manifest]:
    """Return the manifest; one that was damaged on its way is asked for again."""
    for left in reversed(range(_TRIES)):
        data = manifest_bytes(store, url, limits)
        try:
            return data, Manifest.decode(data, limits=limits)
        except CorruptShard:
            if not left:
                raise
    raise AssertionError("the last try returns or raises")


def _keep(path: Path, data: bytes) -> None:
    """Keep a manifest, unless it is there and whole."""
    with suppress(OSError):
        if path.read_bytes() == data:
            return
    aside = path.with_name(f".{process_name()}-{threading.get_ident()}-manifest")
    try:
        write_synced(aside, data, opener=private)
        os.replace(aside, path)
    finally:
        aside.unlink(missing_ok=True)

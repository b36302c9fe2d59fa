"""A set in an object store, opened where it lies: the manifest at once, index files when touched, payloads by range."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Iterable
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path

from .byte_locks import ByteLocks
from .cache_directory import cache_directory, private_directory
from .download import fetch_file, manifest_bytes
from .errors import CorruptShard, StoreError
from .limits import Limits
from .manifest import MANIFEST_NAME, AttachedFile, Manifest
from .next_uses import process_name
from .range_cache import CacheOptions
from .remote_index import RemoteIndex
from .remote_payloads import RemotePayloads
from .stores.hedged import RangeReader
from .stores.remote import RemoteStore

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
        """Begin to bring the index of shards; nothing is waited for."""
        with self._lock:
            for shard in shards:
                if shard not in self._coming:
                    entry = self.manifest.shards[shard]
                    self._coming[shard] = self.reader.submit(self._index.fetch(shard, entry, want_by))

    def wait_for(self, shard: int) -> None:
        """Return once the index of a shard is here."""
        self.prepare([shard], want_by=0.0)
        with self._lock:
            coming = self._coming[shard]
        try:
            coming.result()
        except BaseException:
            with self._lock:
                self._coming.pop(shard, None)  # the next one who asks tries again
            raise

    def is_open(self, shard: int) -> bool:
        """Whether a shard's index is here."""
        return self._index.is_here(self.manifest.shards[shard])

    def bring_attachment(self, file: AttachedFile) -> None:
        """Fetch an attachment into `directory`, unless it is there."""
        private_directory(self.directory / "attachments")
        with ByteLocks(self.directory / "lock") as lock:  # beyond the shards' numbers
            lock.take([len(self.manifest.shards)], wait=True)
            fetch_file(self.reader.store, self.directory, file.path, file.sha256)


def open_remote(url: str, *, limits: Limits, expect_digest: str | None, cache: CacheOptions) -> RemoteSet | Path:
    """Return the set at `url`, or the folder of a whole copy that this node already has.

    Raises:
        NotASet: nothing was published there.
        StoreError: there is no cache directory for the index files.
    """
    root = cache_directory("index")
    if root is None:
        raise StoreError(f"cannot open {url!r}: no cache directory can be made for its index files; set XDG_CACHE_HOME")
    store = RemoteStore(url)
    known = None if expect_digest is None else root / expect_digest.lower() / MANIFEST_NAME
    if known is not None and known.is_file():
        manifest = Manifest.load(known.parent, limits=limits, expect_digest=expect_digest)
    else:
        data, manifest = _manifest(store, url, limits)
        manifest.check_pinned(url, expect_digest)
        private_directory(root / manifest.digest)
        _keep(root / manifest.digest / MANIFEST_NAME, data)
    whole = cache_directory("sets")
    if whole is not None and (whole / manifest.digest / MANIFEST_NAME).is_file():
        return whole / manifest.digest
    return RemoteSet(url, manifest, root / manifest.digest, store, cache)


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
    if not path.exists():
        aside = path.with_name(f".{process_name()}-manifest")
        with suppress(FileExistsError):
            with open(os.open(aside, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_NOFOLLOW, 0o600), "wb") as file:
                file.write(data)
            os.replace(aside, path)

"""A set that lies in an object store, brought whole into the local cache and checked: for what reads every byte of it.

Each file is fetched once for all processes of a node: under a lock, written aside, compared with the hash that the manifest
states, renamed. The folder is named by the manifest's digest, so a set that was published anew is fetched anew. Nothing is
ever removed here; delete `sets` in headway's cache directory to free the space. Reading parts of shards is not this file's job.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Final

from .cache_directory import cache_directory
from .errors import CorruptShard, LimitExceeded, NotASet, StoreError
from .integrity import payload_hash
from .limits import DEFAULT_LIMITS, Limits
from .manifest import MANIFEST_NAME, Manifest
from .stores import Store, is_remote, local_path, open_store
from .synced_file import write_synced

__all__ = ["fetch_file", "local_set", "manifest_bytes"]

# 16 MiB: long enough to hide the first-byte time of object stores (bench/limits.py measures the rest), short enough to retry.
_READ: Final = 16 << 20
_AT_ONCE: Final = 4


def local_set(location: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS, expect_digest: str | None = None) -> Path:
    """Return the folder of a set; one given by URL is downloaded into the cache first.

    Raises:
        NotASet: nothing was published at the URL.
        CorruptShard: a file there is not what the manifest says, or the manifest is not the pinned one.
    """
    if not is_remote(location):
        return local_path(location)
    url = os.fspath(location)
    with closing(open_store(url)) as store:
        data = manifest_bytes(store, url, limits)
        manifest = Manifest.decode(data, limits=limits)
        manifest.check_pinned(url, expect_digest)
        root = cache_directory("sets")
        if root is None:
            raise StoreError(f"cannot open {url!r}: no cache directory can be made to download it into; set XDG_CACHE_HOME")
        folder = root / manifest.digest
        (folder / "attachments").mkdir(parents=True, exist_ok=True)
        handle = os.open(folder / ".lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)  # the others wait here, then find everything in place
            if not _holds(folder / MANIFEST_NAME, data):
                _fetch_all(store, folder, manifest, limits)
                _write(folder / MANIFEST_NAME, data)
        finally:
            os.close(handle)
    return folder


def manifest_bytes(store: Store, url: str, limits: Limits) -> bytes:
    """Return the manifest of the set at `url`, by one request."""
    try:
        _, data = store.whole(MANIFEST_NAME, limits.manifest_bytes)
    except FileNotFoundError as error:
        raise NotASet(
            f"cannot open a set at {url!r}: no {MANIFEST_NAME} there; either it is no set, or packing never finished: "
            "run pack-dataset again (with --resume to keep finished shards)"
        ) from error
    except StoreError as error:
        if error.errno == errno.EFBIG:
            raise LimitExceeded(f"cannot read {MANIFEST_NAME} at {url!r}: {error}; raise Limits.manifest_bytes") from error
        raise
    return bytes(data)


def _fetch_all(store: Store, folder: Path, manifest: Manifest, limits: Limits) -> None:
    wanted: dict[str, str] = {}
    for shard in manifest.shards:
        for entry in (shard.data, shard.index_entry):
            if entry.bytes > limits.shard_bytes:
                raise LimitExceeded(
                    f"cannot download shard {shard.name!r}: {entry.bytes} bytes, limit {limits.shard_bytes} (Limits.shard_bytes)"
                )
        wanted |= {shard.data_name: shard.data.sha256, shard.index_name: shard.index_entry.sha256}
        wanted[shard.sums_name] = shard.sums_xxh3
    wanted |= {file.path: file.sha256 for drive in manifest.drives for file in drive.attachments}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        done = [pool.submit(fetch_file, store, folder, name, digest) for name, digest in sorted(wanted.items())]
        try:
            for each in done:
                each.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def fetch_file(store: Store, folder: Path, name: str, digest: str) -> None:
    """Download one file and compare its SHA-256, or its xxh3 where the digest is of that length."""
    if (folder / name).exists():
        return  # put there by a run that was interrupted; it was checked before it got its name
    try:
        entry = store.head(name)
    except FileNotFoundError as error:
        raise CorruptShard(f"cannot download {name!r} from {store.url!r}: it is missing; copy it there again") from error
    aside, sha = folder / (name + ".part"), hashlib.sha256()
    with open(aside, "wb") as file:
        for at in range(0, entry.size, _READ):
            piece = store.read(name, at, min(_READ, entry.size - at), version=entry.version)
            file.write(piece)
            sha.update(piece)
        file.flush()
        os.fsync(file.fileno())  # what has its name is never looked at again: it must survive a power loss
    found = sha.hexdigest() if len(digest) == 64 else f"{payload_hash(aside.read_bytes()):016x}"
    if found != digest:
        aside.unlink()
        raise CorruptShard(
            f"cannot use {name!r} of {store.url!r}: it has hash {found}, the manifest states {digest}; copy it there again"
        )
    os.replace(aside, folder / name)


def _write(path: Path, data: bytes) -> None:
    aside = path.with_suffix(".part")
    write_synced(aside, data, mode="wb")
    os.replace(aside, path)


def _holds(path: Path, data: bytes) -> bool:
    try:
        return path.read_bytes() == data
    except OSError:
        return False

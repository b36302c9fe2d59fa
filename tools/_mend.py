"""Mending a set from a second copy: only files that fail their hash are replaced, and only by bytes that pass it."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

import xxhash

from ..formats import CorruptShard
from ..formats.manifest import MANIFEST_NAME, Manifest

__all__ = ["mend_set"]

_PIECE = 1 << 22


def mend_set(location: Path, copy: Path) -> Iterator[str]:
    """Replace what is damaged at `location` by intact files of `copy`, yielding the name of each file replaced.

    A damaged manifest is replaced by the copy's. Each file appears whole or not at all, so an interrupted repair can be run
    again.

    Raises:
        CorruptShard: the copy's file is missing or damaged, too; what could be mended before it stays mended.
    """
    try:
        manifest = Manifest.load(location)
    except CorruptShard:
        manifest = Manifest.load(copy)
        _replace(location / MANIFEST_NAME, manifest.encode())
        yield MANIFEST_NAME
    for name, digest in _files(manifest).items():
        if _digest(location / name, digest) == digest:
            continue
        found = _digest(copy / name, digest)
        if found != digest:
            raise CorruptShard(
                f"cannot repair {name!r}: the copy {str(copy / name)!r} has {found or 'no such file'}, expected {digest}; "
                "name another copy with --from, or pack again"
            )
        _replace(location / name, (copy / name).read_bytes())
        yield name


def _files(manifest: Manifest) -> dict[str, str]:
    """Return every file of a set but the manifest, with its "sha256:…" or "xxh3:…"."""
    files: dict[str, str] = {}
    for shard in manifest.shards:
        files[shard.data_name] = f"sha256:{shard.data.sha256}"
        files[shard.index_name] = f"sha256:{shard.index_entry.sha256}"
        files[shard.sums_name] = f"xxh3:{shard.sums_xxh3}"
    for drive in manifest.drives:
        for file in drive.attachments:
            files[file.path] = f"sha256:{file.sha256}"
    return files


def _digest(path: Path, like: str) -> str:
    """Return the digest of a file, of the kind that `like` is; "" where there is no file."""
    kind = like.partition(":")[0]
    state = hashlib.sha256() if kind == "sha256" else xxhash.xxh3_64()
    try:
        with open(path, "rb") as file:
            while piece := file.read(_PIECE):
                state.update(piece)
    except FileNotFoundError:
        return ""
    return f"{kind}:{state.hexdigest()}"


def _replace(path: Path, data: bytes) -> None:
    path.parent.mkdir(exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with open(part, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)

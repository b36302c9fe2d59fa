"""Writing a set again in the other shard kind: the same records, payload bytes and set id, nothing decoded."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from .download import local_set
from .errors import CorruptShard
from .limits import DEFAULT_LIMITS, Limits
from .manifest import Manifest
from .pack_options import Progress
from .packed_set import PackedSet, open_set, read_attachment
from .publish import staged
from .set_id import set_id
from .shard import ShardKind
from .shard_copy import copy_shard
from .system_error import as_typed

__all__ = ["convert_set", "copy_attachments"]


def convert_set(
    location: str | os.PathLike[str],
    destination: str | os.PathLike[str],
    *,
    format: ShardKind,
    overwrite: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Manifest:
    """Write the set at `location` to `destination` with shards of kind `format`, and return its manifest.

    Every payload's hash is compared on the way; loader states stay valid, for the set id is the same.

    Raises:
        CorruptShard: something in the source set is damaged; nothing is published then.
    """
    target = os.fspath(destination)
    advance: Callable[[int], None] = progress.advance if progress is not None else lambda amount: None
    with as_typed("convert into", target), open_set(local_set(location, limits=limits), limits=limits) as packed:
        if progress is not None:
            progress.begin("converting", sum(stats.bytes for stats in packed.manifest.sensors.values()))
        with staged(target, overwrite=overwrite, resume=False, limits=limits) as staging:
            shards = []
            for at in range(len(packed.manifest.shards)):
                done = copy_shard(packed.shard(at), packed.schema, staging.path, kind=format, advance=advance)
                assert done is not None
                shards.append(done.shard)
            copy_attachments(packed, staging.path)
            manifest = replace(packed.manifest, shards=tuple(shards), digest="")
            found = set_id(PackedSet(staging.path, manifest, limits=limits))
            if found != packed.set_id:
                raise CorruptShard(
                    f"cannot convert {str(location)!r}: its columns give set id {found}, its manifest states {packed.set_id}; "
                    "run `headway verify`"
                )
            return staging.publish(manifest)


def copy_attachments(packed: PackedSet, staging: Path) -> None:
    """Copy every attachment of a set into a staging directory, each content once, its SHA-256 compared."""
    for file in {file.sha256: file for drive in packed.drives for file in drive.attachments}.values():
        target = staging / file.path
        target.parent.mkdir(exist_ok=True)
        if not target.exists():
            data = read_attachment(packed.directory, file, packed.limits)
            with open(target, "xb") as out:
                out.write(data)
                out.flush()
                os.fsync(out.fileno())

"""Putting sets together into one: their shards are copied as they are, nothing is decoded or re-encoded."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from .convert import copy_attachments
from .download import local_set
from .errors import CorruptShard, UsageError
from .hashed_writer import HashedWriter
from .limits import DEFAULT_LIMITS, Limits
from .manifest import Drive, Manifest, SensorStats, Shard
from .pack_options import Progress
from .packed_set import PackedSet, open_set
from .publish import staged
from .schema import canonical_json
from .set_id import set_id
from .system_error import as_typed

__all__ = ["merge_sets"]

_STEP = 1 << 24


def merge_sets(
    locations: Sequence[str | os.PathLike[str]],
    destination: str | os.PathLike[str],
    *,
    overwrite: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> Manifest:
    """Write the drives of several sets of one schema into a new set, and return its manifest.

    Files are compared with their SHA-256 while they are copied.

    Raises:
        UsageError: schemas differ, or two sets hold a drive of one name.
        CorruptShard: a file is damaged; nothing is published then.
    """
    if len(locations) < 2:
        raise UsageError(f"cannot merge {len(locations)} sets: name at least two")
    target = os.fspath(destination)
    sets = [open_set(local_set(location, limits=limits), limits=limits) for location in locations]
    _check_compatible(sets)
    advance: Callable[[int], None] = progress.advance if progress is not None else lambda amount: None
    if progress is not None:
        progress.begin("merging", sum(packed.manifest.stored_bytes for packed in sets))
    with as_typed("merge into", target), staged(target, overwrite=overwrite, resume=False, limits=limits) as staging:
        shards: list[Shard] = []
        drives: list[Drive] = []
        for packed in sets:
            first = len(shards)
            for shard in packed.manifest.shards:
                _copy_shard(packed.directory, staging.path, shard, advance)
                shards.append(shard)
            for drive in packed.drives:
                parts = tuple(replace(part, shard=part.shard + first) for part in drive.parts)
                drives.append(replace(drive, parts=parts))
            copy_attachments(packed, staging.path)
        manifests = [packed.manifest for packed in sets]
        sources = {manifest.source for manifest in manifests}
        manifest = Manifest(
            schema=sets[0].schema,
            drives=tuple(sorted(drives, key=lambda drive: drive.name)),
            shards=tuple(shards),
            set_id="0" * 64,
            source=sources.pop() if len(sources) == 1 else "merge",
            licence="; ".join(dict.fromkeys(manifest.licence for manifest in manifests)),
            sensors={
                name: SensorStats(
                    rows=sum(manifest.sensors[name].rows for manifest in manifests),
                    payloads=sum(manifest.sensors[name].payloads for manifest in manifests),
                    bytes=sum(manifest.sensors[name].bytes for manifest in manifests),
                )
                for name in sets[0].schema.by_name
            },
            rejected=sum(manifest.rejected for manifest in manifests),
        )
        manifest = replace(manifest, set_id=set_id(PackedSet(staging.path, manifest, limits=limits)))
        return staging.publish(manifest)


def _check_compatible(sets: Sequence[PackedSet]) -> None:
    seen: dict[str, int] = {}
    for number, packed in enumerate(sets):
        if canonical_json(packed.schema.to_json()) != canonical_json(sets[0].schema.to_json()):
            raise UsageError(
                f"cannot merge {str(packed.location)!r} with {str(sets[0].location)!r}: their schemas differ; "
                "pack both with the same sensors and codecs"
            )
        for drive in packed.drives:
            other = seen.setdefault(drive.name.lower(), number)
            if other != number:
                raise UsageError(
                    f"cannot merge {str(packed.location)!r} with {str(sets[other].location)!r}: both hold drive {drive.name!r} "
                    "(upper and lower case count as equal); leave it out of one"
                )


def _copy_shard(source: Path, staging: Path, shard: Shard, advance: Callable[[int], None]) -> None:
    _copy_file(source / shard.data_name, staging / shard.data_name, shard.data.sha256, advance)
    if shard.index is not None:
        _copy_file(source / shard.index_name, staging / shard.index_name, shard.index.sha256, advance)
    sums = (source / shard.sums_name).read_bytes()
    # The sums have no SHA-256 of their own in the manifest; readers compare their xxh3 when they open the shard.
    _copy_file(source / shard.sums_name, staging / shard.sums_name, hashlib.sha256(sums).hexdigest(), lambda amount: None)


def _copy_file(source: Path, target: Path, sha256: str, advance: Callable[[int], None]) -> None:
    with open(source, "rb") as file, HashedWriter(target) as out:
        while piece := file.read(_STEP):
            advance(out.write(piece))
        if out.sha256 != sha256:
            raise CorruptShard(
                f"cannot copy {source.name!r} of {str(source.parent)!r}: SHA-256 is {out.sha256}, expected {sha256}; "
                "run `headway verify`, then `headway repair` or copy it again"
            )

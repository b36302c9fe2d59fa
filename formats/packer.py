"""Packing a source into a set: preflight, pack workers, set id, publish.

The bytes are a function of source, options and codec versions: shard borders come from the preflight listing, each shard is
written by one worker alone, and the manifest names no times, hosts or paths. Every payload of the source ends up packed,
rejected or ignored, and the report says which.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Final, cast

from .adapters import SourceSpec, open_source
from .cores import usable_cores
from .errors import Problem, SourceError, WorkerDied
from .manifest import AttachedFile, Drive, Manifest, Part, SensorStats, Shard
from .pack_options import PackOptions, Progress
from .pack_pool import run_adaptively, run_tasks
from .pack_ray import run_on_ray
from .pack_worker import PackedShards, ShardTask
from .packed_set import PackedSet
from .publish import StagingPlace, staged
from .receipts import task_fingerprint
from .schema import Schema
from .set_id import set_id
from .shard import HOLD_BYTES
from .shard_plan import Piece, plan_shards
from .source import DriveListing, Ignored, Source
from .split import SplitGap, set_tracks, split_gaps
from .system_error import as_typed

__all__ = ["PackReport", "pack"]

# All workers' payloads together: with what Python and its libraries take, two workers stay below 1 GiB. Left to choose, this
# process fills a shard while it writes another.
_HOLD_TOGETHER: Final = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What became of everything the source holds."""

    location: str
    manifest: Manifest
    packed: int
    """Payloads in the set."""
    rejected: tuple[Problem, ...]
    """Payloads left out because they are bad."""
    kept: tuple[Problem, ...]
    """Payloads that are bad and in the set nevertheless, as `bad_images="keep"` asks."""
    dropped_points: int
    """Points without a finite position that were left out, as `drop_nan` asks."""
    ignored: tuple[Ignored, ...]
    """What the source holds and is deliberately not packed."""
    resumed: int
    """Shards taken over from an interrupted run."""
    split_gaps: tuple[SplitGap, ...] = ()
    """How close the splits come to each other, where drives have the attribute `split`."""

    @property
    def exit_code(self) -> int:
        """0, or 7 for a set published without some rejected payloads."""
        return 7 if self.rejected else 0


def pack(
    source: SourceSpec,
    destination: str | os.PathLike[str],
    options: PackOptions | None = None,
    progress: Progress | None = None,
) -> PackReport:
    """Pack a source into a set at `destination`, a folder or a store's URL, and publish it when it is complete.

    On any error nothing is left there but what was there before; a kill leaves a staging directory that the next run sweeps,
    or continues with `resume`.

    Raises:
        SourceError: the source cannot be packed; nothing was written.
        NoSpace: no space left, or a quota or file size limit was met.
        StoreError: the system refused a write.
        WorkerDied: a pack worker ended without having been asked to.
    """
    options = options or PackOptions()
    opened = open_source(source)
    listings = _checked_listings(opened)
    target = os.fspath(destination)
    advance = progress.advance if progress is not None else lambda amount: None
    try:
        with (
            as_typed("pack into", target),
            staged(target, overwrite=options.overwrite, resume=options.resume, limits=options.limits) as staging,
        ):
            if progress is not None:
                progress.begin("packing", sum(listing.source_bytes for listing in listings))
            schema = options.packed_schema(opened.schema)
            done, resumed = _pack_shards(source, opened, options, listings, staging, advance, schema)
            manifest = _manifest(opened, schema, listings, done)
            with PackedSet(staging.path, manifest, limits=options.limits) as packed:
                manifest = replace(manifest, set_id=set_id(packed))
                gaps = split_gaps(set_tracks(packed))
            manifest = staging.publish(manifest)
    except MemoryError as error:
        raise WorkerDied("cannot pack: out of memory; nothing was published. Use fewer workers or smaller shards") from error
    return PackReport(
        location=target,
        manifest=manifest,
        packed=sum(stats.payloads for stats in manifest.sensors.values()),
        rejected=tuple(problem for shards in done for problem in shards.rejected),
        kept=tuple(problem for shards in done for problem in shards.kept),
        dropped_points=sum(shards.dropped_points for shards in done),
        ignored=tuple(opened.ignored),
        resumed=resumed,
        split_gaps=gaps,
    )


def _pack_shards(
    source: SourceSpec,
    opened: Source,
    options: PackOptions,
    listings: list[DriveListing],
    staging: StagingPlace,
    advance: Callable[[int], None],
    schema: Schema,
) -> tuple[list[PackedShards], int]:
    """Return the results of all planned shards in order, and how many of them an earlier run had finished."""
    done: dict[int, PackedShards] = {}
    todo, fingerprints = [], []
    workers = options.workers or usable_cores()
    hold_bytes = (
        HOLD_BYTES if options.engine == "ray" else min(HOLD_BYTES, _HOLD_TOGETHER // (workers + (options.workers is None)))
    )
    bytes_of = {listing.name: listing.source_bytes for listing in listings}
    for number, pieces in enumerate(plan_shards(listings, options.shard_bytes)):
        task = ShardTask(
            source=source, options=options, staging=str(staging.path), number=number, pieces=pieces, hold_bytes=hold_bytes
        )
        fingerprints.append(task_fingerprint(task, listings))
        found = staging.find(number, fingerprints[-1]) if options.resume else None
        if found is None:
            todo.append(replace(task, portion=_portion(opened, [piece.drive for piece in pieces])))
        else:
            done[number] = found
            advance(_source_bytes(pieces, bytes_of))
    resumed = len(done)
    results: Generator[tuple[int, PackedShards], None, None]
    if options.engine == "ray":
        sizes = [_source_bytes(task.pieces, bytes_of) for task in todo]
        results = run_on_ray(todo, options.workers, advance, sizes)
    elif options.workers is None:
        results = run_adaptively(todo, workers, advance, opened)
    else:
        results = run_tasks(todo, workers, advance, opened)
    with closing(results):  # an error in `keep` stops the workers before the staging directory goes
        for number, result in results:
            staging.keep(number, fingerprints[number], result, schema)
            done[number] = result
    return [done[number] for number in range(len(fingerprints))], resumed


def _source_bytes(pieces: Sequence[Piece], bytes_of: Mapping[str, int]) -> int:
    return sum(bytes_of[piece.drive] // piece.of for piece in pieces)


def _portion(source: Source, drives: list[str]) -> Source | None:
    """Return the part of a source that has these drives, if it can be cut: opening it again costs a worker the preflight."""
    cut = getattr(source, "portion", None)
    return None if cut is None else cast(Source, cut(drives))


def _checked_listings(source: Source) -> list[DriveListing]:
    listings = sorted(source.listings, key=lambda listing: listing.name)
    names = [listing.name for listing in listings]
    if not names:
        raise SourceError(f"cannot pack this {source.kind} source: it has no drives; check the path, version and split")
    if len({name.lower() for name in names}) != len(names):
        seen: dict[str, str] = {}
        pairs = [(seen[name.lower()], name) for name in names if seen.setdefault(name.lower(), name) != name]
        raise SourceError(
            f"cannot pack this {source.kind} source: drive names must differ in more than upper and lower case, found "
            f"{pairs[:3] or 'a name twice'}; rename one"
        )
    for name in names:
        if not name or len(name.encode()) > 255 or any(ord(char) < 32 or ord(char) == 127 for char in name):
            raise SourceError(f"cannot pack drive {name!r}: names are 1 to 255 bytes of UTF-8 without control characters")
    return listings


def _manifest(source: Source, schema: Schema, listings: list[DriveListing], done: list[PackedShards]) -> Manifest:
    shards: list[Shard] = []
    parts: dict[str, list[Part]] = {listing.name: [] for listing in listings}
    attachments: dict[str, tuple[AttachedFile, ...]] = {}
    count = len(schema.sensors)
    rows, payloads, size = [0] * count, [0] * count, [0] * count
    for finished in (shard for result in done for shard in result.shards):
        for drive, part in finished.drives:
            parts[drive.name].append(replace(part, shard=len(shards)))
            if drive.first == 0:
                attachments[drive.name] = drive.attachments
            rows = [a + b for a, b in zip(rows, part.rows, strict=True)]
        payloads = [a + b for a, b in zip(payloads, finished.payloads, strict=True)]
        size = [a + b for a, b in zip(size, finished.payload_bytes, strict=True)]
        shards.append(finished.shard)
    return Manifest(
        schema=schema,
        drives=tuple(
            Drive(
                name=listing.name,
                attributes=dict(listing.attributes),
                attachments=attachments[listing.name],
                parts=tuple(parts[listing.name]),
            )
            for listing in listings
        ),
        shards=tuple(shards),
        set_id="0" * 64,
        source=source.kind,
        licence=source.licence,
        sensors={
            sensor.name: SensorStats(rows=rows[at], payloads=payloads[at], bytes=size[at])
            for at, sensor in enumerate(schema.sensors)
        },
        rejected=sum(len(result.rejected) for result in done),
    )

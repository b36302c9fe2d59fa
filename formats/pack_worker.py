"""What one pack worker does: it writes one planned shard, with its continuations, from a source it opens itself.

A process that packs several shards may write one while it reads the next (`pack_in_turn`).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .adapters import SourceSpec, open_source
from .codec import encode
from .errors import DecodeError, LimitExceeded, Problem, SourceError
from .filing import Filing, file_rows
from .hashed_writer import HashedWriter
from .image_facts import ImageFacts
from .manifest import AttachedFile
from .pack_options import PackOptions
from .points import count_points
from .schema import Sensor
from .shard import HOLD_BYTES, DriveShare, FinishedShard, PartRows, ShardBuilder, SourceFacts
from .shard_plan import Piece
from .source import DriveListing, Source, SourceDrive, SourceTimeline

__all__ = ["PackedShards", "ShardTask", "pack_in_turn", "pack_shard"]

Finish = Callable[[ShardBuilder], Future[FinishedShard]]


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardTask:
    """One planned shard: what a pack worker is sent."""

    source: SourceSpec
    options: PackOptions
    staging: str
    """Directory to write into."""
    number: int
    """Position of the shard in the plan."""
    pieces: tuple[Piece, ...]
    hold_bytes: int = HOLD_BYTES
    """Payload bytes to keep in memory; the rest waits in a file."""
    portion: Source | None = None
    """What this shard needs of the source, where the source can be cut (`portion(drives)`); None: opened anew from `source`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedShards:
    """What a pack worker returns: the shard and its continuations, and the payloads it did not take or has doubts about."""

    shards: tuple[FinishedShard, ...]
    rejected: tuple[Problem, ...]
    kept: tuple[Problem, ...]
    dropped_points: int
    """Points without a finite position that were left out, as `drop_nan` asks."""


def pack_shard(task: ShardTask, advance: Callable[[int], None], source: Source | None = None) -> PackedShards:
    """Write the shard of `task`; on any error nothing of it stays in the staging directory.

    `advance` is told, frame by frame, the share of the source's bytes that is done; it may raise to stop the work. `source`
    is the one that was preflighted, where it is at hand; a worker process opens its own, once.
    """
    if source is None:
        source = task.portion or _source(task.source.kind, task.source.path, tuple(sorted(task.source.options.items())))
    packing = _Packing(task, source, advance, _finish_now)
    packing.fill()
    return packing.result()


def pack_in_turn(
    tasks: Iterable[ShardTask], advance: Callable[[int], None], source: Source
) -> Generator[tuple[int, PackedShards], None, None]:
    """Pack tasks one after the other and yield each one's number and result; a shard is written while the next is read.

    Two shards are in memory at most.
    """
    earlier: _Packing | None = None
    with _finishing_behind() as finish:
        for task in tasks:
            packing = _Packing(task, source, advance, finish)
            packing.fill()
            if earlier is not None:
                yield earlier.task.number, earlier.result()
            earlier = packing
        if earlier is not None:
            yield earlier.task.number, earlier.result()


def _finish_now(builder: ShardBuilder) -> Future[FinishedShard]:
    done: Future[FinishedShard] = Future()
    done.set_result(builder.finish())
    return done


@contextmanager
def _finishing_behind() -> Iterator[Finish]:
    """Finish shards in a thread; whoever hands one over waits until the one before is done."""
    running: list[Future[FinishedShard]] = []
    with ThreadPoolExecutor(1, thread_name_prefix="headway-finish") as executor:

        def finish(builder: ShardBuilder) -> Future[FinishedShard]:
            wait(running)
            running[:] = [executor.submit(builder.finish)]
            return running[0]

        yield finish


@lru_cache(maxsize=1)
def _source(kind: str, path: str, options: tuple[tuple[str, str | int | float | bool | tuple[str, ...] | None], ...]) -> Source:
    """The source of a worker process, which serves one run."""
    return open_source(SourceSpec(kind=kind, path=path, options=dict(options)))


class _Packing:
    """State of one shard task."""

    def __init__(self, task: ShardTask, source: Source, advance: Callable[[int], None], finish: Finish) -> None:
        self.task = task
        self.finish = finish
        self.options = task.options
        self.source = source
        self.schema = task.options.packed_schema(source.schema)
        self.advance = advance
        self.finished: list[Future[FinishedShard]] = []
        self.rejected: list[Problem] = []
        self.kept: list[Problem] = []
        self.dropped_points = 0
        self.builder: ShardBuilder | None = None

    def fill(self) -> None:
        """Read everything and hand over what is to be written; on any error nothing of it stays."""
        listings = {listing.name: listing for listing in self.source.listings}
        try:
            for piece in self.task.pieces:
                self._pack_piece(piece, listings[piece.drive])
            self._finish()
        except BaseException:
            if self.builder is not None:
                self.builder.discard()
            self._forget()
            raise

    def result(self) -> PackedShards:
        """Return what was written, once it is; on any error nothing of it stays."""
        most = self.options.limits.shard_bytes
        try:
            finished = tuple(future.result() for future in self.finished)
            for done in finished:
                if done.shard.data.bytes > most:
                    raise LimitExceeded(
                        f"cannot keep shard {done.shard.name!r}: {done.shard.data.bytes} bytes, limit {most}; a single frame is "
                        "that big: raise Limits.shard_bytes if that is meant"
                    )
        except BaseException:
            self._forget()
            raise
        return PackedShards(
            shards=finished, rejected=tuple(self.rejected), kept=tuple(self.kept), dropped_points=self.dropped_points
        )

    def _forget(self) -> None:
        wait(self.finished)
        for future in self.finished:
            for name in () if future.exception() else future.result().shard.file_names():
                (Path(self.task.staging) / name).unlink(missing_ok=True)

    def _pack_piece(self, piece: Piece, listing: DriveListing) -> None:
        drive = self.source.open_drive(piece.drive)
        timelines = {sensor.name: _checked_timeline(drive, sensor, self.source, piece) for sensor in self.schema.sensors}
        if self.options.bad_images == "reject":
            self._drop_bad_frames(timelines, piece)
        reference = timelines[self.schema.reference].stamps
        if not len(reference):
            raise SourceError(f"cannot pack drive {piece.drive!r}: its reference sensor {self.schema.reference!r} has no rows")
        filings = {}
        for sensor in self.schema.sensors:
            timeline = timelines[sensor.name]
            own = np.arange(len(reference)) if sensor.name == self.schema.reference else timeline.own
            filings[sensor.name] = file_rows(reference, timeline.stamps, own, what=f"{sensor.name!r} of drive {piece.drive!r}")
        attachments = _attach(drive, piece, self.task) if piece.index == 0 else ()
        frames = piece.frames(len(reference))
        most = self.options.limits.shard_bytes
        limit = min(self.options.shard_bytes + self.options.shard_bytes // 2, most - most // 8)
        while frames:
            builder = self._builder()
            share = DriveShare(
                name=piece.drive,
                first=frames.start,
                frames=len(reference),
                attributes=listing.attributes,
                attachments=attachments if frames.start == 0 else (),
            )
            builder.begin(share)
            part = _Part(self, builder, piece.drive, timelines, filings, frames.start)
            for frame in frames:
                part.add_frame(frame)
                total = len(reference)
                self.advance(listing.source_bytes * (frame + 1) // total - listing.source_bytes * frame // total)
                if builder.payload_bytes > limit and frame + 1 < frames.stop:
                    break
            frames = range(frame + 1, frames.stop)
            builder.end(reference[part.first : frame + 1], part.rows(frame + 1))
            if builder.payload_bytes > limit:
                self._finish()

    def _drop_bad_frames(self, timelines: dict[str, SourceTimeline], piece: Piece) -> None:
        """Leave out rows of an image reference that would be rejected: a frame is a row of the reference that is in the set."""
        sensor = self.source.schema.sensor(self.schema.reference)
        timeline = timelines[sensor.name]
        if sensor.kind != "image" or timeline.read is None:
            return
        read, origin = timeline.read, timeline.origin
        facts, good = self.intake(sensor.name), []
        for row in range(len(timeline.stamps)):
            problem: Exception | None
            try:
                data = read(row)
                problem = facts.take(data, _row(timeline, row))[1] if isinstance(data, bytes) else None
            except (DecodeError, OSError) as error:
                problem = error
            if problem is None:
                good.append(row)
            elif piece.index == 0:  # every piece of a drive sees the whole reference; one reports
                self.rejected.append(_problem(problem, sensor, timeline, row))
                self._builder().rejected += 1
        if len(good) == len(timeline.stamps):
            return
        kept = np.array(good, np.int64)
        timelines[sensor.name] = SourceTimeline(
            stamps=timeline.stamps[kept],
            columns={name: values[kept] for name, values in timeline.columns.items()},
            read=lambda row: read(good[row]),
            origin=lambda row: origin(good[row]),
        )
        for name, other in timelines.items():
            if other.own is not None and name != sensor.name:
                timelines[name] = SourceTimeline(
                    stamps=other.stamps, columns=other.columns, read=other.read, origin=other.origin, own=other.own[kept]
                )

    def intake(self, sensor: str) -> ImageFacts:
        """Return what a sensor's images go through before they are stored."""
        declared, packed = self.source.schema.sensor(sensor), self.schema.sensor(sensor)
        return ImageFacts(declared, packed, self.options.limits, check=self.options.check_images)

    def _builder(self) -> ShardBuilder:
        if self.builder is None:
            self.builder = ShardBuilder(
                Path(self.task.staging),
                f"shard-{self.task.number:05d}-{len(self.finished):03d}",
                schema=self.schema,
                kind=self.options.format,
                facts=SourceFacts(source=self.source.kind, licence=self.source.licence),
                hold_bytes=self.task.hold_bytes,
            )
        return self.builder

    def _finish(self) -> None:
        if self.builder is None:
            return
        if self.builder.empty:  # the pieces of a drive with fewer frames than pieces
            self.builder.discard()
        else:
            self.finished.append(self.finish(self.builder))
        self.builder = None


class _Part:
    """One run of frames of one drive, being added to a builder."""

    def __init__(
        self,
        packing: _Packing,
        builder: ShardBuilder,
        drive: str,
        timelines: Mapping[str, SourceTimeline],
        filings: Mapping[str, Filing],
        first: int,
    ) -> None:
        self.packing = packing
        self.builder = builder
        self.drive = drive
        self.timelines = timelines
        self.filings = filings
        self.first = first
        self.sensors = packing.schema.sensors
        self.counts: list[list[int]] = [[] for _ in self.sensors]
        self.own: list[list[int]] = [[] for _ in self.sensors]
        self.taken: list[list[int]] = [[] for _ in self.sensors]
        self.facts = [packing.intake(sensor.name) for sensor in self.sensors]

    def add_frame(self, frame: int) -> None:
        """Add what is filed under one frame."""
        for at, sensor in enumerate(self.sensors):
            filing = self.filings[sensor.name]
            start, stop, own = int(filing.starts[frame]), int(filing.starts[frame + 1]), int(filing.own[frame])
            if sensor.codec is None:
                self.counts[at].append(stop - start)
                self.own[at].append(own - start if own >= 0 else -1)
                continue
            rows = list(self._stored(at, sensor, frame, range(start, stop), own))
            self.counts[at].append(len(rows))
            self.own[at].append(rows.index(own) if own in rows else -1)
            self.taken[at] += rows

    def rows(self, end: int) -> list[PartRows]:
        """Return index and columns of all sensors for frames up to `end`."""
        parts = []
        for at, sensor in enumerate(self.sensors):
            timeline, filing = self.timelines[sensor.name], self.filings[sensor.name]
            chosen: slice | NDArray[np.int64] = slice(int(filing.starts[self.first]), int(filing.starts[end]))
            if sensor.codec is not None:
                chosen = np.array(self.taken[at], np.int64)
            declared = {name: values[chosen] for name, values in timeline.columns.items()}
            facts = self.facts[at].columns(declared)
            parts.append(
                PartRows(
                    counts=np.array(self.counts[at], np.int64),
                    own=np.array(self.own[at], np.int32),
                    stamps=np.asarray(timeline.stamps, np.int64)[chosen],
                    columns={
                        column.name: facts[column.name] if column.name in facts else declared[column.name]
                        for column in sensor.columns
                    },
                )
            )
        return parts

    def _stored(self, at: int, sensor: Sensor, frame: int, rows: range, own: int) -> Iterator[int]:
        """Store the payloads of some rows, and yield the rows that were taken."""
        timeline, policy = self.timelines[sensor.name], self.packing.options.bad_images
        for row in rows:
            data, bad = self._read(at, sensor, timeline, row)
            if bad is not None:
                problem = _problem(bad, sensor, timeline, row)
                if policy == "fail" or (policy == "keep" and data is None):
                    remedy = "mend it" if policy == "keep" or sensor.kind != "image" else "mend it, or pass --bad-images"
                    raise SourceError(f"cannot pack drive {self.drive!r}: a payload is bad; {remedy}", [problem]) from bad
                if policy == "reject":
                    if data is not None:
                        self.facts[at].drop()
                    self.packing.rejected.append(problem)
                    self.builder.rejected += 1
                    continue
                self.packing.kept.append(problem)
            assert data is not None
            self.builder.add(at, data, frame=frame, stamp_ns=int(timeline.stamps[row]), own=row == own)
            yield row

    def _read(self, at: int, sensor: Sensor, timeline: SourceTimeline, row: int) -> tuple[bytes | None, Exception | None]:
        """Read and encode one payload. For images also return what is wrong; other kinds are right or raise."""
        options = self.packing.options
        assert timeline.read is not None
        try:
            value = timeline.read(row)
            data = encode(sensor, value, precision_mm=options.precision_mm, drop_nan=options.drop_nan)
            if options.drop_nan and sensor.kind == "points":
                self.packing.dropped_points += len(value) - count_points(data, sensor)
        except (DecodeError, OSError, SourceError) as error:
            if sensor.kind == "image":
                return None, error
            problem = _problem(error, sensor, timeline, row)
            raise SourceError(f"cannot pack drive {self.drive!r}: a payload cannot be read", [problem]) from error
        if len(data) > options.limits.payload_bytes:
            raise LimitExceeded(
                f"cannot pack {timeline.origin(row)} (sensor {sensor.name!r}): {len(data)} bytes, limit "
                f"{options.limits.payload_bytes}; raise Limits.payload_bytes if it is that big on purpose"
            )
        return self.facts[at].take(data, _row(timeline, row)) if sensor.kind == "image" else (data, None)


def _row(timeline: SourceTimeline, row: int) -> dict[str, Any]:  # Any: one value of each column's dtype
    return {name: values[row] for name, values in timeline.columns.items()}


def _problem(error: Exception, sensor: Sensor, timeline: SourceTimeline, row: int) -> Problem:
    if isinstance(error, SourceError):
        if error.problems:
            return error.problems[0]
        reason, code = error.message, "bad"
    elif isinstance(error, FileNotFoundError):
        reason, code = "the file is missing; restore it", "missing"
    elif isinstance(error, OSError):
        reason, code = f"cannot be read ({error.strerror or error}); mend its storage", "unreadable"
    else:
        reason, code = str(error), "image" if sensor.kind == "image" else "bad"
    stamp_ns = int(timeline.stamps[row])
    place = Problem(path=timeline.origin(row), reason="", sensor=sensor.name, stamp_ns=stamp_ns, code=code)
    # An adapter's own message names the place as well; once is enough.
    return replace(place, reason=reason.replace(str(place).removesuffix(": "), "it"))


def _attach(drive: SourceDrive, piece: Piece, task: ShardTask) -> tuple[AttachedFile, ...]:
    """Stage a drive's attachments by content; workers that meet the same content write the same file."""
    folder = Path(task.staging) / "attachments"
    limit = task.options.limits.attachment_bytes
    files = []
    for attachment in sorted(drive.attachments, key=lambda item: item.name):
        try:
            data = attachment.read()
        except OSError as error:
            reason = f"attachment cannot be read ({error.strerror or error}); restore it"
            problem = Problem(path=attachment.name, reason=reason, code="missing")
            raise SourceError(f"cannot pack drive {piece.drive!r}", [problem]) from error
        if len(data) > limit:
            raise LimitExceeded(
                f"cannot attach {attachment.name!r} to drive {piece.drive!r}: {len(data)} bytes, limit {limit}; "
                "raise Limits.attachment_bytes if it is that big on purpose"
            )
        digest = hashlib.sha256(data).hexdigest()
        if not (folder / digest).exists():
            folder.mkdir(exist_ok=True)
            with HashedWriter(folder / f"{digest}-{task.number}.tmp") as out:
                out.write(data)
            os.replace(out.path, folder / digest)
        files.append(AttachedFile(name=attachment.name, media_type=attachment.media_type, bytes=len(data), sha256=digest))
    if len({file.name for file in files}) != len(files):
        raise SourceError(f"cannot pack drive {piece.drive!r}: two of its attachments share a name; mend the adapter")
    return tuple(files)


def _checked_timeline(drive: SourceDrive, declared: Sensor, source: Source, piece: Piece) -> SourceTimeline:
    """The sensor's timeline, empty if the drive lacks it; stamps ascend, columns are what the source's schema says."""
    sensor = source.schema.sensor(declared.name)
    timeline = drive.timelines.get(sensor.name)
    if timeline is None:
        columns = {column.name: np.empty((0, *column.shape), column.numpy_dtype) for column in sensor.columns}
        return SourceTimeline(stamps=np.empty(0, np.int64), columns=columns)
    what = f"cannot pack sensor {sensor.name!r} of drive {piece.drive!r}"
    stamps = timeline.stamps
    if stamps.dtype != np.int64 or stamps.ndim != 1:
        raise SourceError(f"{what}: stamps are {stamps.dtype} {stamps.shape}, expected int64 (n,)")
    repeated = np.flatnonzero(np.diff(stamps) <= 0)
    if len(repeated):
        at = int(repeated[0])
        raise SourceError(
            f"{what}: stamps must ascend, row {at} has {int(stamps[at])} and row {at + 1} {int(stamps[at + 1])}; "
            "one timeline is one sensor's: are two recordings mixed?"
        )
    for column in sensor.columns:
        found = timeline.columns.get(column.name)
        wanted = (len(stamps), *column.shape)
        if found is None or found.shape != wanted or found.dtype != column.numpy_dtype:
            have = "nothing" if found is None else f"{found.dtype} {found.shape}"
            raise SourceError(f"{what}: column {column.name!r} is {have}, expected {column.dtype} {wanted}; mend the adapter")
    if sensor.codec is not None and timeline.read is None and len(stamps):
        raise SourceError(f"{what}: its payloads have no reader; mend the adapter")
    return timeline

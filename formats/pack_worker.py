"""What one pack worker does: it writes one planned shard, with its continuations, from a source it opens itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .adapters import SourceSpec, open_source
from .codec import encode
from .errors import DecodeError, HeadwayError, LimitExceeded, Problem, SourceError
from .filing import Filing, file_rows
from .pack_options import PackOptions
from .schema import Schema, Sensor
from .shard import FinishedShard, PartRows, ShardBuilder
from .shard_plan import Piece
from .source import Source, SourceDrive, SourceTimeline

__all__ = ["PackedShards", "ShardTask", "pack_shard"]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedShards:
    """What a pack worker returns: the shard and its continuations, and the payloads it did not take or has doubts about."""

    shards: tuple[FinishedShard, ...]
    rejected: tuple[Problem, ...]
    kept: tuple[Problem, ...]


def pack_shard(task: ShardTask, advance: Callable[[int], None] | None = None) -> PackedShards:
    """Write the shard of `task`; on any error nothing of it stays in the staging directory.

    `advance` is told the payload bytes written so far, bit by bit.
    """
    source = _source(task.source.kind, task.source.path, tuple(sorted(task.source.options.items())))
    return _Packing(task, source, task.options.packed_schema(source.schema), advance or (lambda amount: None)).run()


@lru_cache(maxsize=1)
def _source(kind: str, path: str, options: tuple[tuple[str, str | int | float | bool | tuple[str, ...] | None], ...]) -> Source:
    """The source, opened once per process."""
    return open_source(SourceSpec(kind=kind, path=path, options=dict(options)))


class _Packing:
    """State of one shard task."""

    def __init__(self, task: ShardTask, source: Source, schema: Schema, advance: Callable[[int], None]) -> None:
        self.task = task
        self.options = task.options
        self.source = source
        self.schema = schema
        self.advance = advance
        self.finished: list[FinishedShard] = []
        self.rejected: list[Problem] = []
        self.kept: list[Problem] = []
        self.builder: ShardBuilder | None = None

    def run(self) -> PackedShards:
        try:
            for piece in self.task.pieces:
                self._pack_piece(piece)
            self._finish()
        except BaseException:
            if self.builder is not None:
                self.builder.discard()
            for done in self.finished:
                for name in done.shard.file_names():
                    (Path(self.task.staging) / name).unlink(missing_ok=True)
            raise
        return PackedShards(shards=tuple(self.finished), rejected=tuple(self.rejected), kept=tuple(self.kept))

    def _pack_piece(self, piece: Piece) -> None:
        drive = self.source.open_drive(piece.drive)
        timelines = {sensor.name: _checked_timeline(drive, sensor, piece.drive) for sensor in self.schema.sensors}
        reference = timelines[self.schema.reference].stamps
        if not len(reference):
            raise SourceError(f"cannot pack drive {piece.drive!r}: its reference sensor {self.schema.reference!r} has no rows")
        filings = {}
        for sensor in self.schema.sensors:
            timeline = timelines[sensor.name]
            own = np.arange(len(reference)) if sensor.name == self.schema.reference else timeline.own
            filings[sensor.name] = file_rows(reference, timeline.stamps, own, what=f"{sensor.name!r} of drive {piece.drive!r}")
        frames = piece.frames(len(reference))
        limit = self.options.shard_bytes + self.options.shard_bytes // 2
        while frames:
            part = _Part(self, piece.drive, timelines, filings, frames.start)
            builder = self._builder()
            builder.begin(piece.drive, frames.start)
            for frame in frames:
                part.add_frame(builder, frame)
                if builder.payload_bytes > limit and frame + 1 < frames.stop:
                    break
            frames = range(frame + 1, frames.stop)
            builder.end(reference[part.first : frame + 1], part.rows(frame + 1))
            if builder.payload_bytes > limit:
                self._finish()

    def _builder(self) -> ShardBuilder:
        if self.builder is None:
            stem = f"shard-{self.task.number:05d}-{len(self.finished):03d}"
            self.builder = ShardBuilder(Path(self.task.staging), stem, schema=self.schema, kind=self.options.format)
        return self.builder

    def _finish(self) -> None:
        if self.builder is not None:
            if self.builder.payload_bytes > self.options.limits.shard_bytes:
                raise LimitExceeded(
                    f"cannot write shard {self.builder.stem!r}: {self.builder.payload_bytes} payload bytes, limit "
                    f"{self.options.limits.shard_bytes}; a single frame is that big: raise Limits.shard_bytes"
                )
            self.finished.append(self.builder.finish())
            self.builder = None


class _Part:
    """One run of frames of one drive, being added to a builder."""

    def __init__(
        self,
        packing: _Packing,
        drive: str,
        timelines: Mapping[str, SourceTimeline],
        filings: Mapping[str, Filing],
        first: int,
    ) -> None:
        self.packing = packing
        self.drive = drive
        self.timelines = timelines
        self.filings = filings
        self.first = first
        self.sensors = packing.schema.sensors
        self.counts: list[list[int]] = [[] for _ in self.sensors]
        self.own: list[list[int]] = [[] for _ in self.sensors]
        self.taken: list[list[int]] = [[] for _ in self.sensors]

    def add_frame(self, builder: ShardBuilder, frame: int) -> None:
        """Add what is filed under one frame."""
        for at, sensor in enumerate(self.sensors):
            filing = self.filings[sensor.name]
            start, stop, own = int(filing.starts[frame]), int(filing.starts[frame + 1]), int(filing.own[frame])
            if sensor.codec is None:
                self.counts[at].append(stop - start)
                self.own[at].append(own - start if own >= 0 else -1)
                continue
            rows = list(self._stored(builder, at, sensor, frame, range(start, stop), own))
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
            parts.append(
                PartRows(
                    counts=np.array(self.counts[at], np.int64),
                    own=np.array(self.own[at], np.int32),
                    stamps=np.asarray(timeline.stamps, np.int64)[chosen],
                    columns={column.name: np.asarray(timeline.columns[column.name])[chosen] for column in sensor.columns},
                )
            )
        return parts

    def _stored(self, builder: ShardBuilder, at: int, sensor: Sensor, frame: int, rows: range, own: int) -> Iterator[int]:
        timeline = self.timelines[sensor.name]
        for row in rows:
            stamp = int(timeline.stamps[row])
            data = self._read(sensor, timeline, row, stamp)
            builder.add(at, data, frame=frame, stamp_ns=stamp, own=row == own)
            self.packing.advance(len(data))
            yield row

    def _read(self, sensor: Sensor, timeline: SourceTimeline, row: int, stamp: int) -> bytes:
        options = self.packing.options
        assert timeline.read is not None
        try:
            data = encode(sensor, timeline.read(row), precision_mm=options.precision_mm, drop_nan=options.drop_nan)
        except (DecodeError, OSError, SourceError) as error:
            if isinstance(error, OSError) and not isinstance(error, HeadwayError) and error.filename is None:
                raise
            problem = Problem(path=timeline.origin(row), reason=str(error), sensor=sensor.name, stamp_ns=stamp, code="unreadable")
            raise SourceError(f"cannot pack drive {self.drive!r}: a payload cannot be read", [problem]) from error
        if len(data) > options.limits.payload_bytes:
            raise LimitExceeded(
                f"cannot pack {timeline.origin(row)} (sensor {sensor.name!r}, stamp {stamp}): {len(data)} bytes, limit "
                f"{options.limits.payload_bytes}; raise Limits.payload_bytes if it is that big on purpose"
            )
        return data


def _checked_timeline(drive: SourceDrive, sensor: Sensor, name: str) -> SourceTimeline:
    """The sensor's timeline, empty if the drive lacks it; stamps ascend, columns are what the schema says."""
    timeline = drive.timelines.get(sensor.name)
    if timeline is None:
        columns = {column.name: np.empty((0, *column.shape), column.numpy_dtype) for column in sensor.columns}
        return SourceTimeline(stamps=np.empty(0, np.int64), columns=columns)
    what = f"cannot pack sensor {sensor.name!r} of drive {name!r}"
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

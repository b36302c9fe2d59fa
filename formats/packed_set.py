"""A set opened for reading: drives, frames, and one timeline per sensor, by global numbers that know nothing of shards.

Opening reads the manifest and compares file sizes; shards are mapped when first touched. Everything handed out is read-only.
A set must not change while it is open; publishing a new one over it is safe for shards already touched.
"""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .borders import Borders
from .errors import CorruptShard, LimitExceeded, UsageError
from .integrity import size_error
from .limits import DEFAULT_LIMITS, Limits
from .manifest import AttachedFile, Drive, Manifest
from .open_shard import OpenShard
from .range_cache import DEFAULT_CACHE, CacheOptions
from .schema import Schema
from .shard_column import ColumnPart, RowPlaces, ShardColumn, take_rows
from .stores import is_remote, local_path
from .timeline import PartTable, Timeline

if TYPE_CHECKING:
    from .remote_set import RemoteSet

__all__ = ["PackedSet", "open_set"]

Ints = NDArray[np.int64]


def open_set(
    location: str | os.PathLike[str],
    *,
    limits: Limits = DEFAULT_LIMITS,
    expect_digest: str | None = None,
    cache: CacheOptions = DEFAULT_CACHE,
) -> PackedSet:
    """Open the set in directory `location`, or at a store's URL, from where index and payloads are read as they are needed.

    `cache` says where and how much of a remote set stays on this node.
    `expect_digest` pins the manifest, and through its hashes every byte of the set, against tampering.

    Raises:
        NotASet: nothing was published there.
        CorruptShard: the manifest is damaged or not the pinned one, or a file has another size than it states.
    """
    if is_remote(location):
        from .remote_set import open_remote  # obstore is an extra

        found = open_remote(os.fspath(location), limits=limits, expect_digest=expect_digest, cache=cache)
        if not isinstance(found, Path):
            return PackedSet(found.directory, found.manifest, limits=limits, remote=found)
        path = found
    else:
        path = local_path(location)
    return PackedSet(path, Manifest.load(path, limits=limits, expect_digest=expect_digest), limits=limits)


class PackedSet:
    """A packed set, read-only and safe to use from several threads; pickling it reopens the set by its location.

    Example:
        >>> with open_set(ramp_set) as packed:
        ...     camera = packed.timeline("CAM")
        ...     first = camera.value(int(packed.own("CAM", np.array([0]))[0]))
    """

    def __init__(
        self, directory: Path, manifest: Manifest, *, limits: Limits = DEFAULT_LIMITS, remote: RemoteSet | None = None
    ) -> None:
        self.directory = directory
        """Where its files are; of a remote set, the index files that were brought here."""
        self.location: Path | str = directory if remote is None else remote.url
        """Where it was opened from."""
        self.remote = remote
        self.manifest = manifest
        self.limits = limits
        self.schema: Schema = manifest.schema
        self.set_id = manifest.set_id
        self.drives: Sequence[Drive] = manifest.drives
        """By name."""
        if remote is None:
            self._check_sizes()
        self._open: dict[int, OpenShard] = {}
        self._lock = threading.Lock()  # guards _open and _timelines
        self._timelines: dict[str, Timeline] = {}
        counts = [len(drive.parts) for drive in manifest.drives]
        self._lay_out(_part_tables(manifest), np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    def __len__(self) -> int:
        return int(self.frame_starts[-1])

    def timeline(self, sensor: str) -> Timeline:
        """Return the rows of one sensor over the whole set."""
        found = self.schema.sensor(sensor)
        with self._lock:
            timeline = self._timelines.get(sensor)
            if timeline is None:
                table = self._tables[self._position(sensor)]
                timeline = Timeline(self, found, table, table.starts[self._drive_parts])
                self._timelines[sensor] = timeline
        return timeline

    def own(self, sensor: str, frames: NDArray[Any]) -> Ints:
        """Return the global row of `sensor` that is each frame's own payload, −1 where a frame has none."""
        frames = np.asarray(frames, np.int64)
        if sensor == self.schema.reference:
            self._tables[-1].check(frames, "frame")
            return frames.copy()  # its rows are the frames
        found, table = self.schema.sensor(sensor), self._tables[self._position(sensor)]
        part, row = self._tables[-1].locate(frames, "frame")
        column = self._frame_column(sensor, lambda shard: ColumnPart(self.shard(shard).own(found)))
        local = column.empty(len(frames))
        take_rows([column], RowPlaces(shard=self._tables[-1].shard[part], row=row), [local])
        return np.where(local < 0, -1, local - table.offset[part] + table.starts[part])

    def filed(self, sensor: str, frame: int) -> range:
        """Return the global rows of `sensor` filed under a frame: its own, and those between it and the next."""
        found, table = self.schema.sensor(sensor), self._tables[self._position(sensor)]
        part, local = (int(value[0]) for value in self._tables[-1].locate(np.array([frame], np.int64), "frame"))
        starts = self.shard(int(table.shard[part])).frame_starts(found)
        shift = int(table.starts[part] - table.offset[part])
        return range(int(starts[local]) + shift, int(starts[local + 1]) + shift)

    def frame_stamps(self, frames: NDArray[Any]) -> Ints:
        """Return the reference stamp of each frame, ns."""
        frames = np.asarray(frames, np.int64)
        column = self._frame_column("", lambda shard: self.shard(shard).stamps_part())
        out = column.empty(len(frames))
        take_rows([column], self._tables[-1].places(frames, "frame"), [out])
        return out

    def drive_of(self, frames: NDArray[Any]) -> Ints:
        """Return the index into `drives` of each frame."""
        return self._drive_borders.holder(np.asarray(frames, np.int64))

    def drive_index(self, name: str) -> int:
        """Return the position of a drive in `drives`."""
        for at, drive in enumerate(self.drives):
            if drive.name == name:
                return at
        raise UsageError(f"no drive {name!r} in {str(self.location)!r}; `headway show` lists its {len(self.drives)} drives")

    def attachment(self, drive: str, name: str) -> bytes:
        """Return an attachment of a drive, its SHA-256 compared."""
        files = self.drives[self.drive_index(drive)].attachments
        found = next((file for file in files if file.name == name), None)
        if found is None:
            have = ", ".join(file.name for file in files) or "none"
            raise UsageError(f"drive {drive!r} has no attachment {name!r}; it has: {have}")
        if self.remote is not None:
            self.remote.bring_attachment(found)
        return read_attachment(self.directory, found, self.limits)

    def shard(self, shard: int) -> OpenShard:
        """Return shard number `shard` of the manifest, opened once."""
        found = self._open.get(shard)
        if found is None:
            if self.remote is not None:
                self.remote.wait_for(shard)
            with self._lock:
                found = self._open.get(shard)
                if found is None:
                    rows = tuple(table.rows_of(shard) for table in self._tables[:-1])
                    entry, remote = self.manifest.shards[shard], self.remote
                    payload = None if remote is None else partial(remote.payloads.view, shard)
                    found = OpenShard(self.directory, entry, schema=self.schema, rows=rows, limits=self.limits, payload=payload)
                    self._open[shard] = found
        return found

    def shard_bytes(self, shard: int) -> memoryview:
        """Return a shard's data file as mapped, read-only; whoever gathers from it compares the hashes of `refs`."""
        return self.shard(shard).data

    @property
    def is_remote(self) -> bool:
        """Whether payloads are fetched, and not mapped."""
        return self.remote is not None

    def remote_shard(self, shard: int) -> tuple[RemoteSet, int] | None:
        """Return who fetches payloads of shard `shard`, and its number there; None where they are mapped."""
        return None if self.remote is None else (self.remote, shard)

    def prepare(self, frames: NDArray[Any], *, want_by: float = float("inf")) -> None:
        """Begin to bring the index of the shards that hold `frames`, where it is not on this machine."""
        if self.remote is not None:
            part, _ = self._tables[-1].locate(np.asarray(frames, np.int64), "frame")
            closed = [shard for shard in np.unique(self._tables[-1].shard[part]).tolist() if shard not in self._open]
            self.remote.prepare(closed, want_by=want_by)

    def part_table(self, sensor: str | None) -> PartTable:
        """Return where the parts of a sensor's rows lie, or, for None, those of the frames."""
        return self._tables[-1 if sensor is None else self._position(sensor)]

    def drive_parts(self, drive: int) -> tuple[int, int]:
        """Return the range of a drive's parts, counted over all drives in order."""
        return int(self._drive_parts[drive]), int(self._drive_parts[drive + 1])

    def close(self) -> None:
        """Forget all shards; mappings go when the last view of them does. The set can be used again."""
        with self._lock:
            self._open.clear()
            self._timelines.clear()
            self._frame_columns.clear()

    def __enter__(self) -> PackedSet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the shape pickle asks for
        cache = DEFAULT_CACHE if self.remote is None else self.remote.cache_options
        return _reopen, (str(self.location), self.limits, self.manifest.digest, cache)

    def __repr__(self) -> str:
        return f"PackedSet({str(self.location)!r}, drives={len(self.drives)}, frames={len(self)}, set_id={self.set_id[:12]}…)"

    def _lay_out(self, tables: list[PartTable], drive_parts: Ints) -> None:
        """Say where rows lie: `tables` of each sensor in name order, then of the frames; (drives + 1,) first parts of drives."""
        self._tables = tables
        self._frame_columns: dict[str, ShardColumn] = {}
        self._drive_parts = drive_parts
        self.frame_starts: Ints = tables[-1].starts[drive_parts]
        """(drives + 1,) global frame where each drive starts."""
        self._drive_borders = Borders(self.frame_starts)

    def _frame_column(self, name: str, part: Callable[[int], ColumnPart]) -> ShardColumn:
        """Return what each frame has one whole number of: its own row of a sensor, or, for "", its stamp."""
        found = self._frame_columns.get(name)
        if found is None:
            found = self._frame_columns[name] = ShardColumn(self._tables[-1].counts(), np.dtype(np.int64), (), part)
        return found

    def _position(self, sensor: str) -> int:
        return list(self.schema.by_name).index(sensor)

    def _check_sizes(self) -> None:
        for shard in self.manifest.shards:
            for name, expected in ((shard.data_name, shard.data.bytes), (shard.index_name, shard.index_entry.bytes)):
                try:
                    found = os.stat(self.directory / name).st_size
                except FileNotFoundError as error:
                    raise CorruptShard(
                        f"cannot open the set at {str(self.location)!r}: {name!r} is missing, expected {expected} bytes; "
                        "copy it again from where the set came from, or pack again"
                    ) from error
                if found != expected:
                    raise size_error(name, found, expected)


def read_attachment(location: Path, file: AttachedFile, limits: Limits = DEFAULT_LIMITS) -> bytes:
    """Read one attachment of the set at `location` and compare its SHA-256."""
    if file.bytes > limits.attachment_bytes:
        raise LimitExceeded(
            f"cannot read attachment {file.name!r}: {file.bytes} bytes, limit {limits.attachment_bytes} (Limits.attachment_bytes)"
        )
    try:
        with open(location / file.path, "rb") as stream:
            data = stream.read(file.bytes + 1)
    except FileNotFoundError as error:
        raise CorruptShard(f"cannot read attachment {file.name!r}: {file.path!r} is missing; copy it again") from error
    found = hashlib.sha256(data).hexdigest()
    if len(data) != file.bytes or found != file.sha256:
        raise CorruptShard(f"cannot read attachment {file.name!r}: SHA-256 {found}, expected {file.sha256}; copy it again")
    return data


def _reopen(location: str, limits: Limits, digest: str, cache: CacheOptions) -> PackedSet:
    return open_set(location, limits=limits, expect_digest=digest, cache=cache)


def _part_tables(manifest: Manifest) -> list[PartTable]:
    """One table per sensor of the schema, then one for the frames."""
    parts = [part for drive in manifest.drives for part in drive.parts]
    shard = np.array([part.shard for part in parts], np.int64)
    width = len(manifest.schema.sensors) + 1
    counts = np.array([(*part.rows, part.frames) for part in parts], np.int64).reshape(len(parts), width)
    offsets = np.zeros_like(counts)
    # Parts lie in a shard in the order in which the drives list them.
    order = np.argsort(shard, kind="stable")
    running = np.cumsum(counts[order], axis=0) - counts[order]
    if len(parts):
        first = np.concatenate([[True], np.diff(shard[order]) != 0])
        group = np.cumsum(first) - 1
        offsets[order] = running - running[first][group]
    starts = np.concatenate([np.zeros((1, counts.shape[1]), np.int64), np.cumsum(counts, axis=0)])
    return [
        PartTable(starts=np.ascontiguousarray(starts[:, at]), shard=shard, offset=np.ascontiguousarray(offsets[:, at]))
        for at in range(counts.shape[1])
    ]

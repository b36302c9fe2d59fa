"""One shard opened for reading: its data mapped, its index checked chunk by chunk, its columns as views."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CorruptShard, LimitExceeded
from .integrity import ChunkedFile, MappedFile, payload_hash, size_error
from .limits import Limits
from .manifest import Shard
from .schema import Schema, Sensor
from .shard_arrow import ArrowIndex
from .shard_column import ColumnPart

__all__ = ["OpenShard", "PayloadTable", "Place"]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadTable:
    """Places and hashes of all payloads of one sensor in one shard."""

    start: NDArray[np.int64]
    stop: NDArray[np.int64]
    hash: NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Place:
    """Where one payload lies in its shard's data file."""

    start: int
    stop: int
    hash: int
    """xxh3-64."""


class OpenShard:
    """Views of one shard. Sizes are compared on opening; index bytes when first used; payload bytes by their readers."""

    def __init__(
        self,
        directory: Path,
        shard: Shard,
        *,
        schema: Schema,
        rows: tuple[int, ...],
        limits: Limits,
        payload: Callable[[Place], memoryview] | None = None,
    ) -> None:
        """Map what is in `directory`; with `payload`, payloads come from there instead of the data file."""
        for entry in (shard.data, shard.index_entry):
            if entry.bytes > limits.shard_bytes:
                raise LimitExceeded(
                    f"cannot open shard {shard.name!r}: {entry.bytes} bytes, limit {limits.shard_bytes}; "
                    "raise Limits.shard_bytes if the set is that big on purpose"
                )
        self.shard = shard
        self._payload = payload
        index_file = MappedFile(directory / shard.index_name, shard.index_entry.bytes)
        self.data = memoryview(b"")
        """The data file as mapped; empty where payloads come from elsewhere."""
        if payload is None:
            data_file = index_file if shard.index is None else MappedFile(directory / shard.data_name, shard.data.bytes)
            self.data = data_file.view
        self._index = ArrowIndex(ChunkedFile(index_file, _read_sums(directory, shard)), schema, shard.kind, shard.frames)
        self._schema = schema
        self._rows = dict(zip(schema.by_name, rows, strict=True))
        self._columns: dict[tuple[str, str], NDArray[Any]] = {}
        self._payloads: dict[str, PayloadTable] = {}
        self._starts: dict[str, NDArray[np.int64]] = {}
        self._own: dict[str, NDArray[np.int64]] = {}

    @property
    def index(self) -> ArrowIndex:
        """The index file, for readers that walk frames."""
        return self._index

    def column(self, sensor: Sensor, name: str) -> NDArray[Any]:
        """Return (rows, *shape) of a sensor's column in this shard, a read-only view."""
        found = self._columns.get((sensor.name, name))
        if found is None:
            found = self._index.column(sensor, name)
            self._check_rows(sensor, len(found))
            self._columns[sensor.name, name] = found
        return found

    def part(self, sensor: Sensor, name: str) -> ColumnPart:
        """Return the same, its chunks compared when rows in them are taken."""
        found = self._index.unread_column(sensor, name)
        self._check_rows(sensor, len(found))
        return ColumnPart(found, self._index.file)

    def stamps_part(self) -> ColumnPart:
        """Return (frames,) reference stamps, their chunks compared when rows in them are taken."""
        return ColumnPart(self._index.unread_stamps(), self._index.file)

    def frame_starts(self, sensor: Sensor) -> NDArray[np.int64]:
        """Return (frames + 1,) first row of each frame in the sensor's columns."""
        found = self._starts.get(sensor.name)
        if found is None:
            found = self._index.starts(sensor)
            self._check_rows(sensor, int(found[-1]))
            self._starts[sensor.name] = found
        return found

    def own(self, sensor: Sensor) -> NDArray[np.int64]:
        """Return (frames,) the row in this shard that is each frame's own, −1 for none."""
        found = self._own.get(sensor.name)
        if found is None:
            own, starts = self._index.own(sensor), self.frame_starts(sensor)
            if np.any(own < -1) or np.any(own >= np.diff(starts)):
                raise CorruptShard(f"cannot use {self.shard.index_name!r}: an own row of {sensor.name!r} is not filed there")
            found = self._own[sensor.name] = np.where(own < 0, -1, starts[:-1] + own)
        return found

    def payloads(self, sensor: Sensor) -> PayloadTable:
        """Return where the sensor's payloads lie in the data file, and their hashes."""
        found = self._payloads.get(sensor.name)
        if found is None:
            start, stop = self._index.places(sensor)
            if len(start) and (start.min() < 0 or stop.max() > self.shard.data.bytes or np.any(stop < start)):
                raise CorruptShard(
                    f"cannot use {self.shard.index_name!r}: a payload of sensor {sensor.name!r} lies outside the "
                    f"{self.shard.data.bytes} bytes of {self.shard.data_name!r}; pack again"
                )
            found = PayloadTable(start=start, stop=stop, hash=self.column(sensor, "hash"))
            self._payloads[sensor.name] = found
        return found

    def payload(self, start: int, stop: int, digest: int) -> memoryview:
        """Return the bytes of a payload, unchecked where they are mapped; `digest` is what they should have."""
        return self.data[start:stop] if self._payload is None else self._payload(Place(start, stop, digest))

    def _check_rows(self, sensor: Sensor, found: int) -> None:
        if found != self._rows[sensor.name]:
            raise CorruptShard(
                f"cannot use {self.shard.index_name!r}: sensor {sensor.name!r} has {found} rows, the manifest says "
                f"{self._rows[sensor.name]}; it belongs to another set: run `headway verify`"
            )


def _read_sums(directory: Path, shard: Shard) -> bytes:
    limit = -(-shard.index_entry.bytes // (1 << 16)) * 8
    try:
        with open(directory / shard.sums_name, "rb") as file:
            sums = file.read(limit + 1)
    except FileNotFoundError as error:
        raise CorruptShard(
            f"cannot open shard {shard.name!r}: {shard.sums_name!r} is missing; `headway repair` can rebuild it"
        ) from error
    if len(sums) != limit:
        raise size_error(shard.sums_name, len(sums), limit)
    found = payload_hash(sums)
    if f"{found:016x}" != shard.sums_xxh3:
        raise CorruptShard(
            f"cannot open shard {shard.name!r}: {shard.sums_name!r} has xxh3 {found:016x}, expected {shard.sums_xxh3}; "
            "`headway repair` can rebuild it"
        )
    return sums

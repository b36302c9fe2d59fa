"""One sensor's rows over a whole set: stamps, columns and payloads by global row number.

Global rows follow (drive name, stamp) and know nothing of shards. Reading columns is one vectorised gather per shard
touched; reading a payload compares its hash on the very buffer that is handed out.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from . import kernel
from .borders import Borders
from .codec import decode
from .errors import CorruptShard, UsageError
from .integrity import payload_hash
from .schema import Sensor
from .shard_column import RowPlaces, ShardColumn, take_rows
from .source import Payload

if TYPE_CHECKING:
    from .open_shard import OpenShard
    from .packed_set import PackedSet
    from .video_rows import VideoRows

__all__ = ["PartTable", "PayloadRefs", "RowPlaces", "Timeline"]

Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class PayloadRefs:
    """Where payloads lie: for the engine to fetch or gather them itself, hashes included."""

    shard: NDArray[np.int32]
    """(n,) index into the manifest's shards."""
    offset: Ints
    """(n,) first byte in the shard's data file."""
    length: Ints
    """(n,) bytes."""
    hash: NDArray[np.uint64]
    """(n,) xxh3-64, to be compared on the buffer used."""

    def part(self, chosen: NDArray[np.intp]) -> PayloadRefs:
        """Return the references at places `chosen`."""
        return PayloadRefs(
            shard=self.shard[chosen], offset=self.offset[chosen], length=self.length[chosen], hash=self.hash[chosen]
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PartTable:
    """The parts of a set in (drive, position) order, seen from one sensor (or from the frames)."""

    starts: Ints
    """(parts + 1,) global row where each part starts."""
    shard: Ints
    """(parts,)"""
    offset: Ints
    """(parts,) the part's first row in its shard."""
    borders: Borders = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "borders", Borders(self.starts))

    def rows_of(self, shard: int) -> int:
        """Return how many rows a shard holds."""
        return int(np.diff(self.starts)[self.shard == shard].sum())

    def counts(self) -> Ints:
        """Return (S,) how many rows each shard holds, S being one more than the last shard with a part."""
        counts = np.zeros(int(self.shard.max(initial=-1)) + 1, np.int64)
        np.add.at(counts, self.shard, np.diff(self.starts))
        return counts

    def locate(self, rows: Ints, what: str) -> tuple[Ints, Ints]:
        """Return the part of each global row, and its row inside the shard."""
        if len(rows) and len(self.shard) and kernel.available():
            shift, hints = self.borders.hints()
            part, local, good = kernel.locate(self.starts, self.offset, hints, shift, rows)
            if good == len(rows):
                return part, local
        self.check(rows, what)
        part = self.borders.holder(rows)
        return part, rows - self.starts[part] + self.offset[part]

    def places(self, rows: Ints, what: str) -> RowPlaces:
        """Return where global rows lie."""
        part, local = self.locate(rows, what)
        return RowPlaces(shard=self.shard[part], row=local)

    def check(self, rows: Ints, what: str) -> None:
        """Refuse rows that there are not."""
        if len(rows) and (rows.min() < 0 or rows.max() >= self.starts[-1]):
            bad = int(rows[(rows < 0) | (rows >= self.starts[-1])][0])
            raise UsageError(f"{what} {bad} is out of range: there are {int(self.starts[-1])}")

    def locate_one(self, row: int, what: str) -> tuple[int, int]:
        """Return the shard of one global row, and its row inside the shard."""
        if not 0 <= row < self.starts[-1]:
            raise UsageError(f"{what} {row} is out of range: there are {int(self.starts[-1])}")
        part = int(np.searchsorted(self.starts, row, side="right")) - 1
        return int(self.shard[part]), row - int(self.starts[part]) + int(self.offset[part])


class Timeline:
    """All rows of one sensor; made by `PackedSet.timeline` and safe to use from several threads."""

    def __init__(self, packed: PackedSet, sensor: Sensor, parts: PartTable, starts: Ints) -> None:
        self.sensor = sensor
        self.starts = starts
        """(drives + 1,) global row where each drive starts."""
        self._packed = packed
        self._parts = parts
        self._stamps: dict[int, Ints] = {}
        self._video: VideoRows | None = None
        self._columns: dict[str, ShardColumn] = {}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def stamps(self, drive: int) -> Ints:
        """Return the stamps of one drive's rows, ns, ascending; a view where the drive lies in one shard."""
        found = self._stamps.get(drive)
        if found is None:
            first, last = self._packed.drive_parts(drive)
            pieces = []
            for part in range(first, last):
                at, rows = int(self._parts.offset[part]), int(self._parts.starts[part + 1] - self._parts.starts[part])
                if rows:
                    pieces.append(self.column("stamp").part(int(self._parts.shard[part])).rows(at, at + rows))
            found = pieces[0] if len(pieces) == 1 else np.concatenate(pieces) if pieces else np.empty(0, np.int64)
            self._stamps[drive] = found
        return found

    def take(self, column: str, rows: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Return column values (n, *shape) of global rows (n,); "stamp" is a column too."""
        places, found = self.places(rows), self.column(column)
        if out is None:
            out = found.empty(len(places.row))
        take_rows([found], places, [out])
        return out

    def places(self, rows: NDArray[Any]) -> RowPlaces:
        """Return where global rows (n,) lie, for several takes."""
        return self._parts.places(np.asarray(rows, np.int64), self._what)

    def column(self, name: str) -> ShardColumn:
        """Return a column over all shards, for `take_rows` of several at once; "stamp" is a column too."""
        found = self._columns.get(name)
        if found is None:
            dtype, shape = (np.dtype("<i8"), ()) if name == "stamp" else self._layout(name)
            found = ShardColumn(self._parts.counts(), dtype, shape, lambda shard: self._shard(shard).part(self.sensor, name))
            self._columns[name] = found
        return found

    def refs(self, rows: NDArray[Any]) -> PayloadRefs:
        """Return where the payloads of global rows lie, without reading them."""
        rows = np.asarray(rows, np.int64)
        part, local = self._parts.locate(rows, self._what)
        shards = self._parts.shard[part]
        start, stop = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
        hashes = np.empty(len(rows), np.uint64)
        for shard in np.unique(shards).tolist():
            chosen = shards == shard
            table = self._shard(shard).payloads(self._stored())
            at = local[chosen]
            start[chosen], stop[chosen], hashes[chosen] = table.start[at], table.stop[at], table.hash[at]
        return PayloadRefs(shard=shards.astype(np.int32), offset=start, length=stop - start, hash=hashes)

    def payload(self, row: int) -> memoryview:
        """Return the stored bytes of one row, read-only, their hash compared just now.

        Raises:
            CorruptShard: the bytes are not those that were packed; names shard, sensor, drive and stamp.
        """
        number, at = self._parts.locate_one(row, self._what)
        shard = self._shard(number)
        table = shard.payloads(self._stored())
        expected = int(table.hash[at])
        view = shard.payload(int(table.start[at]), int(table.stop[at]), expected)
        found = payload_hash(view)
        if found != expected:
            raise CorruptShard(
                f"cannot read {self.describe(row)} in {shard.shard.data_name!r}: xxh3 {found:016x}, expected {expected:016x}; "
                "run `headway verify`, then `headway repair` or copy the file again"
            )
        return view

    def value(self, row: int) -> Payload:
        """Return the decoded payload of one row; an image stays encoded bytes, a video frame is uint8 (H, W, 3) RGB."""
        try:
            if self.sensor.codec == "video":
                return self.frames(np.array([row]))[0]
            return decode(self.sensor, self.payload(row), limit_bytes=self._packed.limits.payload_bytes)
        except ValueError as error:
            if not isinstance(error, CorruptShard):
                error.add_note(f"while decoding {self.describe(row)} of {str(self._packed.location)!r}")
            raise

    def frames(self, rows: NDArray[Any]) -> list[NDArray[np.uint8]]:
        """Return decoded frames of a video sensor's rows, uint8 (H, W, 3) RGB; rows of one group are decoded together."""
        return self._video_rows().frames(np.asarray(rows, np.int64))

    def packets_read(self, rows: NDArray[Any]) -> Ints:
        """Return the rows whose payloads `frames(rows)` reads: from each key frame on."""
        return self._video_rows().read_set(np.asarray(rows, np.int64))

    def describe(self, row: int) -> str:
        """Name a row for messages: sensor, drive and stamp."""
        drive = int(np.searchsorted(self.starts, row, side="right") - 1)
        stamp = int(self.take("stamp", np.array([row]))[0])
        return f"sensor {self.sensor.name!r} of drive {self._packed.drives[drive].name!r} at stamp {stamp}"

    def _video_rows(self) -> VideoRows:
        if self.sensor.codec != "video":
            raise UsageError(f"sensor {self.sensor.name!r} is of codec {self.sensor.codec!r}, not video; use value()")
        if self._video is None:
            from .video_packets import VideoHeader, header_name  # video is an extra
            from .video_rows import VideoRows

            @lru_cache(maxsize=256)
            def header_of(drive: int) -> VideoHeader:
                name = self._packed.drives[drive].name
                return VideoHeader.decode(self._packed.attachment(name, header_name(self.sensor.name)))

            self._video = VideoRows(self, header_of, self._packed.limits)
        return self._video

    @property
    def _what(self) -> str:
        return f"row of sensor {self.sensor.name!r}"

    def _stored(self) -> Sensor:
        if self.sensor.codec is None:
            raise UsageError(f"sensor {self.sensor.name!r} has columns only, no payloads; use take()")
        return self.sensor

    def _layout(self, column: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        found = self.sensor.column(column)
        return found.numpy_dtype, found.shape

    def _shard(self, shard: int) -> OpenShard:
        return self._packed.shard(shard)

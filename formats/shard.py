"""One shard being written, payload by payload, in either kind; nothing of it is in place before `finish`.

The builder keeps index and columns in memory, and for arrow the payloads too: about one shard per pack worker. For tar the
payloads stream into the file. Equal calls give equal bytes.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

from ._kept_payloads import Bytes, KeptPayloads
from .hashed_writer import HashedWriter
from .integrity import payload_hash
from .manifest import FORMAT_VERSION, AttachedFile, FileEntry, Part, Shard, attached_to_json
from .schema import Schema, canonical_json
from .shard_arrow import SensorBlock, ShardContent, write_arrow
from .shard_tar import INDEX_MEMBER, TarWriter, member_name

__all__ = ["HOLD_BYTES", "DriveShare", "FinishedShard", "PartRows", "ShardBuilder", "ShardKind", "SourceFacts"]

ShardKind = Literal["arrow", "tar"]
HOLD_BYTES: Final = 256 << 20
"""Payload bytes an arrow shard being built keeps in memory; the rest waits in a file."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFacts:
    """What every shard repeats of the manifest, so that a lost manifest can be rebuilt."""

    source: str
    licence: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DriveShare:
    """What a shard holds of a drive."""

    name: str
    first: int
    """First frame here."""
    frames: int
    """Frames of the whole drive."""
    attributes: Mapping[str, str | int | float | bool]
    attachments: tuple[AttachedFile, ...]
    """Stated where `first` is 0, empty elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartRows:
    """Index and columns of one part, for one sensor."""

    counts: NDArray[np.int64]
    """(frames,)"""
    own: NDArray[np.int32]
    """(frames,), index among the frame's rows or −1."""
    stamps: NDArray[np.int64]
    columns: Mapping[str, NDArray[Any]]  # Any: dtype by schema


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedShard:
    """A shard whose files stand in the staging directory, and the parts it holds."""

    shard: Shard
    drives: tuple[tuple[DriveShare, Part], ...]
    """What it holds of which drive; `Part.shard` is not yet meaningful."""
    payloads: tuple[int, ...]
    """Per sensor of the schema."""
    payload_bytes: tuple[int, ...]


class ShardBuilder:
    """Collects the parts of one shard and writes its files into a directory.

    Call `begin`, then `add` for every payload in frame order, then `end`, for each part; then `finish`, or `discard`.
    """

    def __init__(
        self, directory: Path, stem: str, *, schema: Schema, kind: ShardKind, facts: SourceFacts, hold_bytes: int = HOLD_BYTES
    ) -> None:
        self.directory = directory
        self.stem = stem
        self.schema = schema
        self.kind = kind
        self.payload_bytes = 0
        self.rejected = 0
        """Payloads left out; whoever leaves one out counts it here."""
        self._facts = facts
        count = len(schema.sensors)
        self._kept = KeptPayloads(directory, count, hold_bytes=hold_bytes)
        self._hashes = [array("Q") for _ in range(count)]
        self._lengths = [array("q") for _ in range(count)]
        self._offsets = [array("q") for _ in range(count)]
        self._rows: list[list[PartRows]] = [[] for _ in range(count)]
        self._stamps: list[NDArray[np.int64]] = []
        self._parts: list[tuple[DriveShare, NDArray[np.int64]]] = []
        self._drive: DriveShare | None = None
        self._out = HashedWriter(directory / f"{stem}.tmp", sums=kind == "arrow", behind=True)
        self._tar = TarWriter(self._out) if kind == "tar" else None

    @property
    def empty(self) -> bool:
        """Whether no part was ended yet."""
        return not self._parts

    def begin(self, drive: DriveShare) -> None:
        """Start a part at frame `drive.first`."""
        assert self._drive is None
        self._drive = drive

    def add(self, sensor: int, data: Bytes, *, frame: int, stamp_ns: int, own: bool) -> None:
        """Append one payload. Payloads come frame by frame, and within a frame sensor by sensor in stamp order.

        The bytes are kept, not copied, until `finish`: they must not change.
        """
        assert self._drive is not None
        self._hashes[sensor].append(payload_hash(data))
        self._lengths[sensor].append(len(data))
        self.payload_bytes += len(data)
        if self._tar is None:
            self._kept.add(sensor, data)
        else:
            name = member_name(self._drive.name, frame, self.schema.sensors[sensor], stamp_ns, own=own)
            self._offsets[sensor].append(self._tar.add(name, data))

    def end(self, stamps: NDArray[np.int64], rows: Sequence[PartRows], *, numbers: NDArray[np.int64] | None = None) -> None:
        """Finish a part: stamps of its frames, and index and columns of every sensor.

        `numbers` are the frames' numbers in the drive; None: they follow each other from the part's first.
        """
        assert self._drive is not None
        if numbers is None:
            numbers = np.arange(self._drive.first, self._drive.first + len(stamps))
        self._parts.append((self._drive, numbers))
        self._stamps.append(stamps)
        for sensor, part in enumerate(rows):
            assert len(part.counts) == len(part.own) == len(stamps)
            assert int(part.counts.sum()) == len(part.stamps)
            self._rows[sensor].append(part)
        self._drive = None

    def cancel(self) -> None:
        """Give up a part to which nothing was added."""
        self._drive = None

    def finish(self) -> FinishedShard:
        """Write, sync and name the shard's files."""
        content = self._content()
        self._kept.close()
        index: FileEntry | None = None
        made: list[Path] = [self._out.path]
        try:
            if self._tar is None:
                write_arrow(self._out, content, self.schema, "arrow")
                self._out.close()
                sums = self._out.sums
            else:
                index_path = self.directory / f"{self.stem}.index.tmp"
                made.append(index_path)
                with HashedWriter(index_path, sums=True) as out:
                    write_arrow(out, content, self.schema, "tar")
                index, sums = FileEntry(bytes=out.bytes, sha256=out.sha256), out.sums
                self._tar.add(INDEX_MEMBER, index_path.read_bytes())
                self._tar.close()
                self._out.close()
            sums_path = self.directory / f"{self.stem}.sums.tmp"
            made.append(sums_path)
            with HashedWriter(sums_path) as out:
                out.write(sums)
            shard = Shard(
                kind=self.kind,
                name=f"{self.stem}-{self._out.sha256[:8]}",
                frames=len(content.stamps),
                data=FileEntry(bytes=self._out.bytes, sha256=self._out.sha256),
                index=index,
                sums_xxh3=f"{payload_hash(sums):016x}",
            )
            os.replace(self._out.path, self.directory / shard.data_name)
            os.replace(sums_path, self.directory / shard.sums_name)
            if index is not None:
                os.replace(index_path, self.directory / shard.index_name)
        except BaseException:
            self.discard()
            for path in made:
                path.unlink(missing_ok=True)
            raise
        return FinishedShard(
            shard=shard,
            drives=self._placed_parts(),
            payloads=tuple(len(lengths) for lengths in self._lengths),
            payload_bytes=tuple(sum(lengths) for lengths in self._lengths),
        )

    def discard(self) -> None:
        """Remove what was written."""
        self._kept.close()
        self._out.discard()

    def _content(self) -> ShardContent:
        blocks = []
        for at, sensor in enumerate(self.schema.sensors):
            parts = self._rows[at]
            stored = sensor.codec is not None
            rows = sum(len(part.stamps) for part in parts)
            assert not stored or len(self._hashes[at]) == rows, f"{sensor.name}: {len(self._hashes[at])} payloads, {rows} rows"
            blocks.append(
                SensorBlock(
                    counts=np.concatenate([part.counts for part in parts]),
                    own=np.concatenate([part.own for part in parts]).astype(np.int32),
                    stamps=np.concatenate([part.stamps for part in parts]),
                    columns={
                        column.name: np.concatenate([part.columns[column.name] for part in parts]) for column in sensor.columns
                    },
                    hashes=np.array(self._hashes[at], np.uint64),
                    lengths=np.array(self._lengths[at], np.int64),
                    offsets=np.array(self._offsets[at], np.int64) if self.kind == "tar" else None,
                    payloads=self._kept.of(at) if self.kind == "arrow" else None,
                )
            )
        return ShardContent(
            drives=tuple((drive.name, numbers) for drive, numbers in self._parts),
            stamps=np.concatenate(self._stamps),
            sensors=tuple(blocks),
            description=self._description(),
        )

    def _description(self) -> bytes:
        """The shard's share of the manifest. No counts of rows: the columns say those."""
        drives = [
            {
                "name": drive.name,
                "first": drive.first,
                "frames": len(numbers),
                "of": drive.frames,
                "attributes": dict(drive.attributes),
                "attachments": [attached_to_json(file) for file in drive.attachments],
            }
            for drive, numbers in self._parts
        ]
        return canonical_json(
            {
                "format": FORMAT_VERSION,
                "kind": self.kind,
                "schema": self.schema.to_json(),
                "source": self._facts.source,
                "licence": self._facts.licence,
                "rejected": self.rejected,
                "drives": drives,
            }
        )

    def _placed_parts(self) -> tuple[tuple[DriveShare, Part], ...]:
        placed = []
        for at, (drive, numbers) in enumerate(self._parts):
            rows = tuple(len(self._rows[sensor][at].stamps) for sensor in range(len(self.schema.sensors)))
            placed.append((drive, Part(shard=0, frames=len(numbers), rows=rows)))
        return tuple(placed)

"""Writing a shard's records again, without decoding them: into the other kind, or without what is beyond help.

Payload bytes, hashes and columns are those of the original; equal records give equal bytes, so converting there and back
restores every file.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import CorruptShard
from .integrity import payload_hash
from .manifest import attached_from_json, parse_json
from .open_shard import OpenShard
from .schema import Schema, Sensor
from .shard import DriveShare, FinishedShard, PartRows, ShardBuilder, ShardKind, SourceFacts

__all__ = ["ShardDescription", "copy_shard", "describe_shard", "read_payload"]

Damage = Callable[[Sensor, str, int, CorruptShard], None]
"""Is told of a payload that is left out: sensor, drive, stamp and what is wrong."""


class ShardDescription:
    """A shard's own share of the manifest, from its schema metadata."""

    def __init__(self, plain: dict[str, Any]) -> None:
        """Take in what `ShardBuilder` wrote; malformed descriptions raise KeyError, TypeError or ValueError."""
        self.kind = str(plain["kind"])
        self.schema = Schema.from_json(plain["schema"])
        self.facts = SourceFacts(source=str(plain["source"]), licence=str(plain["licence"]))
        self.rejected = int(plain["rejected"])
        self.drives = tuple(
            (
                DriveShare(
                    name=str(drive["name"]),
                    first=int(drive["first"]),
                    frames=int(drive["of"]),
                    attributes=dict(drive["attributes"]),
                    attachments=tuple(attached_from_json(file) for file in drive["attachments"]),
                ),
                int(drive["frames"]),
            )
            for drive in plain["drives"]
        )


def describe_shard(name: str, data: bytes) -> ShardDescription:
    """Parse the description found in the index of shard `name`."""
    try:
        return ShardDescription(parse_json(data, f"the description of shard {name!r}"))
    except (KeyError, TypeError, ValueError) as error:
        raise CorruptShard(f"cannot use shard {name!r}: its description is malformed ({error!r}); pack again") from error


def read_payload(shard: OpenShard, sensor: Sensor, row: int) -> memoryview:
    """Return a payload by its row in the shard, its hash compared."""
    table = shard.payloads(sensor)
    view = shard.data[int(table.start[row]) : int(table.stop[row])]
    found, expected = payload_hash(view), int(table.hash[row])
    if found != expected:
        stamp = int(shard.column(sensor, "stamp")[row])
        raise CorruptShard(
            f"cannot read sensor {sensor.name!r} at stamp {stamp} in {shard.shard.data_name!r}: xxh3 {found:016x}, expected "
            f"{expected:016x}; copy the file again, or run `headway repair`"
        )
    return view


def copy_shard(
    shard: OpenShard,
    schema: Schema,
    directory: Path,
    *,
    kind: ShardKind,
    damage: Damage | None = None,
    advance: Callable[[int], None] = lambda amount: None,
) -> FinishedShard | None:
    """Write the records of an open shard into `directory` as a shard of `kind`.

    With `damage`, payloads that do not match their hash are left out and told; a frame whose reference payload is among
    them goes as a whole, since frames are rows of the reference. Without, they raise. None if nothing is left.
    """
    description = describe_shard(shard.shard.name, shard.index.description())
    stem = shard.shard.name.rpartition("-")[0]
    builder = ShardBuilder(directory, stem, schema=schema, kind=kind, facts=description.facts)
    builder.rejected = description.rejected
    try:
        at = 0
        for drive, frames in description.drives:
            _copy_part(shard, schema, builder, drive, range(at, at + frames), damage, advance)
            at += frames
        if at != shard.shard.frames:
            raise CorruptShard(f"cannot use shard {shard.shard.name!r}: it describes {at} frames and has {shard.shard.frames}")
        if builder.empty:
            builder.discard()
            return None
        return builder.finish()
    except BaseException:
        builder.discard()
        raise


def _copy_part(
    shard: OpenShard,
    schema: Schema,
    builder: ShardBuilder,
    drive: DriveShare,
    frames: range,
    damage: Damage | None,
    advance: Callable[[int], None],
) -> None:
    numbers = shard.index.frame_numbers()
    kept_frames: list[int] = []
    counts: list[list[int]] = [[] for _ in schema.sensors]
    own: list[list[int]] = [[] for _ in schema.sensors]
    taken: list[list[int]] = [[] for _ in schema.sensors]
    builder.begin(drive)
    for frame in frames:
        good = [_good_rows(shard, sensor, drive, frame, damage) for sensor in schema.sensors]
        if _own(shard, schema.sensor(schema.reference), frame) not in good[list(schema.by_name).index(schema.reference)]:
            continue
        kept_frames.append(frame)
        for at, sensor in enumerate(schema.sensors):
            mine = _own(shard, sensor, frame)
            counts[at].append(len(good[at]))
            own[at].append(good[at].index(mine) if mine in good[at] else -1)
            taken[at] += good[at]
            if sensor.codec is not None:
                stamps = shard.column(sensor, "stamp")
                for row in good[at]:
                    data = read_payload(shard, sensor, row)
                    builder.add(at, data, frame=int(numbers[frame]), stamp_ns=int(stamps[row]), own=row == mine)
                    advance(len(data))
    if not kept_frames:
        builder.cancel()
        return
    chosen = np.array(kept_frames, np.int64)
    builder.end(
        shard.index.frame_stamps()[chosen],
        [
            PartRows(
                counts=np.array(counts[at], np.int64),
                own=np.array(own[at], np.int32),
                stamps=shard.column(sensor, "stamp")[_rows(taken[at])],
                columns={column.name: shard.column(sensor, column.name)[_rows(taken[at])] for column in sensor.columns},
            )
            for at, sensor in enumerate(schema.sensors)
        ],
        numbers=numbers[chosen],
    )


def _rows(rows: list[int]) -> NDArray[np.int64]:
    return np.array(rows, np.int64)


def _own(shard: OpenShard, sensor: Sensor, frame: int) -> int:
    return int(shard.own(sensor)[frame])


def _good_rows(shard: OpenShard, sensor: Sensor, drive: DriveShare, frame: int, damage: Damage | None) -> list[int]:
    """The rows filed under a frame whose payloads are what they were; without `damage` that is not checked here."""
    starts = shard.frame_starts(sensor)
    rows = list(range(int(starts[frame]), int(starts[frame + 1])))
    if damage is None or sensor.codec is None:
        return rows
    good = []
    for row in rows:
        try:
            read_payload(shard, sensor, row)
        except CorruptShard as error:
            damage(sensor, drive.name, int(shard.column(sensor, "stamp")[row]), error)
        else:
            good.append(row)
    return good

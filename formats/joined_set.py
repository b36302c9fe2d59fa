"""Several packed sets seen as one: their drives end to end, and the sensors that are the same in all of them.

Nothing is copied or written: rows, frames and shards of a set are numbered on from those of the sets before it, and shards stay
with the set that opened them. `merge_sets` writes one set instead.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from .errors import UsageError
from .open_shard import OpenShard
from .packed_set import PackedSet
from .schema import Column, Schema, Sensor
from .timeline import PartTable, Timeline

if TYPE_CHECKING:
    from .remote_set import RemoteSet

__all__ = ["JoinedSet"]

Ints = NDArray[np.int64]

# Columns in which the packer noted something about the files themselves; a set may lack them.
_FILE_FACTS = ("image_size", "jpeg_")


class JoinedSet(PackedSet):
    """Packed sets end to end, read as one; pickling it reopens each of them.

    Sensors that differ between the sets are left out of `schema` (but for the reference); `differences` says in what. Drives of
    two sets may have the same name.
    """

    def __init__(self, sets: Sequence[PackedSet]) -> None:  # makes what PackedSet's own reads from a manifest
        if not sets:
            raise UsageError("cannot join 0 sets: expected one or more")
        self.sets = tuple(sets)
        first = sets[0]
        self.remote = None  # shards and what is remote stay with the sets
        self.location = Path(" + ".join(str(each.location) for each in sets))
        self.limits = first.limits
        self.set_id = hashlib.sha256("\0".join(each.set_id for each in sets).encode()).hexdigest()
        self.schema, self.differences = _common_schema(self.sets)
        self.drives = [drive for each in sets for drive in each.drives]
        self._lock = threading.Lock()  # guards _timelines
        self._timelines: dict[str, Timeline] = {}
        self._shard_starts = np.cumsum([0, *(len(each.manifest.shards) for each in sets)])
        frames = [each.part_table(None) for each in sets]
        starts = np.cumsum([0, *(len(table.shard) for table in frames)])
        parts = [
            at + np.array([each.drive_parts(drive)[0] for drive in range(len(each.drives))], np.int64)
            for each, at in zip(sets, starts, strict=False)
        ]
        tables = [[each.part_table(name) for each in sets] for name in self.schema.by_name]
        self._lay_out(
            [_end_to_end(each, self._shard_starts) for each in [*tables, frames]], np.concatenate([*parts, starts[-1:]])
        )
        self.set_starts: Ints = np.cumsum([0, *(len(each) for each in sets)], dtype=np.int64)
        """(sets + 1,) global frame where each set starts."""

    def shard(self, shard: int) -> OpenShard:
        """Return shard number `shard`, counted over all sets, opened once by its own."""
        which = int(np.searchsorted(self._shard_starts, shard, side="right")) - 1
        return self.sets[which].shard(shard - int(self._shard_starts[which]))

    @property
    def is_remote(self) -> bool:
        """Whether payloads of any of the sets are fetched."""
        return any(each.is_remote for each in self.sets)

    def remote_shard(self, shard: int) -> tuple[RemoteSet, int] | None:
        """Return who fetches payloads of shard `shard`, and its number there; None where they are mapped."""
        which = int(np.searchsorted(self._shard_starts, shard, side="right")) - 1
        return self.sets[which].remote_shard(shard - int(self._shard_starts[which]))

    def prepare(self, frames: NDArray[Any], *, want_by: float = float("inf")) -> None:
        """Begin to bring the index of the shards that hold `frames`, where it is not on this machine."""
        frames = np.asarray(frames, np.int64)
        for each, start, stop in zip(self.sets, self.set_starts, self.set_starts[1:], strict=False):
            each.prepare(frames[(frames >= start) & (frames < stop)] - start, want_by=want_by)

    def attachment(self, drive: str, name: str) -> bytes:
        """Return an attachment of a drive; refused where sets hold different ones for drives of that name."""
        found = {each.attachment(drive, name) for each in self.sets if any(one.name == drive for one in each.drives)}
        if len(found) != 1:
            raise UsageError(
                f"cannot read attachment {name!r} of drive {drive!r}: {len(found)} different ones in {str(self.location)!r}; "
                "rename the drive in one of the sets"
            )
        return found.pop()

    def close(self) -> None:
        """Forget all shards of all sets; mappings go when the last view of them does. The set can be used again."""
        with self._lock:
            self._timelines.clear()
            self._frame_columns.clear()
        for each in self.sets:
            each.close()

    def __reduce__(self) -> tuple[Any, ...]:  # Any: the shape pickle asks for
        return JoinedSet, (self.sets,)

    def __repr__(self) -> str:
        return f"JoinedSet({list(self.sets)!r})"


def _common_schema(sets: Sequence[PackedSet]) -> tuple[Schema, dict[str, str]]:
    """Return the sensors that all sets have alike, and what is different about each of the others."""
    reference = sets[0].schema.reference
    for each in sets[1:]:
        if each.schema.reference != reference:
            raise UsageError(
                f"cannot join {str(sets[0].location)!r} and {str(each.location)!r}: frames are those of {reference!r} in one "
                f"and of {each.schema.reference!r} in the other; pack them with the same reference sensor"
            )
    common, differences = [], {}
    for name in sorted({name for each in sets for name in each.schema.by_name}):
        lacking = [each for each in sets if name not in each.schema.by_name]
        if lacking:
            differences[name] = f"{str(lacking[0].location)!r} has no sensor of that name"
            continue
        sensors = [each.schema.sensor(name) for each in sets]
        other = next((at for at, sensor in enumerate(sensors) if not _alike(sensors[0], sensor)), None)
        if other is not None:
            differences[name] = _difference(sets[0], sensors[0], sets[other], sensors[other])
        if other is None or name == reference:  # of the reference, stamps are needed in any case
            shared = [column for column in sensors[0].columns if all(column in sensor.columns for sensor in sensors)]
            common.append(replace(sensors[0], columns=tuple(shared)))
    return Schema(reference=reference, sensors=tuple(common)), differences


def _alike(one: Sensor, other: Sensor) -> bool:
    facts = {column.name: column for column in one.columns if _is_file_fact(column)}
    return _comparable(one) == _comparable(other) and all(
        facts.get(column.name, column) == column for column in other.columns if _is_file_fact(column)
    )


def _comparable(sensor: Sensor) -> Sensor:
    columns = sorted((column for column in sensor.columns if not _is_file_fact(column)), key=lambda column: column.name)
    return replace(sensor, columns=tuple(columns))


def _is_file_fact(column: Column) -> bool:
    return column.name.startswith(_FILE_FACTS)


def _difference(first: PackedSet, one: Sensor, second: PackedSet, other: Sensor) -> str:
    """Name the first thing that two sensors of one name do not share."""
    one, other = _comparable(one), _comparable(other)
    for part in ("kind", "codec", "frame", "deskewed", "camera", "edit", "columns", "fields"):
        mine, theirs = getattr(one, part), getattr(other, part)
        if mine == theirs:
            continue
        if part in ("columns", "fields"):
            mine, theirs = ([each for each in part_ if each not in rest] for part_, rest in ((mine, theirs), (theirs, mine)))
        return f"{part} is {_short(mine)} in {str(first.location)!r} and {_short(theirs)} in {str(second.location)!r}"
    return f"columns about its files differ between {str(first.location)!r} and {str(second.location)!r}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 200 else f"{text[:200]}…"


def _end_to_end(tables: Sequence[PartTable], shard_starts: Ints) -> PartTable:
    rows = np.cumsum([0, *(int(table.starts[-1]) for table in tables)])
    return PartTable(
        starts=np.concatenate([*(table.starts[:-1] + at for table, at in zip(tables, rows, strict=False)), rows[-1:]]),
        shard=np.concatenate([table.shard + at for table, at in zip(tables, shard_starts, strict=False)]),
        offset=np.concatenate([table.offset for table in tables]),
    )

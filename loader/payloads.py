"""Payloads of a set with the name of their owner in every error: which set, drive, sensor and stamp."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..formats import CorruptShard, DecodeError, Sensor, kernel
from ..formats.timeline import PayloadRefs
from .stall import within

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet

__all__ = ["PayloadPlace", "PayloadReader", "place_at", "place_of"]

_PLACE: Final = "payload_place"
E = TypeVar("E", bound=Exception)


@dataclass(frozen=True, slots=True)
class PayloadPlace:
    """Which payload an error is about."""

    sensor: str
    stamp: int


def place_at(error: E, place: PayloadPlace) -> E:
    """Return `error`, which is about the payload at `place` from now on."""
    setattr(error, _PLACE, place)
    return error


def place_of(error: BaseException) -> PayloadPlace | None:
    """Return which payload `error` is about, where a `PayloadReader` raised it."""
    place = getattr(error, _PLACE, None)
    return place if isinstance(place, PayloadPlace) else None


_SHARD: Final = "\0shard"  # no column is called so: names have no control characters
_OFFSET: Final = "\0offset"
_LENGTH: Final = "\0length"
_HASH: Final = "\0hash"


class PayloadReader:
    """Reads one sensor's payloads; thread-safe, as the timeline under it is."""

    def __init__(self, packed: PackedSet, sensor: Sensor) -> None:
        self.sensor = sensor
        self.timeline = packed.timeline(sensor.name)
        self._packed = packed
        self._shards: dict[int, memoryview] = {}
        self._addresses: dict[int, int] = {}

    def ahead(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:  # Any: integers
        """Return where the payloads of `rows` (any shape; −1: none) lie, for `split` and the others; reads the index only."""
        there = rows >= 0
        refs = self.timeline.refs(rows[there])
        found: dict[str, NDArray[Any]] = {}  # Any: integers
        for name, values in ((_SHARD, refs.shard), (_OFFSET, refs.offset), (_LENGTH, refs.length), (_HASH, refs.hash)):
            found[name] = np.zeros(rows.shape, values.dtype)
            found[name][there] = values
        return found

    @staticmethod
    def split(ahead: Mapping[str, NDArray[Any]]) -> tuple[dict[str, NDArray[Any]], PayloadRefs]:  # Any: dtypes by schema
        """Return an entry without, and the references with, what `ahead` found; those flat."""
        entry = dict(ahead)
        shard, offset, length, digest = (entry.pop(name).ravel() for name in (_SHARD, _OFFSET, _LENGTH, _HASH))
        return entry, PayloadRefs(shard=shard, offset=offset, length=length, hash=digest)

    def addresses(self, refs: PayloadRefs) -> tuple[NDArray[np.int64], object]:
        """Return where the bytes of payloads are, and what keeps them there as long as it lives."""
        if self._packed.is_remote:
            views = self.views(refs)
            return kernel.addresses(views)[0].astype(np.int64), views
        shards = refs.shard.tolist()
        for shard in set(shards) - self._addresses.keys():
            self._addresses[shard] = _address(self._mapped(shard))
        return np.array([self._addresses[shard] for shard in shards], np.int64) + refs.offset, self

    def views(self, refs: PayloadRefs) -> list[memoryview]:
        """Return the bytes of payloads, unchecked where they are mapped; compare them with `refs.hash` where they are used."""
        if self._packed.is_remote:
            fetched = zip(refs.shard.tolist(), refs.offset.tolist(), refs.length.tolist(), refs.hash.tolist(), strict=True)
            with within("store"):
                return [self._packed.shard(shard).payload(start, start + length, sum_) for shard, start, length, sum_ in fetched]
        places = zip(refs.shard.tolist(), refs.offset.tolist(), refs.length.tolist(), strict=True)
        return [self._mapped(shard)[start : start + length] for shard, start, length in places]

    def _mapped(self, shard: int) -> memoryview:
        found = self._shards.get(shard)
        if found is None:
            found = self._shards[shard] = self._packed.shard_bytes(shard)
        return found

    def locate(self, rows: NDArray[np.int64]) -> tuple[list[memoryview], NDArray[np.uint64]]:
        """Return the bytes of payloads as mapped, unchecked, and the hashes to compare them with where they are used."""
        refs = self.timeline.refs(rows)
        return self.views(refs), refs.hash

    def read(self, row: int) -> memoryview:
        """Return the payload's bytes, hash-checked; CorruptShard names what does not match."""
        try:
            with within("store") if self._packed.is_remote else nullcontext():
                return self.timeline.payload(row)
        except CorruptShard as error:
            self._placed(error, row)
            raise

    def value(self, row: int) -> Any:  # Any: by sensor kind, see formats.source.Payload
        """Return the decoded payload."""
        try:
            return self.timeline.value(row)
        except DecodeError as error:
            raise self.undecodable(row, str(error)) from error
        except CorruptShard as error:
            self._placed(error, row)
            raise

    def undecodable(self, row: int, reason: str) -> DecodeError:
        """Return the error that says whose payload cannot be decoded, and why."""
        error = DecodeError(
            f"cannot decode {self.name(row)}: {reason}; run `headway verify` on the set, exclude the drive, "
            "or set LoaderOptions(on_error='replace' or 'mask')"
        )
        return self._placed(error, row)

    def _placed(self, error: E, row: int) -> E:
        stamp = int(self.timeline.take("stamp", np.array([row], np.int64))[0])
        return place_at(error, PayloadPlace(self.sensor.name, stamp))

    def name(self, row: int) -> str:
        """Return what a person needs to find the payload of `row`."""
        drive = int(np.searchsorted(self.timeline.starts, row, side="right")) - 1
        stamp = int(self.timeline.take("stamp", np.array([row], np.int64))[0])
        return (
            f"{self.sensor.kind} {self.sensor.name!r} at stamp {stamp} of drive {self._packed.drives[drive].name!r} "
            f"in set {str(self._packed.location)!r}"
        )


def _address(view: memoryview) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0]) if len(view) else 0

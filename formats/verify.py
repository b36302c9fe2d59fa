"""Checking a whole set: every file, every chunk, every payload, the order of rows, and the set id.

Nothing is decoded. `quick` leaves out the payload bytes and the SHA-256 of data files: it checks the manifest, sizes, the
index and columns, their order, and the set id.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .download import local_set
from .errors import HeadwayError, NotASet, Problem, StoreError, UsageError
from .integrity import payload_hash
from .limits import DEFAULT_LIMITS, Limits
from .manifest import MANIFEST_NAME, Manifest, Shard
from .open_shard import OpenShard
from .pack_options import Progress
from .packed_set import PackedSet, read_attachment
from .set_id import set_id
from .shard_copy import describe_shard, read_payload

__all__ = ["VerifyReport", "verify_set"]

# Bytes hashed between two progress reports.
_STEP = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What `verify_set` found."""

    location: str
    set_id: str
    """Empty where the manifest cannot be read."""
    payloads: int
    """Payloads compared with their hash."""
    bytes: int
    """Bytes of the files that were read."""
    errors: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing is wrong."""
        return not self.errors

    @property
    def exit_code(self) -> int:
        """0, or 4 for a set with errors."""
        return 0 if self.ok else 4


def verify_set(
    location: str | os.PathLike[str],
    *,
    quick: bool = False,
    progress: Progress | None = None,
    limits: Limits = DEFAULT_LIMITS,
) -> VerifyReport:
    """Check the set in directory `location`, or at a store's URL, and report everything wrong with it.

    Raises:
        NotASet: nothing was published there.
    """
    try:
        path = local_set(location, limits=limits)
        manifest = Manifest.load(path, limits=limits)
    except (NotASet, UsageError, StoreError):
        raise
    except HeadwayError as error:
        problem = Problem(path=MANIFEST_NAME, reason=str(error), code="manifest")
        return VerifyReport(location=os.fspath(location), set_id="", payloads=0, bytes=0, errors=(problem,))
    if progress is not None:
        progress.begin("verifying", manifest.stored_bytes)
    check = _Check(path, manifest, quick, progress.advance if progress is not None else lambda amount: None, limits)
    check.run()
    return VerifyReport(
        location=os.fspath(location),
        set_id=manifest.set_id,
        payloads=check.payloads,
        bytes=check.bytes,
        errors=tuple(check.errors),
    )


class _Check:
    """One verification under way."""

    def __init__(self, path: Path, manifest: Manifest, quick: bool, advance: Callable[[int], None], limits: Limits) -> None:
        self.path = path
        self.manifest = manifest
        self.quick = quick
        self.advance = advance
        self.limits = limits
        self.errors: list[Problem] = []
        self.payloads = 0
        self.bytes = 0

    def run(self) -> None:
        for at, shard in enumerate(self.manifest.shards):
            self._shard(at, shard)
        for drive in self.manifest.drives:
            for file in drive.attachments:
                try:
                    read_attachment(self.path, file, self.limits)
                except HeadwayError as error:
                    self._error(file.path, f"attachment of drive {drive.name!r}: {error}", "attachment")
        if not self.errors:
            self._whole()

    def _shard(self, at: int, shard: Shard) -> None:
        before = len(self.errors)
        rows = tuple(
            sum(part.rows[sensor] for drive in self.manifest.drives for part in drive.parts if part.shard == at)
            for sensor in range(len(self.manifest.schema.sensors))
        )
        try:
            opened = OpenShard(self.path, shard, schema=self.manifest.schema, rows=rows, limits=self.limits)
        except HeadwayError as error:
            self._error(shard.data_name, str(error), "shard")
            self.advance(shard.data.bytes)
            return
        if not self.quick and not self._digest(shard.data_name, opened.data, shard.data.sha256) and shard.index is None:
            self._find_chunk(shard, opened)
        if shard.index is not None and not self._digest(shard.index_name, opened.index.file.mapped.view, shard.index.sha256):
            self._find_chunk(shard, opened)
        try:
            self._structure(at, opened)
        except HeadwayError as error:
            if len(self.errors) == before:
                self._error(shard.index_name, str(error), "index")
            return
        if not self.quick:
            self._payloads(opened)

    def _find_chunk(self, shard: Shard, opened: OpenShard) -> None:
        """Say where a damaged index file differs from its chunk sums. In an intact one, the chunks readers touch suffice."""
        try:
            opened.index.file.touch(0, len(opened.index.file.mapped.view))
        except HeadwayError as error:
            self._error(shard.index_name, str(error), "index")

    def _digest(self, name: str, view: memoryview, expected: str) -> bool:
        digest = hashlib.sha256()
        for start in range(0, len(view), _STEP):
            piece = view[start : start + _STEP]
            digest.update(piece)
            self.advance(len(piece))
        self.bytes += len(view)
        if digest.hexdigest() != expected:
            self._error(name, f"SHA-256 is {digest.hexdigest()}, expected {expected}; copy it again, or run repair", "shard")
            return False
        return True

    def _structure(self, at: int, opened: OpenShard) -> None:
        """Touch every column, and compare what the shard says about itself with the manifest."""
        index, schema = opened.index, self.manifest.schema
        expected = [(drive.name, part.frames) for drive in self.manifest.drives for part in drive.parts if part.shard == at]
        described = describe_shard(opened.shard.name, index.description())
        found = [(drive.name, frames) for drive, frames in described.drives]
        names = [name for name, frames in expected for _ in range(frames)]
        if found != expected or index.drive_names() != names or described.schema != schema:
            self._error(opened.shard.index_name, f"holds {found[:3]}…, the manifest expects {expected[:3]}…; pack again", "index")
            return
        numbers, stamps = index.frame_numbers(), index.frame_stamps()
        start = 0
        for name, frames in expected:
            if np.any(np.diff(stamps[start : start + frames]) <= 0) or np.any(np.diff(numbers[start : start + frames]) <= 0):
                self._error(opened.shard.index_name, f"frames of drive {name!r} are not in order; pack again", "order")
            start += frames
        for sensor in schema.sensors:
            opened.own(sensor)
            opened.frame_starts(sensor)
            for column in ("stamp", *(column.name for column in sensor.columns)):
                opened.column(sensor, column)
            if sensor.codec is not None:
                opened.payloads(sensor)

    def _payloads(self, opened: OpenShard) -> None:
        for sensor in self.manifest.schema.sensors:
            if sensor.codec is None:
                continue
            table = opened.payloads(sensor)
            places = zip(table.start.tolist(), table.stop.tolist(), table.hash.tolist(), strict=True)
            for row, (start, stop, expected) in enumerate(places):
                self.payloads += 1
                if payload_hash(opened.data[start:stop]) == expected:
                    continue
                try:
                    read_payload(opened, sensor, row)
                except HeadwayError as error:
                    stamp = int(opened.column(sensor, "stamp")[row])
                    self._error(opened.shard.data_name, str(error), "payload", sensor.name, stamp)

    def _whole(self) -> None:
        """What only shows over all shards: the order of rows, the reference, and the set id."""
        try:
            with PackedSet(self.path, self.manifest, limits=self.limits) as packed:
                for sensor in packed.schema.sensors:
                    timeline = packed.timeline(sensor.name)
                    for at, drive in enumerate(packed.drives):
                        if np.any(np.diff(timeline.stamps(at)) <= 0):
                            self._error(MANIFEST_NAME, f"{sensor.name!r} of drive {drive.name!r} is not in stamp order", "order")
                found = set_id(packed)
        except HeadwayError as error:
            self._error(MANIFEST_NAME, str(error), "index")
            return
        if found != self.manifest.set_id:
            self._error(MANIFEST_NAME, f"set id is {found}, the manifest states {self.manifest.set_id}; pack again", "set_id")

    def _error(self, path: str, reason: str, code: str, sensor: str = "", stamp_ns: int | None = None) -> None:
        self.errors.append(Problem(path=path, reason=reason, sensor=sensor, stamp_ns=stamp_ns, code=code))

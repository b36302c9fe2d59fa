"""Making a damaged set whole again: what can be rebuilt is, what is beyond help is dropped and listed.

Rebuilt without loss: the manifest, chunk sums, a tar's index (its copy is the tar's last member), tar headers. Lost, and
listed: payloads whose bytes do not match their hash, frames whose reference payload is among them, and shards whose index
cannot be trusted. A set that comes out of `repair_set` passes `verify_set`.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from .errors import CorruptShard, HeadwayError, NotASet, Problem, SetError
from .hashed_writer import HashedWriter
from .integrity import chunk_sums, payload_hash
from .limits import DEFAULT_LIMITS, Limits
from .manifest import AttachedFile, Drive, FileEntry, Manifest, Part, SensorStats, Shard
from .open_shard import OpenShard
from .packed_set import PackedSet, read_attachment
from .publish import SHARD_FILE, staged
from .schema import Schema, Sensor
from .set_id import set_id
from .shard import DriveShare, FinishedShard, ShardKind
from .shard_arrow import read_description
from .shard_copy import ShardDescription, copy_shard, describe_shard
from .shard_tar import index_place
from .system_error import as_typed
from .verify import verify_set

__all__ = ["RepairReport", "repair_set"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RepairReport:
    """What `repair_set` did."""

    location: str
    manifest: Manifest
    rebuilt: tuple[Problem, ...]
    """Damage that was undone without loss."""
    dropped: tuple[Problem, ...]
    """What is no longer in the set."""

    @property
    def exit_code(self) -> int:
        """0, or 7 for a set that lost something."""
        return 7 if self.dropped else 0


def repair_set(location: str | os.PathLike[str], *, limits: Limits = DEFAULT_LIMITS) -> RepairReport:
    """Repair the set in directory `location` in place, publishing the outcome atomically.

    Raises:
        NotASet: there is not one whole shard to build a set from.
        SetError: nothing is left.
    """
    path = Path(location)
    manifest = _load(path, limits)
    if manifest is not None:
        report = verify_set(path, limits=limits)
        if report.ok:
            return RepairReport(location=str(path), manifest=manifest, rebuilt=(), dropped=())
    with as_typed("repair", path), staged(path, overwrite=True, resume=False, limits=limits) as staging:
        work = _Repair(path, staging.path, manifest, limits)
        work.run()
        repaired = work.manifest()
        repaired = replace(repaired, set_id=set_id(PackedSet(staging.path, repaired, limits=limits)))
        published = staging.publish(repaired)
    after = verify_set(path, limits=limits)
    if not after.ok:
        raise SetError(f"cannot repair {str(path)!r}: after repairing, {after.errors[0]}; copy the set again")
    return RepairReport(location=str(path), manifest=published, rebuilt=tuple(work.rebuilt), dropped=tuple(work.dropped))


def _load(path: Path, limits: Limits) -> Manifest | None:
    try:
        return Manifest.load(path, limits=limits)
    except SetError:
        return None


class _Repair:
    """One repair under way: every shard of the outcome is written or linked into the staging directory."""

    def __init__(self, path: Path, staging: Path, manifest: Manifest | None, limits: Limits) -> None:
        self.path = path
        self.staging = staging
        self.old = manifest
        self.limits = limits
        self.rebuilt: list[Problem] = []
        self.dropped: list[Problem] = []
        self.shards: list[FinishedShard] = []
        self.schema: Schema | None = manifest.schema if manifest is not None else None
        self.facts: ShardDescription | None = None
        self.rejected = 0

    def run(self) -> None:
        if self.old is None:
            self._rebuilt("manifest.json", "was missing or damaged", "manifest")
        for shard, rows in self._candidates():
            try:
                self._shard(shard, rows)
            except (SetError, FileNotFoundError) as error:
                self._dropped(shard.data_name, f"the shard cannot be read and is left out: {error}", "shard")
        shutil.rmtree(self.staging / "work", ignore_errors=True)
        if not self.shards:
            raise SetError(f"cannot repair {str(self.path)!r}: not one shard is readable; copy the set again, or pack again")

    def manifest(self) -> Manifest:
        """Return the manifest of the outcome; its set id is still to be computed."""
        assert self.schema is not None
        assert self.facts is not None
        old = {drive.name: drive for drive in self.old.drives} if self.old is not None else {}
        shares: dict[str, list[tuple[DriveShare, Part]]] = {}
        for at, finished in enumerate(self.shards):
            for share, part in finished.drives:
                shares.setdefault(share.name, []).append((share, replace(part, shard=at)))
        drives = []
        for name in sorted(shares):
            parts = sorted(shares[name], key=lambda pair: pair[0].first)
            known = old.get(name)
            files = known.attachments if known else next((s.attachments for s, _ in parts if s.attachments), ())
            attributes = known.attributes if known else parts[0][0].attributes
            drives.append(
                Drive(
                    name=name,
                    attributes=attributes,
                    attachments=tuple(file for file in files if self._attachment(name, file)),
                    parts=tuple(part for _, part in parts),
                )
            )
            self._report_gaps(name, parts)
        stats = {}
        for at, sensor in enumerate(self.schema.sensors):
            stats[sensor.name] = SensorStats(
                rows=sum(part.rows[at] for drive in drives for part in drive.parts),
                payloads=sum(finished.payloads[at] for finished in self.shards),
                bytes=sum(finished.payload_bytes[at] for finished in self.shards),
            )
        return Manifest(
            schema=self.schema,
            drives=tuple(drives),
            shards=tuple(finished.shard for finished in self.shards),
            set_id="0" * 64,
            source=self.old.source if self.old is not None else self.facts.facts.source,
            licence=self.old.licence if self.old is not None else self.facts.facts.licence,
            sensors=stats,
            rejected=self.old.rejected if self.old is not None else self.rejected,
        )

    def _candidates(self) -> list[tuple[Shard, tuple[int, ...] | None]]:
        """The shards to look at: those of the manifest, or else every data file whose name and content agree."""
        if self.old is not None:
            return [
                (
                    shard,
                    tuple(
                        sum(part.rows[sensor] for drive in self.old.drives for part in drive.parts if part.shard == at)
                        for sensor in range(len(self.old.schema.sensors))
                    ),
                )
                for at, shard in enumerate(self.old.shards)
            ]
        names = sorted(entry.name for entry in self.path.iterdir() if SHARD_FILE.fullmatch(entry.name))
        tars = {name.removesuffix(".tar") for name in names if name.endswith(".tar")}
        found: list[tuple[Shard, tuple[int, ...] | None]] = []
        for name in names:
            stem, _, suffix = name.partition(".")
            if suffix == "sums" or (suffix == "arrow" and stem in tars):
                continue
            shard = self._from_data(stem, suffix)
            if shard is not None:
                found.append((shard, None))
        if not found:
            raise NotASet(f"cannot repair {str(self.path)!r}: no manifest and no whole shard there; is this the set's directory?")
        return found

    def _from_data(self, stem: str, kind: str) -> Shard | None:
        """Describe a shard from its data file alone, or drop it."""
        path = self.path / f"{stem}.{kind}"
        size = path.stat().st_size
        with open(path, "rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
        if not stem.endswith("-" + sha256[:8]) or size > self.limits.shard_bytes:
            self._dropped(path.name, f"SHA-256 is {sha256[:8]}…, its name says {stem[-8:]}; the shard is left out", "shard")
            return None
        data = path.read_bytes()
        try:
            index = data
            if kind == "tar":
                start, stop = index_place(data)
                index = data[start:stop]
            description = describe_shard(stem, read_description(index))
        except HeadwayError as error:
            self._dropped(path.name, f"holds no index: {error}", "shard")
            return None
        self.rejected += description.rejected
        return Shard(
            kind=kind,
            name=stem,
            frames=sum(frames for _, frames in description.drives),
            data=FileEntry(bytes=size, sha256=sha256),
            index=FileEntry(bytes=len(index), sha256=hashlib.sha256(index).hexdigest()) if kind == "tar" else None,
            sums_xxh3=f"{payload_hash(chunk_sums(index)):016x}",
        )

    def _shard(self, shard: Shard, rows: tuple[int, ...] | None) -> None:
        """Bring one shard into the staging directory, whole if it can be."""
        work = self.staging / "work"
        # Never reuse it: a file left there may be a second name of one in the set.
        shutil.rmtree(work, ignore_errors=True)
        work.mkdir()
        whole = self._gather(shard, work)
        if self.schema is None:
            self.schema = self._description(work, shard).schema
        opened = OpenShard(work, shard, schema=self.schema, rows=rows or self._rows(work, shard), limits=self.limits)
        description = describe_shard(shard.name, opened.index.description())
        if description.schema != self.schema:
            raise CorruptShard(f"its schema is not that of the other shards; it belongs to another set: {shard.name!r}")
        self.facts = self.facts or description
        if whole:
            for name in shard.file_names():
                os.replace(work / name, self.staging / name)
            self.shards.append(_finished(shard, opened, description))
        else:
            kind: ShardKind = "tar" if shard.kind == "tar" else "arrow"
            copied = copy_shard(opened, self.schema, self.staging, kind=kind, damage=self._damage(shard))
            if copied is None:
                raise CorruptShard(f"no frame of {shard.name!r} is left")
            if copied.shard == shard:
                self._rebuilt(shard.data_name, "was damaged outside its payloads, and is as it was", "shard")
            self.shards.append(copied)

    def _gather(self, shard: Shard, work: Path) -> bool:
        """Put a shard's files into `work`, index and sums rebuilt if need be; say whether the data file is whole."""
        _link(self.path / shard.data_name, work / shard.data_name)
        size = (work / shard.data_name).stat().st_size
        if size != shard.data.bytes:
            _resize(work / shard.data_name, shard.data.bytes)
        with open(work / shard.data_name, "rb") as file:
            whole = hashlib.file_digest(file, "sha256").hexdigest() == shard.data.sha256
        index = work / shard.index_name
        if shard.index is not None:
            found = _read(self.path / shard.index_name)
            if hashlib.sha256(found).hexdigest() != shard.index.sha256:
                data = (work / shard.data_name).read_bytes()
                size = shard.index.bytes
                start = len(data) - 1024 - size - -size % 512
                found = data[start : start + size] if start > 0 else b""
                if hashlib.sha256(found).hexdigest() != shard.index.sha256:
                    raise CorruptShard("its index is damaged, and so is the copy inside the tar")
                self._rebuilt(shard.index_name, "was missing or damaged; taken from the copy inside the tar", "index")
            _write(index, found)
        sums = _read(self.path / shard.sums_name)
        if f"{payload_hash(sums):016x}" != shard.sums_xxh3:
            if shard.index is None and not whole:
                raise CorruptShard("its data file and its chunk sums are both damaged, so nothing in it can be trusted")
            sums = chunk_sums(index.read_bytes())
            self._rebuilt(shard.sums_name, "was missing or damaged; computed again", "sums")
        _write(work / shard.sums_name, sums)
        return whole

    def _description(self, work: Path, shard: Shard) -> ShardDescription:
        return describe_shard(shard.name, read_description((work / shard.index_name).read_bytes()))

    def _rows(self, work: Path, shard: Shard) -> tuple[int, ...]:
        """Row counts of a shard no manifest tells about: from its own columns."""
        assert self.schema is not None
        none = tuple(-1 for _ in self.schema.sensors)
        opened = OpenShard(work, shard, schema=self.schema, rows=none, limits=self.limits)
        return tuple(opened.index.rows(sensor) for sensor in self.schema.sensors)

    def _damage(self, shard: Shard) -> Callable[[Sensor, str, int, CorruptShard], None]:
        def tell(sensor: Sensor, drive: str, stamp_ns: int, error: CorruptShard) -> None:
            reason = f"payload of drive {drive!r} is damaged and left out"
            self.dropped.append(
                Problem(path=shard.data_name, reason=reason, sensor=sensor.name, stamp_ns=stamp_ns, code="payload")
            )

        return tell

    def _attachment(self, drive: str, file: AttachedFile) -> bool:
        """Stage an attachment; say whether it is whole."""
        target = self.staging / file.path
        if target.exists():
            return True
        try:
            data = read_attachment(self.path, file, self.limits)
        except HeadwayError as error:
            self._dropped(file.path, f"attachment {file.name!r} of drive {drive!r} is left out: {error}", "attachment")
            return False
        target.parent.mkdir(exist_ok=True)
        _write(target, data)
        return True

    def _report_gaps(self, drive: str, parts: list[tuple[DriveShare, Part]]) -> None:
        frames, found = parts[0][0].frames, sum(part.frames for _, part in parts)
        if found < frames:
            self._dropped("manifest.json", f"drive {drive!r} has {found} of its {frames} frames left", "frames")

    def _rebuilt(self, path: str, reason: str, code: str) -> None:
        self.rebuilt.append(Problem(path=path, reason=reason, code=code))

    def _dropped(self, path: str, reason: str, code: str) -> None:
        self.dropped.append(Problem(path=path, reason=reason, code=code))


def _finished(shard: Shard, opened: OpenShard, description: ShardDescription) -> FinishedShard:
    """Describe a shard that is taken over as it is."""
    sensors = description.schema.sensors
    starts = [opened.frame_starts(sensor) for sensor in sensors]
    parts, at = [], 0
    for share, frames in description.drives:
        rows = tuple(int(start[at + frames] - start[at]) for start in starts)
        parts.append((share, Part(shard=0, frames=frames, rows=rows)))
        at += frames
    tables = [opened.payloads(sensor) if sensor.codec is not None else None for sensor in sensors]
    return FinishedShard(
        shard=shard,
        drives=tuple(parts),
        payloads=tuple(0 if table is None else len(table.start) for table in tables),
        payload_bytes=tuple(0 if table is None else int((table.stop - table.start).sum()) for table in tables),
    )


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        return b""


def _write(path: Path, data: bytes) -> None:
    with HashedWriter(path) as out:
        out.write(data)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name where the file system can, else copy it; nothing ever writes into `target`."""
    try:
        os.link(source, target)
    except PermissionError:
        shutil.copyfile(source, target)


def _resize(path: Path, size: int) -> None:
    """Replace a file by a copy of the expected size, so that what is left of it can be read."""
    data = path.read_bytes()[:size]
    path.unlink()
    _write(path, data + bytes(size - len(data)))

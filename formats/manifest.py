"""The table of contents of a set: schema, drives, shards and their hashes; nothing per row.

`manifest.json` is one line, {"body": …, "sha256": "…"}, where the digest covers the bytes of the body exactly as they
stand, so that any damage is found before a value is used. A set exists from the moment this file does.
"""

from __future__ import annotations

import gc
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from .errors import CorruptShard, LimitExceeded, NotASet, SetError, UnsupportedFormat
from .limits import DEFAULT_LIMITS, Limits
from .schema import Schema, canonical_json

__all__ = ["FORMAT_VERSION", "MANIFEST_NAME", "AttachedFile", "Drive", "FileEntry", "Manifest", "Part", "SensorStats", "Shard"]

FORMAT_VERSION: Final = 0
MANIFEST_NAME: Final = "manifest.json"
_HEAD, _MIDDLE, _TAIL = b'{"body":', b',"sha256":"', b'"}\n'
_NESTS: Final = (dict, list)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileEntry:
    """Size and digest of one file."""

    bytes: int
    sha256: str
    """64 hex digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One data file and what belongs to it: `<name>.arrow`, or `<name>.tar` with its index `<name>.arrow`."""

    kind: str
    """"arrow" or "tar"."""
    name: str
    """Without suffix; ends in the first 8 hex digits of the data file's SHA-256."""
    frames: int
    data: FileEntry
    index: FileEntry | None
    """The tar's index; None for arrow, which is its own."""
    sums_xxh3: str
    """xxh3-64 of `<name>.sums`, 16 hex digits."""

    @property
    def data_name(self) -> str:
        """File that holds the payloads."""
        return f"{self.name}.{self.kind}"

    @property
    def index_name(self) -> str:
        """File that holds index and columns."""
        return f"{self.name}.arrow"

    @property
    def sums_name(self) -> str:
        """File that holds the chunk sums of the index file."""
        return f"{self.name}.sums"

    @property
    def index_entry(self) -> FileEntry:
        """Size and digest of the index file."""
        return self.index if self.index is not None else self.data

    def file_names(self) -> tuple[str, ...]:
        """Every file of this shard."""
        own = (self.data_name, self.sums_name)
        return own if self.index is None else (*own, self.index_name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A run of one drive's frames in one shard. Within a shard, parts lie in (drive, position) order."""

    shard: int
    frames: int
    rows: tuple[int, ...]
    """Rows per sensor of the schema, in its order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttachedFile:
    """A file that belongs to a drive as a whole, stored once by content under `attachments/`."""

    name: str
    media_type: str
    bytes: int
    sha256: str

    @property
    def path(self) -> str:
        """Path inside the set."""
        return f"attachments/{self.sha256}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """One recording."""

    name: str
    attributes: Mapping[str, str | int | float | bool]
    attachments: tuple[AttachedFile, ...]
    parts: tuple[Part, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorStats:
    """How much one sensor holds."""

    rows: int
    payloads: int
    """Equal to rows, or 0 for a timeline of columns only."""
    bytes: int
    """Payload bytes as stored."""


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """Everything about a set that is not in its shards."""

    schema: Schema
    drives: tuple[Drive, ...]
    """By name."""
    shards: tuple[Shard, ...]
    set_id: str
    """64 hex digits."""
    source: str
    """Kind of source it was packed from, or "merge"."""
    licence: str
    sensors: Mapping[str, SensorStats]
    rejected: int
    """Payloads of the source left out because they were bad."""
    digest: str = field(default="", compare=False)
    """SHA-256 of the body as stored: what `expect_digest` pins. Empty until written or read."""

    @property
    def frames(self) -> int:
        """Frames of all drives."""
        return sum(part.frames for drive in self.drives for part in drive.parts)

    @property
    def stored_bytes(self) -> int:
        """Bytes of all data and index files."""
        return sum(shard.data.bytes + (shard.index.bytes if shard.index else 0) for shard in self.shards)

    @property
    def kind(self) -> str:
        """Shard kind, "arrow" or "tar"; "mixed" after merging sets of both."""
        kinds = sorted({shard.kind for shard in self.shards})
        return kinds[0] if len(kinds) == 1 else "mixed"

    def encode(self) -> bytes:
        """Return the bytes of manifest.json; equal manifests give equal bytes."""
        body = canonical_json(_to_json(self))
        return _HEAD + body + _MIDDLE + hashlib.sha256(body).hexdigest().encode() + _TAIL

    @staticmethod
    def decode(data: bytes, *, limits: Limits = DEFAULT_LIMITS) -> Manifest:
        """Read manifest.json, checking its digest before anything else.

        Raises:
            CorruptShard: the bytes are not those that were written.
            UnsupportedFormat: written by a version this reader does not know.
            SetError: intact, but not what a manifest holds.
        """
        body, digest = _checked_body(data)
        with _no_collection():
            return Manifest._parse(body, digest, limits)

    @staticmethod
    def _parse(body: bytes, digest: str, limits: Limits) -> Manifest:
        plain = parse_json(body, "manifest.json", limits)
        version = plain.get("format") if isinstance(plain, dict) else None
        if version != FORMAT_VERSION:
            raise UnsupportedFormat(
                f"cannot read manifest.json: found format version {version!r}, this headway reads {FORMAT_VERSION}; "
                "use the headway version that wrote it, or pack again"
            )
        return _from_json(plain, digest)

    @staticmethod
    def load(location: Path, *, limits: Limits = DEFAULT_LIMITS, expect_digest: str | None = None) -> Manifest:
        """Read the manifest of the set in directory `location`."""
        path = location / MANIFEST_NAME
        try:
            with open(path, "rb") as file:
                data = file.read(limits.manifest_bytes + 1)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise NotASet(
                f"cannot open a set at {str(location)!r}: no {MANIFEST_NAME} there; either it is no set, or packing never "
                "finished: run pack-dataset again (with --resume to keep finished shards)"
            ) from error
        if len(data) > limits.manifest_bytes:
            raise LimitExceeded(
                f"cannot read {MANIFEST_NAME}: over {limits.manifest_bytes} bytes; raise Limits.manifest_bytes if that is meant"
            )
        manifest = Manifest.decode(data, limits=limits)
        manifest.check_pinned(location, expect_digest)
        return manifest

    def check_pinned(self, location: object, expect_digest: str | None) -> None:
        """Raise CorruptShard if this is not the manifest that `expect_digest` pins; None pins nothing."""
        if expect_digest is not None and self.digest != expect_digest.lower():
            raise CorruptShard(
                f"cannot open the set at {str(location)!r}: manifest digest is {self.digest}, expected {expect_digest}; "
                "this is not the set that was pinned"
            )


def parse_json(data: bytes, what: str, limits: Limits = DEFAULT_LIMITS) -> Any:  # Any: JSON has no narrower type
    """Parse JSON strictly: no duplicate keys, no NaN, no giant numbers, bounded depth; errors are `SetError`."""
    if len(data) > limits.manifest_bytes:
        raise LimitExceeded(f"cannot read {what}: {len(data)} bytes, limit {limits.manifest_bytes} (Limits.manifest_bytes)")
    try:
        plain = json.loads(
            data.decode(),
            object_pairs_hook=_unique,
            parse_int=_short_int,
            parse_float=_short_float,
            parse_constant=_no_constant,
        )
    except (ValueError, RecursionError) as error:
        raise SetError(f"cannot read {what}: not the JSON expected ({error}); copy the file again") from error
    _check_depth(plain, what, limits.json_depth)
    return plain


@contextmanager
def _no_collection() -> Iterator[None]:
    """Put garbage collection off: so many new objects set off one over all that the process holds (80 ms with torch in it)."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _checked_body(data: bytes) -> tuple[bytes, str]:
    tail = len(_MIDDLE) + 64 + len(_TAIL)
    body = data[len(_HEAD) : -tail]
    found = hashlib.sha256(body).hexdigest()
    if data != _HEAD + body + _MIDDLE + found.encode() + _TAIL:
        stated = data[-tail:][len(_MIDDLE) : -len(_TAIL)]
        raise CorruptShard(
            f"cannot read manifest.json: its body has SHA-256 {found}, but it states {stated[:64]!r}; "
            "it was cut short or changed: copy it again"
        )
    return body, found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("an object names a key twice")
    return found


def _short_int(text: str) -> int:
    if len(text) > 64:
        raise ValueError("a number has more than 64 digits")
    return int(text)


def _short_float(text: str) -> float:
    if len(text) > 64:
        raise ValueError("a number has more than 64 digits")
    return float(text)


def _no_constant(text: str) -> float:
    raise ValueError(f"{text} is no JSON number")


def _check_depth(value: Any, what: str, depth: int) -> None:
    level, at = [value] if type(value) in _NESTS else [], 0
    while level:
        level = [child for item in level for child in (item.values() if type(item) is dict else item) if type(child) in _NESTS]
        at += 1
        if at > depth:
            raise LimitExceeded(f"cannot read {what}: nested deeper than {depth} levels (Limits.json_depth)")


def _to_json(manifest: Manifest) -> dict[str, Any]:
    return {
        "format": FORMAT_VERSION,
        "schema": manifest.schema.to_json(),
        "set_id": manifest.set_id,
        "source": manifest.source,
        "licence": manifest.licence,
        "rejected": manifest.rejected,
        "sensors": {
            name: {"rows": stats.rows, "payloads": stats.payloads, "bytes": stats.bytes}
            for name, stats in manifest.sensors.items()
        },
        "shards": [shard_to_json(shard) for shard in manifest.shards],
        "drives": [
            {
                "name": drive.name,
                "attributes": dict(drive.attributes),
                "attachments": [attached_to_json(file) for file in drive.attachments],
                "parts": [{"shard": part.shard, "frames": part.frames, "rows": list(part.rows)} for part in drive.parts],
            }
            for drive in manifest.drives
        ],
    }


def attached_to_json(file: AttachedFile) -> dict[str, Any]:
    """Return one attachment's manifest entry."""
    return {"name": file.name, "media_type": file.media_type, "bytes": file.bytes, "sha256": file.sha256}


def attached_from_json(file: dict[str, Any]) -> AttachedFile:
    """Rebuild an attachment from its manifest entry."""
    return AttachedFile(
        name=_text(file["name"]),
        media_type=_text(file["media_type"]),
        bytes=_count(file["bytes"]),
        sha256=_hex(file["sha256"], 64),
    )


def shard_to_json(shard: Shard) -> dict[str, Any]:
    """Return one shard's manifest entry."""
    entry = {
        "kind": shard.kind,
        "name": shard.name,
        "frames": shard.frames,
        "data": {"bytes": shard.data.bytes, "sha256": shard.data.sha256},
        "sums": shard.sums_xxh3,
    }
    if shard.index is not None:
        entry["index"] = {"bytes": shard.index.bytes, "sha256": shard.index.sha256}
    return entry


def shard_from_json(item: dict[str, Any]) -> Shard:
    """Rebuild a shard from its manifest entry; errors are those of plain lookups and `ValueError`."""
    index = item.get("index")
    shard = Shard(
        kind=item["kind"],
        name=_plain_name(item["name"]),
        frames=_count(item["frames"]),
        data=_file(item["data"]),
        index=None if index is None else _file(index),
        sums_xxh3=_hex(item["sums"], 16),
    )
    if shard.kind not in ("arrow", "tar") or (shard.kind == "tar") != (shard.index is not None):
        raise ValueError(f"shard {shard.name!r} is of kind {shard.kind!r}, or lacks its index")
    if not shard.name.endswith("-" + shard.data.sha256[:8]):
        raise ValueError(f"shard {shard.name!r} is not named after its SHA-256 {shard.data.sha256}")
    return shard


def _from_json(plain: dict[str, Any], digest: str) -> Manifest:
    schema = Schema.from_json(plain.get("schema"))
    try:
        manifest = Manifest(
            schema=schema,
            drives=tuple(_drive_from_json(item, len(schema.sensors), len(plain["shards"])) for item in plain["drives"]),
            shards=tuple(shard_from_json(item) for item in plain["shards"]),
            set_id=_hex(plain["set_id"], 64),
            source=_text(plain["source"]),
            licence=_text(plain["licence"]),
            sensors={
                name: SensorStats(rows=_count(item["rows"]), payloads=_count(item["payloads"]), bytes=_count(item["bytes"]))
                for name, item in plain["sensors"].items()
            },
            rejected=_count(plain["rejected"]),
            digest=digest,
        )
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise SetError(f"cannot read manifest.json: {error!r} is not what format {FORMAT_VERSION} holds; pack again") from error
    _check_consistent(manifest)
    return manifest


def _drive_from_json(item: dict[str, Any], sensors: int, shards: int) -> Drive:
    parts = tuple(
        Part(shard=_count(part["shard"]), frames=_count(part["frames"]), rows=tuple(_count(rows) for rows in part["rows"]))
        for part in item["parts"]
    )
    for part in parts:
        if len(part.rows) != sensors or part.shard >= shards:
            raise ValueError(f"a part of drive {item['name']!r} has {len(part.rows)} row counts or shard {part.shard}")
    attributes = item["attributes"]
    if not all(isinstance(value, str | int | float | bool) for value in attributes.values()):
        raise ValueError(f"drive {item['name']!r} has an attribute that is neither text, number nor truth value")
    return Drive(
        name=_text(item["name"]),
        attributes=attributes,
        attachments=tuple(attached_from_json(file) for file in item["attachments"]),
        parts=parts,
    )


def _check_consistent(manifest: Manifest) -> None:
    names = [drive.name for drive in manifest.drives]
    if names != sorted(set(names)):
        raise SetError("cannot read manifest.json: drives are not in name order, or a name occurs twice; pack again")
    if len({name.lower() for name in names}) != len(names):
        raise SetError("cannot read manifest.json: two drive names differ only in upper and lower case; pack again")
    if len({shard.name for shard in manifest.shards}) != len(manifest.shards):
        raise SetError("cannot read manifest.json: two shards share a name; pack again")
    if list(manifest.sensors) != list(manifest.schema.by_name) and set(manifest.sensors) != set(manifest.schema.by_name):
        raise SetError("cannot read manifest.json: sensor statistics and schema name different sensors; pack again")
    frames = [0] * len(manifest.shards)
    for drive in manifest.drives:
        for part in drive.parts:
            frames[part.shard] += part.frames
    for shard, found in zip(manifest.shards, frames, strict=True):
        if shard.frames != found:
            raise SetError(
                f"cannot read manifest.json: shard {shard.name!r} states {shard.frames} frames, its parts {found}; pack again"
            )


def _file(item: dict[str, Any]) -> FileEntry:
    return FileEntry(bytes=_count(item["bytes"]), sha256=_hex(item["sha256"], 64))


def _count(value: object) -> int:
    if type(value) is not int or not 0 <= value < 1 << 62:
        raise ValueError(f"{value!r} is no count")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{value!r} is no text")
    return value


def _hex(value: object, digits: int) -> str:
    if not isinstance(value, str) or len(value) != digits or not set(value) <= set("0123456789abcdef"):
        raise ValueError(f"{value!r} is not {digits} hex digits")
    return value


def _plain_name(value: object) -> str:
    name = _text(value)
    # File names come from data: only these characters can name nothing outside the set's directory.
    if not name or len(name) > 200 or not all(char.isascii() and (char.isalnum() or char in "-_") for char in name):
        raise ValueError(f"{name!r} is no shard name")
    return name

"""Receipts for finished shards in a staging directory: what lets an interrupted run go on where it was.

A receipt is written after its shard's files are durable, and names source, options and plan by a fingerprint; one that does
not fit, or whose files are not what it says, counts for nothing.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .errors import HeadwayError, Problem
from .hashed_writer import HashedWriter
from .manifest import FORMAT_VERSION, Part, attached_from_json, attached_to_json, parse_json, shard_from_json, shard_to_json
from .pack_worker import PackedShards, ShardTask
from .schema import Schema, canonical_json
from .shard import DriveShare, FinishedShard
from .source import DriveListing

__all__ = ["Holes", "decode_receipt", "encode_receipt", "read_receipt", "task_fingerprint", "write_receipt"]

Holes = dict[str, list[tuple[int, int]]]
"""File → byte ranges that hold nothing but payloads."""


def task_fingerprint(task: ShardTask, listings: Sequence[DriveListing]) -> str:
    """Return a digest of everything a shard's bytes depend on that can be known before packing it."""
    options = dataclasses.asdict(task.options)
    for free in ("workers", "engine", "overwrite", "resume"):
        del options[free]
    plain = {
        "format": FORMAT_VERSION,
        "source": [task.source.kind, os.path.abspath(task.source.path), dict(task.source.options)],
        "options": options,
        "number": task.number,
        "pieces": [[piece.drive, piece.index, piece.of] for piece in task.pieces],
        "listings": [[listing.name, listing.source_bytes, dict(listing.attributes)] for listing in listings],
    }
    return hashlib.sha256(canonical_json(plain)).hexdigest()


def encode_receipt(fingerprint: str, done: PackedShards, holes: Mapping[str, Sequence[tuple[int, int]]], schema: Schema) -> bytes:
    """Return the receipt of a finished task."""
    plain = {
        "fingerprint": fingerprint,
        "schema": schema.to_json(),
        "shards": [
            {
                "shard": shard_to_json(shard.shard),
                "payloads": list(shard.payloads),
                "payload_bytes": list(shard.payload_bytes),
                "drives": [_drive_to_json(drive, part) for drive, part in shard.drives],
            }
            for shard in done.shards
        ],
        "rejected": [dataclasses.asdict(problem) for problem in done.rejected],
        "kept": [dataclasses.asdict(problem) for problem in done.kept],
        "dropped_points": done.dropped_points,
        "holes": {name: [list(pair) for pair in pairs] for name, pairs in holes.items()},
    }
    return canonical_json(plain)


def decode_receipt(data: bytes, fingerprint: str) -> tuple[PackedShards, Holes, Schema] | None:
    """Return what a receipt records, or None if it is of another task or damaged."""
    try:
        plain = parse_json(data, "a receipt")
        if plain["fingerprint"] != fingerprint:
            return None
        done = PackedShards(
            shards=tuple(_shard_from_json(item) for item in plain["shards"]),
            rejected=tuple(Problem(**item) for item in plain["rejected"]),
            kept=tuple(Problem(**item) for item in plain["kept"]),
            dropped_points=int(plain["dropped_points"]),
        )
        holes = {str(name): [(int(start), int(stop)) for start, stop in pairs] for name, pairs in plain["holes"].items()}
        return done, holes, Schema.from_json(plain["schema"])
    except (HeadwayError, KeyError, TypeError, ValueError, AttributeError):
        return None


def write_receipt(staging: Path, number: int, fingerprint: str, done: PackedShards, schema: Schema) -> None:
    """Record a finished task."""
    with HashedWriter(staging / f"{number:05d}.receipt.tmp") as out:
        out.write(encode_receipt(fingerprint, done, {}, schema))
    os.replace(out.path, staging / f"{number:05d}.receipt")


def read_receipt(staging: Path, number: int, fingerprint: str) -> PackedShards | None:
    """Return the recorded result of a task if it fits and its files still are what they were, else None."""
    path = staging / f"{number:05d}.receipt"
    found = decode_receipt(path.read_bytes(), fingerprint) if path.is_file() else None
    return found[0] if found is not None and all(_intact(staging, shard) for shard in found[0].shards) else None


def _intact(staging: Path, finished: FinishedShard) -> bool:
    shard = finished.shard
    wanted = {shard.data_name: shard.data, shard.index_name: shard.index_entry}
    for name, entry in wanted.items():
        try:
            with open(staging / name, "rb") as file:
                if hashlib.file_digest(file, "sha256").hexdigest() != entry.sha256:
                    return False
        except FileNotFoundError:
            return False
    attached = (file for drive, _ in finished.drives for file in drive.attachments)
    return (staging / shard.sums_name).is_file() and all((staging / file.path).is_file() for file in attached)


def _drive_to_json(drive: DriveShare, part: Part) -> dict[str, Any]:
    return {
        "name": drive.name,
        "first": drive.first,
        "frames": drive.frames,
        "attributes": dict(drive.attributes),
        "attachments": [attached_to_json(file) for file in drive.attachments],
        "part": [part.frames, list(part.rows)],
    }


def _shard_from_json(item: dict[str, Any]) -> FinishedShard:
    drives = []
    for drive in item["drives"]:
        share = DriveShare(
            name=drive["name"],
            first=drive["first"],
            frames=drive["frames"],
            attributes=drive["attributes"],
            attachments=tuple(attached_from_json(file) for file in drive["attachments"]),
        )
        frames, rows = drive["part"]
        drives.append((share, Part(shard=0, frames=frames, rows=tuple(rows))))
    return FinishedShard(
        shard=shard_from_json(item["shard"]),
        drives=tuple(drives),
        payloads=tuple(item["payloads"]),
        payload_bytes=tuple(item["payload_bytes"]),
    )

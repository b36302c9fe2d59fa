"""`headway show`: what a set holds, what one frame holds, its payloads as files, its picture."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from ..formats import UsageError
from ..formats.raw_image import read_raw, states_size
from ._image_lines import image_facts, image_lines
from .console import human_bytes, human_time, plain, say

if TYPE_CHECKING:
    from ..formats.packed_set import PackedSet
    from ..formats.schema import Sensor
    from ..formats.timeline import Timeline

__all__ = ["export_frame", "frame_facts", "global_frame", "print_drive", "print_frame", "print_set", "set_facts"]

Facts = dict[str, Any]  # Any: JSON
_RATED_DRIVES = 64  # rates are medians; more drives would read more index pages and change nothing
_LISTED = 30
_SUFFIX = {"jpeg": "jpg", "png": "png", "raw": "raw", "video": "png", "array": "npy", "text": "txt", "table": "json"}


def set_facts(packed: PackedSet) -> Facts:
    """Return what `headway show SET --json` prints; reads the manifest and stamps, no payload."""
    manifest = packed.manifest
    sensors: Facts = {}
    for sensor in packed.schema.sensors:
        stats = manifest.sensors[sensor.name]
        sensors[sensor.name] = {
            "kind": sensor.kind,
            "codec": sensor.codec,
            "payloads": stats.payloads,
            "bytes": stats.bytes,
            "rows": stats.rows,
            "columns": [column.name for column in sensor.columns],
            "fields": [field.name for field in sensor.fields],
            **_window_facts(packed.timeline(sensor.name), len(packed.drives)),
            **({"images": image_facts(packed.timeline(sensor.name))} if sensor.kind == "image" else {}),
        }
    return {
        "set_id": packed.set_id,
        "manifest_sha256": manifest.digest,
        "format": manifest.kind,
        "source": manifest.source,
        "licence": manifest.licence,
        "reference": packed.schema.reference,
        "drives": [
            {
                "name": drive.name,
                "frames": int(packed.frame_starts[at + 1] - packed.frame_starts[at]),
                "attributes": dict(drive.attributes),
                "attachments": [file.name for file in drive.attachments],
            }
            for at, drive in enumerate(packed.drives)
        ],
        "frames": len(packed),
        "sensors": sensors,
        "shards": len(manifest.shards),
        "bytes": manifest.stored_bytes,
        "rejected": manifest.rejected,
    }


def _window_facts(timeline: Timeline, drives: int) -> Facts:
    """Return rate and reach of one sensor: which windows its timeline can fill."""
    counts = np.diff(timeline.starts)
    gaps, spans = [], []
    for drive in range(min(drives, _RATED_DRIVES)):
        stamps = timeline.stamps(drive)
        if len(stamps) > 1:
            gaps.append(float(np.median(np.diff(stamps))))
            spans.append(int(stamps[-1] - stamps[0]))
    return {
        "rate_hz": round(1e9 / float(np.median(gaps)), 3) if gaps else None,
        "payloads_per_drive": [int(counts.min()), int(counts.max())] if len(counts) else [0, 0],
        "longest_window_s": round(max(spans) / 1e9, 3) if spans else 0.0,
    }


def print_set(packed: PackedSet) -> None:
    """Print a set for a person."""
    facts = set_facts(packed)
    say(f"set {facts['set_id']}")
    say(
        f"{len(facts['drives'])} drives, {facts['frames']:,} frames, {human_bytes(facts['bytes'])} in {facts['shards']} "
        f"{facts['format']} shards, from {plain(facts['source'])}"
        + (f", {facts['rejected']} payloads rejected" if facts["rejected"] else "")
    )
    if facts["licence"]:
        say(f"licence: {plain(facts['licence'])}")
    say()
    width = max(len(plain(name)) for name in facts["sensors"])
    say(f"{'sensor':{width}}  {'kind':7} {'codec':16} {'payloads':>9} {'bytes':>9}  {'rate':>8}  window up to")
    for name, sensor in facts["sensors"].items():
        rate = "" if sensor["rate_hz"] is None else f"{sensor['rate_hz']:.1f} Hz"
        reach = f"{sensor['payloads_per_drive'][1]:,} rows, {human_time(sensor['longest_window_s'])}"
        mark = "  ← defines the frames" if name == facts["reference"] else ""
        say(
            f"{plain(name):{width}}  {sensor['kind']:7} {sensor['codec'] or 'columns only':16} {sensor['payloads']:9,} "
            f"{human_bytes(sensor['bytes']):>9}  {rate:>8}  {reach}{mark}"
        )
    for name, sensor in facts["sensors"].items():
        for line in image_lines(sensor.get("images", {})):
            say(f"{plain(name)}: {line}")
    say()
    for drive in facts["drives"][:_LISTED]:
        about = plain(drive["attributes"].get("description", ""))
        say(f"drive {plain(drive['name'])}: {drive['frames']:,} frames  {about}".rstrip())
    if len(facts["drives"]) > _LISTED:
        say(f"… {len(facts['drives']) - _LISTED} more drives (--json lists all)")


def print_drive(packed: PackedSet, drive: int, *, as_json: bool) -> None:
    """Print one drive: its attributes, attachments and timelines."""
    found = packed.drives[drive]
    timelines: Facts = {}
    for sensor in packed.schema.sensors:
        stamps = packed.timeline(sensor.name).stamps(drive)
        timelines[sensor.name] = {
            "rows": len(stamps),
            "first_ns": int(stamps[0]) if len(stamps) else None,
            "last_ns": int(stamps[-1]) if len(stamps) else None,
        }
    facts = {
        "name": found.name,
        "frames": int(packed.frame_starts[drive + 1] - packed.frame_starts[drive]),
        "attributes": dict(found.attributes),
        "attachments": [{"name": file.name, "media_type": file.media_type, "bytes": file.bytes} for file in found.attachments],
        "timelines": timelines,
    }
    if as_json:
        say(json.dumps(facts, indent=1))
        return
    say(f"drive {plain(found.name)}: {facts['frames']:,} frames")
    for name, value in found.attributes.items():
        say(f"  {plain(name)}: {plain(value)}")
    for file in found.attachments:
        say(f"  attached {plain(file.name)} ({plain(file.media_type)}, {human_bytes(file.bytes)})")
    for name, line in timelines.items():
        span = "" if not line["rows"] else f" over {human_time((line['last_ns'] - line['first_ns']) / 1e9)}"
        say(f"  {plain(name)}: {line['rows']:,} rows{span}")


def global_frame(packed: PackedSet, drive: int, frame: int) -> int:
    """Return the global number of frame `frame` of a drive."""
    count = int(packed.frame_starts[drive + 1] - packed.frame_starts[drive])
    if not 0 <= frame < count:
        raise UsageError(f"no frame {frame} in drive {packed.drives[drive].name!r}: it has frames 0 to {count - 1}")
    return int(packed.frame_starts[drive]) + frame


def frame_facts(packed: PackedSet, frame: int) -> Facts:
    """Return every row filed under a global frame, by sensor, columns and all; reads no payload."""
    stamp = int(packed.timeline(packed.schema.reference).take("stamp", np.array([frame]))[0])
    sensors: Facts = {}
    for sensor in packed.schema.sensors:
        timeline = packed.timeline(sensor.name)
        own = int(packed.own(sensor.name, np.array([frame]))[0])
        rows = list(packed.filed(sensor.name, frame))
        sizes = timeline.refs(np.array(rows, np.int64)).length.tolist() if sensor.codec is not None else [None] * len(rows)
        sensors[sensor.name] = [
            {
                "stamp": int(timeline.take("stamp", np.array([row]))[0]),
                "own": row == own,
                "bytes": size,
                "columns": {
                    column.name: _plain_value(timeline.take(column.name, np.array([row]))[0]) for column in sensor.columns
                },
            }
            for row, size in zip(rows, sizes, strict=True)
        ]
    drive = int(np.searchsorted(packed.frame_starts, frame, side="right")) - 1
    return {
        "drive": packed.drives[drive].name,
        "frame": frame - int(packed.frame_starts[drive]),
        "global_frame": frame,
        "stamp": stamp,
        "sensors": sensors,
    }


def print_frame(packed: PackedSet, frame: int, *, as_json: bool) -> None:
    """Print one frame: each payload's own stamp, relative to the frame's, and its size."""
    facts = frame_facts(packed, frame)
    if as_json:
        say(json.dumps(facts, indent=1))
        return
    say(f"drive {plain(facts['drive'])}, frame {facts['frame']}, stamp {facts['stamp']}")
    for name, rows in facts["sensors"].items():
        for row in rows:
            size = "" if row["bytes"] is None else f"  {human_bytes(row['bytes'])}"
            mark = "own" if row["own"] else "   "
            say(f"  {mark} {plain(name):24} {(row['stamp'] - facts['stamp']) / 1e6:+10.3f} ms{size}")


def export_frame(packed: PackedSet, frame: int, directory: Path) -> list[Path]:
    """Write each payload filed under a global frame as a file of its own, and `frame.json` with stamps and columns.

    Images, points and text have the bytes of the source; tables are JSON, arrays and raw pixels .npy, video frames PNG. Own
    payloads are `<sensor>.<suffix>`, others `<sensor>@<stamp>.<suffix>`, with bytes outside [A-Za-z0-9_-] percent-escaped.

    On any error what was written is removed again.

    Raises:
        UsageError: the directory is not empty.
    """
    if directory.exists() and (not directory.is_dir() or any(directory.iterdir())):
        raise UsageError(f"cannot export into {str(directory)!r}: it is not an empty folder; name a new one")
    made = not directory.exists()
    directory.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    try:
        _export(packed, frame, directory, written)
    except BaseException:
        for path in written:
            path.unlink(missing_ok=True)
        if made:
            directory.rmdir()
        raise
    return written


def _export(packed: PackedSet, frame: int, directory: Path, written: list[Path]) -> None:
    """Write a frame's files; each is in `written` before it is begun."""
    for sensor in packed.schema.sensors:
        if sensor.codec is None:
            continue
        timeline = packed.timeline(sensor.name)
        own = int(packed.own(sensor.name, np.array([frame]))[0])
        for row in packed.filed(sensor.name, frame):
            stamp = int(timeline.take("stamp", np.array([row]))[0])
            stem = _escape(sensor.name) + ("" if row == own else f"@{stamp}")
            suffix = "npy" if sensor.codec == "raw" and states_size(sensor) else _SUFFIX.get(sensor.codec, "bin")
            path = directory / f"{stem}.{suffix}"
            written.append(path)
            _write(path, sensor, timeline, row)
    path = directory / "frame.json"
    written.append(path)
    with open(path, "x", encoding="utf-8") as file:
        file.write(json.dumps(frame_facts(packed, frame), indent=1) + "\n")


def _write(path: Path, sensor: Sensor, timeline: Timeline, row: int) -> None:
    value = read_raw(timeline, row) if path.suffix == ".npy" and sensor.kind == "image" else timeline.value(row)
    with open(path, "xb") as file:
        if isinstance(value, str):
            file.write(value.encode())
        elif isinstance(value, Mapping):
            columns = {name: [_plain_value(item) for item in column] for name, column in value.items()}
            file.write((json.dumps(columns, indent=1) + "\n").encode())
        elif isinstance(value, np.ndarray) and sensor.codec == "video":
            import cv2  # `show` without --export should not wait for it

            file.write(cv2.imencode(".png", value[..., ::-1])[1].tobytes())
        elif isinstance(value, np.ndarray) and sensor.kind in ("array", "image"):
            np.save(file, value, allow_pickle=False)
        elif isinstance(value, np.ndarray):
            file.write(np.ascontiguousarray(value).tobytes())
        else:
            file.write(value)


def _escape(name: str) -> str:
    return quote(name, safe="").replace(".", "%2E").replace("~", "%7E")


def _plain_value(value: object) -> Any:  # Any: JSON
    """Return JSON data of a column value; what is not finite becomes null."""
    if isinstance(value, np.ndarray):
        return [_plain_value(item) for item in value]
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value

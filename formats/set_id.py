"""The set id: a digest of what a set contains, whatever its shards are like.

SHA-256 over the schema, then drives by name, their sensors by name, their rows by stamp. Packing, converting and verifying
all call this one function on the set as a reader sees it, so an id that matches proves the columns were read right.
"""

from __future__ import annotations

import hashlib
import struct

import numpy as np

from .packed_set import PackedSet
from .schema import Sensor, canonical_json
from .timeline import Timeline

__all__ = ["set_id"]

# Rows per step: bounds memory whatever a drive's length.
_ROWS = 1 << 16


def set_id(packed: PackedSet) -> str:
    """Return the set id computed from the columns and the index; payload bytes count through their length and hash."""
    digest = hashlib.sha256()
    schema = canonical_json(packed.schema.to_json())
    digest.update(struct.pack("<q", len(schema)) + schema)
    for at, drive in enumerate(packed.drives):
        name = drive.name.encode()
        first, last = int(packed.frame_starts[at]), int(packed.frame_starts[at + 1])
        digest.update(struct.pack("<qq", len(name), last - first) + name)
        for sensor in packed.schema.sensors:
            timeline = packed.timeline(sensor.name)
            start, stop = int(timeline.starts[at]), int(timeline.starts[at + 1])
            digest.update(struct.pack("<q", stop - start))
            for low in range(start, stop, _ROWS):
                digest.update(_rows(timeline, sensor, np.arange(low, min(low + _ROWS, stop))))
            for low in range(first, last, _ROWS):
                own = packed.own(sensor.name, np.arange(low, min(low + _ROWS, last)))
                digest.update(np.where(own < 0, -1, own - start).astype("<i8").tobytes())
    return digest.hexdigest()


def _rows(timeline: Timeline, sensor: Sensor, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> bytes:
    """The rows one after the other: stamp, columns in schema order, payload length and hash; no padding."""
    layout = [("stamp", "<i8", ()), *((column.name, column.numpy_dtype, column.shape) for column in sensor.columns)]
    if sensor.codec is not None:
        layout += [("length", "<i8", ()), ("hash", "<u8", ())]
    packed = np.empty(len(rows), np.dtype(layout))
    for name in ("stamp", *(column.name for column in sensor.columns)):
        packed[name] = timeline.take(name, rows)
    if sensor.codec is not None:
        refs = timeline.refs(rows)
        packed["length"], packed["hash"] = refs.length, refs.hash
    return packed.tobytes()

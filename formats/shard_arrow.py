"""Arrow IPC files with one record batch: the layout of index and columns, how it is written, how it is read in place.

A row is a frame. What several rows of a sensor share with the frame they are filed under lies in large_list columns, and
readers work on the flattened child arrays, which are views of the mapped file. SPEC.md describes the layout for others.
pyarrow parses only metadata whose chunks were hash-checked, and never computes on a column.
"""

from __future__ import annotations

import math
import mmap
import struct
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from . import kernel
from ._kept_payloads import Bytes
from .errors import CorruptShard
from .hashed_writer import HashedWriter
from .integrity import ChunkedFile
from .schema import Column, Schema, Sensor

__all__ = [
    "SHARD_KEY",
    "ArrowIndex",
    "SensorBlock",
    "ShardContent",
    "arrow_schema",
    "field_name",
    "read_description",
    "write_arrow",
]

_ARROW_TYPES: Final[Mapping[str, Any]] = {  # Any: pyarrow is untyped
    # Arrow packs bool into bits, of which no numpy view exists; a byte each is what readers take from in one gather.
    "bool": pa.uint8(),
    "int8": pa.int8(),
    "uint8": pa.uint8(),
    "int16": pa.int16(),
    "uint16": pa.uint16(),
    "int32": pa.int32(),
    "uint32": pa.uint32(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "float16": pa.float16(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
_MAGIC: Final = b"ARROW1"
_MAP_NORESERVE: Final = 0x4000  # Linux; elsewhere the flag is not needed
SHARD_KEY: Final = b"headway.shard"
"""Key of the schema metadata that holds the shard's share of the manifest, as JSON: what `repair` rebuilds one from."""
_STAMP: Final = Column(name="stamp", dtype="int64", unit="ns")
_HASH: Final = Column(name="hash", dtype="uint64")
_PLACES: Final = (Column(name="offset", dtype="int64"), Column(name="length", dtype="int64"))


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorBlock:
    """All rows of one sensor in one shard, in frame order, which is stamp order within a drive."""

    counts: NDArray[np.int64]
    """(frames,): rows filed under each frame."""
    own: NDArray[np.int32]
    """(frames,): which of them is the frame's own, −1 for none."""
    stamps: NDArray[np.int64]
    """(rows,), ns."""
    columns: Mapping[str, NDArray[Any]]  # Any: dtype by schema
    """(rows, *shape) each."""
    hashes: NDArray[np.uint64]
    """(rows,) xxh3-64 of each payload; empty without payloads."""
    lengths: NDArray[np.int64]
    """(rows,) payload bytes; empty without payloads."""
    offsets: NDArray[np.int64] | None = None
    """(rows,) where each payload starts in the tar."""
    payloads: Sequence[Bytes] | None = None
    """The payloads, in row order; None where a tar holds them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardContent:
    """A whole shard in memory: what `write_arrow` writes."""

    drives: tuple[tuple[str, NDArray[np.int64]], ...]
    """(drive name, its frame numbers here) for each part."""
    stamps: NDArray[np.int64]
    """(frames,): stamp of the reference row of each frame."""
    sensors: tuple[SensorBlock, ...]
    """In schema order."""
    description: bytes
    """Canonical JSON for the schema metadata."""


def field_name(sensor: Sensor, column: str) -> str:
    """Return the Arrow name of a sensor's column; dots in the sensor's name are escaped, so names never collide."""
    return sensor.name.replace("%", "%25").replace(".", "%2E") + "." + column


@lru_cache(maxsize=16)
def arrow_schema(schema: Schema, kind: str) -> Any:  # Any: pyarrow is untyped
    """Return the Arrow schema of an index file: payload bytes inside for "arrow", their places for "tar"."""
    fields = [_field("drive", pa.large_string()), _field("frame", pa.int64()), _field("stamp", pa.int64())]
    for sensor in schema.sensors:
        fields.append(_field(field_name(sensor, "own"), pa.int32()))
        fields += [_field(field_name(sensor, column.name), _list(_value_type(column))) for column in _listed(sensor, kind)]
    if kind == "arrow":
        # Payloads last, so that index and columns lie together and share few chunks with payload bytes.
        fields += [_field(field_name(s, "payload"), _list(pa.large_binary())) for s in schema.sensors if s.codec is not None]
    return pa.schema(fields)


def write_arrow(out: HashedWriter, content: ShardContent, schema: Schema, kind: str) -> None:
    """Write one index file; equal content gives equal bytes."""
    frames = len(content.stamps)
    arrays = [
        _strings([(name, len(numbers)) for name, numbers in content.drives]),
        _flat(np.concatenate([numbers for _, numbers in content.drives]), pa.int64()),
        _flat(content.stamps, pa.int64()),
    ]
    for sensor, block in zip(schema.sensors, content.sensors, strict=True):
        offsets = _offsets(block.counts)
        places = {"stamp": block.stamps, "hash": block.hashes, "offset": block.offsets, "length": block.lengths}
        arrays.append(_flat(block.own, pa.int32()))
        for column in _listed(sensor, kind):
            values = places[column.name] if column.name in places else block.columns[column.name]
            assert values is not None
            arrays.append(_listed_array(column, offsets, values))
    sink = _Sink(out)
    if kind == "arrow":
        for sensor, block in zip(schema.sensors, content.sensors, strict=True):
            if sensor.codec is not None:
                arrays.append(_payload_array(block, sink))
    described = arrow_schema(schema, kind).with_metadata({SHARD_KEY: content.description})
    batch = pa.RecordBatch.from_arrays(arrays, schema=described)
    assert batch.num_rows == frames
    with pa.ipc.new_file(pa.PythonFile(sink, "w"), batch.schema, options=pa.ipc.IpcWriteOptions(use_threads=False)) as writer:
        writer.write_batch(batch)
    assert not sink.expected, "pyarrow did not write a payload buffer as a whole"


class _Sink:
    """The file pyarrow writes to. Payloads are not joined in memory first: pyarrow lays out a stretch of empty address space in
    their place, and when it hands that over to be written, they are written instead.
    """

    closed = False

    def __init__(self, out: HashedWriter) -> None:
        self._out = out
        self.expected: dict[int, Sequence[Bytes]] = {}
        """Address of each stretch → the payloads it stands for."""

    def stand_in(self, payloads: Sequence[Bytes], size: int) -> Any:  # Any: pyarrow is untyped
        """Return a buffer of `size` bytes that stands for `payloads`."""
        if size == 0:
            return pa.py_buffer(b"")
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | (_MAP_NORESERVE if sys.platform == "linux" else 0)
        buffer = pa.py_buffer(mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ))
        self.expected[buffer.address] = payloads
        return buffer

    def write(self, data: Any) -> int:  # Any: bytes, or pyarrow's Buffer
        """Write `data`, or what it stands for."""
        payloads = self.expected.pop(getattr(data, "address", 0), None)
        if payloads is None:
            return self._out.write(data)
        return sum(self._out.write(payload) for payload in payloads)

    def flush(self) -> None:
        """Hand buffered bytes to the system."""
        self._out.flush()


class ArrowIndex:
    """An index file read in place: each column a read-only view, checked against its chunk hashes at first touch."""

    def __init__(self, file: ChunkedFile, schema: Schema, kind: str, frames: int) -> None:
        self.file = file
        self.schema = schema
        self.kind = kind
        self.frames = frames
        self._touched: dict[tuple[str, int], NDArray[Any]] = {}
        self._description = b""

    @cached_property
    def _columns(self) -> dict[str, list[Any]]:
        """Buffers of each Arrow column. Before pyarrow sees the file, the chunks of all its metadata are checked."""
        name, view = self.file.mapped.name, self.file.mapped.view
        _touch_metadata(self.file)
        try:
            reader = pa.ipc.open_file(pa.py_buffer(view))
            if reader.num_record_batches != 1 or not reader.schema.equals(arrow_schema(self.schema, self.kind)):
                raise CorruptShard(
                    f"cannot use {name!r}: its Arrow schema is not the one the manifest's schema gives, or it holds "
                    f"{reader.num_record_batches} batches instead of 1; it belongs to another set: run `headway verify`"
                )
            batch = reader.get_batch(0)
        except (pa.ArrowException, OSError) as error:
            raise CorruptShard(f"cannot read {name!r}: {error}; run `headway verify`") from error
        if batch.num_rows != self.frames:
            raise CorruptShard(f"cannot use {name!r}: found {batch.num_rows} frames, the manifest says {self.frames}; pack again")
        self._description = (reader.schema.metadata or {}).get(SHARD_KEY, b"")
        return {field.name: column.buffers() for field, column in zip(batch.schema, batch.columns, strict=True)}

    def description(self) -> bytes:
        """Return the JSON that the schema metadata holds about this shard."""
        assert self._columns is not None
        return self._description

    def drive_names(self) -> list[str]:
        """Return the drive of each frame."""
        offsets, data = self._offsets("drive", 1, self.frames), self._buffer("drive", 2, np.dtype(np.uint8))
        self._check_offsets("drive", offsets, len(data))
        text = data.tobytes()
        return [text[a:b].decode() for a, b in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)]

    def frame_numbers(self) -> NDArray[np.int64]:
        """Return each frame's row in its drive's reference timeline."""
        return self._buffer("frame", 1, np.dtype("<i8"), self.frames)

    def frame_stamps(self) -> NDArray[np.int64]:
        """Return each frame's reference stamp."""
        return self._buffer("stamp", 1, np.dtype("<i8"), self.frames)

    def own(self, sensor: Sensor) -> NDArray[np.int32]:
        """Return, per frame, which of the rows filed under it is its own; −1 for none."""
        return self._buffer(field_name(sensor, "own"), 1, np.dtype("<i4"), self.frames)

    def starts(self, sensor: Sensor) -> NDArray[np.int64]:
        """Return (frames + 1,) first row of each frame in the sensor's flattened columns."""
        return self._offsets(field_name(sensor, "stamp"), 1, self.frames)

    def rows(self, sensor: Sensor) -> int:
        """Return how many rows the sensor has in this shard."""
        return int(self.starts(sensor)[-1])

    def column(self, sensor: Sensor, name: str) -> NDArray[Any]:
        """Return (rows, *shape) of a column of the sensor, or of its stamp, hash, offset or length."""
        column, full, rows = _column(sensor, name), field_name(sensor, name), self.rows(sensor)
        if not np.array_equal(self._offsets(full, 1, self.frames), self.starts(sensor)):
            raise CorruptShard(f"cannot use column {full!r} of {self.file.mapped.name!r}: its lists are not those of the stamps")
        flat = self._buffer(full, -1, column.numpy_dtype, rows * math.prod(column.shape))
        return flat.reshape(rows, *column.shape)

    def unread_column(self, sensor: Sensor, name: str) -> NDArray[Any]:
        """Return the same without a look at it: whoever takes rows of it touches them first. Only the lists' ends are read."""
        column, full = _column(sensor, name), field_name(sensor, name)
        offsets = self._unread(full, 1, np.dtype("<i8"), self.frames + 1)
        for end in (offsets[:1], offsets[-1:]):
            self._touch(end)
        self._check_offsets(full, offsets[[0, -1]], int(offsets[-1]))
        flat = self._unread(full, -1, column.numpy_dtype, int(offsets[-1]) * math.prod(column.shape))
        return flat.reshape(int(offsets[-1]), *column.shape)

    def unread_stamps(self) -> NDArray[np.int64]:
        """Return `frame_stamps` without a look at them."""
        return self._unread("stamp", 1, np.dtype("<i8"), self.frames)

    def places(self, sensor: Sensor) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return where each payload starts and ends in the data file, (rows,) each."""
        if self.kind == "tar":
            start = self.column(sensor, "offset")
            return start, start + self.column(sensor, "length")
        full, rows = field_name(sensor, "payload"), self.rows(sensor)
        offsets = self._offsets(full, 3, rows)
        data = self._columns[full][4]
        size = 0 if data is None else data.size
        self._check_offsets(full, offsets, size)
        base = data.address - self.file.mapped.address if size else 0
        return base + offsets[:-1], base + offsets[1:]

    def payload_buffers(self) -> list[tuple[int, int]]:
        """Return where payload bytes lie in the file, for each sensor that has any; reads metadata alone."""
        base, found = self.file.mapped.address, []
        for sensor in self.schema.sensors if self.kind == "arrow" else ():
            data = self._columns[field_name(sensor, "payload")][4] if sensor.codec is not None else None
            if data is not None and data.size:
                found.append((data.address - base, data.address - base + data.size))
        return found

    def _offsets(self, name: str, at: int, count: int) -> NDArray[np.int64]:
        """A list's or binary's offsets, (count + 1,), ascending from 0."""
        fresh = (name, at) not in self._touched
        offsets = self._buffer(name, at, np.dtype("<i8"), count + 1)
        if fresh:
            self._check_offsets(name, offsets, int(offsets[-1]))
        return offsets

    def _check_offsets(self, name: str, offsets: NDArray[np.int64], end: int) -> None:
        if offsets[0] != 0 or offsets[-1] != end or np.any(offsets[1:] < offsets[:-1]):
            file = self.file.mapped.name
            raise CorruptShard(f"cannot use column {name!r} of {file!r}: its offsets do not ascend from 0 to {end}; pack again")

    def _buffer(self, name: str, at: int, dtype: np.dtype[Any], count: int | None = None) -> NDArray[Any]:
        """One buffer of a column as an array of `count` values, its chunks checked."""
        found = self._touched.get((name, at))
        if found is not None and (count is None or len(found) == count):
            return found
        array = self._unread(name, at, dtype, count)
        if len(array):
            self._touch(array)
            self._touched[name, at] = array
        return array

    def _touch(self, view: NDArray[Any]) -> None:
        start = kernel.address(view) - self.file.mapped.address
        self.file.touch(start, start + view.nbytes)

    def _unread(self, name: str, at: int, dtype: np.dtype[Any], count: int | None = None) -> NDArray[Any]:
        """The same, its chunks not checked."""
        buffer = self._columns[name][at]
        size = 0 if buffer is None else buffer.size
        wanted = size // dtype.itemsize if count is None else count
        if wanted < 0 or size < wanted * dtype.itemsize or any(part is not None for part in self._validity(name)):
            raise CorruptShard(
                f"cannot use column {name!r} of {self.file.mapped.name!r}: found {size} bytes (or nulls), "
                f"expected {wanted} values of {dtype.itemsize}; run `headway verify`"
            )
        if wanted == 0:
            return np.empty(0, dtype)
        start = buffer.address - self.file.mapped.address
        self.file.check_bounds(start, start + wanted * dtype.itemsize)
        return np.frombuffer(self.file.mapped.view, dtype, wanted, start)

    def _validity(self, name: str) -> list[Any]:
        buffers = self._columns[name]
        # Layouts: flat [v, data]; string [v, offsets, data]; list [v, offsets, v, data], with a fixed-size
        # list's own v before the last two; list of binary [v, offsets, v, offsets, data].
        if name == "drive" or len(buffers) == 2:
            return buffers[:1]
        return [buffers[0], buffers[2]] if name.endswith(".payload") else [buffers[0], *buffers[2:-1]]


def read_description(data: bytes) -> bytes:
    """Return the description inside an index file that no manifest vouches for, as a whole already checked by its SHA-256."""
    try:
        metadata = pa.ipc.open_file(pa.py_buffer(data)).schema.metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise CorruptShard(f"cannot read {len(data)} bytes as an Arrow file: {error}") from error
    found = metadata.get(SHARD_KEY)
    if not isinstance(found, bytes):
        raise CorruptShard(f"cannot use an Arrow file without {SHARD_KEY!r} in its metadata: headway did not write it")
    return found


def _touch_metadata(file: ChunkedFile) -> None:
    """Check the chunks of the magic, the schema message, the batch's metadata and the footer."""
    view, name = file.mapped.view, file.mapped.name
    if len(view) < 32:
        raise CorruptShard(f"cannot read {name!r}: {len(view)} bytes are no Arrow file; copy it again")
    file.touch(len(view) - 10, len(view))
    (footer,) = struct.unpack("<i", view[-10:-6])
    file.touch(max(len(view) - 10 - max(footer, 0), 0), len(view))
    at = 8
    for _ in range(2):
        file.touch(at, at + 8)
        marker, length = struct.unpack("<Ii", view[at : at + 8])
        if marker != 0xFFFFFFFF or length < 0:
            raise CorruptShard(f"cannot read {name!r}: no Arrow message at byte {at}; copy it again, or run `headway verify`")
        file.touch(at, at + 8 + length)
        at += 8 + length
    if bytes(view[:6]) != _MAGIC or bytes(view[-6:]) != _MAGIC:
        raise CorruptShard(f"cannot read {name!r}: it does not start and end with {_MAGIC!r}; copy it again")


def _listed(sensor: Sensor, kind: str) -> tuple[Column, ...]:
    own = () if sensor.codec is None else (_HASH, *_PLACES) if kind == "tar" else (_HASH,)
    return (_STAMP, *sensor.columns, *own)


def _column(sensor: Sensor, name: str) -> Column:
    return next((own for own in (_STAMP, _HASH, *_PLACES) if own.name == name), None) or sensor.column(name)


def _field(name: str, kind: Any) -> Any:
    return pa.field(name, kind, nullable=False)


def _list(value: Any) -> Any:
    return pa.large_list(pa.field("item", value, nullable=False))


def _value_type(column: Column) -> Any:
    flat = _ARROW_TYPES[column.dtype]
    return pa.fixed_shape_tensor(flat, list(column.shape)) if column.shape else flat


def _offsets(counts: NDArray[np.int64]) -> NDArray[np.int64]:
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype("<i8")


def _buffer_of(values: NDArray[Any], dtype: np.dtype[Any]) -> Any:
    return pa.py_buffer(np.ascontiguousarray(values, dtype))


def _flat(values: NDArray[Any], kind: Any) -> Any:
    return pa.Array.from_buffers(kind, len(values), [None, _buffer_of(values, values.dtype.newbyteorder("<"))])


def _strings(runs: list[tuple[str, int]]) -> Any:
    encoded = [(name.encode(), count) for name, count in runs]
    lengths = np.concatenate([np.full(count, len(name), np.int64) for name, count in encoded])
    data = b"".join(name * count for name, count in encoded)
    return pa.Array.from_buffers(
        pa.large_string(), len(lengths), [None, _buffer_of(_offsets(lengths), np.dtype("<i8")), pa.py_buffer(data)]
    )


def _listed_array(column: Column, offsets: NDArray[np.int64], values: NDArray[Any]) -> Any:
    rows = int(offsets[-1])
    if values.shape != (rows, *column.shape):
        raise AssertionError(f"column {column.name!r}: shape {values.shape}, expected {(rows, *column.shape)}")
    value = _value_type(column)
    storage = _ARROW_TYPES[column.dtype]
    flat = pa.Array.from_buffers(storage, values.size, [None, _buffer_of(values, column.numpy_dtype)])
    if column.shape:
        fixed = pa.Array.from_buffers(value.storage_type, rows, [None], children=[flat])
        flat = pa.ExtensionArray.from_storage(value, fixed)
    return _list_of(value, offsets, flat)


def _payload_array(block: SensorBlock, sink: _Sink) -> Any:
    assert block.payloads is not None
    rows = len(block.lengths)
    values = pa.Array.from_buffers(
        pa.large_binary(),
        rows,
        [None, _buffer_of(_offsets(block.lengths), np.dtype("<i8")), sink.stand_in(block.payloads, int(block.lengths.sum()))],
    )
    return _list_of(pa.large_binary(), _offsets(block.counts), values)


def _list_of(value: Any, offsets: NDArray[np.int64], values: Any) -> Any:
    return pa.Array.from_buffers(_list(value), len(offsets) - 1, [None, _buffer_of(offsets, np.dtype("<i8"))], children=[values])

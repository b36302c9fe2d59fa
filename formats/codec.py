"""Payload values ↔ stored bytes, by the sensor's codec.

Images stay the bytes they were. Arrays, text and tables are one zstd frame each, with content size and checksum; the
declared size is compared with the limits before anything is decompressed, because python-zstandard allocates whatever a
frame declares. Points are points.py's. Layouts are in SPEC.md.
"""

from __future__ import annotations

import struct
import threading
from collections.abc import Mapping
from itertools import pairwise
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from .errors import DecodeError, LimitExceeded, UsageError
from .limits import DEFAULT_LIMITS
from .points import decode_points, encode_points
from .schema import Sensor
from .source import Payload

__all__ = ["compress", "decode", "decompress", "encode"]

# Level 3, bytes in order: `headway bench arrays` has the table. Levels above cost several times the time for a few percent, and
# shuffled bytes make noise a little smaller but decimals twice as big.
_LEVEL: Final = 3
_SMALL_OUTPUT: Final = 1 << 20

# A compressor takes 0.2 ms to make, more than most payloads take to compress, and serves one thread at a time.
_own = threading.local()

Bytes = bytes | bytearray | memoryview


def encode(sensor: Sensor, value: Payload, *, precision_mm: int = 1, drop_nan: bool = False) -> bytes:
    """Return the stored bytes of one payload; equal values give equal bytes.

    `precision_mm` and `drop_nan` matter to codec points-quantised only (`points.encode_points`).

    Raises:
        UsageError: the value is not what the sensor's schema says.
    """
    match sensor.kind:
        case "image":
            if not isinstance(value, bytes):
                raise _unfit(sensor, "the encoded bytes", value)
            return value
        case "points":
            if not isinstance(value, np.ndarray):
                raise _unfit(sensor, f"records of {sensor.record_dtype}", value)
            return encode_points(value, sensor, precision_mm=precision_mm, drop_nan=drop_nan)
        case "array":
            return compress(_array_bytes(sensor, value))
        case "text":
            if not isinstance(value, str):
                raise _unfit(sensor, "text", value)
            return compress(value.encode())
        case "table":
            return compress(_table_bytes(sensor, value))


def decode(sensor: Sensor, data: Bytes, *, limit_bytes: int = DEFAULT_LIMITS.payload_bytes) -> Payload:
    """Return the value of one payload; decoded sizes above `limit_bytes` are refused before anything is allocated.

    Arrays may be read-only views of `data` or of a fresh buffer.

    Raises:
        DecodeError: the bytes are not what the codec writes.
        LimitExceeded: they declare more than the limit.
    """
    if len(data) > limit_bytes:
        raise LimitExceeded(f"cannot decode a payload of sensor {sensor.name!r}: {len(data)} bytes, limit {limit_bytes}")
    match sensor.kind:
        case "image":
            return bytes(data)
        case "points":
            return decode_points(data, sensor, limit_bytes=limit_bytes)
        case "array":
            return _array_value(sensor, decompress(data, limit_bytes=limit_bytes))
        case "text":
            try:
                return decompress(data, limit_bytes=limit_bytes).decode()
            except UnicodeDecodeError as error:
                raise DecodeError(f"cannot decode text of sensor {sensor.name!r}: {error}; run `headway verify`") from error
        case "table":
            return _table_value(sensor, decompress(data, limit_bytes=limit_bytes))


def compress(data: bytes) -> bytes:
    """Return one zstd frame with content size and checksum."""
    compressor = getattr(_own, "compressor", None)
    if compressor is None:
        compressor = _own.compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=True, write_content_size=True)
    return bytes(compressor.compress(data))


def decompress(data: Bytes, *, limit_bytes: int = DEFAULT_LIMITS.payload_bytes) -> bytes:
    """Return the content of exactly one zstd frame, refusing sizes above `limit_bytes` or 1,000 times the input."""
    try:
        frame = zstandard.get_frame_parameters(data)
    except zstandard.ZstdError as error:
        raise DecodeError(f"cannot decompress {len(data)} bytes: no zstd frame ({error}); run `headway verify`") from error
    size = frame.content_size
    if size == zstandard.CONTENTSIZE_UNKNOWN:
        raise DecodeError("cannot decompress a zstd frame without content size; headway always writes one")
    allowed = min(limit_bytes, max(_SMALL_OUTPUT, DEFAULT_LIMITS.expansion * len(data)))
    if size > allowed or frame.window_size > DEFAULT_LIMITS.zstd_window:
        raise LimitExceeded(
            f"cannot decompress {len(data)} bytes: the frame declares {size} bytes (window {frame.window_size}), "
            f"allowed are {allowed}; raise Limits.payload_bytes if that is meant"
        )
    try:
        content = zstandard.ZstdDecompressor().decompress(data, max_output_size=size, allow_extra_data=False)
    except (zstandard.ZstdError, MemoryError) as error:
        raise DecodeError(f"cannot decompress {len(data)} bytes: {error}; run `headway verify`") from error
    if len(content) != size:
        raise DecodeError(f"cannot decompress {len(data)} bytes: found {len(content)} bytes, the frame declares {size}")
    return bytes(content)


def _array_bytes(sensor: Sensor, value: Payload) -> bytes:
    (element,) = sensor.fields
    if not isinstance(value, np.ndarray) or value.dtype != element.numpy_dtype or value.shape[1:] != element.shape:
        raise _unfit(sensor, f"an array (n, {', '.join(map(str, element.shape))}) of {element.dtype}", value)
    return np.ascontiguousarray(value).tobytes()


def _array_value(sensor: Sensor, data: bytes) -> NDArray[Any]:
    (element,) = sensor.fields
    if len(data) % element.width:
        raise DecodeError(
            f"cannot decode an array of sensor {sensor.name!r}: {len(data)} bytes are no multiple of {element.width}; "
            "run `headway verify`"
        )
    return np.frombuffer(data, element.numpy_dtype).reshape(-1, *element.shape)


def _table_bytes(sensor: Sensor, value: Payload) -> bytes:
    if not isinstance(value, Mapping) or set(value) != {field.name for field in sensor.fields}:
        raise _unfit(sensor, f"a mapping with {', '.join(field.name for field in sensor.fields)}", value)
    counts = {len(value[field.name]) for field in sensor.fields}
    if len(counts) != 1:
        raise _unfit(sensor, "columns of equal length", value)
    (rows,) = counts
    pieces = [struct.pack("<I", rows)]
    for field in sensor.fields:
        column = value[field.name]
        if field.dtype == "str":
            texts = [str(text).encode() for text in column]
            pieces.append(np.cumsum([0, *map(len, texts)]).astype("<u4").tobytes())
            pieces += texts
        else:
            array = np.asarray(column)
            if rows == 0:
                array = np.empty((0, *field.shape), field.numpy_dtype)
            if array.dtype != field.numpy_dtype or array.shape != (rows, *field.shape):
                raise _unfit(sensor, f"{field.name!r} of {field.dtype} {(rows, *field.shape)}", array)
            pieces.append(np.ascontiguousarray(array).tobytes())
    return b"".join(pieces)


def _table_value(sensor: Sensor, data: bytes) -> dict[str, Any]:
    try:
        (rows,) = struct.unpack_from("<I", data)
        at, value = 4, dict[str, Any]()
        for field in sensor.fields:
            if field.dtype == "str":
                offsets = np.frombuffer(data, "<u4", rows + 1, at).tolist()
                at += 4 * (rows + 1)
                if offsets[0] != 0 or offsets != sorted(offsets) or at + offsets[-1] > len(data):
                    raise ValueError(f"offsets of {field.name!r} do not ascend from 0 inside the payload")
                value[field.name] = [data[at + a : at + b].decode() for a, b in pairwise(offsets)]
                at += offsets[-1]
            else:
                flat = np.frombuffer(data, np.dtype((field.numpy_dtype, field.shape)), rows, at) if rows else np.empty(0)
                value[field.name] = flat.reshape(rows, *field.shape).astype(field.numpy_dtype, copy=False)
                at += rows * field.width
        if at != len(data):
            raise ValueError(f"{len(data) - at} bytes follow the last column")
    except (ValueError, struct.error) as error:
        raise DecodeError(f"cannot decode a table of sensor {sensor.name!r}: {error}; run `headway verify`") from error
    return value


def _unfit(sensor: Sensor, expected: str, found: object) -> UsageError:
    if isinstance(found, np.ndarray):
        what = f"an array {found.shape} of {found.dtype}"
    elif isinstance(found, Mapping):
        what = "a mapping with " + ", ".join(f"{name} ({len(column)})" for name, column in found.items())
    else:
        what = type(found).__name__
    return UsageError(f"cannot store a payload of sensor {sensor.name!r}: found {what}, expected {expected}; mend the adapter")

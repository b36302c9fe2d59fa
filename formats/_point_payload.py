"""The bytes around the columns of points: header, descriptors, stream table; the layout is in points.py.

Everything read here is untrusted: sizes are compared with each other, with the record type and with the limit before
anything of that size is made, and what does not fit raises `BadPayload`, which points.py turns into a `DecodeError`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import zstandard

from ._point_columns import BITS, DECIMAL, Layout
from .limits import DEFAULT_LIMITS

__all__ = ["QUANTISED", "BadPayload", "Header", "assemble", "expands_too_far", "read_body", "read_header"]

QUANTISED: Final = 2
_ONE_FRAME: Final = 1
_AS_IS, _ZSTD, _FILL = 0, 1, 2

_MAGIC: Final = b"HWP\x00"
_HEADER: Final = struct.Struct("<4sIIHBBd")
_DESCRIPTOR: Final = struct.Struct("<BBBBIII")
_ENTRY: Final = struct.Struct("<BI")
_MAX_STRIDE: Final = 256
_MAX_DIVISOR: Final = (1 << 24) - 1  # up to here single-precision division gives the same floats, so the kernel may use it
# Entropy decoding, at 1 GB/s of a 2.5 GHz core, is two thirds of all decoding time, so a stream that zstd does not about
# halve stays as it is. Only where the payload as a whole misses its goal are lesser gains taken too, largest first, down to
# a tenth. Real nuScenes sweep: 2.16x at 2.3 GB/s (all gains: 2.39x at 1.8); KITTI: 3.6x at 3.3 GB/s (4.4x at 2.3); see
# bench/points.py.
_WORTH_PERCENT: Final = 52
_WORTH_AT_NEED_PERCENT: Final = 90
_GOAL_PERCENT: Final = {0: 210, QUANTISED: 420}
# Levels 3 and 6 make the planes of real sweeps under 2 % smaller than level 1, at half to a fifth of the speed.
_LEVEL: Final = 1
# Below this, descriptors and frame headers weigh: everything in one frame is tried as well (radar: 100 records of 43 bytes).
_SMALL_BYTES: Final = 1 << 16
_FREE_BYTES: Final = 1 << 20  # outputs up to here may expand as they like


class BadPayload(ValueError):
    """What was found against what was expected, in one line."""


@dataclass(frozen=True, slots=True)
class Header:
    """The first 24 bytes."""

    points: int
    record_bytes: int
    columns: int
    flags: int
    error_m: float


def expands_too_far(decoded: int, encoded: int) -> bool:
    """Say whether a decoder must take the payload for a bomb."""
    return decoded > max(_FREE_BYTES, DEFAULT_LIMITS.expansion * encoded)


def assemble(
    points: int,
    record_bytes: int,
    layouts: Sequence[Layout],
    streams: Sequence[bytes],
    *,
    flags: int,
    error_m: float,
    compress: bool,
) -> bytes:
    """Return a payload; streams stay as they are where that is as good, and all of them without `compress`."""
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False, write_content_size=True)
    descriptors = b"".join(
        _DESCRIPTOR.pack(item.transform, item.stored, item.plain, item.zigzag, item.stride, item.divisor, item.patches)
        for item in layouts
    )
    most = points * record_bytes * 100 // _GOAL_PERCENT[flags]
    stored = _store(compressor, streams, most) if compress else [(_AS_IS, stream) for stream in streams]
    table = b"".join(_ENTRY.pack(mode, len(body)) for mode, body in stored)
    body = b"".join([descriptors, table, *(body for _, body in stored)])
    if compress and points * record_bytes <= _SMALL_BYTES:
        frame = compressor.compress(b"".join([descriptors, *streams]))
        if len(frame) < len(body):
            body, flags = frame, flags | _ONE_FRAME
    return _HEADER.pack(_MAGIC, points, record_bytes, len(layouts), flags, 0, error_m) + body


def read_header(data: memoryview, *, record_bytes: int, columns: int, limit_bytes: int) -> Header:
    """Return the checked header of a payload of records of that size and number of columns."""
    if len(data) < _HEADER.size:
        raise BadPayload(f"{len(data)} bytes, fewer than the {_HEADER.size} of a header")
    magic, points, width, found, flags, zero, error_m = _HEADER.unpack_from(data)
    if magic != _MAGIC:
        raise BadPayload(f"first bytes {magic!r} where {_MAGIC!r} was expected")
    if flags & ~(_ONE_FRAME | QUANTISED) or zero:
        raise BadPayload(f"flags {flags:#x} and reserved byte {zero} are unknown to this version")
    if width != record_bytes or found != columns:
        raise BadPayload(f"records of {width} bytes and {found} columns where the schema has {record_bytes} and {columns}")
    decoded = points * width
    if decoded > limit_bytes or points > limit_bytes:
        raise BadPayload(f"{points} points declare {decoded} bytes, above the limit of {limit_bytes}")
    if expands_too_far(decoded, len(data)):
        raise BadPayload(f"{len(data)} bytes declare {decoded}: more than {DEFAULT_LIMITS.expansion} times as many")
    if not (np.isfinite(error_m) and error_m >= 0):
        raise BadPayload(f"a maximum error of {error_m}")
    return Header(points, width, found, flags, error_m)


def read_body(
    data: memoryview, header: Header, dtypes: Sequence[np.dtype[np.generic]], wanted: Sequence[bool]
) -> Iterator[tuple[int, Layout, list[memoryview]]]:
    """Yield (column, layout, streams) of the wanted columns; every declared size has been checked before the first one."""
    body = data[_HEADER.size :]
    head = _DESCRIPTOR.size * header.columns
    if header.flags & _ONE_FRAME:
        body = _unframe(body, head, head + 16 * header.points * header.columns)
    if len(body) < head:
        raise BadPayload(f"{len(body)} bytes after the header, fewer than the {head} of the descriptors")
    layouts = [_layout(_DESCRIPTOR.unpack_from(body, k * _DESCRIPTOR.size), dtypes[k], header) for k in range(header.columns)]
    sizes = [_stream_sizes(layout, dtype, header.points) for layout, dtype in zip(layouts, dtypes, strict=True)]
    count = sum(map(len, sizes))
    if header.flags & _ONE_FRAME:
        entries = [(_AS_IS, size) for column in sizes for size in column]
    else:
        if len(body) < head + count * _ENTRY.size:
            raise BadPayload(f"{len(body)} bytes after the header, too few for the table of {count} streams")
        entries = [_ENTRY.unpack_from(body, head + k * _ENTRY.size) for k in range(count)]
        head += count * _ENTRY.size
    if head + sum(stored for _, stored in entries) != len(body):
        raise BadPayload(f"{len(body)} bytes after the header where the streams end at {head + sum(size for _, size in entries)}")
    at = iter(entries)
    for k, layout in enumerate(layouts):
        streams = []
        for size in sizes[k]:
            mode, stored = next(at)
            streams.append(_unstore(mode, body[head : head + stored], size, skip=not wanted[k]))
            head += stored
        if wanted[k]:
            yield k, layout, streams


def _store(compressor: zstandard.ZstdCompressor, streams: Sequence[bytes], most: int) -> list[tuple[int, bytes]]:
    stored: list[tuple[int, bytes]] = []
    lesser: list[tuple[int, int, bytes]] = []
    for k, stream in enumerate(streams):
        if len(stream) > 1 and stream[0] == stream[-1] and stream.count(stream[:1]) == len(stream):
            stored.append((_FILL, stream[:1]))
            continue
        frame = compressor.compress(stream)
        if len(frame) * 100 <= len(stream) * _WORTH_PERCENT:
            stored.append((_ZSTD, frame))
            continue
        stored.append((_AS_IS, stream))
        if len(frame) * 100 <= len(stream) * _WORTH_AT_NEED_PERCENT:
            lesser.append((len(frame) - len(stream), k, frame))
    total = sum(len(body) for _, body in stored)
    for gain, k, frame in sorted(lesser):
        if total <= most:
            break
        stored[k] = (_ZSTD, frame)
        total += gain
    return stored


def _layout(values: tuple[int, ...], dtype: np.dtype[np.generic], header: Header) -> Layout:
    transform, stored, plain, zigzag, stride, divisor, patches = values
    width = 4 if transform == DECIMAL else dtype.itemsize
    good = (
        (transform == BITS and divisor == 0 and patches == 0)
        or (transform == DECIMAL and dtype.kind == "f" and dtype.itemsize >= 4 and 0 < divisor <= _MAX_DIVISOR)
    ) and (stored <= width and plain <= 1 and zigzag <= 1 and stride <= _MAX_STRIDE and patches <= header.points)
    if not good or (plain and stored not in (1, 2, 4, 8)):
        raise BadPayload(f"column descriptor {values} of a {dtype} column is unknown to this version")
    return Layout(
        transform=transform,
        stored=stored,
        plain=bool(plain),
        zigzag=bool(zigzag),
        stride=stride,
        divisor=divisor,
        patches=patches,
    )


def _stream_sizes(layout: Layout, dtype: np.dtype[np.generic], points: int) -> list[int]:
    sizes = [points * layout.stored] if layout.plain else [points] * layout.stored
    if layout.patches:
        sizes.append(layout.patches * (4 + dtype.itemsize))
    return sizes


def _unstore(mode: int, stored: memoryview, size: int, *, skip: bool) -> memoryview:
    if mode == _AS_IS and len(stored) == size:
        return stored
    if mode == _FILL and len(stored) == 1:
        return stored if skip else memoryview(bytes(stored) * size)
    if mode == _ZSTD:
        return stored if skip else _unframe(stored, size, size)
    raise BadPayload(f"a stream of mode {mode} and {len(stored)} bytes where {size} were expected")


def _unframe(frame: memoryview, least: int, most: int) -> memoryview:
    """Decompress exactly one zstd frame whose declared content size lies in [least, most]."""
    try:
        size = zstandard.frame_content_size(frame)
        if size < least or size > most:  # -1: not declared
            raise BadPayload(f"a zstd frame of {size} bytes where {least} to {most} were expected")
        content = zstandard.ZstdDecompressor().decompress(frame, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise BadPayload(f"a broken zstd frame: {error}") from error
    if len(content) != size:
        raise BadPayload(f"a zstd frame of {len(content)} bytes that declares {size}")
    return memoryview(content)

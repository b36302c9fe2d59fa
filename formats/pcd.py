"""Point Cloud Data files (PCD 0.5 to 0.7) as structured arrays: ascii, binary and binary_compressed.

Fields keep their names, types and order; one of COUNT n has shape (n,). Numbers of ascii files are read as written, NaN
included. Everything is checked before memory is taken: the header's sizes against each other, the limit and the file. LZF
comes with the extra "pcd"; `_` padding fields are left out.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from .errors import DecodeError, MissingExtra
from .limits import DEFAULT_LIMITS

__all__ = ["read_pcd"]

_HEADER_BYTES: Final = 1 << 16
_MOST_FIELDS: Final = 1024
_KINDS: Final = {
    ("F", 4): "<f4",
    ("F", 8): "<f8",
    **{(kind, size): f"<{kind.lower()}{size}" for kind in "IU" for size in (1, 2, 4, 8)},
}
_KEYS: Final = ("VERSION", "FIELDS", "SIZE", "TYPE", "COUNT", "WIDTH", "HEIGHT", "VIEWPOINT", "POINTS", "DATA")


def read_pcd(data: bytes, what: str, *, limit_bytes: int = DEFAULT_LIMITS.payload_bytes) -> NDArray[Any]:
    """Return the points of a PCD file's bytes, structured (N,); `what` names the file in messages.

    Raises:
        DecodeError: the bytes are no PCD file, are cut short, or declare more than `limit_bytes`.
    """
    try:
        dtype, points, encoding, start = _header(data)
        if points * dtype.itemsize > limit_bytes:
            raise ValueError(f"{points} points declare {points * dtype.itemsize} bytes, above the limit of {limit_bytes}")
        body = memoryview(data)[start:]
        if encoding == "ascii":
            found = _ascii(bytes(body), dtype, points)
        elif encoding == "binary":
            found = _binary(body, dtype, points)
        else:
            found = _compressed(body, dtype, points)
    except ValueError as error:
        raise DecodeError(f"cannot read {what} as PCD: {error}; export or copy the file again") from error
    names = [name for name in dtype.names or () if not name.startswith("_")]
    return found if len(names) == len(dtype.names or ()) else found[names].astype([(name, dtype[name]) for name in names])


def _header(data: bytes) -> tuple[np.dtype[Any], int, str, int]:
    """Return the record type, the number of points, the encoding and where the body starts."""
    found: dict[str, list[str]] = {}
    at = 0
    while "DATA" not in found:
        end = data.find(b"\n", at, at + _HEADER_BYTES)
        if end < 0 or end > _HEADER_BYTES:
            raise ValueError(f"no DATA line in the first {min(len(data), _HEADER_BYTES)} bytes")
        words = data[at:end].decode("ascii", "replace").split()
        at = end + 1
        if not words or words[0].startswith("#"):
            continue
        if words[0] not in _KEYS or words[0] in found:
            raise ValueError(f"header line {words[0]!r} is unknown or comes twice")
        found[words[0]] = words[1:]
    names = found.get("FIELDS", [])
    if not 0 < len(names) <= _MOST_FIELDS:
        raise ValueError(f"{len(names)} fields, expected 1 to {_MOST_FIELDS}")
    sizes, kinds, counts = _numbers(found, "SIZE", names), found.get("TYPE", []), _numbers(found, "COUNT", names, default=1)
    if not len(sizes) == len(kinds) == len(counts) == len(names):
        raise ValueError(f"{len(names)} FIELDS, {len(sizes)} SIZE, {len(kinds)} TYPE and {len(counts)} COUNT")
    record = []
    for place, (name, kind, size, count) in enumerate(zip(names, kinds, sizes, counts, strict=True)):
        if (kind, size) not in _KINDS or not 0 < count <= 1 << 16:
            raise ValueError(f"field {name!r} of type {kind} {size} x {count} is unknown")
        unique = f"_{place}" if name == "_" else name
        record.append((unique, _KINDS[kind, size], (count,)) if count > 1 else (unique, _KINDS[kind, size]))
    if len({name for name, *_ in record}) != len(record):
        raise ValueError(f"two fields share a name: {names}")
    width, height = (_numbers(found, key, [key])[0] for key in ("WIDTH", "HEIGHT"))
    points = _numbers(found, "POINTS", ["POINTS"], default=width * height)[0]
    if points != width * height:
        raise ValueError(f"POINTS {points} where WIDTH x HEIGHT is {width * height}")
    encoding = " ".join(found["DATA"]).lower()
    if encoding not in ("ascii", "binary", "binary_compressed"):
        raise ValueError(f"DATA {encoding!r} is none of ascii, binary, binary_compressed")
    return np.dtype(record), points, encoding, at


def _numbers(header: dict[str, list[str]], key: str, names: Sequence[str], *, default: int | None = None) -> list[int]:
    if key not in header and default is not None:
        return [default] * len(names)
    words = header.get(key, [])
    if not words or not all(word.isascii() and word.isdigit() and len(word) <= 15 for word in words):
        raise ValueError(f"{key} {words!r}, expected whole numbers")
    return [int(word) for word in words]


def _ascii(body: bytes, dtype: np.dtype[Any], points: int) -> NDArray[Any]:
    lines = body.split(b"\n")
    while lines and not lines[-1].strip():
        lines.pop()
    if len(lines) != points:
        raise ValueError(f"{len(lines)} lines of points, the header promises {points}")
    words = [line.split() for line in lines]
    flat = [(name, k) for name in dtype.names or () for k in range(max(int(np.prod(dtype[name].shape)), 1))]
    if any(len(row) != len(flat) for row in words):
        row = next(k for k, row in enumerate(words) if len(row) != len(flat))
        raise ValueError(f"point {row} has {len(words[row])} numbers, the fields have {len(flat)}")
    out = np.zeros(points, dtype)
    for place, (name, k) in enumerate(flat):
        column = out[name] if dtype[name].shape == () else out[name][:, k]
        convert = float if dtype[name].base.kind == "f" else int
        try:
            column[:] = [convert(row[place]) for row in words]
        except OverflowError as error:
            raise ValueError(f"field {name!r}: {error}") from error
    return out


def _binary(body: memoryview, dtype: np.dtype[Any], points: int) -> NDArray[Any]:
    if len(body) < points * dtype.itemsize:
        raise ValueError(f"{len(body)} bytes after the header, {points} points take {points * dtype.itemsize}")
    return np.frombuffer(body, dtype, points)


def _compressed(body: memoryview, dtype: np.dtype[Any], points: int) -> NDArray[Any]:
    if len(body) < 8:
        raise ValueError("no room for the compressed and uncompressed size")
    stored, size = (int(value) for value in np.frombuffer(body, "<u4", 2))
    if size != points * dtype.itemsize or len(body) < 8 + stored:
        raise ValueError(f"{stored} bytes that make {size}, found {len(body) - 8} for {points * dtype.itemsize}")
    if size == 0:
        return np.zeros(points, dtype)
    try:
        lzf = importlib.import_module("lzf")
    except ImportError:
        raise MissingExtra("pcd", "reading a compressed PCD file") from None
    raw = lzf.decompress(bytes(body[8 : 8 + stored]), size)
    if raw is None or len(raw) != size:
        raise ValueError(f"a compressed body that does not give {size} bytes")
    out, at = np.zeros(points, dtype), 0
    for name in dtype.names or ():
        column = np.frombuffer(raw, dtype[name].base, points * max(int(np.prod(dtype[name].shape)), 1), at)
        out[name] = column.reshape(out[name].shape)
        at += column.nbytes
    return out

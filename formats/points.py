"""Points as payload bytes: `points-raw`, `points-lossless` and `points-quantised`.

`points-raw` is the records as they lie in memory, packed, little-endian. The other two share the layout below; lossless
gives every value back bit for bit (NaN, infinities and -0.0 included), quantised rounds float32 and float64 fields of unit "m"
to a grid and states the maximum error it measured (half floats are coarser than a grid and stay). Encoding is a pure function
of the records and of the zstd version. Decoding trusts no byte and takes only sizes it has checked. All numbers are
little-endian. A *column* is one scalar of a record: a field of shape (3,) makes three, in storage order.

    header, 24 bytes   magic "HWP" and version 0x00; u32 points; u32 record bytes; u16 columns; u8 flags; u8 zero;
                       f64 maximum error in metres (0 unless quantised)
    flags              1: all that follows is one zstd frame of descriptors and streams, the streams unstored (no table)
                       2: quantised
    descriptors        16 bytes a column: u8 transform (0 bits, 1 decimal); u8 stored; u8 plain; u8 zigzag; u32 stride;
                       u32 divisor (0 for bits); u32 patches
    table              5 bytes a stream, in the order of the streams: u8 mode (0 as is, 1 a zstd frame that declares its
                       content size, 2 one byte that fills the stream); u32 stored bytes
    streams            column by column: plain ? one of points × stored bytes : `stored` planes of `points` bytes, lowest
                       byte first; then, if patches > 0, one of patches × u32 positions and patches × the column's values

To read a column of width w (bits) or 4 (decimal) bytes: put the planes together into unsigned integers, missing high bytes
zero; zigzag: n = (n >> 1) ^ -(n & 1); stride s, 1 to 256: from point s on, in ascending order, add the integer of s points
earlier, modulo 2^(8 w); bits: these are the value's bits; decimal: read as int32 and divide by `divisor` in double precision,
then round to the column's type; then put the patches in place.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, NoReturn

import numpy as np
from numpy.typing import NDArray

from . import kernel
from ._point_columns import Layout, bits, decimals, join_column, plan_column, split_column
from ._point_payload import QUANTISED, BadPayload, Header, assemble, expands_too_far, read_body, read_header
from .errors import DecodeError, SourceError, UsageError
from .limits import DEFAULT_LIMITS
from .schema import Sensor

__all__ = ["Buffer", "count_points", "decode_points", "decode_points_into", "encode_points", "maximum_error_m"]

Buffer = bytes | bytearray | memoryview

_TARGET: Final = np.dtype(
    [
        ("offset", "<u8"),
        ("step", "<i8"),
        ("kind", "u1"),
        ("width", "u1"),
        ("as_float", "u1"),
        ("wanted", "u1"),
        ("reserved", "V4"),
    ]
)
_MAX_POINTS: Final = (1 << 32) - 1


def encode_points(records: NDArray[Any], sensor: Sensor, *, precision_mm: int = 1, drop_nan: bool = False) -> bytes:
    """Return the payload of structured `records` (N,) of the sensor's `record_dtype`, by the sensor's codec.

    Args:
        precision_mm: step of the grid of `points-quantised`, in millimetres; a divisor of 1000.
        drop_nan: `points-quantised` only: leave out records with a NaN or infinity in a field of unit "m"; they have no
            place on a grid and are refused otherwise.

    Raises:
        SourceError: the records are of another type, or cannot be put on the grid.
    """
    if records.ndim != 1 or records.dtype != sensor.record_dtype:
        raise SourceError(
            f"cannot encode points of sensor {sensor.name!r}: expected a 1-D array of {sensor.record_dtype}, "
            f"found {records.ndim}-D of {records.dtype}; make the adapter's records match the sensor's fields"
        )
    if len(records) > _MAX_POINTS:
        raise SourceError(
            f"cannot encode points of sensor {sensor.name!r}: {len(records)} points, at most {_MAX_POINTS} fit; split it"
        )
    records = np.ascontiguousarray(records)
    columns = _columns(sensor)
    if sensor.codec == "points-raw":
        return records.tobytes()
    if sensor.codec == "points-lossless":
        return _encode(records, columns, divisor=0, flags=0, error_m=0.0)
    if sensor.codec != "points-quantised":
        _not_points(sensor)
    if precision_mm < 1 or 1000 % precision_mm:
        raise UsageError(f"precision of {precision_mm!r} mm for sensor {sensor.name!r}: use a divisor of 1000, such as 1 or 5")
    divisor = 1000 // precision_mm
    records, error_m = _onto_grid(records, sensor, columns, divisor, drop_nan)
    return _encode(records, columns, divisor=divisor, flags=QUANTISED, error_m=error_m)


def decode_points(
    data: Buffer, sensor: Sensor, *, limit_bytes: int | None = None, out: NDArray[Any] | None = None
) -> NDArray[Any]:
    """Return the structured (N,) array of a payload: a fresh one, or the first N rows of `out`.

    `points-raw` without `out` returns a read-only view of `data`. The interpreter lock is released during the work, and
    threads may decode at the same time.

    Args:
        limit_bytes: refuse a payload whose decoded size is larger (default: the limit of any payload).
        out: contiguous (≥ N,) array of the sensor's `record_dtype`.

    Raises:
        DecodeError: the bytes are no such payload, or declare more than `limit_bytes`.
    """
    dtype = sensor.record_dtype
    if out is not None and (out.dtype != dtype or out.ndim != 1 or not out.flags.c_contiguous):
        raise UsageError(
            f"points of sensor {sensor.name!r}: `out` must be contiguous, 1-D, of {dtype}; found {out.ndim}-D of {out.dtype}"
        )
    view = memoryview(data).cast("B")
    if sensor.codec == "points-raw":
        found = _raw(view, sensor, limit_bytes)
        if out is not None:
            out = _room(out, len(found), sensor)
            out.view(np.uint8)[:] = view  # as bytes: numpy copies records field by field
        return _checked_bools(found if out is None else out, sensor)
    header = _header(view, sensor, limit_bytes)
    out = np.empty(header.points, dtype) if out is None else _room(out, header.points, sensor)
    columns = _columns(sensor)
    _decode(view, sensor, header, out.ctypes.data, _record_targets(sensor), lambda k: columns[k].of(out))
    return _checked_bools(out, sensor)


def decode_points_into(
    data: Buffer, sensor: Sensor, out: NDArray[np.float32], *, fields: Sequence[str] = (), limit_bytes: int | None = None
) -> int:
    """Decode scalar `fields` (all if none are named), cast to float32, into the columns of `out`'s first N rows; return N.

    Fields that are not asked for are not decompressed. `out` is float32 (≥ N, ≥ number of fields), its rows contiguous.
    """
    columns = _columns(sensor)
    chosen = {column.name: k for k, column in enumerate(columns) if not column.index}
    names = list(fields) or list(chosen)
    missing = [name for name in names if name not in chosen]
    if missing:
        raise UsageError(f"sensor {sensor.name!r} has no scalar field {missing[0]!r}; it has: {', '.join(chosen)}")
    if out.dtype != np.float32 or out.ndim != 2 or out.shape[1] < len(names) or (out.size and out.strides[1] != 4):
        raise UsageError(
            f"points of sensor {sensor.name!r}: `out` must be float32 (N, ≥ {len(names)}); found {out.dtype} {out.shape}"
        )
    view = memoryview(data).cast("B")
    with np.errstate(over="ignore", invalid="ignore"):
        if sensor.codec == "points-raw":
            found = _raw(view, sensor, limit_bytes)
            out = _room(out, len(found), sensor)
            for k, name in enumerate(names):
                out[:, k] = found[name]
            return len(found)
        header = _header(view, sensor, limit_bytes)
        out = _room(out, header.points, sensor)
        places = {chosen[name]: k for k, name in enumerate(names)}
        targets = _record_targets(sensor).copy()
        targets["wanted"], targets["as_float"], targets["step"] = 0, 1, out.strides[0]
        for column, place in places.items():
            targets["wanted"][column], targets["offset"][column] = 1, 4 * place
        _decode(view, sensor, header, out.ctypes.data, targets, lambda k: out[:, places[k]])
    return header.points


def count_points(data: Buffer, sensor: Sensor, *, limit_bytes: int | None = None) -> int:
    """Return how many points a payload declares, from its first bytes."""
    view = memoryview(data).cast("B")
    if sensor.codec == "points-raw":
        return len(_raw(view, sensor, limit_bytes))
    return _header(view, sensor, limit_bytes).points


def maximum_error_m(data: Buffer, sensor: Sensor) -> float:
    """Return the largest difference of a payload's metres to the source's, as measured when it was packed; 0: exact."""
    return 0.0 if sensor.codec == "points-raw" else _header(memoryview(data).cast("B"), sensor, None).error_m


@dataclass(frozen=True, slots=True)
class _Column:
    name: str
    index: tuple[int, ...]
    dtype: np.dtype[Any]
    metres: bool

    def of(self, records: NDArray[Any]) -> NDArray[Any]:
        """Return the column as a view."""
        key: Any = (slice(None), *self.index)  # numpy's stubs know no such tuple
        column: NDArray[Any] = records[self.name][key]
        return column


@lru_cache(maxsize=64)
def _columns(sensor: Sensor) -> tuple[_Column, ...]:
    return tuple(
        _Column(field.name, index, field.numpy_dtype, field.unit == "m" and field.dtype in ("float32", "float64"))
        for field in sensor.fields
        for index in np.ndindex(field.shape)
    )


def _onto_grid(
    records: NDArray[Any], sensor: Sensor, columns: Sequence[_Column], divisor: int, drop_nan: bool
) -> tuple[NDArray[Any], float]:
    """Return the records with their metres rounded to 1 / divisor, and the largest error, verified against its bound."""
    metres = [column for column in columns if column.metres]
    finite = np.all([np.isfinite(column.of(records)) for column in metres], axis=0) if metres else np.ones(len(records), bool)
    if not finite.all():
        if not drop_nan:
            raise SourceError(
                f"cannot quantise points of sensor {sensor.name!r}: {int((~finite).sum())} of {len(records)} have a NaN or "
                "infinite coordinate, which no grid holds; pack with --drop-nan, or with points-lossless"
            )
        records = records[finite]
    records, error = records.copy(), 0.0
    for column in metres:
        values = column.of(records)
        far = np.abs(values) * np.float64(divisor) >= 2**31 - 1
        if far.any():
            raise SourceError(
                f"cannot quantise field {column.name!r} of sensor {sensor.name!r}: {float(values[far][0])!r} m does not fit "
                f"32 bits at {1000 // divisor} mm; use a coarser --lidar-precision, points-lossless, or nearer coordinates"
            )
        rounded = (decimals(values, divisor)[0] / divisor).astype(column.dtype)
        errors = np.abs(rounded.astype(np.float64) - values)
        # Half a step, and what rounding to the column's own precision adds.
        bound = (0.5 + 1e-6) / divisor + np.spacing(np.abs(rounded)).astype(np.float64)
        assert not (errors > bound).any(), "quantisation left its error bound"
        error = max(error, float(errors.max(initial=0.0)))
        values[:] = rounded
    return records, error


def _encode(records: NDArray[Any], columns: Sequence[_Column], *, divisor: int, flags: int, error_m: float) -> bytes:
    layouts: list[Layout] = []
    streams: list[bytes] = []
    for column in columns:
        values = np.ascontiguousarray(column.of(records))
        layout, integers, patches = plan_column(values, divisor=divisor if column.metres else 0)
        layouts.append(layout)
        streams += split_column(values, layout, integers, patches)
    payload = assemble(len(records), records.itemsize, layouts, streams, flags=flags, error_m=error_m, compress=True)
    if not expands_too_far(records.nbytes, len(payload)):
        return payload
    # All zeros, say: a decoder must take that for a bomb, so it is stored at full size.
    layouts = [Layout(stored=column.dtype.itemsize) for column in columns]
    streams = []
    for column, layout in zip(columns, layouts, strict=True):
        values = np.ascontiguousarray(column.of(records))
        streams += split_column(values, layout, bits(values), np.empty(0, np.intp))
    return assemble(len(records), records.itemsize, layouts, streams, flags=flags, error_m=error_m, compress=False)


def _decode(
    view: memoryview, sensor: Sensor, header: Header, base: int, targets: NDArray[Any], column_of: Callable[[int], NDArray[Any]]
) -> None:
    """Decode the wanted columns to `base` and on, by `targets` (native), or into `column_of(k)` (numpy)."""
    try:
        if kernel.available():
            targets = targets.copy()
            targets["offset"] += base
            kernel.points_decode(view, targets, header.points)
            return
        dtypes = [column.dtype for column in _columns(sensor)]
        for k, layout, streams in read_body(view, header, dtypes, targets["wanted"].tolist()):
            join_column(streams, layout, dtypes[k], column_of(k))
    except ValueError as error:
        _bad(sensor, error)


@lru_cache(maxsize=64)
def _record_targets(sensor: Sensor) -> NDArray[Any]:
    """Return, for each column, what it is and where it goes in an array of records; formats/native/points.h has the struct."""
    columns = _columns(sensor)
    targets = np.zeros(len(columns), _TARGET)
    targets["kind"] = [ord(column.dtype.kind) for column in columns]
    targets["width"] = [column.dtype.itemsize for column in columns]
    targets["offset"] = np.cumsum(targets["width"], dtype=np.int64) - targets["width"]
    targets["step"], targets["wanted"] = sensor.record_dtype.itemsize, 1
    return targets


def _header(view: memoryview, sensor: Sensor, limit_bytes: int | None) -> Header:
    if sensor.codec not in ("points-lossless", "points-quantised"):
        _not_points(sensor)
    limit = DEFAULT_LIMITS.payload_bytes if limit_bytes is None else limit_bytes
    try:
        return read_header(view, record_bytes=sensor.record_dtype.itemsize, columns=len(_columns(sensor)), limit_bytes=limit)
    except BadPayload as error:
        _bad(sensor, error)


def _raw(view: memoryview, sensor: Sensor, limit_bytes: int | None) -> NDArray[Any]:
    width, limit = sensor.record_dtype.itemsize, DEFAULT_LIMITS.payload_bytes if limit_bytes is None else limit_bytes
    if len(view) % width:
        _bad(sensor, f"{len(view)} bytes where a multiple of the record's {width} was expected")
    if len(view) > limit:
        _bad(sensor, f"{len(view)} bytes, above the limit of {limit}")
    return np.frombuffer(view, sensor.record_dtype)


def _room(out: NDArray[Any], points: int, sensor: Sensor) -> NDArray[Any]:
    if len(out) < points:
        raise UsageError(f"points of sensor {sensor.name!r}: `out` has {len(out)} rows, the payload {points}; see count_points")
    return out[:points]


def _checked_bools(records: NDArray[Any], sensor: Sensor) -> NDArray[Any]:
    for field in sensor.fields:
        if field.dtype == "bool" and len(records) and int(records[field.name].view(np.uint8).max()) > 1:
            _bad(sensor, f"a byte other than 0 and 1 in the bool field {field.name!r}")
    return records


def _bad(sensor: Sensor, reason: object) -> NoReturn:
    raise DecodeError(
        f"cannot decode {sensor.codec} of sensor {sensor.name!r}: {reason}; "
        "run `headway verify` on the set, and pack again if it agrees"
    ) from (reason if isinstance(reason, BaseException) else None)


def _not_points(sensor: Sensor) -> NoReturn:
    raise UsageError(
        f"sensor {sensor.name!r} has codec {sensor.codec!r}; expected points-raw, points-lossless or points-quantised"
    )

"""What the points codecs promise, by example; the laws are in tests/laws/test_points.py."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats.errors import DecodeError, SourceError, UsageError
from headway.formats.points import count_points, decode_points, decode_points_into, encode_points, maximum_error_m
from headway.formats.schema import Column, Sensor

Records = NDArray[Any]


def sensor(codec: Any, *fields: tuple[str, str, str]) -> Sensor:  # Any: a Literal of schema.py
    columns = tuple(Column(name=name, dtype=dtype, unit=unit) for name, dtype, unit in fields)
    return Sensor(name="LIDAR", kind="points", codec=codec, fields=columns)


XYZI = (("x", "float32", "m"), ("y", "float32", "m"), ("z", "float32", "m"), ("intensity", "float32", ""))


def sweep(points: int, *, beams: int = 32, seed: int = 0) -> Records:
    """A plane and a wall seen by a spinning sensor: full-precision x y z, whole-numbered intensity."""
    rng = np.random.default_rng(seed)
    beam, turn = np.arange(points) % beams, np.arange(points) // beams * (2 * np.pi * beams / max(points, 1))
    elevation = np.deg2rad(np.linspace(-30, 10, beams))[beam]
    distance = np.minimum(1.8 / np.maximum(-np.sin(elevation), 1e-3), 20 + 5 * np.cos(3 * turn)) + rng.normal(0, 0.01, points)
    records = np.zeros(points, sensor("points-raw", *XYZI).record_dtype)
    records["x"] = distance * np.cos(elevation) * np.cos(turn)
    records["y"] = distance * np.cos(elevation) * np.sin(turn)
    records["z"] = distance * np.sin(elevation)
    records["intensity"] = rng.integers(0, 60, points)
    return records


def test_full_precision_sweeps_halve_and_come_back_bit_for_bit() -> None:
    lidar, records = sensor("points-lossless", *XYZI), sweep(32_000)
    payload = encode_points(records, lidar)
    assert decode_points(payload, lidar).tobytes() == records.tobytes()
    assert records.nbytes >= 2.0 * len(payload)
    assert maximum_error_m(payload, lidar) == 0


def test_rounded_sweeps_become_the_integers_they_are() -> None:
    lidar, records = sensor("points-lossless", *XYZI), sweep(30_000)
    for name in ("x", "y", "z"):
        records[name] = (np.rint(records[name].astype(np.float64) * 1000) / 1000).astype(np.float32)
    records["intensity"] = (records["intensity"] / np.float32(100)).astype(np.float32)
    records["z"][::1000] = -0.0  # KITTI has some: the integer 0 cannot say so
    payload = encode_points(records, lidar)
    assert decode_points(payload, lidar).tobytes() == records.tobytes()
    assert records.nbytes >= 3.0 * len(payload)


def test_nan_infinity_negative_zero_and_denormals_survive() -> None:
    lidar = sensor("points-lossless", ("a", "float32", ""), ("b", "float64", ""), ("c", "float16", ""))
    odd = [np.nan, -np.nan, np.inf, -np.inf, -0.0, 0.0, 1.0, 65504.0]
    records = np.zeros(8 * 1000, lidar.record_dtype)
    for name in ("a", "b", "c"):
        records[name] = np.tile(np.array(odd, records[name].dtype), 1000)
    records["a"].view(np.uint32)[5] = 0x7FA0_0001  # a signalling NaN with a payload
    records["b"].view(np.uint64)[6] = 1  # the smallest denormal
    assert decode_points(encode_points(records, lidar), lidar).tobytes() == records.tobytes()


@pytest.mark.parametrize("points", [0, 1, 2, 31, 33])
@pytest.mark.parametrize("codec", ["points-raw", "points-lossless", "points-quantised"])
def test_tiny_sweeps_round_trip(codec: str, points: int) -> None:
    lidar, records = sensor(codec, *XYZI), sweep(points)
    payload = encode_points(records, lidar)
    decoded = decode_points(payload, lidar)
    assert count_points(payload, lidar) == len(decoded) == points
    assert np.allclose(decoded["x"], records["x"], atol=6e-4)
    assert np.array_equal(decoded["intensity"], records["intensity"])


@pytest.mark.parametrize(("step", "ratio"), [(1, 4.0), (5, 4.5)])
def test_quantised_keeps_its_stated_error(step: int, ratio: float) -> None:
    lidar, records = sensor("points-quantised", *XYZI), sweep(32_000)
    payload = encode_points(records, lidar, precision_mm=step)
    decoded = decode_points(payload, lidar)
    error = max(float(np.abs(decoded[name].astype(np.float64) - records[name]).max()) for name in ("x", "y", "z"))
    assert error == maximum_error_m(payload, lidar) <= step / 2000 + 1e-5
    assert np.array_equal(decoded["intensity"], records["intensity"])
    assert records.nbytes >= ratio * len(payload)


def test_quantised_refuses_nan_unless_told_to_drop_it() -> None:
    lidar, records = sensor("points-quantised", *XYZI), sweep(100)
    records["y"][3], records["z"][7], records["intensity"][9] = np.nan, np.inf, np.nan
    with pytest.raises(SourceError, match=r"2 of 100 have a NaN .* --drop-nan"):
        encode_points(records, lidar)
    kept = decode_points(encode_points(records, lidar, drop_nan=True), lidar)
    assert len(kept) == 98
    assert np.isnan(kept["intensity"][7])


def test_quantised_refuses_what_its_integers_cannot_hold() -> None:
    lidar, records = sensor("points-quantised", *XYZI), sweep(10)
    records["x"][4] = 4e6
    with pytest.raises(SourceError, match=r"'x' .* 4000000.0 m does not fit"):
        encode_points(records, lidar)
    assert decode_points(encode_points(records, lidar, precision_mm=5), lidar)["x"][4] == 4e6


def test_quantised_leaves_alone_what_has_no_metres() -> None:
    labels = sensor("points-quantised", ("label", "uint8", ""), ("x", "float16", "m"))
    records = np.array([(1, np.nan), (200, 1e-3)], labels.record_dtype)
    assert decode_points(encode_points(records, labels), labels).tobytes() == records.tobytes()


def test_quantised_needs_a_whole_step() -> None:
    with pytest.raises(UsageError, match="divisor of 1000"):
        encode_points(sweep(3), sensor("points-quantised", *XYZI), precision_mm=3)


def test_constant_and_empty_sweeps_stay_under_the_expansion_limit() -> None:
    lidar = sensor("points-lossless", *XYZI)
    records = np.zeros(200_000, lidar.record_dtype)
    payload = encode_points(records, lidar)
    assert decode_points(payload, lidar).tobytes() == records.tobytes()


def test_records_of_another_type_are_refused() -> None:
    lidar = sensor("points-lossless", *XYZI)
    with pytest.raises(SourceError, match=r"expected a 1-D array"):
        encode_points(np.zeros(3, [("x", "<f4")]), lidar)
    with pytest.raises(UsageError, match="has codec 'text'"):
        decode_points(b"", Sensor(name="t", kind="text", codec="text"))


@pytest.mark.parametrize("codec", ["points-raw", "points-lossless"])
def test_decoding_into_memory_that_is_there_already(codec: str) -> None:
    lidar, records = sensor(codec, *XYZI), sweep(5000)
    payload = encode_points(records, lidar)
    room = np.full(6000, 7, lidar.record_dtype)
    found = decode_points(payload, lidar, out=room)
    assert np.shares_memory(found, room)
    assert found.tobytes() == records.tobytes()
    assert (room["x"][5000:] == 7).all()
    with pytest.raises(UsageError, match=r"has 4999 rows, the payload 5000"):
        decode_points(payload, lidar, out=room[:4999])
    with pytest.raises(UsageError, match="contiguous"):
        decode_points(payload, lidar, out=room[::-1])


@pytest.mark.parametrize("codec", ["points-raw", "points-lossless"])
def test_decoding_chosen_fields_into_a_float_matrix(codec: str) -> None:
    lidar = sensor(codec, ("x", "float16", "m"), ("label", "uint8", ""), ("t", "int32", "ns"), ("far", "float64", "m"))
    records = np.zeros(3000, lidar.record_dtype)
    rng = np.random.default_rng(1)
    records["x"], records["label"] = rng.normal(0, 30, 3000), rng.integers(0, 30, 3000)
    records["t"], records["far"] = np.arange(3000) * 33_000, rng.normal(0, 1e5, 3000)
    payload = encode_points(records, lidar)
    matrix = np.full((3100, 5), -1, np.float32)
    assert decode_points_into(payload, lidar, matrix[:, :4]) == 3000
    for k, name in enumerate(("x", "label", "t", "far")):
        assert np.array_equal(matrix[:3000, k], records[name].astype(np.float32))
    assert (matrix[:, 4] == -1).all()
    assert (matrix[3000:] == -1).all()
    assert decode_points_into(payload, lidar, matrix, fields=["t", "x"]) == 3000
    assert np.array_equal(matrix[:3000, 0], records["t"].astype(np.float32))
    assert np.array_equal(matrix[:3000, 1], records["x"].astype(np.float32))
    with pytest.raises(UsageError, match="no scalar field 'y'"):
        decode_points_into(payload, lidar, matrix, fields=["y"])
    with pytest.raises(UsageError, match="must be float32"):
        decode_points_into(payload, lidar, matrix[:, :3])


def test_shaped_fields_are_columns_of_their_own() -> None:
    fields = (Column(name="velocity", dtype="float32", shape=(3,), unit="m/s"), Column(name="ok", dtype="bool"))
    radar = Sensor(name="R", kind="points", codec="points-lossless", fields=fields)
    records = np.zeros(2000, radar.record_dtype)
    records["velocity"] = np.random.default_rng(0).normal(size=(2000, 3))
    records["ok"][::3] = True
    assert decode_points(encode_points(records, radar), radar).tobytes() == records.tobytes()


def test_a_bool_that_is_neither_is_refused() -> None:
    byte, flag = sensor("points-lossless", ("a", "uint8", "")), sensor("points-lossless", ("a", "bool", ""))
    payload = encode_points(np.array([(2,), (1,)], byte.record_dtype), byte)
    with pytest.raises(DecodeError, match="other than 0 and 1"):
        decode_points(payload, flag)
    with pytest.raises(DecodeError, match="other than 0 and 1"):
        decode_points(b"\x02", sensor("points-raw", ("a", "bool", "")))


def test_giants_are_refused_from_the_header_alone() -> None:
    lidar = sensor("points-lossless", *XYZI)
    header = struct.pack("<4sIIHBBd", b"HWP\x00", 2**32 - 1, 16, 4, 0, 0, 0.0)
    with pytest.raises(DecodeError, match="above the limit"):
        decode_points(header, lidar)
    with pytest.raises(DecodeError, match=r"1000 times as many"):
        decode_points(header, lidar, limit_bytes=1 << 40)
    payload = encode_points(sweep(100), lidar)
    with pytest.raises(DecodeError, match=r"100 points declare 1600 bytes, above the limit of 1599"):
        decode_points(payload, lidar, limit_bytes=1599)
    assert len(decode_points(payload, lidar, limit_bytes=1600)) == 100
    with pytest.raises(DecodeError, match="above the limit"):
        decode_points(b"\x00" * 32, sensor("points-raw", *XYZI), limit_bytes=16)
    with pytest.raises(DecodeError, match="multiple of the record's 16"):
        decode_points(b"\x00" * 31, sensor("points-raw", *XYZI))


def test_bytes_of_another_version_or_record_are_refused() -> None:
    lidar = sensor("points-lossless", *XYZI)
    payload = encode_points(sweep(100), lidar)
    for at, byte, complaint in ((3, 1, "first bytes"), (14, 4, "flags"), (15, 1, "reserved"), (8, 20, "records of 20 bytes")):
        changed = bytearray(payload)
        changed[at] = byte
        with pytest.raises(DecodeError, match=complaint):
            decode_points(changed, lidar)
    with pytest.raises(DecodeError, match="records of 16 bytes and 4 columns where the schema has 12 and 3"):
        decode_points(payload, sensor("points-lossless", *XYZI[:3]))


def test_the_same_records_give_the_same_bytes() -> None:
    lidar = sensor("points-lossless", *XYZI)
    assert encode_points(sweep(9000), lidar) == encode_points(sweep(9000), lidar)

"""Laws of the points codecs: any records come back, and no bytes at all are ever more than a DecodeError."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats.errors import DecodeError
from headway.formats.points import count_points, decode_points, decode_points_into, encode_points, maximum_error_m
from headway.formats.schema import Column, Sensor

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (), (), (3,), (2, 2))
# How a column's values come about: each steers the encoder to other layouts.
MAKERS = ("noise", "constant", "counter", "rounded", "hundredths", "walk", "beams", "odd")

Records = NDArray[Any]


def column_values(rng: np.random.Generator, maker: str, dtype: np.dtype[Any], shape: tuple[int, ...]) -> NDArray[Any]:
    size = int(np.prod(shape))
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    if maker == "noise":
        return rng.integers(0, 256, size * dtype.itemsize, np.uint8).view(dtype).reshape(shape)
    values: NDArray[Any]
    if maker == "constant":
        values = np.full(size, rng.integers(0, 100))
    elif maker == "counter":
        values = np.arange(size) * int(rng.integers(1, 70000))
    elif maker == "beams":
        values = np.arange(size) % 32 + rng.integers(0, 2, size)
    elif maker == "walk":
        values = rng.normal(0, 1, size).cumsum()
    else:
        values = np.rint(rng.normal(0, 3000, size)) / (1 if maker == "rounded" else 100)
    with np.errstate(all="ignore"):
        values = (values if dtype.kind == "f" else values.astype(np.int64)).astype(dtype)
    if maker == "odd" and dtype.kind == "f":
        values[:: max(size // 7, 1)] = rng.choice(np.array([np.nan, -0.0, np.inf, 1e-40, 6e4], dtype))
    return values.reshape(shape)


@st.composite
def sensors_and_records(draw: st.DrawFn, codec: Any = "points-lossless") -> tuple[Sensor, Records]:  # Any: a Literal
    kinds = st.tuples(st.sampled_from(DTYPES), st.sampled_from(SHAPES), st.sampled_from(MAKERS))
    drawn = draw(st.lists(kinds, min_size=1, max_size=6))
    count = draw(st.one_of(st.integers(0, 40), st.sampled_from([511, 700, 3000])))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    fields = tuple(Column(name=f"f{k}", dtype=dtype, shape=shape) for k, (dtype, shape, _) in enumerate(drawn))
    sensor = Sensor(name="L", kind="points", codec=codec, fields=fields)
    records = np.zeros(count, sensor.record_dtype)
    for field, (_, shape, maker) in zip(fields, drawn, strict=True):
        records[field.name] = column_values(rng, maker, field.numpy_dtype, (count, *shape))
    return sensor, records


@pytest.mark.slow
@settings(max_examples=200, deadline=None)
@given(sensors_and_records())
def test_any_records_come_back_bit_for_bit(drawn: tuple[Sensor, Records]) -> None:
    sensor, records = drawn
    payload = encode_points(records, sensor)
    assert payload == encode_points(records.copy(), sensor)
    assert count_points(payload, sensor) == len(records)
    assert decode_points(payload, sensor).tobytes() == records.tobytes()
    assert len(payload) <= records.nbytes + 24 + 64 * sum(field.width for field in sensor.fields)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(sensors_and_records(), st.randoms(use_true_random=False))
def test_damaged_payloads_raise_decode_error_or_decode(drawn: tuple[Sensor, Records], rng: random.Random) -> None:
    sensor, records = drawn
    payload = encode_points(records, sensor)
    for _ in range(40):
        decode_or_refuse(mutate(payload, rng), sensor)


@pytest.mark.parametrize("count", [0, 3, 700])
def test_every_truncation_is_refused(count: int) -> None:
    sensor, records = radar(count)
    payload = encode_points(records, sensor)
    for length in range(len(payload)):
        with pytest.raises(DecodeError):
            decode_points(payload[:length], sensor)
    for more in (b"\x00", b"\x00" * 13, payload):
        with pytest.raises(DecodeError):
            decode_points(payload + more, sensor)


@pytest.mark.slow
def test_twenty_thousand_mutants_end_in_decode_error_or_an_array() -> None:
    rng = random.Random(4)
    refused = 0
    for count in (40, 700, 5000):
        sensor, records = radar(count)
        payload = encode_points(records, sensor)
        for _ in range(7000 if count < 5000 else 6000):
            refused += decode_or_refuse(mutate(payload, rng), sensor)
    assert refused > 10_000


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_end_in_decode_error_or_an_array(data: bytes) -> None:
    sensor, _ = radar(0)
    decode_or_refuse(data, sensor)
    decode_or_refuse(b"HWP\x00" + data, sensor)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.sampled_from([1, 2, 5, 10]), st.sampled_from(["float32", "float64"]), st.floats(0.1, 900.0))
def test_quantised_stays_within_half_a_step(seed: int, step: int, dtype: str, spread: float) -> None:
    sensor = Sensor(
        name="L",
        kind="points",
        codec="points-quantised",
        fields=(Column(name="xyz", dtype=dtype, shape=(3,), unit="m"), Column(name="t", dtype="int32", unit="ns")),
    )
    records = np.zeros(500, sensor.record_dtype)
    rng = np.random.default_rng(seed)
    records["xyz"], records["t"] = rng.normal(0, spread, (500, 3)), rng.integers(0, 10**8, 500)
    payload = encode_points(records, sensor, precision_mm=step)
    decoded = decode_points(payload, sensor)
    error = np.abs(decoded["xyz"].astype(np.float64) - records["xyz"]).max()
    assert error == maximum_error_m(payload, sensor)
    assert error <= step / 2000 * 1.000001 + float(np.spacing(np.abs(records["xyz"]).max() + records["xyz"].dtype.type(step)))
    assert np.array_equal(decoded["t"], records["t"])


def radar(count: int) -> tuple[Sensor, Records]:
    """Return records that between them use every layout: bits and decimals, planes and plain, patches, fills, strides."""
    makers = {
        "float32": "walk",
        "float64": "hundredths",
        "uint8": "beams",
        "int16": "rounded",
        "bool": "noise",
        "uint32": "counter",
    }
    fields = [Column(name=dtype, dtype=dtype) for dtype in makers]
    fields += [
        Column(name="odd", dtype="float32", shape=(2,)),
        Column(name="same", dtype="float32"),
        Column(name="class", dtype="float16"),
    ]
    sensor = Sensor(name="R", kind="points", codec="points-lossless", fields=tuple(fields))
    records = np.zeros(count, sensor.record_dtype)
    rng = np.random.default_rng(count)
    for dtype, maker in makers.items():
        records[dtype] = column_values(rng, maker, np.dtype(dtype), (count,))
    records["odd"] = column_values(rng, "hundredths", np.dtype("f4"), (count, 2))
    records["odd"][::100] = -0.0
    records["class"] = rng.choice(rng.normal(size=5).astype(np.float16), count)
    return sensor, records


def mutate(payload: bytes, rng: random.Random) -> bytes:
    """Change a few bits, bytes or numbers, mostly near the front where the sizes are, or cut, repeat and insert."""
    data = bytearray(payload)
    for _ in range(rng.choice([1, 1, 1, 2, 4])):
        front = min(len(data), 400) if rng.random() < 0.7 else len(data)
        if not front:
            break
        at, kind = rng.randrange(front), rng.random()
        if kind < 0.4:
            data[at] ^= 1 << rng.randrange(8)
        elif kind < 0.6:
            data[at] = rng.choice([0, 1, 2, 3, 4, 8, 127, 128, 255])
        elif kind < 0.8:
            data[at : at + 4] = rng.choice([0, 1, 2**31 - 1, 2**31, 2**32 - 1, len(data), rng.randrange(2**32)]).to_bytes(
                4, "little"
            )
        elif kind < 0.87:
            del data[at:]
        elif kind < 0.94:
            del data[at : at + rng.randrange(1, 9)]
        else:
            data[at:at] = data[at : at + rng.randrange(1, 9)]
    return bytes(data)


def decode_or_refuse(data: bytes, sensor: Sensor) -> bool:
    """Decode both ways; return whether both refused. They may differ only over columns that were not asked for."""
    try:
        found = decode_points(data, sensor, limit_bytes=1 << 22)
    except DecodeError:
        found = None
    names = [field.name for field in sensor.fields if not field.shape]
    room = np.empty((len(found) if found is not None else 1 << 16, len(names)), np.float32)
    if names and (found is not None or data[:4] == b"HWP\x00"):
        try:
            count = decode_points_into(data, sensor, room, limit_bytes=1 << 16)
            assert found is None or count == len(found)
        except DecodeError:
            pass
    return found is None

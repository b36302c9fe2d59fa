"""Laws of the points codecs: any records come back, and no bytes at all are ever more than a DecodeError."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import kernel
from headway.formats.errors import DecodeError
from headway.formats.points import count_points, decode_points, decode_points_into, encode_points, maximum_error_m
from headway.formats.schema import Column, Sensor
from tests.laws.points_mutants import Records, column_values, mutate, radar

DTYPES = ("bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (), (), (3,), (2, 2))
# How a column's values come about: each steers the encoder to other layouts.
MAKERS = ("noise", "constant", "counter", "rounded", "hundredths", "walk", "beams", "odd")


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
@given(sensors_and_records())
def test_any_records_come_back_bit_for_bit(drawn: tuple[Sensor, Records]) -> None:
    sensor, records = drawn
    payload = encode_points(records, sensor)
    assert payload == encode_points(records.copy(), sensor)
    assert count_points(payload, sensor) == len(records)
    assert decode_points(payload, sensor).tobytes() == records.tobytes()
    assert len(payload) <= records.nbytes + 24 + 64 * sum(field.width for field in sensor.fields)


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
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
@pytest.mark.parametrize("native", ["0", ""])
def test_mutants_end_in_decode_error_or_an_array(native: str) -> None:
    """In a process of its own, where a crash of the native core is a failed test: 20,000 mutants, or 2,400 for numpy."""
    if not native and not kernel.available():
        pytest.skip("the native core is not built")
    environment = dict(os.environ, HEADWAY_NATIVE=native)
    command = [sys.executable, "-m", "tests.laws.points_mutants", "2400" if native else "20000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    seen = json.loads(done.stdout)
    assert seen["native"] == (native != "0")
    assert seen["refused"] > 0.4 * seen["mutants"] > 0


@pytest.mark.skipif(not kernel.available(), reason="the native core is not built")
def test_numpy_and_native_agree_on_every_mutant() -> None:
    answers = []
    for native in ("0", ""):
        command = [sys.executable, "-m", "tests.laws.points_mutants", "1000", "digest"]
        done = subprocess.run(
            command, env=dict(os.environ, HEADWAY_NATIVE=native), capture_output=True, text=True, timeout=100, check=True
        )
        answers.append(json.loads(done.stdout)["digest"])
    assert answers[0] == answers[1]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_arbitrary_bytes_end_in_decode_error_or_an_array(data: bytes) -> None:
    sensor, _ = radar(0)
    decode_or_refuse(data, sensor)
    decode_or_refuse(b"HWP\x00" + data, sensor)


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


@pytest.mark.full
def test_sanitizers_find_nothing() -> None:
    done = subprocess.run([sys.executable, "-m", "tests.sanitize_points"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr

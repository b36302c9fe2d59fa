"""Payload codecs give back what they were given, and refuse what they were not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from headway.formats import DecodeError, LimitExceeded, Payload, Sensor, UsageError, decode, encode
from headway.formats.codec import compress, decompress
from tests.formats.ramp import SCHEMA, equal_payloads

TEXT = SCHEMA.sensor("KEY")
ARRAY = SCHEMA.sensor("IMU")
TABLE = SCHEMA.sensor("BOX")


@given(st.text())
def test_text_round_trips(text: str) -> None:
    if not any(0xD800 <= ord(char) < 0xE000 for char in text):
        assert decode(TEXT, encode(TEXT, text)) == text


@given(hnp.arrays(np.float32, st.tuples(st.integers(0, 20), st.just(6))))
def test_arrays_round_trip_bit_for_bit(array: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
    assert equal_payloads(decode(ARRAY, encode(ARRAY, array)), array)


@given(
    rows=st.integers(0, 6),
    texts=st.lists(st.text(alphabet=st.characters(exclude_categories=["Cs"])), min_size=6, max_size=6),
    seed=st.integers(0, 99),
)
def test_tables_round_trip(rows: int, texts: list[str], seed: int) -> None:
    value: Payload = {
        "centre": np.random.default_rng(seed).normal(size=(rows, 3)),
        "track": texts[:rows],
        "category": np.arange(rows, dtype=np.int32),
    }
    assert equal_payloads(decode(TABLE, encode(TABLE, value)), value)


@pytest.mark.parametrize(
    ("sensor", "value"),
    [
        (TEXT, b"bytes"),
        (ARRAY, np.zeros((3, 6))),
        (ARRAY, np.zeros((3, 5), np.float32)),
        (TABLE, {"centre": np.zeros((1, 3))}),
        (TABLE, {"centre": np.zeros((1, 3)), "track": [], "category": np.zeros(1, np.int32)}),
        (TABLE, {"centre": np.zeros((1, 3)), "track": ["a"], "category": np.zeros(1, np.int64)}),
    ],
)
def test_values_that_do_not_fit_the_schema_are_refused(sensor: Sensor, value: Payload) -> None:
    with pytest.raises(UsageError, match=sensor.name):
        encode(sensor, value)


def test_declared_sizes_are_compared_before_decompressing() -> None:
    """python-zstandard ignores max_output_size when a frame declares its size."""
    bomb = zstandard.ZstdCompressor(level=3).compress(bytes(1 << 26))
    with pytest.raises(LimitExceeded, match="67108864"):
        decompress(bomb)
    with pytest.raises(LimitExceeded):
        decompress(compress(bytes(2000)), limit_bytes=1000)


def test_frames_without_size_are_refused_and_ours_have_size_and_checksum() -> None:
    """indygreg/python-zstandard#150"""
    stream = zstandard.ZstdCompressor(write_content_size=False).compressobj()
    frame = stream.compress(b"abc") + stream.flush()
    with pytest.raises(DecodeError, match="without content size"):
        decompress(frame)
    ours = zstandard.get_frame_parameters(compress(b"abc"))
    assert ours.content_size == 3
    assert ours.has_checksum


def test_a_second_frame_is_never_dropped_in_silence() -> None:
    """indygreg/python-zstandard#59, indygreg/python-zstandard#196: five frames of 1 MiB must not come back as 1 MiB."""
    with pytest.raises(DecodeError):
        decompress(compress(b"first") + compress(b"second"))
    with pytest.raises(DecodeError):
        decompress(b"".join(compress(bytes([k]) * (1 << 20)) for k in range(5)))


@pytest.mark.parametrize("level", [1, 3, 19])
@pytest.mark.parametrize("sized", [True, False])
@pytest.mark.parametrize("checked", [True, False])
@pytest.mark.parametrize("window_log", [None, 27, 28])
def test_frames_of_other_writers_are_read_or_refused_with_the_reason(
    level: int, sized: bool, checked: bool, window_log: int | None
) -> None:
    """sergey-dryabzhinsky/python-zstd#53: what `zstd` writes reading a pipe has no content size."""
    options: dict[str, Any] = {"write_content_size": sized, "write_checksum": checked}
    if window_log is None:
        compressor = zstandard.ZstdCompressor(level=level, **options)
    else:
        parameters = zstandard.ZstdCompressionParameters.from_level(level, window_log=window_log, **options)
        compressor = zstandard.ZstdCompressor(compression_params=parameters)
    data = b"what another program wrote " * 1000
    frame = compressor.compress(data)
    if not sized:
        with pytest.raises(DecodeError, match="without content size"):
            decompress(frame)
    elif zstandard.get_frame_parameters(frame).window_size > 1 << 27:
        with pytest.raises(LimitExceeded, match="window"):
            decompress(frame)
    else:
        assert decompress(frame) == data


@pytest.mark.parametrize("sensor", [TEXT, ARRAY, TABLE])
def test_damaged_payloads_raise_typed_errors(sensor: Sensor) -> None:
    values: dict[str, Payload] = {
        "KEY": "text",
        "IMU": np.ones((2, 6), np.float32),
        "BOX": {"centre": np.ones((2, 3)), "track": ["a", "ü"], "category": np.ones(2, np.int32)},
    }
    data = encode(sensor, values[sensor.name])
    for size in range(len(data)):
        with pytest.raises((DecodeError, LimitExceeded)):
            decode(sensor, data[:size])
    for at in range(8 * len(data)):
        bad = bytearray(data)
        bad[at // 8] ^= 1 << at % 8
        try:
            decode(sensor, bytes(bad))
        except (DecodeError, LimitExceeded):
            continue


@given(st.binary(max_size=200))
def test_any_content_of_a_frame_gives_a_value_or_a_typed_error(content: bytes) -> None:
    for sensor in (TEXT, ARRAY, TABLE):
        try:
            decode(sensor, compress(content))
        except DecodeError:
            continue


def test_images_stay_the_bytes_they_were() -> None:
    camera = SCHEMA.sensor("CAM")
    assert decode(camera, memoryview(encode(camera, b"\xff\xd8"))) == b"\xff\xd8"

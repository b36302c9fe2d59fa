"""The native marker walk and the one in Python come to the same facts, or the same error, whatever the bytes."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg
from hypothesis import given, settings
from hypothesis import strategies as st

from headway.formats import DecodeError, kernel
from headway.formats.jpeg import JpegFacts, scan

from .native_jobs import jpeg_with, needs_core

PICTURE = np.random.default_rng(0).integers(0, 255, (24, 40, 3), np.uint8)
BASELINE = simplejpeg.encode_jpeg(PICTURE, colorsubsampling="420")
EXIF = b"\xff\xe1\x00\x22Exif\0\0II*\0\x08\0\0\0\x01\0\x12\x01\x03\0\x01\0\0\0\x06\0\0\0\0\0\0\0"
ADOBE = b"\xff\xee\x00\x0eAdobe\0\x64\0\0\0\0\x01"
SEEDS = [
    BASELINE,
    jpeg_with(PICTURE, progressive=1),
    jpeg_with(PICTURE, rst_interval=1),
    BASELINE[:2] + EXIF + ADOBE + BASELINE[2:] + b"tail",
    BASELINE[:2] + b"\xff\xff\xd8junk\xff\x00\xff\x01" + BASELINE[2:],
]
MARKERS = [bytes((0xFF, code)) for code in (0x00, 0x01, 0xC0, 0xC2, 0xC4, 0xD0, 0xD8, 0xD9, 0xDA, 0xDC, 0xDD, 0xE1, 0xEE, 0xFF)]
CODES = st.sampled_from(MARKERS) | st.binary(min_size=1, max_size=3)


def found_by(data: bytes, *, native: bool) -> JpegFacts | str:
    with pytest.MonkeyPatch.context() as patch:
        if not native:
            patch.setattr(kernel, "available", lambda: False)
        try:
            return scan(data)
        except DecodeError as error:
            assert str(error).startswith("expected")  # noqa: PT017  both outcomes are right
            return str(error)


@needs_core
@pytest.mark.parametrize("data", SEEDS, ids=["baseline", "progressive", "restarts", "segments", "junk"])
def test_whole_files(data: bytes) -> None:
    facts = found_by(data, native=True)
    assert isinstance(facts, JpegFacts)
    assert facts == found_by(data, native=False)
    assert kernel.jpeg_scan(data) is not None
    assert kernel.jpeg_scan(memoryview(data)) is not None


def test_facts_of_the_segments_are_read() -> None:
    facts = scan(SEEDS[3])
    assert (facts.orientation, facts.adobe_transform, facts.trailing_bytes) == (6, 1, 4)


@needs_core
@settings(max_examples=1500)
@given(
    seed=st.sampled_from(SEEDS),
    edits=st.lists(st.tuples(st.integers(0, 5000) | st.integers(0, 200), CODES), max_size=4),
    cut=st.none() | st.integers(0, 5000),
)
def test_any_damage(seed: bytes, edits: list[tuple[int, bytes]], cut: int | None) -> None:
    data = bytearray(seed)
    for at, code in edits:
        data[at % len(data) : at % len(data) + len(code)] = code
    damaged = bytes(data[:cut])
    assert found_by(damaged, native=True) == found_by(damaged, native=False)


@needs_core
@pytest.mark.full
def test_every_cut_and_every_byte_of_a_small_file() -> None:
    for data in SEEDS:
        for at in range(len(data)):
            for damaged in (data[:at], *(data[:at] + bytes((value,)) + data[at + 1 :] for value in (0, 1, 0xD9, 0xDA, 0xFF))):
                assert found_by(damaged, native=True) == found_by(damaged, native=False)

"""The marker walk takes whole JPEG files, and says what it found instead of one."""

from __future__ import annotations

import numpy as np
import pytest
import simplejpeg

from headway.formats import DecodeError, Limits, kernel
from headway.formats.jpeg import scan

PICTURE = np.random.default_rng(0).integers(0, 255, (24, 40, 3), np.uint8)


@pytest.fixture(autouse=True, params=["native", "python"])
def walk(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything by either walk."""
    if request.param == "python":
        monkeypatch.setattr(kernel, "available", lambda: False)
    elif not kernel.available():
        pytest.skip("the native core is not built here")


@pytest.mark.parametrize(("subsampling", "name"), [("444", "4:4:4"), ("422", "4:2:2"), ("420", "4:2:0"), ("440", "4:4:0")])
def test_facts_of_a_plain_file(subsampling: str, name: str) -> None:
    facts = scan(simplejpeg.encode_jpeg(PICTURE, colorsubsampling=subsampling))
    assert (facts.width, facts.height, facts.components, facts.precision) == (40, 24, 3, 8)
    assert facts.subsampling == name
    assert (facts.progressive, facts.arithmetic, facts.orientation, facts.trailing_bytes) == (False, False, 1, 0)


def test_grey_and_trailing_bytes() -> None:
    data = simplejpeg.encode_jpeg(np.ascontiguousarray(PICTURE[..., :1]), colorspace="GRAY") + b"tail"
    facts = scan(data)
    assert (facts.subsampling, facts.trailing_bytes) == ("grey", 4)


@pytest.mark.parametrize(
    ("data", "found"),
    [
        (b"", "an empty file"),
        (bytes(1000), "1000 bytes, the first 1000 of them zero"),
        (b"<html><body>404 Not Found", "markup"),
        (b"\x89PNG\r\n\x1a\n", "a PNG file"),
        (b"version https://git-lfs.github.com/spec/v1\noid", "a Git LFS pointer"),
        (b"\x00\x01\x02\x03", "0x00010203"),
        (b"\xff\xd8", "cut short before its first scan"),
        (b"\xff\xd8\xff\xd9", "0 scans"),
    ],
)
def test_what_is_no_jpeg_is_named(data: bytes, found: str) -> None:
    with pytest.raises(DecodeError, match=found):
        scan(data)


def test_every_truncation_is_found() -> None:
    data = simplejpeg.encode_jpeg(PICTURE)
    for size in range(len(data)):
        with pytest.raises(DecodeError):
            scan(data[:size])


def test_giant_sizes_are_refused() -> None:
    data = bytearray(simplejpeg.encode_jpeg(PICTURE))
    at = data.index(b"\xff\xc0")
    data[at + 5 : at + 9] = b"\xff\xdc\xff\xdc"
    with pytest.raises(DecodeError, match=r"Limits\.image_pixels"):
        scan(bytes(data))
    with pytest.raises(DecodeError):
        scan(simplejpeg.encode_jpeg(PICTURE), limits=Limits(image_pixels=100))


@pytest.mark.parametrize(("order", "value"), [("<", 6), (">", 3)])
def test_exif_orientation_is_read_in_both_byte_orders(order: str, value: int) -> None:
    import struct

    mark = b"II*\0" if order == "<" else b"MM\0*"
    tiff = mark + struct.pack(order + "IHHHIHH", 8, 1, 0x0112, 3, 1, value, 0)
    segment = b"Exif\0\0" + tiff
    data = simplejpeg.encode_jpeg(PICTURE)
    data = data[:2] + b"\xff\xe1" + struct.pack(">H", len(segment) + 2) + segment + data[2:]
    assert scan(data).orientation == value

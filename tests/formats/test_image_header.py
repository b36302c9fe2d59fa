"""Size and depth of encoded images from their first bytes: the one reader of image headers."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg

from headway.formats import DecodeError, Limits
from headway.formats.image_header import codec_of, image_header, image_size


@pytest.mark.real
def test_size_is_read_from_any_jpeg(real_data: Path) -> None:
    sizes = {
        "progressive_420_q90.jpg": (1600, 900),
        "odd_size_1599x899_q85.jpg": (1599, 899),
        "cmyk_1600x900_q75.jpg": (1600, 900),
        "truncated_50pct.jpg": (1600, 900),
    }
    for name, size in sizes.items():
        assert image_size((real_data / "jpeg_odd" / "derived" / name).read_bytes(), "jpeg") == size
    for name in ("png_named_jpg.jpg", "empty.jpg"):
        with pytest.raises(DecodeError):
            image_size((real_data / "jpeg_odd" / "derived" / name).read_bytes(), "jpeg")


@pytest.mark.parametrize(
    ("dtype", "channels", "bits", "colour"),
    [("uint8", 1, 8, 0), ("uint8", 3, 8, 2), ("uint8", 4, 8, 6), ("uint16", 1, 16, 0), ("uint16", 3, 16, 2)],
)
def test_png_header_states_size_depth_and_channels(dtype: str, channels: int, bits: int, colour: int) -> None:
    data = bytes(cv2.imencode(".png", np.zeros((5, 7, channels), dtype))[1])
    found = image_header(data, "png")
    assert (found.width, found.height, found.bits, found.channels, found.colour_type) == (7, 5, bits, channels, colour)
    assert codec_of(data) == "png"


def test_sixteen_bits_are_refused_only_by_who_cannot_keep_them() -> None:
    data = bytes(cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1])
    assert image_size(data, "png") == (4, 4)
    with pytest.raises(DecodeError, match="8 bits a channel, found 16"):
        image_size(data, "png", most_bits=8)


def test_a_giant_of_three_hundred_bytes_is_refused_at_once() -> None:
    """lyuwenyu/RT-DETR#337: the limit is raised for one reader by option, never switched off."""
    data = bytearray(simplejpeg.encode_jpeg(np.zeros((8, 8, 3), np.uint8)))
    at = data.index(b"\xff\xc0") + 5
    data[at : at + 4] = b"\xff\xdc\xff\xdc"
    with pytest.raises(DecodeError, match="65500 × 65500"):
        image_size(bytes(data), "jpeg")
    assert image_size(bytes(data), "jpeg", Limits(image_side=65_535, image_pixels=1 << 33)) == (65_500, 65_500)


@pytest.mark.parametrize("data", [b"", b"\x00", b"GIF89a" + bytes(40), b"\x89PNG\r\n\x1a\n", b"\xff\xd8"])
def test_what_has_no_header_is_an_error(data: bytes) -> None:
    for codec in ("jpeg", "png"):
        with pytest.raises(DecodeError):
            image_header(data, codec)

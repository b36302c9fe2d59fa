"""Field reports about decoding and checking images, each as a case of its own."""

from __future__ import annotations

import hashlib
import resource
import struct
import zlib
from pathlib import Path

import cv2
import numpy as np
import pytest
import simplejpeg

from headway.formats import Limits, SourceError, kernel, open_set
from headway.formats.image_check import check_decodes, decode_pixels
from tests.formats.native_jobs import IDENTITY, decode
from tests.formats.test_image_edit import Cameras, bad_marker, jpeg, packed_cameras, png, turned


def turned_png(data: bytes, orientation: int) -> bytes:
    """The PNG with an eXIf chunk after its header."""
    exif = b"MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    chunk = struct.pack(">I", len(exif)) + b"eXIf" + exif + struct.pack(">I", zlib.crc32(b"eXIf" + exif))
    return data[:33] + chunk + data[33:]


@pytest.mark.parametrize("orientation", range(1, 9))
def test_no_orientation_turns_pixels(orientation: int, tmp_path: Path) -> None:
    """opencv/opencv#8172, opencv/opencv#8854: which call, and which version, decided whether a picture was rotated."""
    np.testing.assert_array_equal(decode_pixels(turned(jpeg(), orientation), "jpeg"), decode_pixels(jpeg(), "jpeg"))
    np.testing.assert_array_equal(decode_pixels(turned_png(png(), orientation), "png"), decode_pixels(png(), "png"))
    packed_cameras(Cameras([turned_png(png(), orientation)], codec="png"), tmp_path / "set", check_images="decode")
    with open_set(tmp_path / "set") as packed:
        assert packed.timeline("CAM").take("png_orientation", np.array([0])).tolist() == [orientation]


def test_one_giant_costs_one_row_not_all(tmp_path: Path) -> None:
    """huggingface/dataset-viewer#1192."""
    giant = bytearray(jpeg())
    at = giant.index(b"\xff\xc0") + 5
    giant[at : at + 4] = b"\xff\xdc\xff\xdc"
    images = [jpeg()] * 4 + [bytes(giant)] + [jpeg()] * 5
    report = packed_cameras(Cameras(images), tmp_path / "set", bad_images="reject")
    assert [problem.path for problem in report.rejected] == ["image 4"]
    assert "65500 × 65500" in report.rejected[0].reason
    with open_set(tmp_path / "set") as packed:
        assert len(packed.timeline("CAM")) == 9


def test_the_limit_is_raised_for_one_set_only(tmp_path: Path) -> None:
    """lyuwenyu/RT-DETR#337: no switch that takes the limit away for good."""
    tight = Limits(image_pixels=1000)
    with pytest.raises(SourceError, match="at most 1000 px"):
        packed_cameras(Cameras([jpeg()]), tmp_path / "tight", limits=tight)
    packed_cameras(Cameras([jpeg()]), tmp_path / "loose")


@pytest.mark.slow
def test_refusing_malformed_images_leaks_nothing() -> None:
    """pytorch/vision#9383: memory of a decoder that left by its error path was never given back."""
    bad = [jpeg()[:-400], bad_marker(), jpeg()[:200], b"\xff\xd8\xff", bytes(cv2.imencode(".png", np.zeros((9, 9)))[1])[:-9]]

    def round_of(times: int) -> int:
        for _ in range(times):
            for data in bad:
                with pytest.raises(ValueError, match="expected"):
                    check_decodes(data, "png" if data[:1] == b"\x89" else "jpeg")
        if kernel.available():
            decode(bad[:4] * times, IDENTITY, kernel.Target(width=8, height=8))
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    warm = round_of(100)
    assert round_of(700) - warm < 20_000, "KiB of growth after the warm-up"


PIXELS = {"444": "f8423dbc0e570190", "422": "f856892e8782848d", "420": "79c152ba14735277", "440": "4e7a6a79e0482b59"}
"""SHA-256 of decoded pixels, first 16 digits: libjpeg-turbo 3, the same with and without SIMD."""


@pytest.mark.parametrize("subsampling", PIXELS)
def test_pixels_of_jpegs_do_not_change_with_a_library(subsampling: str) -> None:
    """opencv/opencv#8854: an upgrade changed pictures, and nothing noticed."""
    down, across = np.mgrid[0:40, 0:56]
    colours = np.stack([across * 4, down * 6, (across * down) % 256], -1).astype(np.uint8)
    data = bytes(simplejpeg.encode_jpeg(colours, quality=90, colorsubsampling=subsampling))
    assert hashlib.sha256(decode_pixels(data, "jpeg").tobytes()).hexdigest()[:16] == PIXELS[subsampling]

"""Decoders put the picture that the affine asks for where the job says, or say why not; all of them alike."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from headway.formats import DecodeError, kernel
from headway.formats.image_header import image_size
from headway.formats.integrity import payload_hash
from headway.loader.decode import BROKEN, MISMATCH, Decoder, ImageJobs, PortableDecoder, level_table
from headway.loader.images import Images
from headway.loader.native_decode import NativeDecoder
from tests.formats.native_jobs import jpeg, picture, psnr, reference, triangle

FLOOR_DB = 38.0
"""Stated tolerance of scaled decoding on real images: any decoder against a float64 area reference, and any two decoders."""
HARSH_DB = 36.0
"""The same for the synthetic picture, whose grain and hard edges cameras do not have."""

_NUMPY = {"uint8": np.uint8, "float16": np.float16, "bfloat16": np.uint16, "float32": np.float32}


def png(image: NDArray[np.uint8]) -> bytes:
    return bytes(cv2.imencode(".png", image[..., ::-1])[1])


def jobs(data: list[bytes], look: Images, codec: str = "jpeg") -> ImageJobs:
    assert look.size is not None
    shape = (3, *look.size) if look.layout == "chw" else (*look.size, 3)
    places = 2 * len(data)
    return ImageJobs(
        data=[memoryview(each) for each in data],
        hashes=np.array([payload_hash(each) for each in data], np.uint64),
        codecs=[codec] * len(data),
        affine=np.stack([look.affine(*image_size(each, codec))[:2] for each in data]),
        out=np.full((places, *shape), 77, _NUMPY[look.dtype]),
        index=np.arange(len(data), dtype=np.int64)[::-1] * 2,  # neither in order nor dense
        look=look,
    )


def pixels(decoder: Decoder, data: list[bytes], look: Images, codec: str = "jpeg") -> NDArray[Any]:
    """Decode images that must be fine to (n, H, W, 3)."""
    work = jobs(data, look, codec)
    status = decoder.decode(work)
    assert (status < BROKEN).all(), work.messages
    untouched = np.setdiff1d(np.arange(len(work.out)), work.index)
    assert (work.out[untouched] == 77).all()
    found: NDArray[Any] = work.out[work.index]
    return found.transpose(0, 2, 3, 1) if look.layout == "chw" else found


def test_own_size_is_the_reference_decoders_picture(decoder: Decoder) -> None:
    data = [jpeg(picture(97, 131, seed)) for seed in range(3)]
    found = pixels(decoder, data, Images("*", size=(97, 131)))
    for each, encoded in zip(found, data, strict=True):
        assert np.abs(each - reference(encoded)).max() <= 1


@pytest.mark.parametrize("size", [(64, 176), (150, 300), (113, 90), (400, 700)])
@pytest.mark.parametrize("fit", ["crop", "stretch"])
def test_scaled_pictures_stay_close_to_an_area_reference(decoder: Decoder, size: tuple[int, int], fit: Any) -> None:
    look = Images("*", size=size, fit=fit)
    data = [jpeg(picture(225, 400, 1))]
    (found,) = pixels(decoder, data, look)
    expected = triangle(reference(data[0]), look.affine(400, 225)[:2].tolist(), size[1], size[0])
    assert psnr(found, expected) >= HARSH_DB


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.parametrize("size", [(256, 704), (396, 704), (128, 352), (90, 160)])
def test_real_images_stay_close_to_an_area_reference(decoder: Decoder, real_nuscenes: Path, size: tuple[int, int]) -> None:
    data = [path.read_bytes() for path in sorted(real_nuscenes.glob("samples/CAM_*/*.jpg"))[:3]]
    look = Images("*", size=size)
    affine = look.affine(1600, 900)[:2].tolist()
    for found, encoded in zip(pixels(decoder, data, look), data, strict=True):
        assert psnr(found, triangle(reference(encoded), affine, size[1], size[0])) >= FLOOR_DB


@pytest.mark.skipif(not kernel.available(), reason="the native core is not built here")
@pytest.mark.parametrize("fit", ["crop", "letterbox", "stretch"])
@pytest.mark.parametrize("size", [(90, 250), (140, 100), (300, 300)])
def test_both_decoders_give_the_same_picture(size: tuple[int, int], fit: Any) -> None:
    look = Images("*", size=size, fit=fit, fill=90)
    data = [jpeg(picture(225, 400, 3))]
    (one,), (other,) = pixels(PortableDecoder(), data, look), pixels(NativeDecoder(), data, look)
    assert psnr(one, other.astype(np.float64)) >= HARSH_DB


def test_a_letterbox_is_filled_exactly_outside_the_picture(decoder: Decoder) -> None:
    (found,) = pixels(
        decoder, [jpeg(np.full((50, 100, 3), 200, np.uint8))], Images("*", size=(100, 100), fit="letterbox", fill=7)
    )
    assert (found[:50] == 7).all()
    assert (np.abs(found[50:].astype(int) - 200) <= 1).all()


def test_png_goes_into_the_same_places(decoder: Decoder) -> None:
    image = picture(40, 60)
    (found,) = pixels(decoder, [png(image)], Images("*", size=(40, 60)), "png")
    assert (found == image).all()


@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_floats_are_normalised_levels(decoder: Decoder, layout: Any, dtype: Any, tolerance: float) -> None:
    look = Images("*", size=(33, 47), dtype=dtype, layout=layout, mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    data = [jpeg(picture(33, 47))]
    (found,) = pixels(decoder, data, look)
    if dtype == "bfloat16":
        found = torch.from_numpy(found.copy().view(np.int16)).view(torch.bfloat16).float().numpy()
    (level,) = pixels(decoder, data, replace(look, dtype="uint8", mean=(0, 0, 0), std=(1, 1, 1)))
    expected = (level - np.array(look.mean)) / np.array(look.std)
    # The native core rounds once, after normalising: half a level apart at most.
    np.testing.assert_allclose(found, expected, atol=tolerance + 0.51 / 57)


def test_bfloat16_levels_are_rounded_as_torch_rounds() -> None:
    look = Images("*", dtype="bfloat16", mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    exact = level_table(replace(look, dtype="float32"))
    bits = torch.from_numpy(exact).to(torch.bfloat16).view(torch.int16).numpy().view(np.uint16)
    assert (level_table(look) == bits).all()


@pytest.mark.parametrize("damage", ["cut", "header only", "zeros"])
def test_a_bad_picture_fails_alone_and_says_why(decoder: Decoder, damage: str) -> None:
    good = jpeg(picture(64, 64))
    bad = {"cut": good[: len(good) // 2], "header only": good[:300], "zeros": good[:700] + bytes(len(good) - 700)}[damage]
    work = jobs([good, bad, good], Images("*", size=(64, 64)))
    status = decoder.decode(work)
    assert (status >= BROKEN).tolist() == [False, True, False] or damage == "zeros"
    if status[1] >= BROKEN:
        assert work.messages[1]
    assert np.abs(work.out[work.index[2]].transpose(1, 2, 0) - reference(good)).max() <= 1


def test_bytes_that_are_not_those_hashed_are_no_picture(decoder: Decoder) -> None:
    good = jpeg(picture(64, 64))
    work = jobs([good, good], Images("*", size=(64, 64)))
    work.hashes[0] ^= np.uint64(1)
    assert decoder.decode(work).tolist() == [MISMATCH, 0]


@pytest.mark.parametrize(
    ("data", "codec", "found"),
    [
        (b"", "jpeg", "no bytes"),
        (b"\x00\x00\x00\x00", "jpeg", "0x0000"),
        (b"\xff\xd8\xff\xd9\x00\x00", "jpeg", "0xFFD9"),
        (b"\xff\xd8\xff\xe0\x00\x10", "jpeg", "end of the data"),
        (b"GIF89a" + bytes(30), "png", "GIF89a"),
        (bytes(cv2.imencode(".png", np.zeros((4, 4), np.uint16))[1]), "png", "8 bits a channel, found 16"),
    ],
)
def test_sizes_of_what_is_no_image_are_errors_that_say_what_was_found(data: bytes, codec: str, found: str) -> None:
    with pytest.raises(DecodeError, match=found):
        image_size(data, codec, most_bits=8)


def test_sizes_above_the_limit_are_refused_before_anything_is_allocated() -> None:
    huge = bytearray(jpeg(picture(16, 16)))
    at = huge.index(b"\xff\xc0") + 5
    huge[at : at + 4] = b"\xff\xff\xff\xff"
    with pytest.raises(DecodeError, match="65535 × 65535"):
        image_size(bytes(huge), "jpeg")

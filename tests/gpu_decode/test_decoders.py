"""Every decoder that this machine has gives the loader's picture, takes odd images alike, and lets a bad one fail alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import cv2
import numpy as np
import pytest
import torch

from headway.formats import UsageError
from headway.formats.image_header import image_size
from headway.formats.integrity import payload_hash
from headway.gpu_decode import ResizeCropFlip, choose_decoder
from headway.gpu_decode.choose import Capability, capabilities
from headway.gpu_decode.handover import Handover, why_not
from headway.gpu_decode.resample import finish, resample
from headway.gpu_decode.sampling import sample
from headway.loader.decode import BROKEN, MISMATCH, OK, Decoder, ImageJobs, PortableDecoder
from headway.loader.draws import key
from headway.loader.images import Images
from tests.formats.native_jobs import jpeg, jpeg_with, picture, psnr, reference, triangle
from tests.loader.test_decode import jobs, png

DEVICE = (
    "dali-cpu",
    "nvimgcodec-cpu",
    *(pytest.param(name, marks=pytest.mark.gpu) for name in ("dali-gpu", "nvimgcodec-gpu", "torchvision-cuda")),
)
EXACT_DB = 48.0
"""Against the float64 area reference: these resample with the same filter, and round twice."""
ROTATED_DB = 33.0
"""Between backends, with rotation: the CPU decoders oversample, these shrink first and then warp."""
ROTATED: Any = ResizeCropFlip(resize=(0.3, 0.6), rotate_deg=(-10, 10))


@pytest.fixture(params=DEVICE)
def device(request: pytest.FixtureRequest) -> Iterator[Any]:
    name = str(request.param)
    found = next(each for each in capabilities() if each.name == name)
    if not found.usable:
        pytest.skip(f"{name}: {found.why}")
    decoder: Any = choose_decoder(name)
    decoder.start(1)
    yield decoder
    if hasattr(decoder, "close"):
        decoder.close()


def drawn(data: list[bytes], look: Images, policy: Any = ROTATED) -> ImageJobs:
    work = jobs(data, look)
    assert look.size is not None
    fitted = np.concatenate([work.affine, np.tile([[[0.0, 0, 1]]], (len(data), 1, 1))], 1)
    source = np.array([image_size(each, "jpeg") for each in data])
    keys = key(5, 0, np.arange(len(data)), 0, "look")
    work.affine = np.ascontiguousarray(policy.affines(fitted, source=source, target=look.size, keys=keys)[:, :2])
    return work


def pictures(decoder: Decoder, work: ImageJobs) -> np.ndarray[Any, Any]:
    work.out[:] = 77
    status = decoder.decode(work)
    assert (status < BROKEN).all(), work.messages
    untouched = np.setdiff1d(np.arange(len(work.out)), work.index)
    assert (work.out[untouched] == 77).all()
    found: np.ndarray[Any, Any] = work.out[work.index]
    return found.transpose(0, 2, 3, 1) if work.look.layout == "chw" else found


@pytest.mark.slow
@pytest.mark.parametrize("fit", ["crop", "letterbox", "stretch"])
@pytest.mark.parametrize("size", [(64, 176), (150, 300), (300, 300)])
def test_upright_pictures_match_the_area_reference(device: Any, size: tuple[int, int], fit: Any) -> None:
    look = Images("*", size=size, fit=fit, fill=90)
    data = [jpeg(picture(225, 400, 1))]
    (found,) = pictures(device, jobs(data, look))
    affine = look.affine(400, 225)[:2]
    expected = triangle(reference(data[0]), affine.tolist(), size[1], size[0])
    x, y = (np.arange(size[1]) + 0.5 - affine[0, 2]) / affine[0, 0], (np.arange(size[0]) + 0.5 - affine[1, 2]) / affine[1, 1]
    inside = ((y > 0) & (y < 225))[:, None] & ((x > 0) & (x < 400))
    assert psnr(found[inside], expected[inside]) >= EXACT_DB
    assert (found[~inside] == 90).all()
    assert device.counts.device == 1


@pytest.mark.slow
def test_drawn_affines_give_the_cpu_decoders_picture(device: Any) -> None:
    look = Images("*", size=(128, 300), fill=50)
    work = drawn([jpeg(cv2.GaussianBlur(picture(450, 800, seed), (0, 0), 2)) for seed in range(4)], look)
    found, expected = pictures(device, work), pictures(PortableDecoder(), work)
    for one, other in zip(found, expected, strict=True):
        assert psnr(one, other.astype(np.float64)) >= ROTATED_DB
    assert device.counts.device == 4


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["chw", "hwc"])
@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 1e-5), ("float16", 2e-3), ("bfloat16", 2e-2)])
def test_floats_are_normalised_levels(device: Any, layout: Any, dtype: Any, tolerance: float) -> None:
    data = [jpeg(picture(33, 47))]
    plain = Images("*", size=(33, 47), layout=layout)
    look = Images("*", size=(33, 47), dtype=dtype, layout=layout, mean=(123.7, 116.3, 103.5), std=(58.4, 57.1, 57.4))
    found, levels = pictures(device, jobs(data, look)), pictures(device, jobs(data, plain))
    if dtype == "bfloat16":
        found = torch.from_numpy(found.copy().view(np.int16)).view(torch.bfloat16).float().numpy()
    np.testing.assert_allclose(found, (levels - np.array(look.mean)) / np.array(look.std), atol=tolerance)


@pytest.mark.slow
def test_odd_images_are_decoded_or_handed_on_in_the_same_batch(device: Any) -> None:
    image = picture(64, 96)
    data = {
        "plain": jpeg(image),
        "4:4:4": jpeg(image, "444"),
        "4:2:2": jpeg(image, "422"),
        "4:4:0": jpeg(image, "440"),
        "4:1:1": jpeg(image, "411"),
        "grey": jpeg(image, "gray"),
        "progressive": jpeg_with(image, progressive=1),
        "restarts": jpeg_with(image, rst_interval=2),
        "trailing bytes": jpeg(image) + b"after the end",
        "png": png(image),
    }
    work = _mixed(data)
    found, expected = pictures(device, work), pictures(PortableDecoder(), work)
    for name, one, other in zip(data, found, expected, strict=True):
        # Chroma upsampling of 4:4:0 and 4:1:1 differs between builds of libjpeg.
        assert np.abs(one.astype(int) - other).max() <= (8 if name in ("4:4:0", "4:1:1") else 2), name
    assert device.counts.odd >= 2


def _mixed(data: dict[str, bytes]) -> ImageJobs:
    look = Images("*", size=(64, 96))
    return ImageJobs(
        data=[memoryview(each) for each in data.values()],
        hashes=np.array([payload_hash(each) for each in data.values()], np.uint64),
        codecs=["png" if name == "png" else "jpeg" for name in data],
        affine=np.tile(np.eye(3)[:2], (len(data), 1, 1)),
        out=np.zeros((len(data) + 1, 3, 64, 96), np.uint8),
        index=np.arange(len(data), dtype=np.int64)[::-1].copy(),
        look=look,
    )


@pytest.mark.slow
def test_orientation_tags_turn_no_pixels(device: Any) -> None:
    """Every decoder leaves pixels as they are stored: calibration is the sensor's, whatever EXIF says."""
    image = picture(40, 60)
    plain = jpeg(image)
    exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0"
    tagged = plain[:2] + b"\xff\xe1" + (len(exif) + 2).to_bytes(2, "big") + exif + plain[2:]
    one, other = pictures(device, jobs([plain, tagged], Images("*", size=(40, 60))))
    assert (one == other).all()
    assert device.counts.device == 2


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["cut", "tables", "scan", "garbage"])
def test_a_bad_image_fails_alone(device: Any, damage: str) -> None:
    good = jpeg(picture(64, 96))
    at = good.rindex(b"\xff\xda") + 40
    table = good.index(b"\xff\xc4") + 5
    bad = {
        "cut": good[: len(good) // 2],
        "tables": good[:table] + b"\xff" * 16 + good[table + 16 :],  # whole by its markers, impossible Huffman codes
        "scan": good[:at] + b"\xff\x0b" + bytes(60) + good[-2:],  # a marker that is none
        "garbage": bytes(range(256)) * 8,
    }[damage]
    look = Images("*", size=(64, 96))
    work = _mixed({"a": good, "b": bad, "c": good})
    status = device.decode(work)
    expected = PortableDecoder().decode(_mixed({"a": good, "b": bad, "c": good}))
    assert status[0] < BROKEN
    assert status[2] < BROKEN
    assert (status[1] >= BROKEN) == (expected[1] >= BROKEN)
    assert device.counts.device == 2
    assert (device.counts.refused, device.counts.odd) == ((1, 0) if damage == "tables" else (0, 1))
    assert device.counts.rebuilt == int(damage == "tables" and device.name.startswith("dali"))
    if status[1] >= BROKEN:
        assert work.messages[1]
    assert np.abs(work.out[work.index[0]].astype(int) - work.out[work.index[2]]).max() == 0
    # It goes on working.
    again = pictures(device, jobs([good], look))
    assert np.abs(again[0].astype(int) - reference(good)).max() <= 2


@pytest.mark.slow
def test_data_that_end_early_pass_unnoticed_where_the_library_only_warns(device: Any) -> None:
    """A known limit, pinned: an entropy-coded segment that ends early before its end marker is grey from there on.

    The CPU decoders refuse it; DALI and nvImageCodec say nothing. Packing decodes every image whole and rejects it.
    """
    good = jpeg(picture(64, 96))
    work = _mixed({"short": good[: len(good) // 2] + good[-2:]})
    assert PortableDecoder().decode(work)[0] >= BROKEN
    assert device.decode(work)[0] == OK


@pytest.mark.slow
def test_bytes_that_are_not_what_was_hashed_are_told_apart(device: Any) -> None:
    work = _mixed({"a": jpeg(picture(64, 96)), "b": jpeg(picture(64, 96, 1))})
    work.hashes[1] ^= np.uint64(1)
    assert device.decode(work).tolist() == [OK, MISMATCH]


def test_torch_resampling_is_the_area_reference_with_and_without_a_flip() -> None:
    image = picture(120, 200)
    for flip in (False, True):
        affine = np.array([[-0.31 if flip else 0.31, 0, 62.0 if flip else 1.3], [0, 0.31, -3.7]])
        sampling = sample(affine, source=(200, 120), target=(30, 70))
        top, left = sampling.start
        part = torch.from_numpy(image[top : top + sampling.shape[0], left : left + sampling.shape[1]].copy())
        found = resample(part, sampling, target=(30, 70), fill=9.0).permute(1, 2, 0).numpy()
        expected = triangle(image.astype(np.float64), affine.tolist(), 70, 30)
        shown = (found != 9).any(-1)
        assert psnr(found[shown], expected[shown]) >= 55
        assert 0.4 < shown.mean() < 1


def test_a_picture_out_of_sight_is_all_fill() -> None:
    sampling = sample(np.array([[1.0, 0, 500], [0, 1, 0]]), source=(40, 30), target=(20, 20))
    part = torch.zeros((*sampling.shape, 3), dtype=torch.uint8)
    assert (resample(part, sampling, target=(20, 20), fill=7.0) == 7).all()


def test_finishing_rounds_levels_and_normalises_floats() -> None:
    levels = torch.tensor([0.4, 254.6, 300.0])[:, None, None].expand(3, 2, 2)
    assert finish(levels, mean=(0, 0, 0), std=(1, 1, 1), dtype="uint8")[:, 0, 0].tolist() == [0, 255, 255]
    found = finish(levels, mean=(1, 2, 3), std=(2, 2, 2), dtype="float32", layout="hwc")
    torch.testing.assert_close(found[0, 0], torch.tensor([-0.3, 126.3, 148.5]))


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (jpeg(picture(16, 16)), ""),
        (jpeg(picture(16, 16))[:200], "cut"),
        (b"", "start"),
        (jpeg(picture(16, 16)) + b"x", "after its segments"),
    ],
)
def test_validation_says_why_an_image_is_handed_on(data: bytes, why: str) -> None:
    assert why in why_not(data, "jpeg")
    assert bool(why) == bool(why_not(data, "jpeg"))


def test_png_and_progressive_are_handed_on_where_asked() -> None:
    assert why_not(png(picture(8, 8)), "png")
    assert why_not(jpeg_with(picture(8, 8), progressive=1), "jpeg", progressive=False) == "progressive"


def test_what_a_device_refuses_goes_to_the_cpu_and_is_counted() -> None:
    handover = Handover(PortableDecoder())
    work = _mixed({"a": jpeg(picture(64, 96)), "b": jpeg(picture(64, 96, 1)), "png": png(picture(64, 96))})
    status = handover.run(work, lambda jobs, chosen: np.zeros(len(chosen), np.bool_))
    assert status.tolist() == [OK, OK, OK]
    assert (handover.counts.device, handover.counts.odd, handover.counts.refused) == (0, 1, 2)


def test_the_probe_says_of_each_why_or_what() -> None:
    found = capabilities()
    assert all(isinstance(each, Capability) and each.why for each in found)
    assert found[-1].usable
    triton = next(each for each in found if each.name == "triton")
    assert triton.usable or "plain torch does the same" in triton.why
    assert choose_decoder("auto").name in ("native", "portable") or torch.cuda.is_available()
    with pytest.raises(UsageError, match="there is no decoder 'gpu9'"):
        choose_decoder("gpu9")
    if not torch.cuda.is_available():
        with pytest.raises(UsageError, match="not usable here"):
            choose_decoder("dali-gpu")

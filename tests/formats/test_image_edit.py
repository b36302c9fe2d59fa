"""Images are kept bit for bit, or changed on request with intrinsics that stay true; and checked as far as is asked."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from headway.formats import (
    PACK_AFFINE,
    Camera,
    Column,
    DriveListing,
    ImageEdit,
    PackOptions,
    Schema,
    Sensor,
    SourceDrive,
    SourceError,
    SourceTimeline,
    UsageError,
    open_set,
    pack,
)
from headway.formats.adapters import SourceSpec
from headway.formats.image_check import check_decodes
from headway.formats.image_edit import affine_of, edit_image
from headway.formats.limits import DEFAULT_LIMITS

WIDTH, HEIGHT = 160, 120
K = np.array([[200.0, 0.0, 80.0], [0.0, 210.0, 60.0], [0.0, 0.0, 1.0]])
POINT = np.array([0.35, -0.15, 2.5])
"""A point in front of the camera (x right, y down, z forward), metres, drawn as a bright spot."""


def spot(k: NDArray[np.float64]) -> NDArray[np.float64]:
    """Pixel of the known point: (x, y), centres at +0.5."""
    projected = k @ POINT
    return np.asarray(projected[:2] / projected[2])


def scene() -> NDArray[np.uint8]:
    picture = np.full((HEIGHT, WIDTH, 3), 40, np.float64)
    x, y = spot(K)
    across, down = np.meshgrid(np.arange(WIDTH) + 0.5, np.arange(HEIGHT) + 0.5)
    picture += 200 * np.exp(-((across - x) ** 2 + (down - y) ** 2) / (2 * 4.0**2))[..., None]
    return picture.round().astype(np.uint8)


def centre_of_light(picture: NDArray[Any]) -> NDArray[np.float64]:
    light = picture.astype(np.float64).reshape(*picture.shape[:2], -1).mean(2) - 45
    light = np.clip(light, 0, None)
    across, down = np.meshgrid(np.arange(picture.shape[1]) + 0.5, np.arange(picture.shape[0]) + 0.5)
    return np.asarray(np.array([(across * light).sum(), (down * light).sum()]) / light.sum())


def jpeg(subsampling: str = "422") -> bytes:
    return bytes(simplejpeg.encode_jpeg(scene(), quality=92, colorsubsampling=subsampling))


def png(dtype: str = "uint8", channels: int = 3) -> bytes:
    picture = scene()[..., :channels].astype(dtype) * (257 if dtype == "uint16" else 1)
    return bytes(cv2.imencode(".png", picture)[1])


def turned(data: bytes, orientation: int) -> bytes:
    """The JPEG with an EXIF orientation tag."""
    exif = b"Exif\0\0MM\0*" + struct.pack(">IHHHIHHI", 8, 1, 0x0112, 3, 1, orientation, 0, 0)
    return data[:2] + b"\xff\xe1" + struct.pack(">H", 2 + len(exif)) + exif + data[2:]


@dataclass
class Cameras:
    """A source of one drive with a few images of one sensor, each with K, its size and a text reference."""

    images: Sequence[bytes]
    codec: str = "jpeg"
    colour: str = "rgb"
    fields: tuple[Column, ...] = ()
    kind: str = "cameras"
    licence: str = ""
    ignored: tuple[()] = ()

    @property
    def schema(self) -> Schema:
        size = tuple(Column(name=name, dtype="int32", unit="px") for name in ("width", "height"))
        columns = (Column(name="intrinsics", dtype="float64", shape=(3, 3)), *size)
        sensor = Sensor(
            name="CAM",
            kind="image",
            codec=self.codec,  # type: ignore[arg-type]  # tests name codecs that exist
            camera=Camera(colour=self.colour),  # type: ignore[arg-type]  # and colours
            columns=columns,
            fields=self.fields,
        )
        return Schema(reference="KEY", sensors=(Sensor(name="KEY", kind="text", codec="text"), sensor))

    @property
    def listings(self) -> list[DriveListing]:
        return [DriveListing(name="drive", source_bytes=sum(map(len, self.images)))]

    def open_drive(self, name: str) -> SourceDrive:
        count = len(self.images)
        stamps = np.arange(count, dtype=np.int64) * 100_000_000
        columns = {
            "intrinsics": np.broadcast_to(K, (count, 3, 3)),
            "width": np.full(count, WIDTH, np.int32),
            "height": np.full(count, HEIGHT, np.int32),
        }
        camera = SourceTimeline(stamps=stamps, columns=columns, read=lambda row: self.images[row], origin="image {}".format)
        return SourceDrive(
            timelines={"KEY": SourceTimeline(stamps=stamps, columns={}, read="frame {}".format), "CAM": camera},
        )


CURRENT: list[Cameras] = []


def open_cameras(spec: SourceSpec) -> Cameras:
    return CURRENT[-1]


def packed_cameras(source: Cameras, where: Path, **options: Any) -> Any:  # Any: PackOptions' fields, and a report
    CURRENT.append(source)
    spec = SourceSpec(kind="tests.formats.test_image_edit:open_cameras", path="", options={})
    return pack(spec, where, PackOptions(workers=1, **options))


def decoded(data: bytes) -> NDArray[Any]:
    return np.asarray(cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED))


@pytest.mark.parametrize(
    "edit",
    [
        ImageEdit(scale=0.5),
        ImageEdit(crop=(16, 8, 24, 3)),
        ImageEdit(crop=(11, 5, 3, 8), scale=0.37),
        ImageEdit(crop=(0, 1, 0, 1), scale=0.5),
    ],
)
@pytest.mark.parametrize("codec", ["jpeg", "png"])
def test_a_point_lands_on_the_same_picture_content(codec: str, edit: ImageEdit, tmp_path: Path) -> None:
    source = Cameras([jpeg() if codec == "jpeg" else png()] * 2, codec=codec)
    packed_cameras(source, tmp_path / "set", image_edit=edit)
    with open_set(tmp_path / "set") as opened:
        camera = opened.timeline("CAM")
        k, affine = (camera.take(name, np.array([0]))[0] for name in ("intrinsics", PACK_AFFINE))
        picture = decoded(camera.value(0))  # type: ignore[arg-type]  # images are bytes
        np.testing.assert_allclose(k, affine @ K)
        assert np.abs(centre_of_light(picture) - spot(k)).max() < 0.1
        assert np.abs(centre_of_light(decoded(source.images[0])) - spot(K)).max() < 0.1
        stored = [int(camera.take(name, np.array([0]))[0]) for name in ("width", "height")]
        assert stored == [picture.shape[1], picture.shape[0]] == camera.take("image_size", np.array([0]))[0].tolist()
        assert opened.schema.sensor("CAM").edit == edit


def test_without_options_bytes_are_the_sources_and_nothing_is_on_record(tmp_path: Path) -> None:
    images = [jpeg(), turned(jpeg("420"), 6), jpeg() + b"after the end"]
    packed_cameras(Cameras(images), tmp_path / "set", check_images="decode")
    with open_set(tmp_path / "set") as opened:
        camera = opened.timeline("CAM")
        assert [camera.value(row) for row in range(3)] == images
        assert camera.sensor.edit is None
        assert not camera.sensor.has(PACK_AFFINE)
        assert camera.take("jpeg_orientation", np.arange(3)).tolist() == [1, 6, 1]
        assert camera.take("jpeg_trailing", np.arange(3)).tolist() == [0, 0, 13]
        np.testing.assert_array_equal(camera.take("intrinsics", np.arange(3)), [K] * 3)


def test_edits_are_reproducible_and_another_set(tmp_path: Path) -> None:
    edit = ImageEdit(scale=0.5)
    first = packed_cameras(Cameras([jpeg()]), tmp_path / "a", image_edit=edit).manifest
    again = packed_cameras(Cameras([jpeg()]), tmp_path / "b", image_edit=edit).manifest
    plain = packed_cameras(Cameras([jpeg()]), tmp_path / "c").manifest
    assert first.digest == again.digest
    assert first.set_id != plain.set_id


def test_subsampling_and_orientation_survive_an_edit() -> None:
    """pytorch/vision#7977: the tag is recorded, pixels and intrinsics stay those of the file."""
    for subsampling in ("420", "444"):
        stored, affine = edit_image(turned(jpeg(subsampling), 6), "jpeg", ImageEdit(scale=0.5), DEFAULT_LIMITS)
        from headway.formats.jpeg import scan

        facts = scan(stored)
        assert (facts.orientation, facts.width, facts.height) == (6, WIDTH // 2, HEIGHT // 2)
        assert facts.subsampling.replace(":", "") == subsampling
        np.testing.assert_array_equal(affine, np.diag([0.5, 0.5, 1]))


def test_quality_alone_moves_nothing(tmp_path: Path) -> None:
    packed_cameras(Cameras([jpeg()]), tmp_path / "set", image_edit=ImageEdit(jpeg_quality=40))
    with open_set(tmp_path / "set") as opened:
        camera = opened.timeline("CAM")
        assert len(camera.payload(0)) < len(jpeg())
        assert not camera.sensor.has(PACK_AFFINE)
        assert camera.sensor.edit == ImageEdit(jpeg_quality=40)
        assert camera.take("intrinsics", np.array([0])).tolist() == [K.tolist()]


def test_a_crop_that_leaves_nothing_is_a_bad_image(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="crop less"):
        packed_cameras(Cameras([jpeg()]), tmp_path / "set", image_edit=ImageEdit(crop=(60, 60, 0, 0)))


@pytest.mark.parametrize(("codec", "colour"), [("png", "depth"), ("raw", "rgb"), ("png", "bayer_rggb")])
def test_kinds_that_cannot_move_are_refused_by_name(codec: str, colour: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="'CAM'"):
        packed_cameras(Cameras([png()], codec=codec, colour=colour), tmp_path / "set", image_edit=ImageEdit(scale=0.5))


@pytest.mark.parametrize(
    "options", [{"crop": (1, 2, 3)}, {"crop": (-1, 0, 0, 0)}, {"scale": 0.0}, {"scale": 1.5}, {"jpeg_quality": 0}]
)
def test_edits_that_mean_nothing_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        ImageEdit(**options)


def test_a_bad_image_that_is_kept_is_not_said_to_have_moved(tmp_path: Path) -> None:
    broken = jpeg()[:-400]
    packed_cameras(Cameras([jpeg(), broken]), tmp_path / "set", image_edit=ImageEdit(scale=0.5), bad_images="keep")
    with open_set(tmp_path / "set") as opened:
        camera = opened.timeline("CAM")
        assert camera.value(1) == broken
        np.testing.assert_array_equal(camera.take(PACK_AFFINE, np.array([1]))[0], np.eye(3))
        np.testing.assert_array_equal(camera.take("intrinsics", np.array([1]))[0], K)
        assert camera.take("width", np.array([1])).tolist() == [WIDTH]


def bad_marker() -> bytes:
    """A JPEG whose markers are all there, with an unsupported one inside its scan."""
    data = bytearray(jpeg())
    at = data.index(b"\xff\xda") + 40
    data[at : at + 2] = b"\xff\x0b"
    return bytes(data)


def test_decoding_at_pack_time_finds_what_the_marker_walk_cannot(tmp_path: Path) -> None:
    """libjpeg-turbo/libjpeg-turbo#364: a header that is fine says nothing about the scan."""
    grey_tail = bytearray(jpeg())
    grey_tail[-300:-2] = bytes(298)
    images = [jpeg(), bytes(grey_tail), jpeg()]
    walked = packed_cameras(Cameras(images), tmp_path / "walked", bad_images="reject")
    assert not walked.rejected
    found = packed_cameras(Cameras(images), tmp_path / "decoded", bad_images="reject", check_images="decode")
    (problem,) = found.rejected
    assert (problem.path, problem.sensor, problem.stamp_ns, problem.code) == ("image 1", "CAM", 100_000_000, "image")
    assert "expected a JPEG that decodes" in problem.reason
    assert found.exit_code == 7


def test_a_bad_marker_inside_a_scan_does_not_decode() -> None:
    with pytest.raises(ValueError, match="expected a JPEG"):
        check_decodes(bad_marker(), "jpeg")


def test_stray_bytes_before_a_marker_are_a_warning_not_a_loss() -> None:
    """libjpeg-turbo/libjpeg-turbo#157, etemesi254/zune-image#261, python-pillow/Pillow#4414."""
    data = jpeg()
    for junk in (1, 16):
        check_decodes(data[:-2] + b"\x55" * junk + data[-2:], "jpeg")
    check_decodes(data + b"trailing", "jpeg")


def test_every_progressive_truncation_is_an_error() -> None:
    """python-pillow/Pillow#2717: a tolerant decoder turns these black without a word."""
    ok, buffer = cv2.imencode(".jpg", scene(), [cv2.IMWRITE_JPEG_PROGRESSIVE, 1])
    assert ok
    data = bytes(buffer)
    for percent in range(10, 100, 20):
        with pytest.raises(ValueError, match="JPEG"):
            check_decodes(data[: len(data) * percent // 100], "jpeg")


@pytest.mark.parametrize(("dtype", "channels"), [("uint8", 1), ("uint8", 3), ("uint16", 1), ("uint16", 3)])
def test_pngs_of_both_depths_are_kept_and_checked(dtype: str, channels: int, tmp_path: Path) -> None:
    data = png(dtype, channels)
    packed_cameras(Cameras([data], codec="png"), tmp_path / "set", check_images="decode")
    with open_set(tmp_path / "set") as opened:
        camera = opened.timeline("CAM")
        assert camera.value(0) == data
        assert camera.take("png_bits", np.array([0])).tolist() == [np.dtype(dtype).itemsize * 8]
        assert camera.take("png_colour", np.array([0])).tolist() == [2 if channels == 3 else 0]
        assert camera.take("image_size", np.array([0])).tolist() == [[WIDTH, HEIGHT]]


def test_any_flipped_byte_of_a_png_is_found_by_decoding() -> None:
    data = bytes(cv2.imencode(".png", np.arange(48, dtype=np.uint8).reshape(4, 4, 3))[1])
    check_decodes(data, "png")
    for at in range(len(data)):
        flipped = bytearray(data)
        flipped[at] ^= 0x10
        with pytest.raises(ValueError, match=r"PNG|px|IHDR"):
            check_decodes(bytes(flipped), "png")


def test_a_png_that_inflates_beyond_its_size_is_refused() -> None:
    data = bytearray(cv2.imencode(".png", np.zeros((2, 2), np.uint8))[1])
    start = data.index(b"IDAT")
    (length,) = struct.unpack(">I", data[start - 4 : start])
    body = zlib.compress(bytes(1 << 20))
    chunk = struct.pack(">I", len(body)) + b"IDAT" + body + struct.pack(">I", zlib.crc32(b"IDAT" + body))
    with pytest.raises(ValueError, match="found 7"):
        check_decodes(bytes(data[: start - 4] + chunk + data[start + 8 + length :]), "png")


@pytest.mark.parametrize(
    ("dtype", "channels", "colour"),
    [("uint8", 3, "rgb"), ("uint16", 1, "mono"), ("float32", 1, "depth"), ("uint8", 1, "bayer_rggb")],
)
def test_raw_pixels_are_kept_and_must_fit_their_size(dtype: str, channels: int, colour: str, tmp_path: Path) -> None:
    pixel = (Column(name="pixel", dtype=dtype, shape=(channels,) if channels > 1 else ()),)
    data = np.random.default_rng(3).integers(0, 255, (HEIGHT, WIDTH, channels)).astype(dtype).tobytes()
    packed_cameras(Cameras([data], codec="raw", colour=colour, fields=pixel), tmp_path / "set")
    with open_set(tmp_path / "set") as opened:
        assert opened.timeline("CAM").value(0) == data
    with pytest.raises(SourceError, match="raw pixels"):
        packed_cameras(Cameras([data[:-1]], codec="raw", colour=colour, fields=pixel), tmp_path / "cut")


def test_affine_keeps_corners_of_the_crop() -> None:
    edit = ImageEdit(crop=(10, 30, 20, 40), scale=0.25)
    affine = affine_of(100, 140, edit)
    np.testing.assert_allclose(affine @ [20, 10, 1], [0, 0, 1])
    np.testing.assert_allclose(affine @ [60, 110, 1], [10, 25, 1])

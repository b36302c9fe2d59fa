"""Video and raw sensors in batches: the frames of the file, whole windows at once, and clear words for what does not fit."""

from __future__ import annotations

from pathlib import Path

import cv2
import numpy as np
import pytest
from numpy.typing import NDArray

import headway
from headway import Images, Window
from headway.formats import Column, UsageError, open_set
from headway.loader.frames import frame_tasks
from tests.formats.test_image_edit import HEIGHT, WIDTH, Cameras, packed_cameras, png, scene
from tests.formats.test_video_packets import CODINGS, FRAMES, packed_films, reference, write_video


@pytest.fixture
def film(tmp_path: Path) -> tuple[Path, list[NDArray[np.uint8]]]:
    path = write_video(tmp_path / "film.mp4", *CODINGS["B frames"])
    return packed_films([path], tmp_path / "set", shard_bytes=path.stat().st_size // 3), reference(path)


@pytest.mark.slow
def test_windows_of_a_video_hold_the_frames_of_the_file(film: tuple[Path, list[NDArray[np.uint8]]]) -> None:
    location, expected = film
    dataset = headway.open(str(location), windows=[Window("CAM", past=2)], images=[Images("CAM")])
    loader = headway.DataLoader(dataset, batch_size=4)
    seen = 0
    for batch in loader:
        camera = batch["camera"]
        for sample, frame in enumerate(batch["frame"].tolist()):
            if not batch["valid"][sample]:
                continue
            for step in range(3):
                row = frame - 2 + step
                assert bool(camera["mask"][sample, step, 0]) == (row >= 0)
                if row >= 0:
                    picture = camera["image"][sample, step, 0].numpy().transpose(1, 2, 0)
                    np.testing.assert_array_equal(picture, expected[row])
            seen += 1
    assert seen == FRAMES


def test_video_is_scaled_as_images_are(film: tuple[Path, list[NDArray[np.uint8]]]) -> None:
    location, expected = film
    dataset = headway.open(str(location), images=[Images("CAM", size=(24, 32))])
    batch = next(iter(headway.DataLoader(dataset, batch_size=2)))
    half = expected[1].reshape(24, 2, 32, 2, 3).astype(np.float64).mean((1, 3))
    picture = batch["camera"]["image"][1, 0, 0].numpy().transpose(1, 2, 0)
    assert np.abs(picture - half).max() <= 1
    np.testing.assert_allclose(batch["camera"]["affine"][1, 0, 0].numpy(), np.diag([0.5, 0.5, 1]))


@pytest.mark.slow
def test_a_damaged_packet_costs_only_the_frames_after_it(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["B frames"])
    location, expected = packed_films([path], tmp_path / "set", format="tar"), reference(path)
    with open_set(location) as packed:
        camera = packed.timeline("CAM")
        refs = camera.refs(np.array([14]))
        shard = location / packed.manifest.shards[int(refs.shard[0])].data_name
        at = int(refs.offset[0])
    data = bytearray(shard.read_bytes())
    data[at + 2] ^= 0xFF
    shard.chmod(0o644)
    shard.write_bytes(bytes(data))
    options = headway.LoaderOptions(on_error="mask", max_bad=1000)
    loader = headway.DataLoader(headway.open(str(location), images=[Images("CAM")]), batch_size=FRAMES, options=options)
    batch = next(iter(loader))
    valid = batch["valid"].tolist()
    assert not valid[14]
    assert all(valid[:10]), "the group before is whole"
    assert all(valid[20:]), "so is the one after"
    np.testing.assert_array_equal(batch["camera"]["image"][20, 0, 0].numpy().transpose(1, 2, 0), expected[20])


@pytest.mark.parametrize(("channels", "colour"), [(3, "rgb"), (1, "mono")])
def test_raw_pixels_come_as_they_are(channels: int, colour: str, tmp_path: Path) -> None:
    pixels = scene() if channels == 3 else scene()[..., 0]
    field = (Column(name="pixel", dtype="uint8", shape=(3,) if channels == 3 else ()),)
    packed_cameras(Cameras([pixels.tobytes()] * 2, codec="raw", colour=colour, fields=field), tmp_path / "set")
    dataset = headway.open(str(tmp_path / "set"), images=[Images("CAM")])
    batch = next(iter(headway.DataLoader(dataset, batch_size=2)))
    assert batch["camera"]["image"].shape == (2, 1, 1, 3, HEIGHT, WIDTH)
    expected = pixels if channels == 3 else np.repeat(pixels[..., None], 3, 2)
    np.testing.assert_array_equal(batch["camera"]["image"][1, 0, 0].numpy().transpose(1, 2, 0), expected)


@pytest.mark.parametrize(
    ("codec", "colour", "dtype", "message"),
    [
        ("raw", "depth", "float32", "depth would lose its unit"),
        ("raw", "bayer_rggb", "uint8", "bayer its mosaic"),
        ("raw", "mono", "uint16", "raw pixels must be uint8"),
        ("png", "depth", "uint16", "depth would lose its unit"),
    ],
)
def test_what_would_lose_bits_is_refused_with_the_way_out(
    codec: str, colour: str, dtype: str, message: str, tmp_path: Path
) -> None:
    field = (Column(name="pixel", dtype=dtype),) if codec == "raw" else ()
    data = scene()[..., 0].astype(dtype).tobytes() if codec == "raw" else png("uint16", 1)
    packed_cameras(Cameras([data], codec=codec, colour=colour, fields=field), tmp_path / "set")
    with pytest.raises(UsageError, match=message):
        iter(headway.DataLoader(headway.open(str(tmp_path / "set"), images=[Images("CAM")]), batch_size=1))


def test_a_task_has_the_times_of_one_sample_and_camera() -> None:
    tasks = frame_tasks(np.arange(2 * 3 * 2), length=3, cameras=2)
    assert [task.tolist() for task in tasks] == [[0, 2, 4], [1, 3, 5], [6, 8, 10], [7, 9, 11]]


@pytest.mark.parametrize(
    ("codec", "colour", "dtype", "channels"),
    [
        ("png", "depth", "uint16", 1),
        ("png", "rgb", "uint16", 3),
        ("png", "mono", "uint8", 1),
        ("raw", "depth", "float32", 1),
        ("raw", "bayer_rggb", "uint8", 1),
        ("raw", "rgb", "uint8", 3),
    ],
)
def test_numbers_come_as_they_are_on_request(codec: str, colour: str, dtype: str, channels: int, tmp_path: Path) -> None:
    pixels = (scene().astype(np.float64) + np.array([0, 7, 9])).astype(dtype) * np.array(100 if dtype != "uint8" else 1, dtype)
    pixels = pixels if channels == 3 else np.ascontiguousarray(pixels[..., 0])
    field = (Column(name="pixel", dtype=dtype, shape=(3,) if channels == 3 else ()),) if codec == "raw" else ()
    data = pixels.tobytes() if codec == "raw" else bytes(cv2.imencode(".png", pixels if channels == 1 else pixels[..., ::-1])[1])
    packed_cameras(Cameras([data] * 3, codec=codec, colour=colour, fields=field), tmp_path / "set")
    dataset = headway.open(str(tmp_path / "set"), windows=[Window("CAM", past=1)], images=[Images("CAM", dtype="source")])
    batch = next(iter(headway.DataLoader(dataset, batch_size=3)))
    found = batch["camera"]["image"].numpy()
    assert found.dtype == dtype
    expected = pixels.transpose(2, 0, 1) if channels == 3 else pixels
    assert found.shape == (3, 2, 1, *expected.shape)
    for sample in range(3):
        np.testing.assert_array_equal(found[sample, 1, 0], expected)
    assert not found[0, 0].any(), "nothing is there before the first"
    np.testing.assert_array_equal(batch["camera"]["affine"][1, 0, 0].numpy(), np.eye(3))
    assert batch["camera"]["intrinsics"].shape == (3, 2, 1, 3, 3)


def test_the_sources_numbers_are_never_scaled() -> None:
    with pytest.raises(UsageError, match="as they are"):
        Images("CAM", dtype="source", size=(8, 8))

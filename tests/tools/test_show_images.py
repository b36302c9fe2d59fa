"""`headway show` on what is no JPEG: raw pixels, 16-bit PNGs and video packets, as facts, as files and drawn."""

from __future__ import annotations

import json
from pathlib import Path

import cv2
import numpy as np
import pytest

from headway.formats import Column, open_set
from headway.tools._order_facts import Reads
from tests.formats.test_image_edit import HEIGHT, WIDTH, Cameras, packed_cameras, png, scene
from tests.formats.test_video_packets import CODINGS, packed_films, reference, write_video

from .conftest import Runner


def test_sixteen_bit_pngs_are_exported_bit_for_bit(run: Runner, tmp_path: Path) -> None:
    data = png("uint16", 1)
    packed_cameras(Cameras([data], codec="png", colour="depth"), tmp_path / "set")
    assert run("headway", "show", tmp_path / "set", "drive", "0", "--export", tmp_path / "out").code == 0
    assert (tmp_path / "out" / "CAM.png").read_bytes() == data
    assert f"CAM: {WIDTH} × {HEIGHT} px, 16 bit" in run("headway", "show", tmp_path / "set").out


@pytest.mark.parametrize(("dtype", "channels", "colour"), [("uint8", 3, "rgb"), ("uint16", 1, "mono"), ("float32", 1, "depth")])
def test_raw_pixels_are_exported_as_arrays_and_drawn(run: Runner, tmp_path: Path, dtype: str, channels: int, colour: str) -> None:
    pixels = scene()[..., 0] if channels == 1 else scene()
    pixels = pixels.astype(dtype)
    field = (Column(name="pixel", dtype=dtype, shape=(channels,) if channels > 1 else ()),)
    packed_cameras(Cameras([pixels.tobytes()], codec="raw", colour=colour, fields=field), tmp_path / "set")
    assert run("headway", "show", tmp_path / "set", "drive", "0", "--export", tmp_path / "out").code == 0
    exported = np.load(tmp_path / "out" / "CAM.npy")
    assert exported.dtype == dtype
    np.testing.assert_array_equal(exported, pixels)


@pytest.mark.slow
def test_video_frames_are_exported_as_pictures(run: Runner, tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["B frames"])
    packed_films([path], tmp_path / "set")
    assert run("headway", "show", tmp_path / "set", "film", "7", "--export", tmp_path / "out").code == 0
    exported = cv2.imread(str(tmp_path / "out" / "CAM.png"), cv2.IMREAD_UNCHANGED)
    assert exported is not None
    np.testing.assert_array_equal(exported[..., ::-1], reference(path)[7])
    facts = json.loads(run("headway", "show", tmp_path / "set", "--json").out)
    assert facts["sensors"]["CAM"]["codec"] == "video"
    assert facts["sensors"]["CAM"]["images"]["longest_group"] == 10


@pytest.mark.real
@pytest.mark.slow
def test_lerobot_videos_are_kept_on_request(run: Runner, real_data: Path, tmp_path: Path) -> None:
    source = real_data / "lerobot" / "g1_v3.0_derived"
    flags = ("--video", "keep", "--workers", 1)
    assert run("pack-dataset", "lerobot", source, tmp_path / "keep", "--limit", 1, *flags).code == 0
    with open_set(tmp_path / "keep") as packed:
        camera = packed.timeline("observation.images.cam_high")
        assert camera.sensor.codec == "video"
        assert camera.value(3).shape == (480, 640, 3)  # type: ignore[union-attr]  # video frames are arrays


def test_reading_a_video_row_counts_its_group_of_pictures(tmp_path: Path) -> None:
    path = write_video(tmp_path / "film.mp4", *CODINGS["no reordering"])
    with open_set(packed_films([path], tmp_path / "set")) as packed:
        count = Reads(packed)
        payloads, size = count.add({"CAM": np.array([10, 11])})
        lengths = packed.timeline("CAM").refs(np.arange(8, 12)).length
        assert (payloads, size) == (4, int(lengths.sum()))

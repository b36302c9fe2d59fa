"""Image options of `pack-dataset`, and what `headway show` says of images."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from headway.formats import open_set

from .conftest import Runner

pytestmark = pytest.mark.slow


def test_scaled_and_cropped_images_are_said_to_be(run: Runner, tiny_source: Path, tiny_set: Path, tmp_path: Path) -> None:
    flags = ("--camera-crop", "10,0,0,0", "--camera-scale", "0.5", "--camera-sensors", "CAM_*", "--workers", 1)
    assert run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", *flags).code == 0
    with open_set(tmp_path / "set") as half, open_set(tiny_set) as whole:
        assert half.set_id != whole.set_id
        k, affine = (half.timeline("CAM_FRONT").take(name, np.array([0]))[0] for name in ("intrinsics", "pack_affine"))
        np.testing.assert_allclose(affine, np.array([[0.5, 0, 0], [0, 0.5, -5], [0, 0, 1]], np.float64))
        np.testing.assert_allclose(k, affine @ whole.timeline("CAM_FRONT").take("intrinsics", np.array([0]))[0])
        assert half.timeline("CAM_FRONT").take("image_size", np.array([0])).tolist() == [[80, 40]]
    shown = run("headway", "show", tmp_path / "set").out
    assert "CAM_FRONT: 80 × 40 px, 4:2:0" in shown
    assert "changed when packed: 10 px off the top" in shown
    assert "pack_affine" in shown
    assert "changed when packed" not in run("headway", "show", tiny_set).out


def test_the_rule_about_orientation_is_said_where_there_is_one(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    """pytorch/vision#7977: recorded, never applied."""
    shutil.copytree(tiny_source, tmp_path / "source")
    picture = next((tmp_path / "source").rglob("samples/CAM_FRONT/*.jpg"))
    data = picture.read_bytes()
    exif = bytes.fromhex("ffe10022457869660000 4d4d002a 00000008 0001 0112 0003 00000001 00060000 00000000".replace(" ", ""))
    picture.write_bytes(data[:2] + exif + data[2:])
    assert run("pack-dataset", "nuscenes", tmp_path / "source", tmp_path / "set", "--workers", 1).code == 0
    assert "CAM_FRONT: EXIF orientation 6 on 1 images: recorded, never applied" in run("headway", "show", tmp_path / "set").out
    facts = json.loads(run("headway", "show", tmp_path / "set", "--json").out)
    assert facts["sensors"]["CAM_FRONT"]["images"]["orientations"]["6"] == 1


def test_checking_by_decoding_lists_what_it_rejects(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_source, tmp_path / "source")
    picture = next((tmp_path / "source").rglob("samples/CAM_FRONT/*.jpg"))
    data = picture.read_bytes()
    picture.write_bytes(data[:-300] + bytes(298) + data[-2:])
    flags = ("--check-images", "decode", "--bad-images", "reject", "--workers", 1)
    done = run("pack-dataset", "nuscenes", tmp_path / "source", tmp_path / "set", *flags)
    assert done.code == 7
    assert picture.name in done.out
    assert "rejected  1 payloads" in done.out


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--camera-crop", "1,2,3"), "four whole numbers"),
        (("--camera-scale", "2"), "at most 1"),
        (("--camera-sensors", "CAM_*"), "nothing is to be changed"),
        (("--camera-scale", "0.5", "--camera-sensors", "NO_*"), "matches nothing"),
        (("--camera-scale", "0.5", "--camera-sensors", "LIDAR_TOP"), "cannot edit images"),
    ],
)
def test_image_options_that_mean_nothing_are_usage_errors(
    run: Runner, tiny_source: Path, tmp_path: Path, flags: tuple[str, ...], message: str
) -> None:
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", *flags)
    assert done.code == 2
    assert message in done.err
    assert not (tmp_path / "set").exists()

"""Real camera images and real odd files through every decoder of this machine: one picture, one verdict."""

from __future__ import annotations

from pathlib import Path

import pytest

from headway.bench.decode import find_images, measure_equality
from headway.gpu_decode import capabilities, choose_decoder
from headway.loader.decode import Decoder

pytestmark = [pytest.mark.real, pytest.mark.slow]

CAMERA_DB = 45.0
"""At 256 × 704, against the portable decoder, which shrinks in the DCT domain where these filter; 48.9 was measured."""


@pytest.fixture(scope="module")
def device() -> dict[str, Decoder]:
    names = [each.name for each in capabilities() if each.usable and each.name in ("dali-cpu", "nvimgcodec-cpu", "dali-gpu")]
    if not names:
        pytest.skip("neither DALI nor nvImageCodec is installed here; `make test-decoders` does both")
    return {name: choose_decoder(name) for name in names}


def test_camera_images_are_the_same_picture(real_nuscenes: Path, device: dict[str, Decoder]) -> None:
    images = find_images(sorted(real_nuscenes.glob("samples/CAM_*/*.jpg"))[:2])
    for row in measure_equality(images, device, size=(256, 704)):
        assert row["status"] == "ok"
        assert row["handed_on"] == ""
        assert row["max_error"] == 0 or row["psnr_db"]
        if row["look"] == "own size" and str(row["decoder"]).endswith("cpu"):
            assert row["max_error"] == 0, row  # the same libjpeg-turbo arithmetic
        elif row["look"] != "own size":
            assert float(str(row["psnr_db"])) >= CAMERA_DB, row


def test_odd_files_get_the_cpu_decoders_verdict(real_data: Path, device: dict[str, Decoder]) -> None:
    folder = real_data / "jpeg_odd"
    if not folder.is_dir():
        pytest.skip("HEADWAY_REAL_DATA has no jpeg_odd/")
    device["native"] = choose_decoder("auto")
    small = {name: data for name, data in find_images([folder]).items() if len(data) < 120_000}
    rows = [row for row in measure_equality(small, device, size=(128, 224)) if row["decoder"] != "all"]
    verdicts: dict[tuple[object, object], set[object]] = {}
    for row in rows:
        verdicts.setdefault((row["image"], row["look"]), set()).add(row["status"])
    assert {key for key, found in verdicts.items() if len(found) > 1} == set()
    errors = {str(row["image"]): int(str(row["max_error"])) for row in rows if row.get("max_error") and row["look"] == "own size"}
    assert max(errors.values(), default=0) <= 2, errors

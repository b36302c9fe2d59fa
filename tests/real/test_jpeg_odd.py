"""The marker walk tells about real odd JPEG files what independent tools found in them."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from headway.formats import DecodeError
from headway.formats.jpeg import scan

DATA = Path(os.environ.get("HEADWAY_REAL_DATA", "/nonexistent"))
pytestmark = [pytest.mark.real, pytest.mark.skipif(not (DATA / "jpeg_odd").is_dir(), reason="HEADWAY_REAL_DATA has no jpeg_odd/")]

BROKEN = {
    "derived/empty.jpg": "an empty file",
    "derived/missing_eoi.jpg": "cut short",
    "derived/png_named_jpg.jpg": "a PNG file",
    "derived/truncated_50pct.jpg": "cut short after scan 1",
    "truncated_jpeg.jpg": "cut short",
}


def _entries() -> dict[str, dict[str, Any]]:
    if not (DATA / "MANIFEST.json").is_file():
        return {}
    entries = json.loads((DATA / "MANIFEST.json").read_text())
    return {
        entry["file"].removeprefix("jpeg_odd/"): entry.get("check") or {}
        for entry in entries
        if entry["file"].startswith("jpeg_odd/") and entry["file"].endswith((".jpg", ".jpeg", ".mpo"))
    }


@pytest.mark.parametrize("name", sorted(_entries()))
def test_facts_agree_with_the_manifest_of_the_samples(name: str) -> None:
    data, check = (DATA / "jpeg_odd" / name).read_bytes(), _entries()[name]
    if name in BROKEN:
        with pytest.raises(DecodeError, match=BROKEN[name]):
            scan(data)
        return
    facts = scan(data)
    if "sof" in check:
        assert f"SOF{facts.process}" == check["sof"]
        assert (facts.width, facts.height, facts.precision) == (check["width"], check["height"], check["prec"])
        assert [f"{h}x{v}" for h, v in facts.sampling] == check["samp"]
        assert facts.scans == check["scans"]
        assert facts.trailing_bytes == check["trail"]


@pytest.mark.parametrize(("name", "orientation"), [("hopper_orientation_3.jpg", 3), ("hopper_orientation_6.jpg", 6)])
def test_exif_orientation_is_reported_and_nothing_rotated(name: str, orientation: int) -> None:
    """pytorch/vision#7977"""
    facts = scan((DATA / "jpeg_odd" / name).read_bytes())
    assert facts.orientation == orientation

"""The commands on the real samples: what packs, what is exported, what is refused, as a user sees it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import cv2
import pytest

pytestmark = [pytest.mark.real, pytest.mark.slow]


def _run(module: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", f"headway.tools.{module}", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=110, check=False)


@pytest.fixture(scope="module")
def keyframe_set(real_nuscenes: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("real") / "set"
    done = _run("pack_dataset", "nuscenes", real_nuscenes, target, "--version", "v1.0-mini")
    assert done.returncode == 0, done.stderr
    assert "ignored   5 files" in done.stdout
    return target


def test_show_says_what_the_keyframe_set_holds(keyframe_set: Path) -> None:
    facts = json.loads(_run("main", "show", keyframe_set, "--json").stdout)
    assert facts["frames"] == 1
    assert facts["format"] == "arrow"
    assert [drive["name"] for drive in facts["drives"]] == ["scene-0061"]
    assert facts["sensors"]["LIDAR_TOP"]["payloads"] == 1
    assert sum(sensor["kind"] == "image" for sensor in facts["sensors"].values()) == 6


def test_the_keyframe_is_exported_with_the_source_s_bytes(keyframe_set: Path, real_nuscenes: Path, tmp_path: Path) -> None:
    done = _run("main", "show", keyframe_set, "scene-0061", 0, "--export", tmp_path / "frame", "--png", tmp_path / "frame.png")
    assert done.returncode == 0, done.stderr
    tables = json.loads((real_nuscenes / "v1.0-mini/sample_data.json").read_text())
    for row in tables:
        channel = row["filename"].split("/")[1]
        exported = tmp_path / "frame" / f"{channel}.{'jpg' if channel.startswith('CAM') else 'bin'}"
        assert exported.read_bytes() == (real_nuscenes / row["filename"]).read_bytes(), channel
    assert len(json.loads((tmp_path / "frame/boxes.json").read_text())["centre"]) == 68
    picture = cv2.imread(str(tmp_path / "frame.png"))
    assert picture is not None
    assert picture.shape[1] == 2400


def test_everything_missing_from_lyft_is_reported_at_once(real_data: Path, tmp_path: Path) -> None:
    if not (real_data / "lyft").is_dir():
        pytest.skip("no lyft folder under HEADWAY_REAL_DATA")
    done = _run("pack_dataset", "nuscenes", real_data / "lyft", tmp_path / "set")
    assert done.returncode == 3
    assert not (tmp_path / "set").exists()
    assert "Traceback" not in done.stderr
    listed = [line for line in done.stderr.splitlines() if line.startswith("  ")]
    stated = int(done.stderr.split("found ")[1].split(" problems")[0])
    assert len(listed) == stated > 40
    assert sum("not on disk" in line for line in listed) == 10


def test_inspect_knows_the_samples(real_data: Path) -> None:
    for folder, kind in (("nuscenes", "nuscenes"), ("mcap/nuscenes_keyframe_zstd.mcap", "mcap"), ("kitti_raw", "kitti")):
        if (real_data / folder).exists():
            done = _run("pack_dataset", "inspect", real_data / folder)
            assert f"could be {kind}" not in done.stderr
            assert "give --kind" not in done.stderr, done.stderr

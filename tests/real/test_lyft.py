"""Lyft's one-sample tables, whose files and neighbours are absent: everything wrong is reported in one go."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from headway.formats import SourceError
from headway.formats.adapters.nuscenes import NuScenes, NuScenesOptions

pytestmark = pytest.mark.real


@pytest.fixture
def root(real_data: Path) -> Path:
    return real_data / "lyft"


@pytest.mark.parametrize("version", ["v1.01-train", None])
def test_every_missing_file_and_dangling_link_is_listed(root: Path, version: str | None) -> None:
    tables = root / "v1.01-train" / "v1.01-train"
    rows = json.loads((tables / "sample_data.json").read_text())
    with pytest.raises(SourceError) as caught:
        NuScenes(root, NuScenesOptions(version=version))
    problems = caught.value.problems
    missing = {problem.path for problem in problems if problem.code == "missing"}
    assert missing == {row["filename"] for row in rows}
    assert all(problem.sensor and problem.stamp_ns for problem in problems if problem.code == "missing")
    dangling = Counter(problem.path.rpartition("/")[2] for problem in problems if problem.code == "dangling")
    annotations = json.loads((tables / "sample_annotation.json").read_text())
    instances = json.loads((tables / "instance.json").read_text())
    held = {row["token"] for row in annotations}
    assert dangling["sample_data.json"] == 2 * len(rows)
    assert dangling["sample.json"] == 2
    assert dangling["scene.json"] == 3  # its first sample, its last sample, and 125 of its 126 samples
    assert dangling["sample_annotation.json"] == sum(bool(row[end]) for row in annotations for end in ("prev", "next"))
    ends = ("first_annotation_token", "last_annotation_token")
    assert dangling["instance.json"] == sum(row[end] not in held for row in instances for end in ends)
    assert {problem.code for problem in problems} == {"missing", "dangling"}


def test_float_stamps_become_exact_nanoseconds(root: Path) -> None:
    with pytest.raises(SourceError) as caught:
        NuScenes(root)
    stamps = {problem.path: problem.stamp_ns for problem in caught.value.problems if problem.code == "missing"}
    assert stamps["lidar/host-a101_lidar0_1240710385903083166.bin"] == 1556675185903083200
    assert stamps["images/host-a101_cam0_1240710385850000006.jpeg"] == 1556675185850000000

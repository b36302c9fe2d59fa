"""A set as a workload: the same payloads, whole frames only, and every peer's sample work fits it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from headway.bench.make_data import make_data
from headway.bench.peers.samples import MapDataset, Stored, collate, kept_box
from headway.bench.set_workload import is_workload, workload_of_set
from headway.bench.workload_source import SPEC_KIND
from headway.bench.workloads import workload
from headway.formats import UsageError
from headway.formats.adapters import SourceSpec
from headway.formats.packed_set import open_set
from headway.formats.packer import pack


def _set(folder: Path, name: str, **sizes: object) -> tuple[Path, Path]:
    data = make_data(workload(name, **sizes), folder / "data").directory  # type: ignore[arg-type]  # sizes of the tests
    pack(SourceSpec(kind=SPEC_KIND, path=str(data)), str(folder / "set"))
    return data, folder / "set"


def test_a_set_with_cameras_becomes_w1_with_its_bytes(tmp_path: Path) -> None:
    data, location = _set(tmp_path, "W1", samples=5, cameras=2, image=(90, 160), points=50)
    made = Stored(workload_of_set(location, tmp_path / "made", samples=3))
    assert (made.name, len(made)) == ("W1", 3)
    source = Stored(data)
    with open_set(location) as packed:
        assert len(packed) == 5
    for index in range(3):
        assert made[index]["cam0"] == source[index]["cam0"]
        assert made[index]["cam1"] == source[index]["cam1"]
        np.testing.assert_array_equal(made[index]["lidar"], source[index]["lidar"])
    batch = collate([MapDataset(made, "W1")[index] for index in range(3)])
    assert batch["image"].shape == (3, 2, 3, 256, 704)
    assert workload_of_set(location, tmp_path / "made", samples=3) == made.directory
    assert is_workload(made.directory)
    assert not is_workload(location)


def test_points_alone_become_w4_and_columns_alone_are_refused(tmp_path: Path) -> None:
    _, sweeps = _set(tmp_path / "w4", "W4", samples=4, points=40)
    assert Stored(workload_of_set(sweeps, tmp_path / "made")).name == "W4"
    _, numbers = _set(tmp_path / "w3", "W3", samples=4)
    with pytest.raises(UsageError, match="neither JPEG cameras nor points"):
        workload_of_set(numbers, tmp_path / "made")


def test_the_kept_box_fills_the_target_from_the_bottom() -> None:
    assert kept_box(900, 1600) == (318, 0, 582, 1600)
    assert kept_box(900, 1600, of=(450, 800)) == (159, 0, 291, 800)
    top, left, height, width = kept_box(200, 1600)
    assert (top, height) == (0, 200)
    assert left == (1600 - width) // 2
    assert abs(width / height - 704 / 256) < 0.01

"""The real KITTI samples come through the adapter bit for bit, and their geometry agrees with their labels."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats import PackOptions, open_set, pack, pose
from headway.formats.adapters import SourceSpec, open_source
from headway.formats.adapters.kitti_object import CATEGORIES
from headway.formats.errors import SourceError
from headway.formats.source import Source, SourceDrive

pytestmark = pytest.mark.real

RAW = "2011_09_26_drive_unknown_sync"


def source(real_data: Path, folder: str, **options: Any) -> Source:  # Any: plain option values
    return open_source(SourceSpec(kind="kitti", path=str(real_data / folder), options=options))


def read(drive: SourceDrive, sensor: str, row: int = 0) -> Any:  # Any: a payload of whatever kind
    reader = drive.timelines[sensor].read
    assert reader is not None
    return reader(row)


def hashes(real_data: Path) -> dict[str, str]:
    return {entry["file"]: entry["sha256"] for entry in json.loads((real_data / "MANIFEST.json").read_text())}


def corners(boxes: dict[str, Any], row: int) -> NDArray[np.float64]:
    """(8, 3) corners in the boxes' frame."""
    signs = np.array(np.meshgrid([-1, 1], [-1, 1], [-1, 1])).reshape(3, 8).T / 2
    turned = (signs * boxes["size"][row]) @ pose.rotation_matrix(boxes["rotation"][row]).T
    return np.asarray(turned + boxes["centre"][row])


@pytest.mark.parametrize("frame", [0, 1])
def test_object_payloads_are_the_files(real_data: Path, frame: int) -> None:
    drive, known = source(real_data, "kitti").open_drive(f"training-{frame:06}"), hashes(real_data)
    for sensor, file in (("image_2", f"image_2/{frame:06}.png"), ("velodyne", f"velodyne/{frame:06}.bin")):
        payload = read(drive, sensor)
        data = payload if isinstance(payload, bytes) else payload.tobytes()
        assert hashlib.sha256(data).hexdigest() == known[f"kitti/training/{file}"]


def test_object_boxes_project_onto_their_labels(real_data: Path) -> None:
    """The 2D box of a label is the hull of its projected 3D box, through pose, intrinsics and P2's last column."""
    seen = 0
    for name in ("training-000000", "training-000001"):
        drive = source(real_data, "kitti").open_drive(name)
        boxes, columns = read(drive, "boxes"), drive.timelines["image_2"].columns
        camera_from_ego = pose.to_matrix(pose.invert(columns["sensor_to_ego"][0]))
        for row, category in enumerate(boxes["category"]):
            if CATEGORIES[category] == "DontCare":
                assert np.isnan(boxes["centre"][row]).all()
                continue
            local = corners(boxes, row) @ camera_from_ego[:3, :3].T + camera_from_ego[:3, 3]
            pixels = local @ columns["intrinsics"][0].T
            pixels = pixels[:, :2] / pixels[:, 2:]
            hull = np.concatenate([pixels.min(0), pixels.max(0)])
            assert np.abs(hull - boxes["bbox"][row]).max() < 12
            seen += 1
    assert seen == 4


def test_object_boxes_hold_the_points_of_what_they_name(real_data: Path) -> None:
    drive = source(real_data, "kitti").open_drive("training-000000")
    boxes, sweep = read(drive, "boxes"), read(drive, "velodyne")
    to_ego = pose.to_matrix(drive.timelines["velodyne"].columns["sensor_to_ego"][0])
    points = np.stack([sweep["x"], sweep["y"], sweep["z"]], 1) @ to_ego[:3, :3].T + to_ego[:3, 3]
    local = (points - boxes["centre"][0]) @ pose.rotation_matrix(boxes["rotation"][0])
    inside = (np.abs(local) <= boxes["size"][0] / 2 + 0.05).all(1)
    assert CATEGORIES[boxes["category"][0]] == "Pedestrian"
    assert inside.sum() > 300
    assert boxes["size"][0].tolist() == [1.20, 0.48, 1.89]


def test_object_packs_and_comes_back(real_data: Path, tmp_path: Path) -> None:
    spec = SourceSpec(kind="kitti", path=str(real_data / "kitti"))
    report = pack(spec, tmp_path / "set", PackOptions())
    drive = source(real_data, "kitti").open_drive("training-000001")
    with open_set(tmp_path / "set") as packed:
        assert [found.name for found in packed.drives] == ["training-000000", "training-000001"]
        assert len(packed) == 2
        sweep = packed.timeline("velodyne").value(1)
        assert isinstance(sweep, np.ndarray)
        assert sweep.tobytes() == read(drive, "velodyne").tobytes()
        assert bytes(packed.timeline("image_2").payload(1)) == read(drive, "image_2")
        assert packed.timeline("image_2").take("image_size", np.arange(2)).tolist() == [[1224, 370], [1242, 375]]
    assert report is not None


def test_raw_sweeps_are_tied_to_their_stamps_by_number(real_data: Path) -> None:
    raw = source(real_data, "kitti_raw", allow_missing=True, without_calibration=True)
    assert [listing.name for listing in raw.listings] == [RAW]
    assert [entry.reason for entry in raw.ignored] == ["359 of 361 stamps have no file, the first is number 2"]
    drive, known = raw.open_drive(RAW), hashes(real_data)
    timeline = drive.timelines["velodyne_points"]
    assert timeline.stamps.tolist() == [1317047415002263428, 1317047415105801147]
    assert timeline.columns["start_stamp"][0] == 1317047414950485851
    assert timeline.columns["end_stamp"][0] == timeline.columns["start_stamp"][1] == 1317047415054041005
    for row, points in ((0, 117709), (1, 117744)):
        sweep = read(drive, "velodyne_points", row)
        assert len(sweep) == points
        file = f"kitti_raw/2011_09_26/drive_unknown_sync/velodyne_points/data/{row:010}.bin"
        assert hashlib.sha256(sweep.tobytes()).hexdigest() == known[file]


def test_raw_says_everything_that_is_missing(real_data: Path) -> None:
    with pytest.raises(SourceError) as caught:
        source(real_data, "kitti_raw")
    text = str(caught.value)
    assert len(caught.value.problems) == 4
    assert "359 of 361 stamps have no file" in text
    assert "calib_imu_to_velo.txt: is missing" in text


def test_odometry_poses_are_the_benchmarks_turned(real_data: Path) -> None:
    odometry = source(real_data, "trajectories/kitti_odometry")
    assert odometry.schema.reference == "ego"
    ego = odometry.open_drive("00").timelines["ego"]
    assert len(ego.stamps) == 4541
    assert ego.stamps[:2].tolist() == [0, 103_735_900]
    assert ego.stamps[-1] == 470_581_600_000
    last = np.array((real_data / "trajectories/kitti_odometry/poses/00.txt").read_text().splitlines()[-1].split(), np.float64)
    x, y, z = last.reshape(3, 4)[:, 3]
    np.testing.assert_allclose(ego.columns["ego_to_world"][-1, :3], [z, -x, -y])
    step = np.diff(ego.columns["ego_to_world"][:, :2], axis=0)
    forward = pose.rotation_matrix(ego.columns["ego_to_world"][:-1, 3:])[:, :2, 0]
    moving = np.linalg.norm(step, axis=1) > 0.5
    heading = (step * forward).sum(1)[moving] / np.linalg.norm(step, axis=1)[moving]
    assert np.median(heading) > 0.99

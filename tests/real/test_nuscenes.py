"""The real nuScenes key frame comes through the adapter bit for bit, and its geometry agrees with its labels."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats import PackedSet, PackOptions, open_set, pack, pose
from headway.formats.adapters import SourceSpec
from headway.formats.adapters.nuscenes import NuScenes, NuScenesOptions
from headway.formats.source import SourceDrive

pytestmark = pytest.mark.real

CAMERAS = ("CAM_BACK", "CAM_BACK_LEFT", "CAM_BACK_RIGHT", "CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT")
STRAYS = 5
SCENE = "scene-0061"


@pytest.fixture
def root(real_data: Path) -> Path:
    return real_data / "nuscenes"


@pytest.fixture
def drive(root: Path) -> SourceDrive:
    return NuScenes(root, NuScenesOptions(version="v1.0-mini")).open_drive(SCENE)


def table(root: Path, name: str) -> list[dict[str, Any]]:  # Any: rows as json.loads gives them
    rows: list[dict[str, Any]] = json.loads((root / "v1.0-mini" / f"{name}.json").read_text())
    return rows


def row_of(root: Path, channel: str) -> dict[str, Any]:
    return next(row for row in table(root, "sample_data") if f"/{channel}/" in row["filename"])


def points_in_boxes(world: NDArray[np.float64], boxes: dict[str, Any]) -> NDArray[np.int64]:
    counts = []
    for centre, size, rotation in zip(boxes["centre"], boxes["size"], boxes["rotation"], strict=True):
        local = (world - centre) @ pose.rotation_matrix(rotation)
        counts.append(int((np.abs(local) <= size / 2).all(1).sum()))
    return np.array(counts)


def test_stray_files_are_ignored_and_said_to_be(root: Path) -> None:
    source = NuScenes(root)
    assert len(source.ignored) == STRAYS
    assert all(item.reason for item in source.ignored)
    assert [listing.name for listing in source.listings] == [SCENE]
    assert "CC BY-NC-SA" in source.licence
    assert source.listings[0].source_bytes == sum((root / row["filename"]).stat().st_size for row in table(root, "sample_data"))


@pytest.mark.parametrize("channel", CAMERAS)
def test_camera_is_exact(root: Path, drive: SourceDrive, channel: str) -> None:
    row = row_of(root, channel)
    calibration = next(item for item in table(root, "calibrated_sensor") if item["token"] == row["calibrated_sensor_token"])
    ego = next(item for item in table(root, "ego_pose") if item["token"] == row["ego_pose_token"])
    timeline = drive.timelines[channel]
    assert timeline.read is not None
    assert timeline.read(0) == (root / row["filename"]).read_bytes()
    assert timeline.origin(0) == row["filename"]
    assert timeline.stamps.tolist() == [row["timestamp"] * 1000]
    assert timeline.own is not None
    assert timeline.own.tolist() == [0]
    assert timeline.columns["intrinsics"][0].tolist() == calibration["camera_intrinsic"]
    assert timeline.columns["sensor_to_ego"][0].tolist() == calibration["translation"] + calibration["rotation"]
    assert timeline.columns["ego_to_world"][0].tolist() == ego["translation"] + ego["rotation"]
    assert (timeline.columns["width"][0], timeline.columns["height"][0]) == (1600, 900)


def test_lidar_is_bit_identical(root: Path, drive: SourceDrive) -> None:
    row = row_of(root, "LIDAR_TOP")
    timeline = drive.timelines["LIDAR_TOP"]
    assert timeline.read is not None
    points = timeline.read(0)
    assert isinstance(points, np.ndarray)
    assert points.dtype.names == ("x", "y", "z", "intensity", "ring")
    assert points.tobytes() == (root / row["filename"]).read_bytes()
    assert points.view(np.float32).reshape(len(points), -1).shape == (34688, 5)
    assert timeline.stamps.tolist() == [row["timestamp"] * 1000]


def test_sample_carries_token_and_exact_pose(root: Path, drive: SourceDrive) -> None:
    sample = table(root, "sample")[0]
    timeline = drive.timelines["sample"]
    assert timeline.stamps.tolist() == [sample["timestamp"] * 1000]
    assert timeline.columns["token"][0].tobytes().decode() == sample["token"]
    assert timeline.columns["ego_to_world"].tolist() == drive.timelines["LIDAR_TOP"].columns["ego_to_world"].tolist()
    assert len(drive.timelines["ego"].stamps) == len({row["timestamp"] for row in table(root, "sample_data")})


def test_boxes_are_all_there(root: Path, drive: SourceDrive) -> None:
    rows = table(root, "sample_annotation")
    categories = {item["token"]: item["name"] for item in table(root, "category")}
    instances = {item["token"]: categories[item["category_token"]] for item in table(root, "instance")}
    timeline = drive.timelines["boxes"]
    assert timeline.read is not None
    boxes = timeline.read(0)
    assert isinstance(boxes, dict)
    assert boxes["centre"].shape == (68, 3)
    assert boxes["centre"].tolist() == [row["translation"] for row in rows]
    assert boxes["size"][:, [1, 0, 2]].tolist() == [row["size"] for row in rows]
    assert boxes["rotation"].tolist() == [row["rotation"] for row in rows]
    assert boxes["lidar_points"].tolist() == [row["num_lidar_pts"] for row in rows]
    assert boxes["track_id"] == [row["instance_token"] for row in rows]
    assert np.isnan(boxes["velocity"]).all()  # one sample: no neighbour to take a difference with
    schema = NuScenes(root).schema.sensor("boxes")
    names = next(field for field in schema.fields if field.name == "category").categories
    assert [names[number] for number in boxes["category"]] == [instances[row["instance_token"]] for row in rows]


def test_points_in_boxes_agree_with_the_labels(drive: SourceDrive) -> None:
    lidar, boxes = drive.timelines["LIDAR_TOP"], drive.timelines["boxes"]
    assert lidar.read is not None
    assert boxes.read is not None
    points, labels = lidar.read(0), boxes.read(0)
    assert isinstance(points, np.ndarray)
    assert isinstance(labels, dict)
    to_world = pose.to_matrix(pose.compose(lidar.columns["ego_to_world"][0], lidar.columns["sensor_to_ego"][0]))
    xyz = np.stack([points["x"], points["y"], points["z"]], 1).astype(np.float64)
    counts = points_in_boxes(xyz @ to_world[:3, :3].T + to_world[:3, 3], labels)
    assert int((np.abs(counts - labels["lidar_points"]) <= 2).sum()) >= 64


def test_map_is_attached(root: Path, drive: SourceDrive) -> None:
    attached = {item.name: item.read() for item in drive.attachments}
    assert attached == {"maps/placeholder.png": (root / "maps" / "placeholder.png").read_bytes()}


@pytest.fixture(params=["arrow", "tar"])
def packed(request: pytest.FixtureRequest, root: Path, tmp_path: Path) -> Iterator[PackedSet]:
    pack(
        SourceSpec(kind="nuscenes", path=str(root), options={"version": "v1.0-mini"}),
        tmp_path / "set",
        PackOptions(format=request.param, workers=1),
    )
    with open_set(tmp_path / "set") as opened:
        yield opened


def test_packed_set_gives_every_byte_back(root: Path, drive: SourceDrive, packed: PackedSet) -> None:
    assert (len(packed), len(packed.drives)) == (1, 1)
    frame = np.array([0])
    for channel in (*CAMERAS, "LIDAR_TOP"):
        row = row_of(root, channel)
        timeline = packed.timeline(channel)
        own = packed.own(channel, frame)
        assert own.tolist() == [0]
        assert timeline.stamps(0).tolist() == [row["timestamp"] * 1000]
        for name, values in drive.timelines[channel].columns.items():
            assert timeline.take(name, own).tobytes() == values.tobytes()
        value = timeline.value(0)
        data = value.tobytes() if isinstance(value, np.ndarray) else value
        assert data == (root / row["filename"]).read_bytes()
    assert packed.attachment(SCENE, "maps/placeholder.png") == (root / "maps" / "placeholder.png").read_bytes()


def test_packed_points_still_lie_in_their_boxes(drive: SourceDrive, packed: PackedSet) -> None:
    lidar = packed.timeline("LIDAR_TOP")
    points, labels = lidar.value(0), packed.timeline("boxes").value(0)
    assert isinstance(points, np.ndarray)
    assert isinstance(labels, dict)
    assert len(labels["track_id"]) == 68
    rows = np.array([0])
    to_world = pose.to_matrix(pose.compose(lidar.take("ego_to_world", rows)[0], lidar.take("sensor_to_ego", rows)[0]))
    xyz = np.stack([points["x"], points["y"], points["z"]], 1).astype(np.float64)
    counts = points_in_boxes(xyz @ to_world[:3, :3].T + to_world[:3, 3], labels)
    assert int((np.abs(counts - labels["lidar_points"]) <= 2).sum()) >= 64
    read = drive.timelines["boxes"].read
    assert read is not None
    source = read(0)
    assert isinstance(source, dict)
    for name, values in source.items():
        assert np.array_equal(np.asarray(labels[name]), np.asarray(values), equal_nan=name == "velocity")

"""Synthetic drives: nuScenes' format, its rates, and one geometry for pixels, points and labels."""

from __future__ import annotations

import colorsys
import hashlib
import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import simplejpeg
from numpy.typing import NDArray

from headway.formats import UsageError, pose
from headway.formats.adapters.nuscenes import NuScenes
from headway.formats.source import SourceDrive
from headway.tools.synthetic import SYNTHETIC_VERSION, TINY, Detail, write_nuscenes
from headway.tools.synthetic_camera import _back_to_front
from headway.tools.synthetic_world import CAMERAS, World, make_world

pytestmark = pytest.mark.slow

SECONDS = 1.0
MIDDLING = Detail(image_size=(800, 450), rings=32, columns=720, ground_m=0.4, jpeg_quality=95)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nuscenes(tmp_path_factory.mktemp("synthetic") / "set", seconds=SECONDS, detail=TINY)


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> SourceDrive:
    path = write_nuscenes(tmp_path_factory.mktemp("sharp") / "set", drives=1, seconds=0.5, detail=MIDDLING)
    return NuScenes(path).open_drive("synthetic-0000")


def digest(root: Path) -> str:
    seen = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        if path.is_file():
            seen.update(path.relative_to(root).as_posix().encode() + path.read_bytes())
    return seen.hexdigest()


def value(drive: SourceDrive, sensor: str, row: int) -> Any:  # Any: the payload's kind is the sensor's
    read = drive.timelines[sensor].read
    assert read is not None
    return read(row)


def world_points(drive: SourceDrive, row: int) -> NDArray[np.float64]:
    points = value(drive, "LIDAR_TOP", row)
    columns = drive.timelines["LIDAR_TOP"].columns
    matrix = pose.to_matrix(pose.compose(columns["ego_to_world"][row], columns["sensor_to_ego"][row]))
    xyz = np.stack([points[name] for name in "xyz"], 1).astype(np.float64)
    return np.asarray(xyz @ matrix[:3, :3].T + matrix[:3, 3])


def test_the_adapter_finds_nothing_wrong_and_nothing_left_over(root: Path) -> None:
    source = NuScenes(root)
    assert [listing.name for listing in source.listings] == ["synthetic-0000", "synthetic-0001"]
    assert list(source.ignored) == []
    assert "Apache-2.0" in source.licence


def test_rates_are_nuscenes_own(root: Path) -> None:
    drive = NuScenes(root).open_drive("synthetic-0001")
    assert np.diff(drive.timelines["sample"].stamps).tolist() == [500_000_000] * 2
    assert np.diff(drive.timelines["LIDAR_TOP"].stamps).tolist() == [50_000_000] * 20
    for rig in CAMERAS:
        timeline = drive.timelines[rig.name]
        assert len(timeline.stamps) == 13
        assert np.abs(np.diff(timeline.stamps) - 83_333_333).max() < 1000
        assert timeline.own is not None
        early = drive.timelines["sample"].stamps - timeline.stamps[timeline.own]
        assert early.tolist() == [rig.before_us * 1000] * 3
    lidar = drive.timelines["LIDAR_TOP"]
    assert lidar.own is not None
    assert lidar.stamps[lidar.own].tolist() == drive.timelines["sample"].stamps.tolist()


def test_a_seed_gives_the_same_bytes_and_another_seed_others(root: Path, tmp_path: Path) -> None:
    again = write_nuscenes(tmp_path / "again", seconds=SECONDS, detail=TINY)
    other = write_nuscenes(tmp_path / "other", seconds=0.5, drives=1, seed=1, detail=TINY)
    assert digest(again) == digest(root)
    first = sorted((root / "samples" / "CAM_FRONT").iterdir())[0].read_bytes()
    assert sorted((other / "samples" / "CAM_FRONT").iterdir())[0].read_bytes() != first


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []
    write_nuscenes(tmp_path / "set", drives=1, seconds=0.5, detail=TINY, progress=lambda done, total: told.append((done, total)))
    assert told[-1] == (6 * 7 + 11, 6 * 7 + 11)
    assert [done for done, _ in told] == list(range(1, len(told) + 1))


def test_a_folder_with_anything_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    with pytest.raises(UsageError, match="not empty"):
        write_nuscenes(tmp_path, detail=TINY)
    assert [item.name for item in tmp_path.iterdir()] == ["notes.txt"]


def test_what_goes_wrong_half_way_leaves_nothing(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_nuscenes(tmp_path / "set", detail=TINY, progress=stop)
    assert list(tmp_path.iterdir()) == []


def test_annotations_count_the_points_that_lie_inside(root: Path) -> None:
    drive = NuScenes(root).open_drive("synthetic-0000")
    lidar = drive.timelines["LIDAR_TOP"]
    assert lidar.own is not None
    for sample in range(3):
        points, boxes = world_points(drive, int(lidar.own[sample])), value(drive, "boxes", sample)
        for centre, size, rotation, count in zip(
            boxes["centre"], boxes["size"], boxes["rotation"], boxes["lidar_points"], strict=True
        ):
            local = (points - centre) @ pose.rotation_matrix(rotation)
            assert (np.abs(local) <= size / 2).all(1).sum() == count
        assert (boxes["lidar_points"] > 0).sum() >= 10


def test_velocities_follow_the_moving_boxes(root: Path) -> None:
    drive = NuScenes(root).open_drive("synthetic-0000")
    boxes = value(drive, "boxes", 1)
    speed = np.linalg.norm(boxes["velocity"], axis=1)
    parked = np.array([name == "vehicle.parked" for name in boxes["attributes"]])
    moving = np.array([name == "vehicle.moving" for name in boxes["attributes"]])
    assert (speed[parked] < 1e-6).all()
    assert (speed[moving] > 5).all()
    assert parked.any()
    assert moving.any()


def test_tables_link_up_as_nuscenes_wants(root: Path) -> None:
    tables = {path.stem: json.loads(path.read_text()) for path in (root / SYNTHETIC_VERSION).iterdir()}
    assert len(tables) == 13
    assert {row["level"] for row in tables["visibility"]} == {"v0-40", "v40-60", "v60-80", "v80-100"}
    counts = {row["token"]: 0 for row in tables["instance"]}
    for row in tables["sample_annotation"]:
        counts[row["instance_token"]] += 1
    assert counts == {row["token"]: row["nbr_annotations"] for row in tables["instance"]}


def test_points_lie_on_the_pixels_of_their_boxes(sharp: SourceDrive) -> None:
    """Of the points inside a box that a camera sees unhidden, 99 % fall onto that box's own colour."""
    world = make_world(0, 0, 0.5)
    hues = np.array([colorsys.rgb_to_hsv(*thing.colour)[0] for thing in world.things])
    hit = total = 0
    for sample in range(2):
        lidar = sharp.timelines["LIDAR_TOP"]
        assert lidar.own is not None
        points = world_points(sharp, int(lidar.own[sample]))
        for rig in CAMERAS:
            seen, of_box, pixels = _visible(sharp, rig.name, sample, points, world)
            hue = _hue_of(pixels[seen])
            wanted = hues[of_box[seen]]
            apart = np.abs((hue - wanted + 0.5) % 1.0 - 0.5)
            hit += int((apart < 0.04).sum())
            total += int(seen.sum())
    assert total > 2000
    assert hit >= 0.99 * total


def _visible(
    drive: SourceDrive, camera: str, sample: int, points: NDArray[np.float64], world: World
) -> tuple[NDArray[np.bool_], NDArray[np.int64], NDArray[np.uint8]]:
    """Return of the points in boxes: which the camera sees unhidden, their box, and the pixel each falls onto."""
    timeline = drive.timelines[camera]
    assert timeline.own is not None
    row = int(timeline.own[sample])
    first = int(drive.timelines["sample"].stamps[0])
    then, now = int(drive.timelines["sample"].stamps[sample]) - first, int(timeline.stamps[row]) - first
    before, after = world.poses(then / 1e9), world.poses(now / 1e9)
    sizes = np.array([thing.size for thing in world.things])
    of_box = np.full(len(points), -1)
    moved = points.copy()
    for number, thing in enumerate(world.things):
        local = (points - before[number, :3]) @ pose.rotation_matrix(before[number, 3:])
        inside = (np.abs(local) <= sizes[number] / 2).all(1)
        if thing.category:
            of_box[inside] = number
            # The camera looked up to 43 ms earlier: carry the points along with the box they are on.
            moved[inside] = local[inside] @ pose.rotation_matrix(after[number, 3:]).T + after[number, :3]
    of_box, moved = of_box[of_box >= 0], moved[of_box >= 0]
    to_world = pose.compose(timeline.columns["ego_to_world"][row], timeline.columns["sensor_to_ego"][row])
    matrix = pose.to_matrix(pose.invert(to_world))
    rays = (moved @ matrix[:3, :3].T + matrix[:3, 3]) @ timeline.columns["intrinsics"][row].T
    image = simplejpeg.decode_jpeg(value(drive, camera, row), "RGB")
    height, width = image.shape[:2]
    ahead = rays[:, 2] > 0.5
    u, v = (np.floor(rays[:, axis] / np.where(ahead, rays[:, 2], 1)).astype(int) for axis in (0, 1))
    seen = ahead & (u >= 0) & (u < width) & (v >= 0) & (v < height)
    for number in range(len(after)):
        seen &= (of_box == number) | ~_blocks(after[number], sizes[number], to_world[:3], moved)
    return seen, of_box, image[np.clip(v, 0, height - 1), np.clip(u, 0, width - 1)]


def _blocks(
    box: NDArray[np.float64], size: NDArray[np.float64], eye: NDArray[np.float64], points: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Say for each point whether a box stands between it and the eye."""
    turn = pose.rotation_matrix(box[3:])
    start, end = (eye - box[:3]) @ turn, (points - box[:3]) @ turn
    step = np.where(np.abs(end - start) < 1e-9, 1e-9, end - start)
    low, high = (-size / 2 - start) / step, (size / 2 - start) / step
    near, far = np.minimum(low, high).max(1), np.maximum(low, high).min(1)
    return np.asarray((near < far) & (near < 1) & (far > 0))


def _hue_of(pixels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return hues 0…1 of (n, 3) RGB."""
    rows = pixels.reshape(-1, 1, 3).astype(np.float32) / 255
    return np.asarray(cv2.cvtColor(rows, cv2.COLOR_RGB2HSV)[:, 0, 0] / 360.0, np.float64)


def test_no_box_is_painted_over_one_in_front_of_it() -> None:
    """A long truck whose middle is nearer than a walker before its tail: distances order them wrongly."""
    truck = np.array([20.0, 4.0, 1.5, 1, 0, 0, 0])
    walker = np.array([27.0, 2.0, 0.9, 1, 0, 0, 0])
    order = _back_to_front(np.stack([walker, truck]), np.array([[0.6, 0.6, 1.8], [20.0, 2.5, 3.0]]), np.array([0.0, 0.0, 1.5]))
    assert order.tolist() == [1, 0]

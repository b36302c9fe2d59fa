"""The picture's geometry: points inside a box fall inside its drawing, and a batch shows what the set holds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import headway
from headway.formats import UsageError
from headway.formats.packed_set import PackedSet, open_set
from headway.formats.pose import rotation_matrix
from headway.tools._batch_scene import scene_from_batch
from headway.tools._camera_view import project
from headway.tools._canvas import class_colour, depth_colours
from headway.tools._set_scene import scene_from_set
from headway.tools.picture import overview, write_picture
from headway.tools.scene import Boxes, CameraImage, Scene
from headway.tools.scene import Path as EgoPath

slow = pytest.mark.slow


@pytest.fixture(scope="module")
def packed(tiny_set: Path) -> Iterator[PackedSet]:
    with open_set(tiny_set) as opened:
        yield opened


def _boxes(rng: np.random.Generator, count: int) -> Boxes:
    return Boxes(
        centre=rng.uniform(-30, 30, (count, 3)),
        size=rng.uniform(0.5, 5, (count, 3)),
        rotation=rotation_matrix(rng.normal(size=(count, 4))),
        velocity=np.full((count, 3), np.nan),
        names=["vehicle.car"] * count,
    )


def _hull(points: NDArray[np.float64]) -> NDArray[np.float32]:
    return np.asarray(cv2.convexHull(points.astype(np.float32)), np.float32)


def test_points_are_inside_the_box_they_were_made_in() -> None:
    rng = np.random.default_rng(3)
    boxes = _boxes(rng, 20)
    local = rng.uniform(-0.49, 0.49, (20, 3)) * boxes.size
    points = boxes.centre + np.einsum("mij,mj->mi", boxes.rotation, local)
    for index, found in enumerate(boxes.inside(points)):
        assert found == index or _holds(boxes, int(found), points[index])
    corners = boxes.corners()
    assert np.allclose(corners.mean(1), boxes.centre)
    assert np.allclose(np.linalg.norm(corners[:, 0] - corners[:, 1], axis=1), boxes.size[:, 0])
    assert np.allclose(np.linalg.norm(corners[:, 0] - corners[:, 2], axis=1), boxes.size[:, 1])
    assert np.allclose(np.linalg.norm(corners[:, 0] - corners[:, 4], axis=1), boxes.size[:, 2])


def _holds(boxes: Boxes, index: int, point: NDArray[np.float64]) -> bool:
    return bool((np.abs((point - boxes.centre[index]) @ boxes.rotation[index]) <= boxes.size[index] / 2).all())


@pytest.mark.parametrize("model", ["brown", "fisheye"])
def test_lens_models_agree_with_opencv(model: str) -> None:
    rng = np.random.default_rng(5)
    points = np.stack([rng.uniform(-1, 1, 50), rng.uniform(-1, 1, 50), rng.uniform(1.5, 9, 50)], -1)
    matrix = np.array([[800.0, 0, 640], [0, 790.0, 360], [0, 0, 1]])
    k = np.array([-0.2, 0.05, 0.001, -0.002, 0.01]) if model == "brown" else np.array([0.02, -0.01, 0.003, -0.001])
    camera = CameraImage(
        name="c", image=np.zeros((1, 1, 3), np.uint8), intrinsics=matrix, from_ego=np.eye(4), model=model, distortion=k
    )
    zero = np.zeros(3)
    if model == "brown":
        expected, _ = cv2.projectPoints(points, zero, zero, matrix, k)
    else:
        expected, _ = cv2.fisheye.projectPoints(points[:, None], zero, zero, matrix, k)
    assert np.allclose(project(camera, points), np.asarray(expected).reshape(-1, 2), atol=1e-6)


@slow
def test_points_in_boxes_are_drawn_inside_their_drawing(packed: PackedSet) -> None:
    scene = scene_from_set(packed, 2)
    owner = scene.boxes.inside(scene.points)
    seen = 0
    for camera in scene.cameras:
        turn, shift = camera.from_ego[:3, :3], camera.from_ego[:3, 3]
        for index in np.unique(owner[owner >= 0]):
            corners = scene.boxes.corners()[index] @ turn.T + shift
            points = scene.points[owner == index] @ turn.T + shift
            if corners[:, 2].min() < 0.5:
                continue
            hull = _hull(project(camera, corners))
            for at in project(camera, points):
                assert cv2.pointPolygonTest(hull, (float(at[0]), float(at[1])), True) > -0.01
                seen += 1
    assert seen > 50


@slow
def test_points_of_boxes_show_the_boxes_colour_in_the_images(packed: PackedSet) -> None:
    """Synthetic boxes have flat colours, so pixels under one box's points agree with each other."""
    scene = scene_from_set(packed, 2)
    owner = scene.boxes.inside(scene.points)
    agreeing = total = 0
    for camera in scene.cameras:
        height, width = camera.image.shape[:2]
        local = scene.points @ camera.from_ego[:3, :3].T + camera.from_ego[:3, 3]
        hues = cv2.cvtColor(camera.image, cv2.COLOR_RGB2HSV_FULL)[..., 0].astype(int)
        for index in np.unique(owner[owner >= 0]):
            mine = local[(owner == index) & (local[:, 2] > 1)]
            at = np.floor(project(camera, mine)).astype(int) if len(mine) else np.zeros((0, 2), int)
            at = at[((at >= 2) & (at < (width - 2, height - 2))).all(-1)]
            if len(at) >= 8:
                hue = hues[at[:, 1], at[:, 0]]
                middle = int(np.median(hue))
                agreeing += int((np.abs((hue - middle + 128) % 256 - 128) < 20).sum())
                total += len(at)
    assert total > 100
    assert agreeing / total > 0.8


@slow
def test_a_batch_shows_what_the_set_holds(packed: PackedSet, tiny_set: Path) -> None:
    windows = [
        headway.Window("CAM_*", name="camera"),
        headway.Window("LIDAR_TOP"),
        headway.Window("boxes"),
        headway.Window("sample"),
    ]
    dataset = headway.open(tiny_set, windows=[*windows, headway.Trajectory(rate_hz=4.0)], images=[headway.Images("CAM_*")])
    loader = headway.DataLoader(dataset, batch_size=2, shuffle=False, num_workers=0)
    batch = next(iter(loader))
    for sample in range(2):
        seen = scene_from_batch(batch, sample, packed.schema)
        stored = scene_from_set(packed, int(batch["id"][sample]))
        assert seen.stamp_ns == stored.stamp_ns
        assert seen.title == stored.title
        assert [camera.name for camera in seen.cameras] == [camera.name for camera in stored.cameras]
        for mine, theirs in zip(seen.cameras, stored.cameras, strict=True):
            assert np.allclose(mine.from_ego, theirs.from_ego, atol=1e-6)
            assert np.allclose(mine.intrinsics, theirs.intrinsics)
            assert mine.offset_ns == theirs.offset_ns
        assert np.allclose(seen.points, stored.points, atol=1e-4)
        assert np.allclose(seen.boxes.centre, stored.boxes.centre, atol=1e-6)
        assert list(seen.boxes.names) == list(stored.boxes.names)
        here, there = np.isin(seen.path.seconds, stored.path.seconds), np.isin(stored.path.seconds, seen.path.seconds)
        assert np.allclose(seen.path.position[here], stored.path.position[there], atol=1e-6)
    assert torch.is_tensor(batch["camera"]["image"])


def test_a_scene_without_anything_is_still_a_picture() -> None:
    nothing = np.zeros((0, 3))
    scene = Scene(
        title="empty\u202e",
        stamp_ns=0,
        cameras=[],
        points=nothing,
        boxes=Boxes(centre=nothing, size=nothing, rotation=np.zeros((0, 3, 3)), velocity=nothing, names=[]),
        path=EgoPath(seconds=np.zeros(0), position=nothing),
    )
    assert overview(scene, width=800).shape[1] == 800


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5, 7, 9, 11])
def test_any_number_of_cameras_fits(count: int) -> None:
    rng = np.random.default_rng(count)
    camera = CameraImage(
        name="CAM",
        image=np.full((48, 80, 3), 90, np.uint8),
        intrinsics=np.array([[60.0, 0, 40], [0, 60.0, 24], [0, 0, 1]]),
        from_ego=np.array([[0.0, -1, 0, 0], [0, 0, -1, 1.5], [1, 0, 0, 0], [0, 0, 0, 1]]),
    )
    scene = Scene(
        title="many",
        stamp_ns=10**18,
        cameras=[camera] * count,
        points=rng.uniform(-40, 40, (200, 3)),
        boxes=_boxes(rng, 6),
        path=EgoPath(seconds=np.linspace(-2, 6, 33), position=np.outer(np.linspace(-8, 24, 33), [1, 0, 0])),
    )
    picture = overview(scene, width=1200)
    assert picture.shape[1] == 1200
    assert picture.dtype == np.uint8


def test_near_is_red_and_far_is_blue() -> None:
    near, far = depth_colours(np.array([2.0, 60.0]), 2.0, 60.0).astype(int)
    assert near[0] > near[2]
    assert far[2] > far[0]


def test_a_class_has_one_colour_everywhere() -> None:
    assert class_colour("vehicle.car") == class_colour("CAR")
    assert class_colour("something new") == class_colour("something new")


def test_pictures_are_written_whole_or_not_at_all(tmp_path: Path) -> None:
    write_picture(np.zeros((4, 4, 3), np.uint8), tmp_path / "deep/er/a.jpg")
    assert (tmp_path / "deep/er/a.jpg").read_bytes()[:2] == b"\xff\xd8"
    with pytest.raises(UsageError, match=r"use \.png or \.jpg"):
        write_picture(np.zeros((4, 4, 3), np.uint8), tmp_path / "a.xyz")
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]

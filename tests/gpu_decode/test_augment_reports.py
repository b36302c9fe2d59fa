"""What people reported of augmentation in training codes, held against ours: one draw, and everything follows it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import headway
from headway.gpu_decode import FlipBev, Policy, ResizeCropFlip, RotateBev, ScaleBev, TranslateBev, choose_decoder, points_to_image
from headway.loader import draws
from headway.loader.batch import Batch
from headway.loader.decode import BROKEN, Decoder, PortableDecoder
from headway.loader.images import Images
from tests.formats.native_jobs import jpeg, psnr
from tests.gpu_decode.scenes import scene
from tests.gpu_decode.test_geometry import apply, pixels
from tests.loader.drives import write_drives
from tests.loader.test_decode import jobs

SOURCE, TARGET = (120, 200), (64, 112)
LOOK = Images("*", size=TARGET)
DRAW = ResizeCropFlip(resize=(0.5, 0.8), rotate_deg=(-10, 10))
SCENE = Policy((RotateBev(), ScaleBev(), FlipBev(), TranslateBev()))


def affines(count: int, draw: ResizeCropFlip = DRAW) -> NDArray[np.float64]:
    """Return (n, 3, 3), drawn for items 0 … n − 1."""
    fitted = np.tile(LOOK.affine(SOURCE[1], SOURCE[0]), (count, 1, 1))
    source = np.tile([SOURCE[1], SOURCE[0]], (count, 1))
    return draw.affines(fitted, source=source, target=TARGET, keys=draws.key(1, 0, np.arange(count), 0, draw.purpose))


def decoded(decoder: Decoder, data: bytes, affine: NDArray[np.float64]) -> NDArray[Any]:
    """Return (n, H, W, 3) uint8, one picture an affine."""
    work = jobs([data] * len(affine), LOOK)
    work.affine = np.ascontiguousarray(affine[:, :2])
    assert (decoder.decode(work) < BROKEN).all(), work.messages
    found: NDArray[Any] = work.out[work.index].transpose(0, 2, 3, 1)
    return found


@pytest.fixture(params=["portable", "auto"])
def decoder(request: pytest.FixtureRequest) -> Decoder:
    """The portable decoder, and the best that is here."""
    return choose_decoder(str(request.param))


@pytest.mark.slow
def test_draws_are_an_items_own_whoever_works(tmp_path: Path) -> None:
    """pytorch/pytorch#5059, open-mmlab/OpenPCDet#886: forked workers copied numpy's state and drew equal numbers."""
    keys = draws.key(3, 0, np.arange(10_000), 0, "any")
    first = np.stack([draws.fold(keys, part) for part in range(3)])
    assert all(len(np.unique(row)) == 10_000 for row in first)
    images = Images("CAM_*", size=(24, 32), augment=ResizeCropFlip(resize=(0.5, 0.9)))
    path = write_drives(tmp_path / "set", drives=2, frames=3)
    seen = []
    for workers in (0, 1, 3):
        opened = headway.open(path, images=[images])
        found: dict[int, Any] = {}
        for batch in headway.DataLoader(opened, 3, shuffle=True, options=headway.LoaderOptions(seed=5), num_workers=workers):
            found |= dict(zip(batch["id"].tolist(), batch["camera"]["affine"], strict=True))
        seen.append(found)
    for other in seen[1:]:
        assert other.keys() == seen[0].keys()
        assert all(torch.equal(other[item], seen[0][item]) for item in other)
    drawn = [tuple(affine.flatten().tolist()) for item, affine in seen[0].items() if item >= 0]
    assert len(set(drawn)) == len(drawn)


@pytest.mark.slow
def test_a_point_is_seen_where_the_matrices_say(decoder: Decoder) -> None:
    """mit-han-lab/bevfusion#319: boxes did not sit on cars, because drawing used other matrices than training.

    A dot is painted where a LiDAR point falls; after image and scene augmentation the batch's own matrices find it again.
    """
    count = 150
    place = np.array([101.0, 67.0])
    y, x = np.mgrid[: SOURCE[0], : SOURCE[1]] + 0.5
    dot = 20 + 220 * np.exp(-((x - place[0]) ** 2 + (y - place[1]) ** 2) / (2 * 4.0**2))
    data = jpeg(np.repeat(dot[..., None], 3, 2).astype(np.uint8), "444", 97)
    drawn = affines(count)
    shown = decoded(decoder, data, drawn)[..., 0].astype(np.float64) - 20
    intrinsics = torch.tensor([[90.0, 0, 100], [0, 90, 60], [0, 0, 1]], dtype=torch.float64)
    ray = torch.linalg.inv(intrinsics) @ torch.tensor([*place, 1], dtype=torch.float64) * 7
    ahead = torch.tensor([[0.0, 0, 1, 1.5], [-1, 0, 0, 0.2], [0, -1, 0, 1.4], [0, 0, 0, 1]], dtype=torch.float64)  # camera to ego
    point = (ahead @ torch.cat([ray, torch.ones(1, dtype=torch.float64)]))[:3].float()
    eye = torch.eye(4, dtype=torch.float64)
    before = Batch(
        {name: value[:1].repeat(count) for name, value in scene().items() if isinstance(value, torch.Tensor)},
        state={"seed": 4},
        LIDAR_TOP={
            "points": point.repeat(count, 1),
            "offsets": torch.arange(count + 1),
            "columns": ["x", "y", "z"],
            "coordinates": "ego",
            "ego_to_world": eye.repeat(count, 1, 1, 1),
        },
        camera={
            "image": torch.from_numpy(shown.astype(np.uint8))[:, None, None, None],
            "intrinsics": torch.from_numpy(drawn)[:, None, None] @ intrinsics,
            "sensor_to_ego": ahead.repeat(count, 1, 1, 1, 1),
            "ego_to_world": eye.repeat(count, 1, 1, 1, 1),
            "mask": torch.ones(count, 1, 1, dtype=torch.bool),
        },
    )
    before["id"] = torch.arange(count)
    after = SCENE.augment(before)
    seen = apply(points_to_image(after)[:, 0, 0], after["LIDAR_TOP"]["points"].double())
    pixel = (seen[:, :2] / seen[:, 2:3]).numpy()
    margin = 10
    inside = ((pixel > margin) & (pixel < np.array([TARGET[1], TARGET[0]]) - margin)).all(1)
    assert inside.sum() > count / 3
    rows, columns = np.mgrid[: TARGET[0], : TARGET[1]] + 0.5
    for at in np.flatnonzero(inside):
        weight = np.where(shown[at] > 30, shown[at], 0)
        centre = np.array([(columns * weight).sum(), (rows * weight).sum()]) / weight.sum()
        assert np.abs(centre - pixel[at]).max() < 0.5


@pytest.mark.slow
def test_projecting_moved_points_is_moving_projected_points() -> None:
    """mit-han-lab/bevfusion#43: one projection path lacked the inverse of the scene's augmentation."""
    before = scene(11)
    after = SCENE.augment(before)
    image = torch.from_numpy(affines(1)[0])
    camera = {**after["camera"], "intrinsics": image @ after["camera"]["intrinsics"]}
    moved = pixels(Batch(after, camera=camera), "LIDAR_TOP")
    expected = (image @ pixels(before, "LIDAR_TOP")[..., None])[..., 0]
    torch.testing.assert_close(moved, expected, rtol=1e-4, atol=1e-2)


def test_a_flip_is_a_product_that_keeps_the_fourth_column() -> None:
    """open-mmlab/mmdetection3d#1603: flipping forgot the translation in a 3 × 4 projection, which KITTI's P2 has."""
    projection = np.array([[721.5, 0, 609.6, 44.86], [0, 721.5, 172.9, 0.216], [0, 0, 1, 0.0027]])
    flip = affines(1, ResizeCropFlip(resize=(1, 1), rotate_deg=(0, 0), flip=1))[0]
    points = np.concatenate([np.random.default_rng(0).uniform((-20, -5, 5), (20, 5, 60), (100, 3)), np.ones((100, 1))], 1)
    one = points @ (flip @ projection).T
    plain = points @ projection.T
    pixel = plain[:, :2] / plain[:, 2:]
    np.testing.assert_allclose(one[:, 1] / one[:, 2], flip[1, 1] * pixel[:, 1] + flip[1, 2], rtol=1e-9, atol=1e-7)
    np.testing.assert_allclose(one[:, 0] / one[:, 2], flip[0, 0] * pixel[:, 0] + flip[0, 2], rtol=1e-9, atol=1e-7)
    assert flip[0, 0] == -1


def test_points_alone_flip_and_need_no_boxes() -> None:
    """open-mmlab/mmdetection3d#1169: a flip did nothing, silently, in a sample without boxes."""
    whole = scene(2)
    alone = Batch({name: value for name, value in whole.items() if name not in ("boxes", "trajectory", "camera", "LIDAR_TOP")})
    flipped = Policy((FlipBev(forward=0, sideways=1),)).augment(alone)["RADAR"]["points"]
    torch.testing.assert_close(flipped, whole["RADAR"]["points"] * torch.tensor([1.0, -1, 1, 1, -1]))


def test_what_is_marked_in_two_dimensions_follows_the_batchs_affine(decoder: Decoder) -> None:
    """open-mmlab/mmdetection3d#1567: a flip moved intrinsics and centres, and left 2D boxes behind.

    headway has no 2D boxes of its own; "affine" in the batch is what moves yours, and the pixels agree with it.
    """
    box = np.array([[60.0, 40], [90, 40], [90, 75], [60, 75]])
    image = np.zeros((*SOURCE, 3), np.uint8)
    image[40:75, 60:90] = 250
    flip = affines(1, ResizeCropFlip(resize=(0.56, 0.56), rotate_deg=(0, 0), flip=1))
    (shown,) = decoded(decoder, jpeg(image, "444", 97), flip)
    moved = box @ flip[0, :2, :2].T + flip[0, :2, 2]
    rows, columns = (np.flatnonzero((shown[..., 0] > 125).any(axis)) for axis in (1, 0))
    np.testing.assert_allclose((columns[0], columns[-1] + 1), (moved[:, 0].min(), moved[:, 0].max()), atol=0.6)
    np.testing.assert_allclose((rows[0], rows[-1] + 1), (moved[:, 1].min(), moved[:, 1].max()), atol=0.6)
    mirror = np.array([[-1.0, 0, TARGET[1]], [0, 1, 0], [0, 0, 1]])
    np.testing.assert_allclose(mirror @ mirror, np.eye(3))


def test_resize_crop_and_rotation_are_one_sampling(decoder: Decoder) -> None:
    """mit-han-lab/bevfusion#168: resizing, cropping and then rotating gave jagged edges. One affine is sampled once here."""
    y, x = np.mgrid[: SOURCE[0], : SOURCE[1]]
    grid = (128 + 60 * np.sin(x / 5) + 60 * np.cos(y / 6)).astype(np.uint8)
    data = jpeg(np.repeat(grid[..., None], 3, 2), "444", 97)
    drawn = affines(12)
    for shown, affine in zip(decoded(decoder, data, drawn), drawn, strict=True):
        fine = affine[:2] * 4  # sixteen samples a pixel, averaged
        fine[:, 2] += fine[:, :2] @ (0.5, 0.5) - 0.5
        size = (4 * TARGET[1], 4 * TARGET[0])
        levels = cv2.warpAffine(grid.astype(np.float32), fine, size, flags=cv2.INTER_LINEAR, borderValue=-1e6)
        expected = cv2.resize(levels, (TARGET[1], TARGET[0]), interpolation=cv2.INTER_AREA)
        inside = cv2.erode((expected >= 0).astype(np.uint8), np.ones((5, 5), np.uint8), borderValue=0) > 0
        assert psnr(shown[..., 0][inside], expected[inside].astype(np.float64)) > 35


def test_the_portable_decoder_draws_what_the_best_one_draws() -> None:
    """One draw, whatever decodes: the pictures agree, so training does not depend on what is installed."""
    y, x = np.mgrid[: SOURCE[0], : SOURCE[1]]
    smooth = np.stack([128 + 90 * np.sin(x / 9), 128 + 90 * np.cos(y / 8), 128 + 60 * np.sin((x + y) / 12)], -1).astype(np.uint8)
    data, drawn = jpeg(smooth, "444", 97), affines(8)
    for one, other in zip(decoded(PortableDecoder(), data, drawn), decoded(choose_decoder("auto"), data, drawn), strict=True):
        seen = cv2.erode(((one.sum(-1) > 0) & (other.sum(-1) > 0)).astype(np.uint8), np.ones((5, 5), np.uint8)) > 0
        assert psnr(one[seen], other[seen].astype(np.float64)) > 35

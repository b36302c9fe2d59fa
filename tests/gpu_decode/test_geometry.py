"""One matrix a sample moves everything or nothing: pixels stay hit, boxes keep their points, unknown stays unknown."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.gpu_decode import FlipBev, Policy, RotateBev, ScaleBev, TranslateBev, boxes_to_ego, points_to_image
from headway.gpu_decode.bev import BevOp
from headway.gpu_decode.geometry import affine_inverse, sum_of_products, transform
from headway.loader.batch import Batch
from tests.gpu_decode.scenes import scene

OPS: tuple[BevOp, ...] = (
    RotateBev(angle_rad=(-3.0, 3.0)),
    ScaleBev(factor=(0.5, 2.0)),
    FlipBev(forward=1, sideways=0),
    FlipBev(forward=0, sideways=1, purpose="other-flip"),
    TranslateBev(std_m=(5, 5, 5)),
)
compositions = st.lists(st.sampled_from(OPS), unique=True, max_size=len(OPS)).map(tuple)
seeds = st.integers(0, 2**20)


def pixels(batch: Batch, points: str) -> torch.Tensor:
    """Return (B, n, T, N, 3): u·depth, v·depth, depth of the first points of each sample in each camera."""
    cloud = batch[points]
    least = int((cloud["offsets"][1:] - cloud["offsets"][:-1]).min())
    xyz = torch.stack([cloud["points"][start : start + least, :3] for start in cloud["offsets"][:-1].tolist()]).double()
    return apply(points_to_image(batch, points=points)[:, None], xyz[:, :, None, None])[..., :3]


def apply(matrix: torch.Tensor, xyz: torch.Tensor) -> torch.Tensor:
    ones = torch.ones_like(xyz[..., :1])
    return (matrix @ torch.cat([xyz, ones], -1)[..., None])[..., 0]


def world_to_ego(batch: Batch) -> torch.Tensor:
    return affine_inverse(batch["ego"]["ego_to_world"][:, -1])


def corners(boxes: dict[str, Any]) -> torch.Tensor:
    """Return (B, 1, M, 8, 3)."""
    signs = torch.tensor([[x, y, z] for x in (-0.5, 0.5) for y in (-0.5, 0.5) for z in (-0.5, 0.5)], dtype=torch.float64)
    w, v = boxes["rotation"][..., None, :1], boxes["rotation"][..., None, 1:]
    local = signs * boxes["size"][..., None, :]
    turned = local + 2 * torch.cross(v.expand_as(local), torch.cross(v.expand_as(local), local, dim=-1) + w * local, dim=-1)
    moved: torch.Tensor = boxes["centre"][..., None, :] + turned
    return moved


@given(ops=compositions, seed=seeds, frame=st.sampled_from(("ego", "LIDAR_TOP")))
def test_augmented_points_hit_the_same_pixels(ops: tuple[BevOp, ...], seed: int, frame: str) -> None:
    before = scene(seed)
    after = Policy(ops, bev_frame=frame).augment(before)
    for points in ("LIDAR_TOP", "RADAR"):
        expected = pixels(before, points)
        torch.testing.assert_close(pixels(after, points), expected, rtol=1e-4, atol=2e-2)


@given(ops=compositions, seed=seeds)
def test_points_poses_and_paths_move_by_the_matrix_in_the_ego_frame(ops: tuple[BevOp, ...], seed: int) -> None:
    before = scene(seed)
    after = Policy(ops).augment(before)
    matrix = after["bev_matrix"]
    for cloud, other, mount in (
        (before["LIDAR_TOP"], after["LIDAR_TOP"], before["LIDAR_TOP"]["sensor_to_ego"][:, 0]),
        (before["RADAR"], after["RADAR"], torch.eye(4, dtype=torch.float64).expand(2, 4, 4)),
    ):
        sample = torch.repeat_interleave(torch.arange(2), cloud["offsets"].diff())
        old = apply((matrix @ mount)[sample], cloud["points"][:, :3].double())
        torch.testing.assert_close(apply(mount[sample], other["points"][:, :3].double()), old, rtol=1e-5, atol=1e-3)
    path, moved = before["trajectory"], after["trajectory"]
    position = apply(matrix[:, None], path["position"])[..., :3]
    torch.testing.assert_close(moved["position"][:, :2], position[:, :2])
    assert (moved["position"][:, 2] == path["position"][:, 2]).all()  # masked
    ahead = apply(matrix[:, None], path["position"] + torch.stack([path["yaw"].cos(), path["yaw"].sin(), 0 * path["yaw"]], -1))
    way = (ahead[..., :3] - position)[:, :2]
    torch.testing.assert_close(torch.atan2(way[..., 1], way[..., 0]).sin(), moved["yaw"][:, :2].sin())
    # A pose takes way-point coordinates to reference coordinates, and both frames moved.
    torch.testing.assert_close(moved["pose"][:, :2] @ matrix[:, None], matrix[:, None] @ path["pose"][:, :2])
    torch.testing.assert_close(world_to_ego(after), matrix @ world_to_ego(before))


@given(ops=compositions, seed=seeds)
def test_boxes_are_the_moved_boxes_corner_by_corner(ops: tuple[BevOp, ...], seed: int) -> None:
    before = scene(seed)
    after = Policy(ops).augment(before)
    boxes, moved = before["boxes"], after["boxes"]
    there = torch.arange(boxes["centre"].shape[2]) < boxes["count"][..., None]
    matrix = after["bev_matrix"] @ world_to_ego(before)
    expected = apply(matrix[:, None, None, None], corners(boxes))[..., :3][there]
    distance = torch.cdist(expected, corners(moved)[there])
    # Under a mirror the corners change places among themselves.
    assert float(distance.amin(-1).max()) < 1e-5 * max(1.0, float(expected.abs().max()))
    velocity = (matrix[:, None, None, :3, :3] @ boxes["velocity"][..., None])[..., 0]
    torch.testing.assert_close(moved["velocity"][there], velocity[there])
    assert moved["coordinates"] == "ego"
    assert (moved["centre"][~there] == 0).all()


@given(ops=compositions, seed=seeds)
def test_boxes_keep_their_points(ops: tuple[BevOp, ...], seed: int) -> None:
    before = boxed(scene(seed))
    after = Policy(ops).augment(before)
    boxes = after["boxes"]
    inside = inside_boxes(after["RADAR"]["points"][:, :3].double().reshape(2, 3, 3), boxes)
    assert inside[boxes["count"].squeeze(1) > 0].any(-1).all()


def boxed(batch: Batch) -> Batch:
    """Put each sample's radar points, in the ego frame, well inside its first box."""
    boxes = boxes_to_ego(batch)
    local = torch.tensor([[0.3, 0.2, -0.3], [-0.4, 0.1, 0.2], [0.0, -0.4, 0.4]], dtype=torch.float64)
    first = {name: boxes[name][:, :, :1] for name in ("centre", "size", "rotation")}
    at = corners({**first, "size": torch.ones_like(first["size"])})[:, 0, 0]
    axes = torch.stack([at[:, 4] - at[:, 0], at[:, 2] - at[:, 0], at[:, 1] - at[:, 0]], 1)
    points = first["centre"][:, 0] + (local * first["size"][:, 0]) @ axes
    cloud = batch["RADAR"]
    packed = cloud["points"].clone()
    packed[:, :3] = points.reshape(-1, 3).float()
    return Batch(batch, RADAR={**cloud, "points": packed})


def inside_boxes(xyz: torch.Tensor, boxes: dict[str, Any]) -> torch.Tensor:
    """Return (B, n, M)."""
    at = corners({**boxes, "size": torch.ones_like(boxes["size"])})[:, 0]
    axes = torch.stack([at[..., 4, :] - at[..., 0, :], at[..., 2, :] - at[..., 0, :], at[..., 1, :] - at[..., 0, :]], -2)
    local = (axes[:, None] @ (xyz[:, :, None] - boxes["centre"][:, None, 0])[..., None])[..., 0]
    return torch.as_tensor((local.abs() <= boxes["size"][:, None, 0] / 2 + 1e-3).all(-1))


@given(seed=seeds)
def test_a_flip_done_twice_is_nothing_done(seed: int) -> None:
    before = scene(seed)
    before["boxes"] = boxes_to_ego(before)
    flip = torch.diag(torch.tensor([1.0, -1, 1, 1], dtype=torch.float64)).expand(2, 4, 4)
    again = transform(transform(before, flip), flip)
    for entry, name in (
        ("boxes", "centre"),
        ("boxes", "velocity"),
        ("boxes", "yaw"),
        ("trajectory", "position"),
        ("ego", "ego_to_world"),
    ):
        torch.testing.assert_close(again[entry][name], before[entry][name])


def test_a_sideways_flip_of_points_alone_negates_y_yaw_and_lateral_velocity() -> None:
    """Each field moves by its own presence; no boxes are needed for points to flip."""
    policy = Policy((FlipBev(forward=0, sideways=1),))
    before = scene(1)
    before["boxes"] = boxes_to_ego(before)
    after = policy.augment(before)
    torch.testing.assert_close(after["boxes"]["velocity"][..., 1], -before["boxes"]["velocity"][..., 1])
    torch.testing.assert_close(after["boxes"]["yaw"].sin(), -before["boxes"]["yaw"].sin())
    alone = Batch({name: value for name, value in before.items() if name not in ("boxes", "trajectory", "camera", "LIDAR_TOP")})
    flipped = policy.augment(alone)["RADAR"]["points"]
    torch.testing.assert_close(flipped, before["RADAR"]["points"] * torch.tensor([1.0, -1, 1, 1, -1]))


def test_unknown_velocities_stay_unknown_and_known_parts_known() -> None:
    before = scene(2)
    before["boxes"] = {**boxes_to_ego(before), "velocity": before["boxes"]["velocity"].clone()}
    before["boxes"]["velocity"][0, 0, 0] = torch.nan
    before["boxes"]["velocity"][1, 0, 0, 2] = torch.nan
    velocity = Policy((RotateBev(), ScaleBev())).augment(before)["boxes"]["velocity"]
    assert velocity[0, 0, 0].isnan().all()
    assert velocity[1, 0, 0].isnan().tolist() == [False, False, True]


def test_absent_images_stay_absent() -> None:
    camera = Policy((RotateBev(),)).augment(scene())["camera"]
    for name in ("sensor_to_ego", "ego_to_world"):
        assert (camera[name][-1, 0, 1] == 0).all()
        assert (camera[name][0, 0, 1] != 0).any()


def test_a_batch_without_the_reference_pose_is_refused_when_boxes_need_it() -> None:
    batch = scene()
    batch["stamp"] = batch["stamp"] + 1
    with pytest.raises(UsageError, match="reference stamp of 2 of 2"):
        boxes_to_ego(batch)


def test_a_second_pass_is_refused() -> None:
    policy = Policy((RotateBev(),))
    with pytest.raises(UsageError, match="already"):
        policy.augment(policy.augment(scene()))


def test_the_given_batch_is_not_changed() -> None:
    before, untouched = scene(3), scene(3)
    Policy(OPS).augment(before)
    for name, entry in untouched.items():
        if isinstance(entry, dict) and name != "state":
            for key, value in entry.items():
                if isinstance(value, torch.Tensor):
                    assert torch.equal(before[name][key].nan_to_num(), value.nan_to_num()), (name, key)


def test_inverses_of_affines() -> None:
    matrix = scene()["ego"]["ego_to_world"]
    np.testing.assert_allclose((affine_inverse(matrix) @ matrix).numpy(), np.broadcast_to(np.eye(4), matrix.shape), atol=1e-9)


def test_points_move_alike_sweep_by_sweep_and_all_at_once() -> None:
    """Sweep by sweep is the CPU's way, a matrix a point the GPU's; both give the same bits wherever a sweep lies in its batch."""
    rng = np.random.default_rng(0)
    linear, shift = (torch.from_numpy(rng.normal(size=shape).astype(np.float32)) for shape in ((2, 3, 3), (2, 3)))
    rows = torch.from_numpy(rng.normal(scale=30, size=(3, 1001)).astype(np.float32))
    sweep = torch.arange(1001) // 501
    whole = sum_of_products(linear[sweep].permute(1, 2, 0), rows, shift[sweep].T)
    for at, part in enumerate((slice(0, 501), slice(501, 1001))):
        assert torch.equal(sum_of_products(linear[at, ..., None], rows[:, part].contiguous(), shift[at, :, None]), whole[:, part])

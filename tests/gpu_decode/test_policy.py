"""Policies are data: they survive being written down, refuse what cannot be meant, and draw alike for every loader."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

import headway
from headway.formats import UsageError
from headway.gpu_decode import (
    RECIPES,
    FlipBev,
    Normalise,
    PhotometricDistortion,
    Policy,
    RandomResizedCrop,
    ResizeCropFlip,
    RotateBev,
    ScaleBev,
    TranslateBev,
    points_to_image,
    read_policy,
)
from headway.loader.batch import Batch
from tests.gpu_decode.scenes import scene
from tests.loader.drives import write_drives


@pytest.mark.parametrize("name", RECIPES)
def test_recipes_survive_being_written_down(name: str, tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text(yaml.safe_dump(RECIPES[name].to_data()), "utf-8")
    assert read_policy(path) == RECIPES[name]
    assert all(type(op).__name__ in str(RECIPES[name]) for op in RECIPES[name].ops)


def test_operations_act_in_the_order_written() -> None:
    """Rotate, scale, translate and rotate, translate, scale are two recipes."""
    still = scene()
    shift, scale = TranslateBev(std_m=(3, 0, 0)), ScaleBev(factor=(2, 2))
    first = Policy((shift, scale)).bev_matrices(still)
    second = Policy((scale, shift)).bev_matrices(still)
    torch.testing.assert_close(first[:, :3, 3], 2 * second[:, :3, 3])


@pytest.mark.parametrize(
    ("data", "says"),
    [
        ({}, "a list 'ops'"),
        ({"ops": "RotateBev"}, "a list 'ops'"),
        ({"ops": [], "seed": 3}, "found the keys"),
        ({"ops": ["Rotate"]}, "there is no operation 'Rotate'"),
        ({"ops": [{"RotateBev": {"angle": [0, 1]}}]}, "RotateBev takes"),
        ({"ops": [{"RotateBev": {"angle_rad": [1, 0]}}]}, "angle_rad"),
        ({"ops": ["RotateBev", "RotateBev"]}, "purpose 'bev-rotate'"),
        ({"ops": ["ResizeCropFlip", "RandomResizedCrop"]}, "more than one image operation"),
        ({"ops": ["Normalise", "GridMask"]}, "Normalise must be the last"),
        ({"ops": [{"RotateBev": {}, "ScaleBev": {}}]}, "expected an operation as"),
    ],
)
def test_what_cannot_be_meant_is_refused(data: dict[str, object], says: str) -> None:
    with pytest.raises(UsageError, match=says):
        Policy.from_data(data)


def test_a_policy_file_is_never_run(tmp_path: Path) -> None:
    path = tmp_path / "policy.yaml"
    path.write_text("ops: !!python/object/apply:os.getcwd []\n", "utf-8")
    with pytest.raises(UsageError, match="not YAML"):
        read_policy(path)


def test_the_image_operation_is_the_loaders() -> None:
    assert Policy((RandomResizedCrop(), RotateBev())).image_draw == RandomResizedCrop()
    assert Policy((RotateBev(),)).image_draw is None


def _batches(path: Path, policy: Policy, *, batch_size: int, epoch: int = 0) -> list[Batch]:
    images = [headway.Images(["CAM_BACK", "CAM_FRONT"], size=(24, 32), augment=policy.image_draw)]
    windows = [headway.Window(["CAM_BACK", "CAM_FRONT"], name="camera"), headway.Window("LIDAR")]
    dataset = headway.open(path, windows=windows, images=images)
    loader = headway.DataLoader(dataset, batch_size=batch_size, shuffle=True, options=headway.LoaderOptions(seed=3))
    loader.set_epoch(epoch)
    return list(loader)


@pytest.mark.slow
def test_what_training_sees_does_not_depend_on_batch_sizes(tmp_path: Path) -> None:
    """The last batch of an epoch carries the state of the next one; its draws are still its own epoch's."""
    path = write_drives(tmp_path / "set")
    policy = Policy((ResizeCropFlip(resize=(0.5, 0.8)), RotateBev(), FlipBev(), TranslateBev()))
    seen: list[dict[int, torch.Tensor]] = []
    for batch_size in (2, 5):
        found = {}
        for batch in _batches(path, policy, batch_size=batch_size):
            matrices = policy.augment(batch)["bev_matrix"]
            found.update(dict(zip(batch["id"].tolist(), matrices, strict=True)))
        seen.append(found)
    assert seen[0].keys() - {-1} == seen[1].keys() - {-1}
    for item in seen[0].keys() - {-1}:
        assert torch.equal(seen[0][item], seen[1][item])
    again = policy.augment(_batches(path, policy, batch_size=5, epoch=1)[0])
    assert not torch.equal(again["bev_matrix"][0], seen[0][int(again["id"][0])])


@pytest.mark.slow
def test_points_fall_on_the_same_source_pixels_whatever_is_drawn(tmp_path: Path) -> None:
    path = write_drives(tmp_path / "set")
    drawn = Policy((ResizeCropFlip(resize=(0.5, 0.8), rotate_deg=(-20, 20)), RotateBev(), ScaleBev(), FlipBev(), TranslateBev()))
    plain = Policy(())
    for before, after in zip(_batches(path, plain, batch_size=4), _batches(path, drawn, batch_size=4), strict=True):
        assert torch.equal(before["id"], after["id"])
        moved = drawn.augment(after)
        sources = []
        for batch in (before, moved):
            cloud, group = batch["LIDAR"], batch["camera"]
            first = cloud["points"][cloud["offsets"][:-1].clamp(max=len(cloud["points"]) - 1), :3].double()
            point = torch.cat([first, torch.ones_like(first[:, :1])], -1)[:, None, None, :, None]
            chain = points_to_image(batch, points="LIDAR") @ point
            pixel = chain[..., :2, 0] / chain[..., 2:3, 0]
            there = group["mask"] & batch["valid"][:, None, None]
            pixel = torch.cat([pixel, torch.ones_like(pixel[..., :1])], -1)[there]
            source = torch.linalg.inv(group["affine"][there]) @ pixel[..., None]
            sources.append(source[:, :2, 0])
        torch.testing.assert_close(sources[1], sources[0], rtol=1e-3, atol=0.05)


def test_photometric_distortion_needs_levels_and_ends_normalised() -> None:
    policy = Policy((PhotometricDistortion(), Normalise(dtype="bfloat16")))
    assert policy.augment(scene())["camera"]["image"].dtype == torch.bfloat16

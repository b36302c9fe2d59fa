"""A context rank's part of a batch: all parts, end to end, are the batch; what does not divide is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway import DataLoader, Images, LoaderOptions, Topology, UsageError, Window
from headway.loader.batch import Batch
from headway.loader.context_part import Axis, context_part
from headway.loader.topology import Peers


@pytest.fixture(scope="module")
def batch(drives_set: Path) -> Batch:
    windows = [Window("CAM_*", past=3), Window("LIDAR", past=1), Window("RADAR"), Window("boxes", past=3), Window("note", past=1)]
    dataset = headway.open(drives_set, windows=windows, images=[Images(["CAM_BACK", "CAM_PORT"], size=(24, 32))])
    found: Batch = next(iter(DataLoader(dataset, 3, shuffle=True, num_workers=0)))
    return found


def parts(batch: Batch, axes: dict[str, Axis], size: int) -> list[Batch]:
    return [context_part(batch, Peers(rank=rank, size=size), axes) for rank in range(size)]


@pytest.mark.parametrize(("axis", "dim", "size"), [("frames", 1, 2), ("frames", 1, 4), ("cameras", 2, 2)])
def test_parts_of_images_are_the_images(batch: Batch, axis: Axis, dim: int, size: int) -> None:
    cut = [part["camera"] for part in parts(batch, {"camera": axis}, size)]
    for key, value in batch["camera"].items():
        if isinstance(value, torch.Tensor):
            assert torch.equal(torch.cat([part[key] for part in cut], dim), value)
    names = [name for part in cut for name in part["sensors"]]
    assert names == batch["camera"]["sensors"] * (1 if axis == "cameras" else size)


def test_parts_of_points_are_the_points_sweep_by_sweep(batch: Batch) -> None:
    cut = parts(batch, {"LIDAR": "points", "RADAR": "points"}, 3)
    for name in ("LIDAR", "RADAR"):
        whole = batch[name]
        for sweep, (first, last) in enumerate(zip(whole["offsets"][:-1], whole["offsets"][1:], strict=True)):
            pieces = [part[name]["points"][part[name]["offsets"][sweep] : part[name]["offsets"][sweep + 1]] for part in cut]
            assert torch.equal(torch.cat(pieces), whole["points"][first:last])
            assert max(map(len, pieces)) - min(map(len, pieces)) <= 1
    assert sum(len(part["RADAR"]["fields"]["t"]) for part in cut) == len(batch["RADAR"]["fields"]["t"])


def test_tables_and_texts_are_cut_by_frames(batch: Batch) -> None:
    cut = parts(batch, {"boxes": "frames", "note": "frames"}, 2)
    assert torch.equal(torch.cat([part["boxes"]["count"] for part in cut], 1), batch["boxes"]["count"])
    assert [one + other for one, other in zip(*(part["note"]["text"] for part in cut), strict=True)] == batch["note"]["text"]
    assert cut[0]["id"] is batch["id"]


@pytest.mark.parametrize(
    ("axes", "match"),
    [
        ({"camera": "frames"}, "4 frames, which 3"),
        ({"LIDAR": "frames"}, "end to end"),
        ({"boxes": "cameras"}, "no image group"),
        ({"camera": "points"}, "no points entry"),
        ({"nothing": "frames"}, "no entry"),
        ({"camera": "width"}, "none of"),
    ],
)
def test_what_cannot_be_cut_is_refused(batch: Batch, axes: Any, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        parts(batch, axes, 3)


def test_pipeline_stages_read_their_own_fields_of_the_same_samples(drives_set: Path) -> None:
    """The first stage needs images, the last one labels: neither reads what the other does."""
    stages = [
        DataLoader(
            headway.open(drives_set, windows=windows, images=images),
            2,
            shuffle=True,
            num_workers=0,
            options=LoaderOptions(seed=3),
            topology=Topology(rank=1, size=2, pipeline=Peers(rank=rank, size=2)),
        )
        for rank, (windows, images) in enumerate((([Window("CAM_BACK")], [Images("CAM_BACK")]), ([Window("boxes")], [])))
    ]
    for first, last in zip(*stages, strict=True):
        assert torch.equal(first["id"], last["id"])
        assert "boxes" not in first
        assert "camera" not in last


def test_a_plain_loader_has_its_place_too() -> None:
    assert DataLoader([1, 2]).topology.size == 1

"""What a batch holds is what the drives hold, in the documented structure, for any batch size and decoder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import headway
from headway import Batch, DataLoader, Images, LoaderOptions, Sweeps, Trajectory, UsageError, Window
from headway.formats.pose import compose, invert, to_matrix
from headway.loader.decode import Decoder

from .drives import JPEG, MISSING, PERIOD_NS, PNG, START_NS, level, points_of, pose_of

FRAMES = [(drive, frame) for drive in range(3) for frame in range(5 + drive)]


def batches(dataset: headway.Dataset, decoder: Decoder | None = None, **options: Any) -> list[Batch]:
    return list(DataLoader(dataset, batch_size=4, num_workers=2, decoder=decoder, options=LoaderOptions(**options)))


def places(batch: Batch) -> list[tuple[int, int, int]]:
    """(place in the batch, drive, frame) of each valid sample."""
    return [(place, *FRAMES[item]) for place, item in enumerate(batch["id"].tolist()) if item >= 0]


def test_every_field_is_what_the_drive_holds(drives_set: Path, decoder: Decoder) -> None:
    dataset = headway.open(drives_set, images=[Images("CAM_[BF]*", size=JPEG), Images("CAM_PORT", size=PNG, name="port")])
    seen = 0
    for batch in batches(dataset, decoder):
        for place, drive, frame in places(batch):
            seen += 1
            stamp = START_NS + frame * PERIOD_NS
            assert batch["drive"][place] == f"drive-{drive}"
            assert (batch["frame"][place], batch["stamp"][place]) == (frame, stamp)
            check_cameras(batch, place, drive, frame)
            start, stop = batch["LIDAR"]["offsets"][place : place + 2].tolist()
            np.testing.assert_array_equal(batch["LIDAR"]["points"][start:stop], points_of(drive, frame))
            np.testing.assert_allclose(batch["LIDAR"]["ego_to_world"][place, 0], to_matrix(pose_of(drive, stamp)), atol=1e-12)
            start, stop = batch["RADAR"]["offsets"][place : place + 2].tolist()
            assert batch["RADAR"]["fields"]["t"][start:stop].tolist() == [2**40 + frame] * ((drive + frame) % 4 * 5)
            count = (drive + frame) % 4
            assert batch["boxes"]["count"][place, 0] == count
            assert batch["boxes"]["track_id"][place][0] == [f"{drive}-{frame}-{box}" for box in range(count)]
            assert (batch["boxes"]["size"][place, 0, :count] == 1).all()
            assert (batch["boxes"]["size"][place, 0, count:] == 0).all()
            assert batch["imu"]["value"][place, 0].tolist() == [[drive * 100 + frame] * 2] * 3
            assert batch["note"]["text"][place] == [f"drive {drive} frame {frame}"]
            assert batch["ego"]["gear"].dtype == torch.int8
    assert seen == len(FRAMES) == len(dataset)


def check_cameras(batch: Batch, place: int, drive: int, frame: int) -> None:
    camera = batch["camera"]
    assert camera["sensors"] == ["CAM_BACK", "CAM_FRONT"]
    assert camera["image"].shape[1:] == (1, 2, 3, *JPEG)
    for number, there in enumerate((True, frame != MISSING)):
        assert bool(camera["mask"][place, 0, number]) is there
        shown = camera["image"][place, 0, number].to(int)
        wanted = level(drive, frame, number) if there else 0
        assert (shown - wanted).abs().max() <= (2 if there else 0)
        assert camera["sync_error"][place, 0, number] == (-20_000_000 if there else 0)
    assert batch["port"]["image"].shape[1:] == (1, 1, 3, *PNG)
    assert (batch["port"]["image"][place] == level(drive, frame, 2)).all()


def test_padding_is_zero_and_says_so(drives_set: Path) -> None:
    last = batches(headway.open(drives_set))[-1]
    padding = ~last["valid"]
    assert padding.tolist() == [False, False, True, True]
    assert last["id"][padding].tolist() == [-1, -1]
    assert last["frame"][padding].tolist() == [-1, -1]
    assert [last["drive"][place] for place in (2, 3)] == ["", ""]
    assert last["replaced"].tolist() == [-1] * 4
    assert last["slot"].tolist() == [0, 1, 2, 3]
    for group in ("camera_48x64", "camera_30x40"):
        assert not last[group]["image"][padding].any()
        assert not last[group]["mask"][padding].any()
        assert not last[group]["intrinsics"][padding].any()
    assert last["LIDAR"]["offsets"][2:].unique().numel() == 1
    assert not last["boxes"]["count"][padding].any()


def test_recycled_memory_never_shows_an_older_batch(drives_set: Path) -> None:
    # CAM_FRONT misses frame 1 of each drive: its place must be blank also when the memory held a picture before.
    dataset = headway.open(drives_set, images=[Images("CAM_*", size=(240, 320))])
    loader = DataLoader(dataset, batch_size=2, num_workers=0)
    for _ in range(2):
        for batch in loader:
            absent = ~batch["camera"]["mask"]
            assert not batch["camera"]["image"][absent].any()


def test_intrinsics_follow_the_pixels(drives_set: Path) -> None:
    look = Images("CAM_BACK", size=(24, 16), fit="crop")
    camera = batches(headway.open(drives_set, images=[look]))[0]["camera"]
    affine = look.affine(JPEG[1], JPEG[0])
    np.testing.assert_allclose(camera["affine"][0, 0, 0], affine)
    np.testing.assert_allclose(camera["intrinsics"][0, 0, 0], affine @ [[50.0, 0, 32], [0, 50, 24], [0, 0, 1]])


@pytest.mark.parametrize(("dtype", "layout"), [("float32", "chw"), ("bfloat16", "hwc"), ("float16", "chw")])
def test_images_come_in_the_asked_dtype_and_layout(drives_set: Path, decoder: Decoder, dtype: Any, layout: Any) -> None:
    look = Images("CAM_BACK", size=JPEG, dtype=dtype, layout=layout, mean=(100, 100, 100), std=(50, 50, 50))
    batch = batches(headway.open(drives_set, images=look), decoder)[0]
    image = batch["camera"]["image"]
    assert image.dtype == getattr(torch, dtype)
    assert image.shape[3:] == ((3, *JPEG) if layout == "chw" else (*JPEG, 3))
    for place, drive, frame in places(batch):
        assert (image[place].float() - (level(drive, frame, 0) - 100) / 50).abs().max() < 0.06


def test_windows_give_the_time_axis(drives_set: Path) -> None:
    dataset = headway.open(
        drives_set,
        windows=[Window("CAM_BACK", past=2, name="camera"), Window("LIDAR", past=1), Window("boxes", future=1)],
        images=[Images("CAM_BACK", size=JPEG)],
    )
    for batch in batches(dataset):
        assert batch["camera"]["image"].shape[1:3] == (3, 1)
        assert len(batch["LIDAR"]["offsets"]) == 4 * 2 + 1
        for place, drive, frame in places(batch):
            mask = [frame >= 2, frame >= 1, True]
            assert batch["camera"]["mask"][place, :, 0].tolist() == mask
            for step, there in enumerate(mask):
                wanted = level(drive, frame - 2 + step, 0) if there else 0
                assert (batch["camera"]["image"][place, step].to(int) - wanted).abs().max() <= (2 if there else 0)
            start, stop = batch["LIDAR"]["offsets"][2 * place : 2 * place + 2].tolist()
            assert stop - start == (len(points_of(drive, frame - 1)) if frame else 0)


def test_a_trajectory_is_in_the_ego_frame_at_the_reference_stamp(drives_set: Path) -> None:
    dataset = headway.open(drives_set, windows=[Trajectory(past="0.5s", future="0.5s", rate_hz=2)])
    for batch in batches(dataset):
        path = batch["trajectory"]
        for place, drive, frame in places(batch):
            stamp = START_NS + frame * PERIOD_NS
            assert path["mask"][place, 1]
            for step in np.flatnonzero(path["mask"][place].numpy()).tolist():
                at = pose_of(drive, stamp + (step - 1) * PERIOD_NS)
                expected = to_matrix(compose(invert(pose_of(drive, stamp)), at))
                np.testing.assert_allclose(path["pose"][place, step], expected, atol=1e-6)


def test_sweeps_come_as_one_cloud_a_sample(drives_set: Path) -> None:
    dataset = headway.open(drives_set, windows=[Sweeps("LIDAR", past=1, drop_self_m=0.0)])
    for batch in batches(dataset):
        cloud = batch["LIDAR"]
        assert cloud["columns"] == ["x", "y", "z", "intensity", "dt"]
        assert len(cloud["offsets"]) == 5
        for place, drive, frame in places(batch):
            points = cloud["points"][cloud["offsets"][place] : cloud["offsets"][place + 1]].numpy()
            key = points_of(drive, frame)
            np.testing.assert_array_equal(points[: len(key), :4], key)
            before = 0 if frame == 0 else len(points_of(drive, frame - 1))
            assert len(points) == len(key) + before
            np.testing.assert_allclose(points[len(key) :, 4], 0.5)


def test_interpolated_columns_lie_between_rows(drives_set: Path) -> None:
    window = Window("ego", past="0.025s", stride="0.025s", sync="interpolate")
    for batch in batches(headway.open(drives_set, windows=[window])):
        for place, drive, frame in places(batch):
            at = START_NS + frame * PERIOD_NS - 25_000_000
            np.testing.assert_allclose(batch["ego"]["ego_to_world"][place, 0], to_matrix(pose_of(drive, at)), atol=1e-6)


def test_indexing_gives_the_same_sample_as_streaming(drives_set: Path) -> None:
    dataset = headway.open(drives_set, images=[Images("CAM_*", size=JPEG)])
    batch = batches(dataset)[1]
    for place, item in enumerate(batch["id"].tolist()):
        sample = dataset[item]
        assert torch.equal(sample["camera"]["image"], batch["camera"]["image"][place])
        start, stop = batch["LIDAR"]["offsets"][place : place + 2].tolist()
        assert torch.equal(sample["LIDAR"]["points"], batch["LIDAR"]["points"][start:stop])
        assert sample["drive"] == batch["drive"][place]
    with pytest.raises(IndexError, match="18"):
        dataset[18]


def test_moving_keeps_structure_and_lists(drives_set: Path) -> None:
    batch = batches(headway.open(drives_set))[0]
    moved = batch.to("meta")
    assert isinstance(moved, Batch)
    assert moved["LIDAR"]["points"].device.type == "meta"
    assert moved["drive"] == batch["drive"]
    assert moved["state"] is batch["state"]
    assert moved.nbytes == batch.nbytes > 1000


@pytest.mark.parametrize(
    ("images", "message"),
    [
        ([Images("NOSE", size=(4, 4))], "'NOSE'"),
        ([Images("CAM_*")], "CAM_PORT 30 × 40"),
        ([Images("CAM_BACK", size=(4, 4)), Images("CAM_FRONT", size=(4, 4))], "two fields"),
        ([Images("CAM_BACK", size=(4, 4), name="LIDAR")], "two fields"),
    ],
)
def test_images_that_do_not_fit_the_set_are_refused(drives_set: Path, images: list[Images], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        headway.open(drives_set, images=images)


def test_sensors_of_one_group_share_their_time_axis(drives_set: Path) -> None:
    windows = [Window("CAM_BACK", past=1), Window("CAM_FRONT")]
    with pytest.raises(UsageError, match="'CAM_BACK' has 2"):
        headway.open(drives_set, windows=windows, images=[Images("CAM_[BF]*", size=(4, 4))])

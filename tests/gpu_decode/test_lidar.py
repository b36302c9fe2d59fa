"""Device LiDAR equals the loader's float64 numpy, and voxels do not depend on the order of the points' arrival."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import Column, Sensor, UsageError
from headway.formats.pose import interpolate, to_matrix
from headway.gpu_decode.lidar import deskew_points, merge_sweeps, pose_matrices, voxelise
from headway.loader.sweeps import Sweep, Sweeps, combine_sweeps, deskew, sweep_motion

_FIELDS = tuple(Column(name=name, dtype="float32") for name in ("x", "y", "z", "intensity"))
_POSES = tuple(Column(name=name, dtype="float64", shape=(7,)) for name in ("sensor_to_ego", "ego_to_world"))
SENSOR = Sensor(name="LIDAR_TOP", kind="points", codec="points-raw", columns=_POSES, fields=_FIELDS)
START = 1_600_000_000_000_000_000


def random_pose(rng: np.random.Generator, spread: float) -> NDArray[np.float64]:
    quaternion = rng.normal(size=4)
    return np.concatenate([rng.normal(scale=spread, size=3), quaternion / np.linalg.norm(quaternion)])


def a_sweep(rng: np.random.Generator, number: int) -> Sweep:
    points = np.zeros(int(rng.integers(20, 40)), [(field.name, "<f4") for field in _FIELDS])
    for field in _FIELDS:
        points[field.name] = rng.normal(scale=3, size=len(points))
    return Sweep(
        points=points,
        stamp_ns=START - number * 50_000_000,
        sensor_to_ego=random_pose(rng, 2),
        ego_to_world=random_pose(rng, 100),
    )


@given(seed=st.integers(0, 10_000), drop=st.sampled_from((0.0, 1.0)))
def test_merged_sweeps_are_the_loaders(seed: int, drop: float) -> None:
    rng = np.random.default_rng(seed)
    samples = [[a_sweep(rng, number) for number in range(3)] for _ in range(2)]
    options = Sweeps("LIDAR_TOP", past=2, drop_self_m=drop)
    expected = [combine_sweeps(SENSOR, options, key=key, extra=extra) for key, *extra in samples]
    flat = [sweep for sample in samples for sweep in sample]
    packed = np.concatenate([np.stack([sweep.points[field.name] for field in _FIELDS], 1) for sweep in flat])
    offsets = np.concatenate([[0], np.cumsum([len(sweep.points) for sweep in flat])])
    motion = np.stack([[to_matrix(sweep_motion(SENSOR, sweep, sample[0])) for sweep in sample] for sample in samples])
    lag = np.array([[(sample[0].stamp_ns - sweep.stamp_ns) * 1e-9 for sweep in sample] for sample in samples])
    merged, bounds = merge_sweeps(*map(torch.from_numpy, (packed, offsets, motion, lag)), drop_self_m=drop)
    assert bounds.diff().tolist() == [len(each) for each in expected]
    np.testing.assert_allclose(merged.numpy(), np.concatenate(expected), rtol=1e-5, atol=2e-5)


def test_a_sweep_that_is_not_there_adds_nothing() -> None:
    motion = torch.eye(4, dtype=torch.float64).repeat(1, 2, 1, 1)
    motion[0, 1] = 0
    points = torch.arange(12.0).reshape(4, 3)
    merged, bounds = merge_sweeps(points, torch.tensor([0, 2, 4]), motion, torch.zeros(1, 2))
    assert bounds.tolist() == [0, 2]
    assert torch.equal(merged[:, :3], points[:2])


@given(seed=st.integers(0, 10_000))
def test_de_skewed_points_are_the_loaders(seed: int) -> None:
    rng = np.random.default_rng(seed)
    sweep = a_sweep(rng, 0)
    stamps = START + np.arange(-3, 4, dtype=np.int64) * 20_000_000
    poses = np.stack([random_pose(rng, 5) for _ in stamps])
    times = rng.integers(-70_000_000, 70_000_000, len(sweep.points))
    xyz = np.stack([sweep.points[axis] for axis in "xyz"], 1).astype(np.float64)
    expected = deskew(SENSOR, sweep, xyz=xyz, times_ns=times, ego_stamps=stamps, ego_poses=poses)
    found = deskew_points(
        torch.from_numpy(xyz),
        torch.from_numpy(times),
        ego_stamps=torch.from_numpy(stamps),
        ego_poses=torch.from_numpy(poses),
        stamp_ns=sweep.stamp_ns,
        sensor_to_ego=torch.from_numpy(to_matrix(sweep.sensor_to_ego)),
    )
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-6)


def test_poses_between_stamps_are_the_formats() -> None:
    rng = np.random.default_rng(1)
    stamps = START + np.array([0, 7, 1000], np.int64)
    poses = np.stack([random_pose(rng, 5) for _ in stamps])
    at = START + np.array([-5, 0, 3, 7, 500, 1000, 2000], np.int64)
    found = pose_matrices(*map(torch.from_numpy, (stamps, poses, at)))
    np.testing.assert_allclose(found.numpy(), to_matrix(interpolate(stamps, poses, at)), atol=1e-9)


RANGE = {"low": (-4.0, -4.0, -2.0), "high": (4.0, 4.0, 2.0), "size": (0.5, 1.0, 2.0)}


def cloud(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    rng = np.random.default_rng(seed)
    counts = rng.integers(0, 60, 3)
    points = torch.from_numpy(rng.normal(scale=2.5, size=(int(counts.sum()), 4)).astype(np.float32))
    return points, torch.from_numpy(np.concatenate([[0], counts.cumsum()]))


@given(seed=st.integers(0, 10_000))
def test_voxels_are_those_of_a_plain_loop(seed: int) -> None:
    points, offsets = cloud(seed)
    expected: dict[tuple[int, ...], list[int]] = {}
    for row, point in enumerate(points.numpy()):
        if all(low <= value < high for value, low, high in zip(point, RANGE["low"], RANGE["high"], strict=False)):
            steps = (point[:3] - np.array(RANGE["low"], np.float32)) / np.array(RANGE["size"], np.float32)
            x, y, z = (int(step) for step in np.floor(steps))
            sample = int(np.searchsorted(offsets.numpy(), row, side="right")) - 1
            expected.setdefault((sample, z, y, x), []).append(row)
    found = voxelise(points, offsets, **RANGE)
    assert [tuple(cell) for cell in found.cells.tolist()] == sorted(expected)
    assert found.counts.tolist() == [len(expected[cell]) for cell in sorted(expected)]
    assert found.source.tolist() == [row for cell in sorted(expected) for row in expected[cell]]
    assert torch.equal(found.points, points[found.source])
    means = [points[expected[cell]].double().mean(0) for cell in sorted(expected)]
    if means:
        torch.testing.assert_close(found.means(), torch.stack(means).float(), rtol=1e-5, atol=1e-5)
        padded = found.padded(2)
        for cell, rows in enumerate(expected[each] for each in sorted(expected)):
            assert torch.equal(padded[cell, : len(rows[:2])], points[rows[:2]])
            assert (padded[cell, len(rows) :] == 0).all()


def test_a_point_just_below_the_upper_end_is_in_the_last_cell() -> None:
    edge = torch.tensor([[np.nextafter(np.float32(0.3), np.float32(0)), 0.0, 0.0]])
    found = voxelise(edge, torch.tensor([0, 1]), low=(0, 0, 0), high=(0.3, 1, 1), size=(0.1, 1, 1))
    assert found.cells.tolist() == [[0, 0, 0, 2]]


def test_cells_that_cannot_be_meant_are_refused() -> None:
    points, offsets = cloud(0)
    with pytest.raises(UsageError, match="sizes above 0"):
        voxelise(points, offsets, low=(0, 0, 0), high=(1, 1, 1), size=(0, 1, 1))
    with pytest.raises(UsageError, match="64-bit"):
        voxelise(points, offsets, low=(0, 0, 0), high=(1e7, 1e7, 1e7), size=(1, 1, 1e-3))
    with pytest.raises(UsageError, match="offsets"):
        merge_sweeps(points, offsets, torch.zeros(2, 2, 4, 4), torch.zeros(2, 2))

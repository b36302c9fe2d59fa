"""Ego paths and motion, against hand-built drives and against brute force in 4 × 4 matrices."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from headway.formats import UsageError
from headway.formats.pose import interpolate, to_matrix
from headway.loader.trajectory import EgoPath, Trajectory
from headway.loader.view import View

from .memory_set import MemorySet, ego, lidar

SECOND = 10**9


def path_of(files: MemorySet, trajectory: Trajectory, items: list[int]) -> EgoPath:
    """Resolve a trajectory."""
    view = View(files, windows=[trajectory])
    return view.ego_path("trajectory", view.resolve(np.array(items), seed=0, epoch=0)["trajectory"])


def driving(seconds: int = 4, hz: int = 10) -> MemorySet:
    """A drive that goes along world y at 2 m/s, facing +y; frames each second."""
    stamps = [step * SECOND // hz for step in range(seconds * hz + 1)]
    facing = [np.cos(np.pi / 4), 0, 0, np.sin(np.pi / 4)]
    poses = np.array([[5.0, 2.0 * stamp / SECOND, 1.0, *facing] for stamp in stamps])
    frames = list(range(0, (seconds + 1) * SECOND, SECOND))
    return MemorySet([lidar(), ego()], [{"LIDAR_TOP": frames, "ego": stamps}], columns={("ego", "ego_to_world"): poses})


def test_way_points_are_in_the_ego_frame_at_the_reference_stamp() -> None:
    path = path_of(driving(), Trajectory(past="1s", future="2s", rate_hz=2), [2])
    assert path.mask.all()
    assert np.allclose(path.position[0, :, 0], [-2, -1, 0, 1, 2, 3, 4])
    assert np.allclose(path.position[0, :, 1:], 0)
    assert np.allclose(path.yaw, 0)
    assert path.stamp[0].tolist() == [SECOND + step * SECOND // 2 for step in range(7)]
    assert np.array_equal(path.pose[0, 2], np.eye(4))


def test_ends_of_the_drive_are_masked_and_no_item_is_dropped() -> None:
    path = path_of(driving(), Trajectory(past="1s", future="1s", rate_hz=1), [0, 2, 4])
    assert path.mask.tolist() == [[False, True, True], [True, True, True], [True, True, False]]
    assert np.array_equal(path.pose[0, 0], np.eye(4))
    assert path.position[0, 0].tolist() == [0, 0, 0]


def test_without_a_pose_at_the_reference_nothing_is_known() -> None:
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [0, 5 * SECOND], "ego": [0, SECOND]}])
    path = path_of(files, Trajectory(past="5s", future="0s", rate_hz=1), [0, 1])
    assert path.mask.tolist() == [[False] * 5 + [True], [False] * 6]


def test_padding_items_have_no_way_points() -> None:
    path = path_of(driving(), Trajectory(past="0s", future="1s", rate_hz=1), [1, -1])
    assert path.mask.tolist() == [[True, True], [False, False]]


def test_a_rate_that_is_no_whole_period_stays_exact() -> None:
    assert Trajectory(past="0s", future="3s", rate_hz=29.97).window.grid().offsets[-1] == round(89 * 10**9 / 29.97)


@given(st.integers(0, 10_000), st.integers(1, 20))
def test_paths_are_those_of_brute_force(seed: int, rate: int) -> None:
    rng = np.random.default_rng(seed)
    stamps = (1_700_000_000 * SECOND + np.cumsum(rng.integers(1, SECOND, 12))).astype(np.int64)
    poses = rng.normal(size=(12, 7)) * [1e4, 1e4, 10, 1, 1, 1, 1]
    frames = np.sort(rng.integers(stamps[0], stamps[-1], 3))
    files = MemorySet(
        [lidar(), ego()], [{"LIDAR_TOP": frames.tolist(), "ego": stamps.tolist()}], columns={("ego", "ego_to_world"): poses}
    )
    trajectory = Trajectory(past="1s", future="2s", rate_hz=rate)
    path = path_of(files, trajectory, [0, 1, 2])
    for item, frame in enumerate(frames):
        reference = np.linalg.inv(to_matrix(interpolate(stamps, poses, np.array([frame])))[0])
        for place, step in enumerate(trajectory.steps):
            asked = frame + round(step * SECOND / rate)
            assert path.mask[item, place] == (stamps[0] <= asked <= stamps[-1])
            if path.mask[item, place]:
                expected = reference @ to_matrix(interpolate(stamps, poses, np.array([asked])))[0]
                assert np.abs(path.pose[item, place] - expected).max() < 1e-6
                assert abs(np.exp(1j * path.yaw[item, place]) - np.exp(1j * np.arctan2(expected[1, 0], expected[0, 0]))) < 1e-6


def test_ego_motion_carries_the_frame_before_into_this_one() -> None:
    view = View(driving())
    motion, known = view.ego_motion(np.array([0, 1, 3, -1]))
    assert known.tolist() == [False, True, True, False]
    # A point 3 m ahead of where the ego was is 1 m ahead of where it is, 2 m on.
    assert np.allclose(motion[1] @ [3, 0, 0, 1], [1, 0, 0, 1])
    assert np.array_equal(motion[0], np.eye(4))


@pytest.mark.parametrize("rate", [0, -1, float("nan"), "2"])
def test_a_rate_must_be_a_rate(rate: float) -> None:
    with pytest.raises(UsageError, match="rate_hz"):
        Trajectory(rate_hz=rate)


def test_a_trajectory_needs_poses() -> None:
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [0], "ego": [0]}])
    with pytest.raises(UsageError, match="payloads, which cannot be interpolated"):
        View(files, windows=[Trajectory("LIDAR_TOP")])
    with pytest.raises(UsageError, match="no such sensor"):
        View(files, windows=[Trajectory("gps")])

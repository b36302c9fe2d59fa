"""Matching stamps: worked examples in numbers one can check by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation, Slerp

from headway.loader.sync import Matched, bracket, match
from headway.loader.trajectory import poses_at
from headway.loader.view import View
from headway.loader.window import Sync, Window

from .memory_set import MemorySet, camera, ego, lidar

MS = 10**6
EPOCH = 1_700_000_000 * 10**9
# Two drives that overlap in time; the camera of the second starts late and its drive has no rear camera.
FILES = MemorySet(
    [lidar(), camera("CAM"), camera("REAR")],
    [
        {"LIDAR_TOP": [0, 100, 200], "CAM": [10, 60, 110, 160, 210], "REAR": [90]},
        {"LIDAR_TOP": [0, 100], "CAM": [60, 140]},
    ],
    own={"CAM": [0, 2, 4, -1, 5], "REAR": [-1, 0, -1, -1, -1]},
)


def ask(sync: Sync, asked: list[int], drive: int = 0, tolerance_ns: int | None = None) -> Matched:
    """Match stamps on the camera's timeline."""
    stamps = np.array([asked], np.int64)
    return match(FILES.timeline("CAM"), np.array([drive]), asked=stamps, sync=sync, tolerance_ns=tolerance_ns)


def test_nearest_takes_the_earlier_of_two_equally_near() -> None:
    assert ask("nearest", [0, 34, 35, 36, 999]).rows.tolist() == [[0, 0, 0, 1, 4]]


def test_error_is_payload_minus_asked() -> None:
    assert ask("nearest", [0, 65]).error.tolist() == [[10, -5]]
    assert ask("previous", [65]).error.tolist() == [[-5]]


def test_previous_never_looks_ahead() -> None:
    assert ask("previous", [9, 10, 59, 60, 999]).rows.tolist() == [[-1, 0, 0, 1, 4]]


def test_exact_is_exact_unless_a_tolerance_says_otherwise() -> None:
    assert ask("exact", [60, 61]).rows.tolist() == [[1, -1]]
    assert ask("exact", [60, 61, 62], tolerance_ns=1).rows.tolist() == [[1, 1, -1]]


def test_a_search_stays_in_its_drive() -> None:
    left, right = bracket(FILES.timeline("CAM"), np.array([0, 1]), np.array([[215], [59]]))
    assert (left.tolist(), right.tolist()) == ([[4], [-1]], [[-1], [5]])
    assert bracket(FILES.timeline("REAR"), np.array([1]), np.array([[90]]))[0].tolist() == [[-1]]


def test_a_frames_own_payload_comes_before_a_nearer_one() -> None:
    resolved = View(FILES, windows=[Window("CAM", sync="nearest")]).resolve(np.arange(5), seed=0, epoch=0)["CAM"]
    # Frame 3 has none: nearest in its own drive is 60.
    assert resolved.rows[:, 0, 0].tolist() == [0, 2, 4, 5, 5]
    assert resolved.sync_error[:, 0, 0].tolist() == [10, 10, 10, 60, -40]


def test_previous_refuses_an_own_payload_from_the_future() -> None:
    resolved = View(FILES, windows=[Window("CAM", sync="previous")]).resolve(np.arange(3), seed=0, epoch=0)["CAM"]
    assert resolved.stamps[:, 0, 0].tolist() == [0, 60, 160]
    assert resolved.valid[:, 0, 0].tolist() == [False, True, True]


def test_a_pair_beyond_the_tolerance_is_masked() -> None:
    """argoverse/av2-api#155: a camera 10 off must not pass for a synchronous one."""
    window = Window("CAM", tolerance="9ns")
    assert not View(FILES, windows=[window]).resolve(np.arange(3), seed=0, epoch=0)["CAM"].valid.any()
    window = Window("CAM", tolerance="10ns")
    assert View(FILES, windows=[window]).resolve(np.arange(3), seed=0, epoch=0)["CAM"].valid.all()


def test_counting_goes_on_around_a_missing_anchor() -> None:
    window = Window("CAM", past=1, future=1)
    resolved = View(FILES, windows=[window]).resolve(np.array([3]), seed=0, epoch=0)["CAM"]
    assert resolved.rows[0, :, 0].tolist() == [-1, -1, 5]
    assert resolved.valid[0, :, 0].tolist() == [False, False, True]


def test_padding_repeats_the_nearest_and_of_two_the_earlier() -> None:
    window = Window("CAM", past=2, future=2, stride="25ns", sync="nearest", tolerance="10ns", on_gap="pad")
    resolved = View(FILES, windows=[window]).resolve(np.array([1]), seed=0, epoch=0)["CAM"]
    # Asked 50 75 100 125 150: 75 and 125 have nothing within 10.
    assert resolved.valid[0, :, 0].tolist() == [True, False, True, False, True]
    assert resolved.stamps[0, :, 0].tolist() == [60, 60, 110, 110, 160]


def test_a_limit_in_time_masks_without_being_a_gap() -> None:
    window = Window("CAM", past="60ns", at_most=3, on_gap="pad")
    resolved = View(FILES, windows=[window]).resolve(np.array([2, 1, 0]), seed=0, epoch=0)["CAM"]
    # 110 is 100 before 210, and 10 is 100 before 110.
    assert resolved.stamps[:, :, 0].tolist() == [[0, 0, 160, 210], [0, 0, 60, 110], [10, 10, 10, 10]]
    assert resolved.valid[:, :, 0].tolist() == [[False, False, True, True], [False, False, True, True], [False] * 3 + [True]]
    # Before the drive's first payload something is missing; between payloads nothing is.
    assert resolved.complete.tolist() == [True, True, False]


def test_sensors_missing_in_a_drive_are_masked() -> None:
    resolved = View(FILES, windows=[Window(["CAM", "REAR"], past=1)]).resolve(np.array([4]), seed=0, epoch=0)["camera"]
    assert resolved.valid[0].tolist() == [[False, False], [True, False]]


@st.composite
def pose_timelines(draw: st.DrawFn) -> tuple[list[int], NDArray[np.float64]]:
    """Draw epoch-sized stamps and poses, quaternions with either sign."""
    steps = draw(st.lists(st.integers(1, 200 * MS), min_size=2, max_size=6))
    stamps = (EPOCH + np.cumsum(steps)).tolist()
    rng = np.random.default_rng(draw(st.integers(0, 1000)))
    return stamps, rng.normal(size=(len(stamps), 7)) * [1e3, 1e3, 10, 1, 1, 1, 1]


@given(pose_timelines(), st.lists(st.floats(0, 1), min_size=1, max_size=5))
def test_interpolated_poses_are_those_of_scipy(timeline: tuple[list[int], NDArray[np.float64]], at: list[float]) -> None:
    stamps, poses = timeline
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [EPOCH], "ego": stamps}], columns={("ego", "ego_to_world"): poses})
    asked = np.array([[stamps[0] + int(share * (stamps[-1] - stamps[0])) for share in at]], np.int64)
    found, covered = poses_at(files.timeline("ego"), np.array([0]), asked)
    assert covered.all()
    seconds, when = (np.asarray(stamps) - stamps[0]) * 1e-9, (asked[0] - stamps[0]) * 1e-9
    expected = Slerp(seconds, Rotation.from_quat(poses[:, [4, 5, 6, 3]]))(when)
    turn = Rotation.from_quat(found[0][:, [4, 5, 6, 3]]).inv() * expected
    assert np.abs(turn.magnitude()).max() < 1e-6
    shift = np.stack([np.interp(when, seconds, poses[:, axis]) for axis in range(3)], -1)
    assert np.abs(found[0][:, :3] - shift).max() < 1e-5


def test_outside_the_timeline_is_a_gap_or_clamped_as_asked() -> None:
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [5, 15, 30], "ego": [10, 20]}])
    items = np.arange(3)
    gap = View(files, windows=[Window("ego", sync="interpolate")]).resolve(items, seed=0, epoch=0)["ego"]
    assert gap.valid[:, 0, 0].tolist() == [False, True, False]
    assert gap.fraction is not None
    assert gap.fraction[1, 0, 0] == 0.5
    clamp = View(files, windows=[Window("ego", sync="interpolate", outside="clamp")]).resolve(items, seed=0, epoch=0)["ego"]
    assert clamp.right is not None
    assert clamp.rows[:, 0, 0].tolist() == [0, 0, 1]
    assert clamp.right[:, 0, 0].tolist() == [0, 1, 1]
    assert clamp.stamps[:, 0, 0].tolist() == [10, 15, 20]
    assert clamp.sync_error[:, 0, 0].tolist() == [5, 0, -10]


@pytest.mark.parametrize("tolerance", ["4ns", "5ns"])
def test_interpolation_refuses_neighbours_too_far_away(tolerance: str) -> None:
    files = MemorySet([lidar(), ego()], [{"LIDAR_TOP": [15], "ego": [10, 20]}])
    window = Window("ego", sync="interpolate", tolerance=tolerance)
    assert View(files, windows=[window]).resolve(np.array([0]), seed=0, epoch=0)["ego"].valid.all() == (tolerance == "5ns")

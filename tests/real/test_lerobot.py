"""LeRobot v2.1 and v3.0 against the real episodes: counts, values and frames as the dataset's own files hold them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from headway.formats import Problem, SourceError, UsageError
from headway.formats.adapters.lerobot import LeRobot
from headway.formats.video import VideoFile

pytestmark = pytest.mark.real

CAMERA = "observation.images.cam_high"


@pytest.fixture
def v2(real_data: Path) -> Path:
    return real_data / "lerobot" / "g1_v2.1"


@pytest.fixture
def v3(real_data: Path) -> Path:
    return real_data / "lerobot" / "g1_v3.0_derived"


def test_state_and_action_equal_the_table(v2: Path) -> None:
    source = LeRobot(v2, episodes="29,30")
    assert [listing.name for listing in source.listings] == ["episode_000029", "episode_000030"]
    drive = source.open_drive("episode_000029")
    table = pq.read_table(v2 / "data/chunk-000/episode_000029.parquet")
    for sensor in ("observation.state", "action"):
        value = drive.timelines[sensor].columns["value"]
        assert value.shape == (221, 26)
        assert value.dtype == np.float32
        assert value.tolist() == table[sensor].to_pylist()


def test_stamps_are_exact_multiples_of_the_frame_time(v2: Path) -> None:
    stamps = LeRobot(v2, episodes="29").open_drive("episode_000029").timelines["frame"].stamps
    assert stamps.dtype == np.int64
    assert stamps[:4].tolist() == [0, 33_333_333, 66_666_667, 100_000_000]
    assert stamps[210] == 7_000_000_000


def test_both_versions_give_the_same_drives(v2: Path, v3: Path) -> None:
    old, new = LeRobot(v2, episodes="present"), LeRobot(v3)
    for a, b in zip(old.listings, new.listings, strict=True):
        left, right = old.open_drive(a.name).timelines, new.open_drive(b.name).timelines
        assert left.keys() == right.keys()
        assert left["task"].read is not None
        assert left["task"].read(0) == "Pick up the yellow bottle on the table."
        for name in ("observation.state", "action"):
            np.testing.assert_array_equal(left[name].columns["value"], right[name].columns["value"])
        pictures = left[CAMERA].read, right[CAMERA].read
        assert pictures[0] is not None
        assert pictures[1] is not None
        for frame in (0, 1, 2, len(left["frame"].stamps) - 1):
            assert pictures[0](frame) == pictures[1](frame)


def test_an_episode_starts_at_its_own_first_frame_in_a_shared_file(v3: Path, tmp_path: Path) -> None:
    """huggingface/lerobot#2447: a start time one step too late must not lose the first frame."""
    copy = tmp_path / "set"
    shutil.copytree(v3, copy)
    path = copy / "meta/episodes/chunk-000/file-000.parquet"
    table = pq.read_table(path)
    starts = table[f"videos/{CAMERA}/from_timestamp"].to_pylist()
    column = pa.array([float(np.nextafter(np.float32(start), np.float32(1e9))) + 1e-4 for start in starts])
    place = table.column_names.index(f"videos/{CAMERA}/from_timestamp")
    pq.write_table(table.set_column(place, f"videos/{CAMERA}/from_timestamp", column), path)
    for name in ("episode_000000", "episode_000001"):
        true, moved = LeRobot(v3).open_drive(name).timelines[CAMERA], LeRobot(copy).open_drive(name).timelines[CAMERA]
        assert true.read is not None
        assert moved.read is not None
        assert true.read(0) == moved.read(0)


@pytest.mark.slow
def test_frames_are_the_same_in_any_order(v2: Path) -> None:
    path = v2 / f"videos/chunk-000/{CAMERA}/episode_000029.mp4"
    with VideoFile(path) as straight, VideoFile(path) as jumping:
        assert len(straight) == 221
        assert straight.codec == "av1"
        pictures = [straight.frame(i) for i in range(40)]
        for i in (7, 3, 39, 38, 0, 21, 22):
            np.testing.assert_array_equal(jumping.frame(i), pictures[i])


def test_absent_episodes_are_listed_one_by_one(v2: Path) -> None:
    with pytest.raises(SourceError) as caught:
        LeRobot(v2)
    assert len(caught.value.problems) == 2 * 98
    assert "episode_000000.parquet" in str(caught.value)
    assert len(LeRobot(v2, episodes="present").ignored) == 98


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda info: info | {"fps": 0}, "fps"),
        (lambda info: info | {"fps": 25}, "off frame_index"),
        (lambda info: info | {"data_path": "../{episode_index}"}, "inside the dataset"),
        (lambda info: info | {"data_path": "{episode_index.__class__}"}, "inside the dataset"),
        (lambda info: info | {"data_path": "{episode_index:0999999999d}"}, "inside the dataset"),
        (lambda info: info | {"features": {}}, "features"),
    ],
)
def test_hostile_or_wrong_info_is_refused(v2: Path, tmp_path: Path, edit: object, message: str) -> None:
    copy = tmp_path / "set"
    shutil.copytree(v2, copy, ignore=shutil.ignore_patterns("episode_000030.*"))
    info = json.loads((copy / "meta/info.json").read_text())
    assert callable(edit)
    (copy / "meta/info.json").chmod(0o644)
    (copy / "meta/info.json").write_text(json.dumps(edit(info)))
    with pytest.raises(SourceError, match=message):
        LeRobot(copy, episodes="29").open_drive("episode_000029")


def test_a_cut_video_is_a_decode_error_or_source_error(v2: Path, tmp_path: Path) -> None:
    copy = tmp_path / "set"
    shutil.copytree(v2, copy, ignore=shutil.ignore_patterns("episode_000030.*"))
    video = copy / f"videos/chunk-000/{CAMERA}/episode_000029.mp4"
    video.chmod(0o644)
    video.write_bytes(video.read_bytes()[:400_000])
    timeline = LeRobot(copy, episodes="29").open_drive("episode_000029").timelines[CAMERA]
    assert timeline.read is not None
    with pytest.raises(ValueError, match="complete"):
        timeline.read(200)


def test_episode_lists_are_checked(v2: Path) -> None:
    with pytest.raises(UsageError, match="no such episodes"):
        LeRobot(v2, episodes="29,1000")
    with pytest.raises(UsageError, match="list such as"):
        LeRobot(v2, episodes="x")
    assert str(Problem(path="a", reason="b")) == "a: b"

"""MCAP, rosbag2 and rosbag1 against the real recordings and the nuScenes keyframe wrapped as ROS 2."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from headway.formats import EGO_TO_WORLD, INTRINSICS, SENSOR_TO_EGO, SourceError, UsageError
from headway.formats.adapters.rosbag import BagOptions, RosBag
from headway.formats.pose import compose, invert, to_matrix

pytestmark = pytest.mark.real


def test_the_wrapped_keyframe_gives_the_dataset_s_own_bytes(real_data: Path) -> None:
    source = RosBag(real_data / "mcap/nuscenes_keyframe_zstd.mcap")
    assert source.schema.reference == "LIDAR_TOP"
    drive = source.open_drive("nuscenes_keyframe_zstd")
    for camera in ("CAM_FRONT", "CAM_BACK", "CAM_BACK_LEFT", "CAM_BACK_RIGHT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT"):
        timeline = drive.timelines[f"{camera}/image_rect_compressed"]
        stamp = int(timeline.stamps[0])
        (original,) = (real_data / "nuscenes/samples" / camera).glob(f"*__{stamp // 1000}.jpg")
        assert timeline.read is not None
        assert timeline.read(0) == original.read_bytes()
        assert (timeline.columns["width"][0], timeline.columns["height"][0]) == (1600, 900)
    sweep = drive.timelines["LIDAR_TOP"]
    assert sweep.read is not None
    points = sweep.read(0)
    assert isinstance(points, np.ndarray)
    (original,) = (real_data / "nuscenes/samples/LIDAR_TOP").glob("*1532402927647951.pcd.bin")
    assert points.tobytes() == original.read_bytes()
    assert sweep.stamps.tolist() == [1532402927647951000]  # the header's stamp: log_time lags it by 60 ms


def test_transforms_and_intrinsics_equal_the_tables(real_data: Path) -> None:
    drive = RosBag(real_data / "mcap/nuscenes_keyframe_zstd.mcap").open_drive("nuscenes_keyframe_zstd")
    front = drive.timelines["CAM_FRONT/image_rect_compressed"]
    translation, rotation = [1.7007912397384644, 0.01594563201069832], [0.4998015430554757, -0.5030316162514281]
    np.testing.assert_allclose(front.columns[SENSOR_TO_EGO][0, :2], translation, atol=1e-12)
    np.testing.assert_allclose(np.abs(front.columns[SENSOR_TO_EGO][0, 3:5]), np.abs(rotation), atol=1e-9)
    np.testing.assert_allclose(front.columns[EGO_TO_WORLD][0, :2], [411.41997584800345, 1181.197177405937], atol=1e-9)
    assert front.columns[INTRINSICS][0, 0].tolist() == [1266.417203046554, 0.0, 816.2670197447984]


def test_rosbag1_and_rosbag2_give_the_same_ego_path(real_data: Path) -> None:
    old, new = (
        RosBag(real_data / path).open_drive("tf_example") for path in ("rosbag1/tf_example.bag", "rosbag2/sqlite3/tf_example")
    )
    np.testing.assert_array_equal(old.timelines["ego"].stamps, new.timelines["ego"].stamps)
    np.testing.assert_array_equal(old.timelines["ego"].columns[EGO_TO_WORLD], new.timelines["ego"].columns[EGO_TO_WORLD])
    assert len(new.timelines["ego"].stamps) == 517


def test_a_tree_of_two_moving_edges_is_composed(real_data: Path) -> None:
    """map → odom → base_link: odometry in the odom frame, taken up by the slower edge, must equal the ego path."""
    drive = RosBag(real_data / "mcap/nav2_turtlebot.mcap", BagOptions(world_frame="odom")).open_drive("nav2_turtlebot")
    ego, odometry = drive.timelines["ego"], drive.timelines["odom"]
    shared, at_ego, at_odometry = np.intersect1d(ego.stamps, odometry.stamps, return_indices=True)
    assert len(shared) > 2000
    apart = compose(invert(ego.columns[EGO_TO_WORLD][at_ego]), odometry.columns["pose"][at_odometry])
    assert np.abs(to_matrix(apart) - np.eye(4)).max() < 1e-6
    in_map = RosBag(real_data / "mcap/nav2_turtlebot.mcap").open_drive("nav2_turtlebot").timelines["ego"]
    assert 0 < len(in_map.stamps) < len(ego.stamps)


def test_split_bags_hold_every_message(real_data: Path) -> None:
    source = RosBag(real_data / "rosbag2/mcap/wbag", BagOptions(repeated_stamps="nudge"))
    drive = source.open_drive("wbag")
    assert sum(len(timeline.stamps) for timeline in drive.timelines.values()) == 6074
    assert all((np.diff(timeline.stamps) > 0).all() for timeline in drive.timelines.values())


def test_repeated_stamps_are_refused_unless_nudged(real_data: Path) -> None:
    with pytest.raises(SourceError, match=r"repeat a stamp.*repeated_stamps=nudge"):
        RosBag(real_data / "rosbag2/mcap/wbag").open_drive("wbag")


def test_messages_are_found_though_metadata_words_its_topics_otherwise(real_data: Path) -> None:
    source = RosBag(real_data / "rosbag2/sqlite3/talker")
    drive = source.open_drive("talker")
    read = drive.timelines["topic"].read
    assert read is not None
    assert [read(i) for i in range(10)] == [f"Hello, world! {i}" for i in range(10)]
    assert [item.path for item in source.ignored] == ["/rosout"]


def test_a_missing_part_of_a_split_bag_is_named(real_data: Path, tmp_path: Path) -> None:
    copy = tmp_path / "wbag"
    shutil.copytree(real_data / "rosbag2/mcap/wbag", copy)
    copy.chmod(0o755)
    (copy / "wbag_2.mcap").unlink()
    with pytest.raises(SourceError, match="wbag"):
        RosBag(copy, BagOptions(repeated_stamps="nudge"))


def test_a_cut_recording_is_refused(real_data: Path) -> None:
    with pytest.raises(SourceError, match="damaged or was not closed"):
        RosBag(real_data / "mcap/corrupt/nuscenes_keyframe_truncated.mcap")


def test_zeroed_bytes_inside_a_chunk_are_noticed(real_data: Path, tmp_path: Path) -> None:
    """The reader of the format's own library returns such messages as good unless it is asked to check."""
    damaged = bytearray((real_data / "mcap/nuscenes_keyframe_zstd.mcap").read_bytes())
    damaged[400_000:400_064] = bytes(64)
    path = tmp_path / "damaged.mcap"
    path.write_bytes(damaged)
    with pytest.raises(SourceError, match="damaged"):
        RosBag(path).open_drive("damaged")


def test_options_are_checked(real_data: Path) -> None:
    bag = real_data / "rosbag2/sqlite3/talker"
    with pytest.raises(UsageError, match="sensor=/topic"):
        RosBag(bag, BagOptions(topics=("topic",)))
    with pytest.raises(SourceError, match="no messages on"):
        RosBag(bag, BagOptions(topics=("a=/nope",)))
    with pytest.raises(UsageError, match="ros_distro"):
        RosBag(bag, BagOptions(ros_distro="ros3"))
    with pytest.raises(SourceError, match="neither a bag"):
        RosBag(real_data / "kitti")

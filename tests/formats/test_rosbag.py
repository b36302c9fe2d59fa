"""Bags written by a test: encodings, padding, byte order, drift of the transform tree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from headway.formats import SourceError
from headway.formats.adapters.rosbag import RosBag
from headway.formats.adapters.rosbag_tf import TransformTree

rosbags = pytest.importorskip("rosbags.rosbag2")
typesys = pytest.importorskip("rosbags.typesys")

STORE = typesys.get_typestore(typesys.Stores.ROS2_HUMBLE)
SECOND = 1_000_000_000


def message(kind: str, /, **fields: Any) -> Any:
    return STORE.types[kind](**fields)


def header(stamp: int, frame: str = "") -> Any:
    time = message("builtin_interfaces/msg/Time", sec=stamp // SECOND, nanosec=stamp % SECOND)
    return message("std_msgs/msg/Header", stamp=time, frame_id=frame)


def write_bag(path: Path, topics: dict[str, tuple[str, list[tuple[int, Any]]]]) -> Path:
    with rosbags.Writer(path, version=9) as writer:
        for topic, (kind, messages) in topics.items():
            connection = writer.add_connection(topic, kind, typestore=STORE)
            for stamp, one in messages:
                writer.write(connection, stamp, STORE.serialize_cdr(one, kind))
    return path


def cloud(stamp: int, records: np.ndarray[Any, Any], *, big: bool, padding: int, height: int = 1) -> Any:
    """A PointCloud2 of x, y, z float32, t uint32, with unused bytes behind each point and each row."""
    codes = {"f": 7, "u": 6}  # PointField's FLOAT32 and UINT32
    names, order = list(records.dtype.names or ()), ">" if big else "<"
    step = records.dtype.itemsize + 4
    offsets = {name: 4 * place for place, name in enumerate(names)}
    formats = [records.dtype[name].newbyteorder(order) for name in names]
    padded = np.zeros(len(records), {"names": names, "formats": formats, "offsets": list(offsets.values()), "itemsize": step})
    for name in names:
        padded[name] = records[name]
    width = len(records) // height
    rows = np.full((height, width * step + padding), 0xEE, np.uint8)
    rows[:, : width * step] = padded.view(np.uint8).reshape(height, width * step)
    fields = [
        message("sensor_msgs/msg/PointField", name=name, offset=offsets[name], datatype=codes[records.dtype[name].kind], count=1)
        for name in names
    ]
    return message(
        "sensor_msgs/msg/PointCloud2",
        header=header(stamp),
        height=height,
        width=width,
        fields=fields,
        is_bigendian=big,
        point_step=step,
        row_step=rows.shape[1],
        data=rows.reshape(-1),
        is_dense=False,
    )


@pytest.mark.parametrize("big", [False, True])
@pytest.mark.parametrize("height", [1, 5])
def test_points_survive_padding_byte_order_and_nan(tmp_path: Path, big: bool, height: int) -> None:
    """PRBonn/kiss-icp#157: the declared datatype of every field is honoured, time fields included."""
    rng = np.random.default_rng(0)
    records = np.zeros(20, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("t", "<u4")])
    for name in ("x", "y", "z"):
        records[name] = rng.normal(size=20)
    records["x"][3] = np.nan
    records["t"] = rng.integers(0, 2**32, 20)
    bag = write_bag(
        tmp_path / "bag",
        {"/points": ("sensor_msgs/msg/PointCloud2", [(1, cloud(SECOND, records, big=big, padding=8, height=height))])},
    )
    source = RosBag(bag)
    timeline = source.open_drive("bag").timelines["points"]
    assert timeline.read is not None
    points = timeline.read(0)
    assert isinstance(points, np.ndarray)
    assert points.tobytes() == records.tobytes()
    assert timeline.stamps.tolist() == [SECOND]


def raw_image(stamp: int, pixels: np.ndarray[Any, Any], encoding: str, padding: int) -> Any:
    rows = pixels.reshape(len(pixels), -1).view(np.uint8)
    rows = np.pad(rows, ((0, 0), (0, padding)), constant_values=0xEE)
    return message(
        "sensor_msgs/msg/Image",
        header=header(stamp),
        height=pixels.shape[0],
        width=pixels.shape[1],
        encoding=encoding,
        is_bigendian=0,
        step=rows.shape[1],
        data=rows.reshape(-1),
    )


@pytest.mark.parametrize(
    ("encoding", "dtype", "channels"),
    [
        ("rgb8", "uint8", 3),
        ("bgr8", "uint8", 3),
        ("mono8", "uint8", 1),
        ("mono16", "uint16", 1),
        ("16UC1", "uint16", 1),
        ("32FC1", "float32", 1),
        ("bayer_rggb8", "uint8", 1),
    ],
)
def test_raw_images_lose_only_their_row_padding(tmp_path: Path, encoding: str, dtype: str, channels: int) -> None:
    pixels = np.random.default_rng(1).integers(0, 200, (4, 6, channels)).astype(dtype)
    bag = write_bag(tmp_path / "bag", {"/image": ("sensor_msgs/msg/Image", [(1, raw_image(SECOND, pixels, encoding, 4))])})
    source = RosBag(bag)
    read = source.open_drive("bag").timelines["image"].read
    assert read is not None
    expected = pixels[..., ::-1] if encoding == "bgr8" else pixels
    assert read(0) == np.ascontiguousarray(expected).tobytes()
    assert source.schema.sensor("image").fields[0].dtype == dtype


def test_depth_prefix_is_taken_off_and_video_is_ignored(tmp_path: Path) -> None:
    depth = np.random.default_rng(2).integers(0, 60000, (8, 10)).astype(np.uint16)
    png = cv2.imencode(".png", depth)[1].tobytes()

    def compressed(text: str, data: bytes) -> Any:
        return message("sensor_msgs/msg/CompressedImage", header=header(SECOND), format=text, data=np.frombuffer(data, np.uint8))

    kind = "sensor_msgs/msg/CompressedImage"
    bag = write_bag(
        tmp_path / "bag",
        {
            "/depth": (kind, [(1, compressed("16UC1; compressedDepth png", bytes(12) + png))]),
            "/video": (kind, [(1, compressed("h264", b"\0\0\0\1\x67" + bytes(40)))]),
        },
    )
    source = RosBag(bag)
    timeline = source.open_drive("bag").timelines["depth"]
    assert timeline.read is not None
    assert timeline.read(0) == png
    assert (timeline.columns["width"][0], timeline.columns["height"][0]) == (10, 8)
    assert [(item.path, "h264" in item.reason) for item in source.ignored] == [("/video", True)]


def test_poses_far_from_any_transform_are_refused(tmp_path: Path) -> None:
    def transform(stamp: int, parent: str, child: str) -> Any:
        identity = message("geometry_msgs/msg/Quaternion", x=0.0, y=0.0, z=0.0, w=1.0)
        shift = message("geometry_msgs/msg/Vector3", x=stamp / SECOND, y=0.0, z=0.0)
        move = message("geometry_msgs/msg/Transform", translation=shift, rotation=identity)
        stamped = message(
            "geometry_msgs/msg/TransformStamped", header=header(stamp, parent), child_frame_id=child, transform=move
        )
        return message("tf2_msgs/msg/TFMessage", transforms=[stamped])

    records = np.zeros(4, [("x", "<f4"), ("y", "<f4"), ("z", "<f4"), ("t", "<u4")])

    def bag(name: str, stamp: int) -> Path:
        points = cloud(stamp, records, big=False, padding=0)
        points.header.frame_id = "base_link"
        moving = [(SECOND, transform(SECOND, "map", "base_link")), (2 * SECOND, transform(2 * SECOND, "map", "base_link"))]
        return write_bag(
            tmp_path / name,
            {"/tf": ("tf2_msgs/msg/TFMessage", moving), "/points": ("sensor_msgs/msg/PointCloud2", [(stamp, points)])},
        )

    inside = RosBag(bag("inside", 3 * SECOND // 2)).open_drive("inside").timelines["points"]
    np.testing.assert_allclose(inside.columns["ego_to_world"][0, 0], 1.5)
    with pytest.raises(SourceError, match=r"1\.000 s outside"):
        RosBag(bag("outside", 3 * SECOND)).open_drive("outside")


def test_a_frame_with_two_parents_or_a_loop_is_refused() -> None:
    pose = [0.0, 0, 0, 1, 0, 0, 0]
    with pytest.raises(SourceError, match="two parents"):
        TransformTree([(True, "a", "c", 0, pose), (True, "b", "c", 0, pose)])
    loop = TransformTree([(True, "a", "b", 0, pose), (True, "b", "a", 0, pose)])
    with pytest.raises(SourceError, match="below itself"):
        loop.root("a")

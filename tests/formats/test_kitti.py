"""The KITTI adapters on small trees made here: what the samples lack (oxts, calibrations, gaps) and what may be wrong."""

from __future__ import annotations

import shutil
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.formats import pose
from headway.formats.adapters import SourceSpec, open_source
from headway.formats.adapters.kitti_files import odometry_stamp, parse_stamp
from headway.formats.adapters.kitti_raw import mercator_poses
from headway.formats.errors import DecodeError, SourceError, UsageError
from headway.formats.source import Source

P2 = "700 0 600 42 0 700 170 -0.7 0 0 1 0.005"
IDENTITY = "1 0 0 0 1 0 0 0 1"
# x right = -y of the velodyne, y down = -z, z forward = x
TURNED = "0 -1 0 0 0 -1 1 0 0"


def png(width: int, height: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\x00" + bytes(width) for _ in range(height))
    head = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def write(path: Path, data: bytes | str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data if isinstance(data, bytes) else data.encode())


def sweep(points: int) -> bytes:
    return np.arange(points * 4, dtype="<f4").tobytes()


def stamps(count: int, first_us: int = 0) -> str:
    return "".join(f"2011-09-26 13:02:25.{first_us + 100_000 * k:06}000\n" for k in range(count))


def raw_tree(root: Path) -> Path:
    date = root / "2011_09_26"
    write(date / "calib_cam_to_cam.txt", "calib_time: 09-Jan-2012\n" + f"R_rect_00: {IDENTITY}\n"
          + "".join(f"P_rect_0{k}: {P2}\n" for k in range(4)))  # fmt: skip
    write(date / "calib_velo_to_cam.txt", f"calib_time: x\nR: {TURNED}\nT: 0 0 -0.25\ndelta_f: 0 0\n")
    write(date / "calib_imu_to_velo.txt", f"R: {IDENTITY}\nT: -0.8 0.3 -0.8\n")
    drive = date / "2011_09_26_drive_0001_sync"
    for k in (0, 1, 3):
        write(drive / f"velodyne_points/data/{k:010}.bin", sweep(10 + k))
    for k in range(4):
        write(drive / f"image_02/data/{k:010}.png", png(1242, 375))
        line = [49.0 + 1e-5 * k, 8.4, 115.0, 0, 0, np.pi / 2, 1, 0, 1, 0, 0, *[0.0] * 12, 0.1, 0.1, 4, 9, 4, 4, 0]
        write(drive / f"oxts/data/{k:010}.txt", " ".join(map(str, line)) + "\n")
    write(drive / "velodyne_points/timestamps.txt", stamps(4, 50_000) + "\n")
    write(drive / "velodyne_points/timestamps_start.txt", stamps(4))
    write(drive / "velodyne_points/timestamps_end.txt", stamps(4, 100_000))
    write(drive / "image_02/timestamps.txt", stamps(4, 50_500))
    write(drive / "oxts/timestamps.txt", stamps(4, 49_000))
    write(drive / "tracklet_labels.xml", "<x/>")
    return root


def odometry_tree(root: Path) -> Path:
    folder = root / "sequences/03"
    write(folder / "times.txt", "0.000000e+00\n1.037359e-01\n2.073381e-01\n")
    matrices = [np.hstack([np.eye(3), [[0.0], [0.0], [2.0 * k]]]).ravel() for k in range(3)]
    write(root / "poses/03.txt", "".join(" ".join(map(str, matrix)) + "\n" for matrix in matrices))
    write(folder / "calib.txt", "".join(f"P{k}: {P2}\n" for k in range(4)) + "Tr: 0 -1 0 0 0 0 -1 -0.1 1 0 0 -0.3\n")
    for k in range(3):
        write(folder / f"velodyne/{k:06}.bin", sweep(5))
        write(folder / f"image_2/{k:06}.png", png(8, 4))
    return root


def object_tree(root: Path) -> Path:
    for k in (3, 7):
        write(root / f"training/velodyne/{k:06}.bin", sweep(6))
        write(root / f"training/image_2/{k:06}.png", png(8, 4))
        calibration = "".join(f"P{camera}: {P2}\n" for camera in range(4))
        calibration += (
            f"R0_rect: {IDENTITY}\nTr_velo_to_cam: 0 -1 0 0 0 0 -1 0 1 0 0 0\nTr_imu_to_velo: 1 0 0 0 0 1 0 0 0 0 1 0\n\n"
        )
        write(root / f"training/calib/{k:06}.txt", calibration)
        write(root / f"training/label_2/{k:06}.txt", "Car 0.00 1 1.55 614 181 727 284 1.5 1.6 3.7 2.0 1.6 10.0 1.57\n")
    write(root / "training/prev_2/000003_01.png", png(8, 4))
    return root


TREES: dict[str, Callable[[Path], Path]] = {"raw": raw_tree, "odometry": odometry_tree, "object": object_tree}


def kitti(root: Path, **options: Any) -> Source:  # Any: plain option values
    return open_source(SourceSpec(kind="kitti", path=str(root), options=options))


def test_raw_follows_file_numbers_over_gaps(tmp_path: Path) -> None:
    root = raw_tree(tmp_path)
    with pytest.raises(SourceError, match="1 of 4 stamps have no file, the first is number 2"):
        kitti(root)
    source = kitti(root, allow_missing=True)
    drive = source.open_drive("2011_09_26_drive_0001_sync")
    sweeps, images, ego = (drive.timelines[name] for name in ("velodyne_points", "image_02", "ego"))
    assert np.diff(sweeps.stamps).tolist() == [100_000_000, 200_000_000]
    assert sweeps.own is not None
    assert images.own is not None
    assert sweeps.own.tolist() == [0, 1, 2]
    assert images.own.tolist() == [0, 1, 3]
    assert sweeps.read is not None
    assert len(sweeps.read(2)) == 13
    assert {entry.path.rsplit("/", 1)[1] for entry in source.ignored} == {"tracklet_labels.xml", "velodyne_points"}
    assert ego.columns["status"][0].tolist() == [4, 9, 4, 4, 0]
    assert source.listings[0].attributes["latitude"] == 49.0


def test_raw_places_sensors_and_drives(tmp_path: Path) -> None:
    drive = kitti(raw_tree(tmp_path), allow_missing=True).open_drive("2011_09_26_drive_0001_sync")
    sweeps, images, ego = (drive.timelines[name].columns for name in ("velodyne_points", "image_02", "ego"))
    np.testing.assert_allclose(sweeps["sensor_to_ego"][0, :3], [0.8, -0.3, 0.8])
    forward = pose.rotation_matrix(images["sensor_to_ego"][0, 3:])[:, 2]
    np.testing.assert_allclose(forward, [1, 0, 0], atol=1e-12)
    np.testing.assert_allclose(images["intrinsics"][0], [[700, 0, 600], [0, 700, 170], [0, 0, 1]])
    # The drive goes north, 1e-5 degrees (1.11 m) a frame, heading north.
    np.testing.assert_allclose(ego["ego_to_world"][1, :3], [0, 1.1132, 0], atol=2e-3)
    np.testing.assert_allclose(pose.rotation_matrix(ego["ego_to_world"][1, 3:])[:, 0], [0, 1, 0], atol=1e-12)
    np.testing.assert_allclose(sweeps["ego_to_world"][0, 1], 1.1132 * 0.01, atol=1e-4)


def test_raw_orientation_is_yaw_after_pitch_after_roll() -> None:
    line = np.zeros((1, 30))
    line[0, 3:6] = roll, pitch, yaw = 0.1, -0.2, 0.7
    x = np.array([[1, 0, 0], [0, np.cos(roll), -np.sin(roll)], [0, np.sin(roll), np.cos(roll)]])
    y = np.array([[np.cos(pitch), 0, np.sin(pitch)], [0, 1, 0], [-np.sin(pitch), 0, np.cos(pitch)]])
    z = np.array([[np.cos(yaw), -np.sin(yaw), 0], [np.sin(yaw), np.cos(yaw), 0], [0, 0, 1]])
    np.testing.assert_allclose(pose.rotation_matrix(mercator_poses(line)[0, 3:]), z @ y @ x, atol=1e-12)


def test_odometry_drives_forward_along_x(tmp_path: Path) -> None:
    source = kitti(odometry_tree(tmp_path))
    drive = source.open_drive("03")
    assert source.schema.reference == "velodyne"
    np.testing.assert_allclose(drive.timelines["ego"].columns["ego_to_world"][2], [4, 0, 0, 1, 0, 0, 0], atol=1e-12)
    np.testing.assert_allclose(drive.timelines["velodyne"].columns["sensor_to_ego"][0], [-0.3, 0, 0.1, 1, 0, 0, 0], atol=1e-12)
    assert drive.timelines["image_2"].stamps.tolist() == [0, 103_735_900, 207_338_100]


def test_object_frames_are_drives_of_their_own(tmp_path: Path) -> None:
    source = kitti(object_tree(tmp_path))
    assert [listing.name for listing in source.listings] == ["training-000003", "training-000007"]
    assert [entry.path for entry in source.ignored] == ["training/prev_2"]
    drive = source.open_drive("training-000007")
    read = drive.timelines["boxes"].read
    assert read is not None
    boxes = read(0)
    assert isinstance(boxes, dict)
    np.testing.assert_allclose(boxes["centre"], [[10.0, -2.0, -1.6 + 0.75]])
    assert boxes["size"].tolist() == [[3.7, 1.6, 1.5]]
    heading = pose.rotation_matrix(boxes["rotation"])[0][:, 0]
    np.testing.assert_allclose(heading, [-1, 0, 0], atol=1e-3)  # rotation_y = 90 degrees: towards the camera
    with pytest.raises(UsageError, match="no drive"):
        source.open_drive("training-000004")


def broken(root: Path, path: str, data: bytes | str | None) -> None:
    if data is None:
        (root / path).unlink()
    else:
        write(root / path, data)


@pytest.mark.parametrize(
    ("layout", "path", "data", "complaint"),
    [
        ("object", "training/image_2/000003.png", None, "image_2/000003.png: is missing"),
        ("object", "training/label_2/000007.txt", None, "label_2/000007.txt: is missing"),
        ("object", "training/velodyne/000003.bin", b"\0" * 17, "17 bytes, expected a multiple of 16"),
        ("object", "training/label_2/000003.txt", "Car 0 0 1\n", "line 1 has 4 columns, a label has 15"),
        ("object", "training/label_2/000003.txt", "Bus" + " 0" * 14, "class 'Bus'"),
        ("object", "training/calib/000003.txt", "P0: 1 2 3\n", "'P0' has 3 numbers, expected 12"),
        ("object", "training/calib/000003.txt", "", "no 'P0'"),
        ("object", "training/image_2/000003.png", b"\xff\xd8", "expected a PNG"),
        ("raw", "2011_09_26/calib_imu_to_velo.txt", None, "--without-calibration"),
        ("raw", "2011_09_26/2011_09_26_drive_0001_sync/oxts/data/0000000001.txt", "1 2 3", "3 numbers, an oxts line has 30"),
        ("raw", "2011_09_26/2011_09_26_drive_0001_sync/image_02/timestamps.txt", stamps(3), "0000000003.png: has no stamp"),
        ("raw", "2011_09_26/2011_09_26_drive_0001_sync/image_02/timestamps.txt", "yesterday\n" * 4, "stamp 'yesterday'"),
        ("raw", "2011_09_26/2011_09_26_drive_0001_sync/image_02/timestamps.txt", stamps(1) * 4, "do not ascend"),
        ("raw", "2011_09_26/2011_09_26_drive_0001_sync/velodyne_points/timestamps_end.txt", stamps(2), "expected equal numbers"),
        ("odometry", "sequences/03/times.txt", "0\nx\n2\n", "time 'x'"),
        ("odometry", "sequences/03/times.txt", "0\n1\n1\n", "times do not ascend"),
        ("odometry", "poses/03.txt", "1 0 0 0\n", "expected 12 finite numbers"),
        ("odometry", "sequences/03/calib.txt", None, "--without-calibration"),
        ("odometry", "sequences/03/velodyne/000001.bin", None, "1 of 3 stamps have no file"),
        ("odometry", "sequences/03/velodyne/000009.bin", sweep(1), "has no time"),
    ],
)
def test_what_is_wrong_is_named_before_anything_is_packed(
    tmp_path: Path, layout: str, path: str, data: bytes | str | None, complaint: str
) -> None:
    root = TREES[layout](tmp_path)
    broken(root, path, data)
    with pytest.raises(SourceError) as caught:
        kitti(root, **({} if layout == "object" else {"allow_missing": "velodyne" not in path}))
    assert complaint in str(caught.value)


@pytest.mark.parametrize("layout", ["raw", "odometry"])
def test_without_calibration_leaves_the_columns_out(tmp_path: Path, layout: str) -> None:
    root = TREES[layout](tmp_path)
    for path in root.rglob("calib*.txt"):
        path.unlink()
    source = kitti(root, allow_missing=True, without_calibration=True)
    drive = source.open_drive(source.listings[0].name)
    for sensor in source.schema.sensors:
        assert not sensor.has("sensor_to_ego")
        assert {column.name for column in sensor.columns} == set(drive.timelines[sensor.name].columns)


@pytest.mark.parametrize("layout", ["raw", "odometry", "object"])
def test_every_row_has_every_column(tmp_path: Path, layout: str) -> None:
    source = kitti(TREES[layout](tmp_path), **({} if layout == "object" else {"allow_missing": True}))
    for listing in source.listings:
        for name, timeline in source.open_drive(listing.name).timelines.items():
            sensor = source.schema.sensor(name)
            assert {column.name for column in sensor.columns} == set(timeline.columns)
            for column in sensor.columns:
                values = timeline.columns[column.name]
                assert values.shape == (len(timeline.stamps), *column.shape)
                assert values.dtype == column.numpy_dtype


def test_a_sweep_cut_after_the_check_is_a_decode_error(tmp_path: Path) -> None:
    drive = kitti(odometry_tree(tmp_path)).open_drive("03")
    (tmp_path / "sequences/03/velodyne/000001.bin").write_bytes(b"\0" * 15)
    read = drive.timelines["velodyne"].read
    assert read is not None
    with pytest.raises(DecodeError, match=r"velodyne/000001.bin .*15 bytes"):
        read(1)


def test_options_and_folders_that_cannot_be_meant(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="found neither"):
        kitti(tmp_path)
    with pytest.raises(SourceError, match="not a folder"):
        kitti(tmp_path / "absent")
    root = object_tree(tmp_path)
    with pytest.raises(UsageError, match="no option 'sensors'"):
        kitti(root, sensors="velodyne")
    with pytest.raises(UsageError, match="layout 'bags'"):
        kitti(root, layout="bags")
    with pytest.raises(UsageError, match="split 'train'"):
        kitti(root, split="train")
    shutil.rmtree(root / "training/label_2")
    assert "boxes" not in kitti(root).schema.by_name


def test_stamps_are_read_without_a_float() -> None:
    assert parse_stamp("2011-09-26 14:30:14.950485851") == 1317047414950485851
    assert parse_stamp("1970-01-01 00:00:00.5") == 500_000_000
    assert odometry_stamp("4.704779e+02") == 470_477_900_000
    for text in ("", "2011-09-26", "1e99", "nan", "0.1234567891"):
        with pytest.raises(ValueError):
            odometry_stamp(text)

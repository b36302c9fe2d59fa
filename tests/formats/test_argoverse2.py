"""The Argoverse 2 adapters on small logs and scenarios made here: cameras, gaps, labels that are absent or wrong."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from headway.formats.adapters import SourceSpec, open_source
from headway.formats.errors import DecodeError, SourceError
from headway.formats.source import Source, SourceDrive

START = 315966265259836001  # odd: a float64 cannot hold it
STEP = 100_000_000
Q = {"qw": 1.0, "qx": 0.0, "qy": 0.0, "qz": 0.0}


def feather(path: Path, columns: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pyarrow.feather.write_feather(pa.table(dict(columns)), path, compression="lz4")


def pose_columns(rows: int, x: Any) -> dict[str, Any]:
    return {**{name: [value] * rows for name, value in Q.items()}, "tx_m": x, "ty_m": [0.0] * rows, "tz_m": [0.0] * rows}


def sweep(points: int) -> dict[str, Any]:
    return {
        **{axis: np.arange(points, dtype=np.float16) for axis in "xyz"},
        "intensity": np.arange(points, dtype=np.uint8),
        "laser_number": np.zeros(points, np.uint8),
        "offset_ns": np.arange(points, dtype=np.int32) * 1000,
    }


def write_log(root: Path, name: str = "log-a", split: str = "val") -> Path:
    log = root / split / name
    feather(log / "city_SE3_egovehicle.feather", {"timestamp_ns": START + STEP * np.arange(5), **pose_columns(5, np.arange(5.0))})
    feather(log / "calibration/egovehicle_SE3_sensor.feather", {"sensor_name": ["ring_front_center"], **pose_columns(1, [1.5])})
    numbers = {"fx_px": 1700.0, "fy_px": 1700.0, "cx_px": 775.0, "cy_px": 1024.0, "k1": -0.2, "k2": 0.0, "k3": 0.1}
    sizes = {"height_px": np.array([2048], np.uint16), "width_px": np.array([1550], np.uint16)}
    feather(
        log / "calibration/intrinsics.feather",
        {"sensor_name": ["ring_front_center"], **{k: [v] for k, v in numbers.items()}, **sizes},
    )
    for k in range(3):
        feather(log / f"sensors/lidar/{START + STEP * k}.feather", sweep(10 + k))
    camera = log / "sensors/cameras/ring_front_center"
    camera.mkdir(parents=True)
    for k in range(4):
        (camera / f"{START + STEP // 2 * k}.jpg").write_bytes(b"\xff\xd8\xff\xd9")
    stamps = [START + STEP, START, START + STEP]  # not in order, and none for the third sweep
    feather(log / "annotations.feather", {
        "timestamp_ns": stamps, "track_uuid": ["b", "a", "c"], "category": ["PEDESTRIAN", "BUS", "DOG"],
        "length_m": [1.0, 9.0, 0.5], "width_m": [0.5, 2.5, 0.2], "height_m": [1.8, 3.0, 0.4], **pose_columns(3, [5.0, 6.0, 7.0]),
        "num_interior_pts": [3, 200, 0],
    })  # fmt: skip
    (log / "map").mkdir()
    (log / f"map/log_map_archive_{name}____PIT_city_1.json").write_text("{}")
    return log


def write_scenario(root: Path, name: str = "scenario-a", **changes: Any) -> Path:
    folder = root / "val" / name
    folder.mkdir(parents=True)
    tracks = [("AV", k) for k in range(4)] + [("7", k) for k in (0, 2, 3)] + [("10", 1)]
    columns: dict[str, Any] = {
        "observed": [step < 2 for _, step in tracks], "track_id": [track for track, _ in tracks],
        "object_type": ["vehicle"] * 7 + ["cyclist"], "object_category": [1] * 7 + [3], "timestep": [step for _, step in tracks],
        "position_x": np.arange(8.0), "position_y": np.zeros(8), "heading": np.full(8, np.pi / 2), "velocity_x": np.ones(8),
        "velocity_y": np.zeros(8), "scenario_id": [name] * 8, "start_timestamp": [3.0e17] * 8,
        "end_timestamp": [3.0e17 + 3e8] * 8, "num_timestamps": [4] * 8, "focal_track_id": ["10"] * 8, "city": ["austin"] * 8,
        "map_id": np.full(8, 5, np.uint64),
        "slice_id": ["s"] * 8,
    }  # fmt: skip
    pq.write_table(pa.table(columns | changes), folder / f"scenario_{name}.parquet")
    (folder / f"log_map_archive_{name}.json").write_text("{}")
    return folder


def argoverse(root: Path, **options: Any) -> Source:  # Any: plain option values
    return open_source(SourceSpec(kind="argoverse2", path=str(root), options=options))


def read(drive: SourceDrive, sensor: str, row: int = 0) -> Any:  # Any: a payload of whatever kind
    reader = drive.timelines[sensor].read
    assert reader is not None
    return reader(row)


def test_a_log_gives_cameras_sweeps_and_boxes_at_their_own_stamps(tmp_path: Path) -> None:
    write_log(tmp_path)
    source = argoverse(tmp_path)
    assert source.listings[0].attributes == {"split": "val", "city": "PIT"}
    drive = source.open_drive("log-a")
    camera, lidar, boxes = (drive.timelines[name] for name in ("ring_front_center", "lidar", "boxes"))
    assert lidar.stamps.tolist() == [START, START + STEP, START + 2 * STEP]
    np.testing.assert_allclose(camera.columns["ego_to_world"][:, 0], [0, 0.5, 1, 1.5])
    assert camera.columns["width"].tolist() == [1550] * 4
    assert camera.columns["lens"][0].tolist() == [-0.2, 0.0, 0.1]
    assert boxes.stamps.tolist() == [START, START + STEP]
    assert boxes.own is not None
    assert boxes.own.tolist() == [0, 1, -1]
    assert read(drive, "boxes", 1)["track_id"] == ["b", "c"]
    assert read(drive, "boxes", 0)["size"].tolist() == [[9.0, 2.5, 3.0]]
    assert read(drive, "lidar", 2)["t"].tolist() == [1000 * k for k in range(12)]
    assert drive.attachments[0].name == "map/log_map_archive_log-a____PIT_city_1.json"


def test_every_row_has_every_column(tmp_path: Path) -> None:
    write_log(tmp_path)
    source = argoverse(tmp_path)
    for name, timeline in source.open_drive("log-a").timelines.items():
        sensor = source.schema.sensor(name)
        assert {column.name for column in sensor.columns} == set(timeline.columns)
        for column in sensor.columns:
            values = timeline.columns[column.name]
            assert (values.shape, values.dtype) == ((len(timeline.stamps), *column.shape), column.numpy_dtype)


def test_a_log_without_labels_is_normal(tmp_path: Path) -> None:
    log = write_log(tmp_path, split="test")
    (log / "annotations.feather").unlink()
    assert "boxes" not in argoverse(tmp_path).schema.by_name


def rewritten(path: Path, **changes: Any) -> None:
    table = pyarrow.feather.read_table(path)
    columns = {name: table[name] for name in table.column_names} | changes
    feather(path, {name: values for name, values in columns.items() if values is not None})


@pytest.mark.parametrize(
    ("file", "changes", "complaint"),
    [
        ("annotations.feather", {"category": ["PEDESTRIAN", "BUS", "UFO"]}, "class 'UFO'"),
        ("annotations.feather", {"length_m": [None, 1.0, 2.0]}, "'length_m' has 1 nulls"),
        ("annotations.feather", {"tx_m": None}, "no column 'tx_m'"),
        ("city_SE3_egovehicle.feather", {"timestamp_ns": [START] * 5}, "do not ascend strictly"),
        ("city_SE3_egovehicle.feather", {"qw": [2.0] * 5}, "not unit"),
        ("city_SE3_egovehicle.feather", {"tx_m": [np.nan] * 5}, "not finite"),
        ("city_SE3_egovehicle.feather", {"timestamp_ns": START + 10 * STEP + np.arange(5)}, "the poses end at"),
        ("calibration/intrinsics.feather", {"sensor_name": ["stereo"]}, "pictures and no calibration"),
    ],
)
def test_what_is_wrong_in_a_log_is_named(tmp_path: Path, file: str, changes: Mapping[str, Any], complaint: str) -> None:
    log = write_log(tmp_path)
    rewritten(log / file, **changes)
    with pytest.raises(SourceError, match="cannot open Argoverse 2 log 'log-a'") as caught:
        argoverse(tmp_path).open_drive("log-a")
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"x": np.full(11, 1.0001)}, "does not fit float16"),
        ({"intensity": None}, "no column 'intensity'"),
        ({"offset_ns": ["0"] * 11}, "type string"),
    ],
)
def test_a_wrong_sweep_is_one_bad_payload(tmp_path: Path, changes: Mapping[str, Any], complaint: str) -> None:
    log = write_log(tmp_path)
    rewritten(log / f"sensors/lidar/{START + STEP}.feather", **changes)
    drive = argoverse(tmp_path).open_drive("log-a")
    assert len(read(drive, "lidar", 0)) == 10
    with pytest.raises(DecodeError, match=complaint):
        read(drive, "lidar", 1)


def test_preflight_names_missing_files_links_and_twins(tmp_path: Path) -> None:
    log = write_log(tmp_path)
    (log / "calibration/intrinsics.feather").unlink()
    (log / f"sensors/lidar/{START + 9}.feather").write_bytes(b"")
    (log / f"sensors/lidar/{START + 8}.feather").symlink_to(log / f"sensors/lidar/{START}.feather")
    with pytest.raises(SourceError) as caught:
        argoverse(tmp_path)
    assert len(caught.value.problems) == 3
    write_log(tmp_path, split="train")
    with pytest.raises(SourceError, match="'log-a' is in"):
        argoverse(tmp_path)


def test_a_scenario_keeps_its_gaps_and_has_no_future_where_there_is_none(tmp_path: Path) -> None:
    write_scenario(tmp_path)
    source = argoverse(tmp_path)
    assert source.listings[0].attributes["map_id"] == 5
    drive = source.open_drive("scenario-a")
    assert drive.timelines["tracks"].stamps.tolist() == [300_000_000_000_000_000 + STEP * k for k in range(4)]
    assert [read(drive, "tracks", k)["track_id"] for k in range(4)] == [["7", "AV"], ["10", "AV"], ["7", "AV"], ["7", "AV"]]
    ego = drive.timelines["ego"].columns
    np.testing.assert_allclose(ego["ego_to_world"][2], [2, 0, 0, np.sqrt(0.5), 0, 0, np.sqrt(0.5)])


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"object_type": ["spaceship"] * 8}, "object type 'spaceship'"),
        ({"object_category": [4] * 8}, "object categories [4]"),
        ({"timestep": [0] * 8}, "two rows for one step"),
        ({"timestep": [-1] * 8}, "steps -1 to -1"),
        ({"start_timestamp": np.arange(8.0)}, "of starts"),
        ({"heading": ["north"] * 8}, "'heading' is of type string"),
    ],
)
def test_what_is_wrong_in_a_scenario_is_named(tmp_path: Path, changes: Mapping[str, Any], complaint: str) -> None:
    write_scenario(tmp_path, **changes)
    with pytest.raises(SourceError) as caught:
        argoverse(tmp_path).open_drive("scenario-a")
    assert complaint in str(caught.value)


def test_a_scenario_that_is_no_parquet_is_named_at_once(tmp_path: Path) -> None:
    folder = write_scenario(tmp_path)
    (folder / "scenario_scenario-a.parquet").write_bytes(b"PAR1")
    with pytest.raises(SourceError, match="not readable as parquet"):
        argoverse(tmp_path)


def test_empty_images_are_the_packers_to_judge_where_asked(tmp_path: Path) -> None:
    log = write_log(tmp_path)
    sorted((log / "sensors/cameras/ring_front_center").iterdir())[1].write_bytes(b"")
    with pytest.raises(SourceError, match="1 problems"):
        argoverse(tmp_path)
    assert len(argoverse(tmp_path, bad_images="reject").open_drive("log-a").timelines["ring_front_center"].stamps) == 4
    sorted((log / "sensors/lidar").iterdir())[0].write_bytes(b"")
    with pytest.raises(SourceError, match="1 problems"):
        argoverse(tmp_path, bad_images="reject")

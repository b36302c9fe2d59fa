"""The real Argoverse 2 samples come through the adapter exactly: sweeps, labels, flow, poses, maps and scenarios."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from headway.formats import PackOptions, open_set, pack, pose
from headway.formats.adapters import SourceSpec, open_source
from headway.formats.errors import DecodeError, SourceError, UsageError
from headway.formats.source import Source, SourceDrive

pytestmark = pytest.mark.real

LOG = "7fab2350-7eaf-3b7e-a39d-6937a4c1bede"
MINED = "3b3570b4-7b0b-3268-a571-b0889dbf40b6"
SCENARIO = "0a1e6f0a-1817-4a98-b02e-db8c9327d151"
SWEEPS = (315966265259836000, 315966265360032000)


def source(root: Path, **options: Any) -> Source:  # Any: plain option values
    return open_source(SourceSpec(kind="argoverse2", path=str(root), options=options))


def read(drive: SourceDrive, sensor: str, row: int = 0) -> Any:  # Any: a payload of whatever kind
    reader = drive.timelines[sensor].read
    assert reader is not None
    return reader(row)


@pytest.fixture
def sensor_root(real_data: Path) -> Path:
    return real_data / "argoverse2/sensor"


@pytest.fixture
def motion_root(real_data: Path) -> Path:
    return real_data / "argoverse2/motion-forecasting"


def test_sweeps_are_the_files_columns(sensor_root: Path) -> None:
    drive = source(sensor_root).open_drive(LOG)
    assert drive.timelines["lidar"].stamps.tolist() == list(SWEEPS)
    for row, (stamp, points) in enumerate(zip(SWEEPS, (99229, 99466), strict=True)):
        sweep, table = (
            read(drive, "lidar", row),
            pyarrow.feather.read_table(sensor_root / f"val/{LOG}/sensors/lidar/{stamp}.feather"),
        )
        assert len(sweep) == points
        for field, name in (
            ("x", "x"),
            ("z", "z"),
            ("intensity", "intensity"),
            ("laser_number", "laser_number"),
            ("t", "offset_ns"),
        ):
            assert sweep[field].tobytes() == table[name].to_numpy().tobytes()
        assert (np.diff(sweep["t"]) >= 0).all()


def test_stamps_join_exactly_without_a_float(sensor_root: Path) -> None:
    drive = source(sensor_root).open_drive(LOG)
    ego, lidar, boxes = (drive.timelines[name] for name in ("ego", "lidar", "boxes"))
    assert (len(ego.stamps), len(boxes.stamps)) == (2706, 156)
    assert np.isin(boxes.stamps, ego.stamps).all()
    row = np.searchsorted(ego.stamps, lidar.stamps)
    assert np.array_equal(lidar.columns["ego_to_world"], ego.columns["ego_to_world"][row])
    assert boxes.own is not None
    assert boxes.stamps[boxes.own].tolist() == list(SWEEPS)


@pytest.mark.slow
def test_boxes_hold_as_many_points_as_they_say(sensor_root: Path) -> None:
    drive = source(sensor_root).open_drive(LOG)
    boxes, sweep = read(drive, "boxes", int(np.searchsorted(drive.timelines["boxes"].stamps, SWEEPS[0]))), read(drive, "lidar", 0)
    points = np.stack([sweep[axis].astype(np.float64) for axis in "xyz"], 1)
    close = 0
    for row in range(len(boxes["centre"])):
        offset = points - boxes["centre"][row]
        near = (np.abs(offset) <= boxes["size"][row].max()).all(1)
        local = offset[near] @ pose.rotation_matrix(boxes["rotation"][row])
        inside = int((np.abs(local) <= boxes["size"][row] / 2).all(1).sum())
        close += abs(inside - int(boxes["lidar_points"][row])) <= max(2, 0.1 * inside)
    assert close >= 0.9 * len(boxes["centre"]) > 0
    total = sum(len(read(drive, "boxes", row)["centre"]) for row in range(156))
    assert total == 11364


def test_flow_labels_the_first_sweep(sensor_root: Path) -> None:
    opened = source(sensor_root)
    drive = opened.open_drive(LOG)
    flow = read(drive, "lidar_flow")
    assert len(flow) == len(read(drive, "lidar", 0)) == 99229
    own = drive.timelines["lidar_flow"].own
    assert own is not None
    assert own.tolist() == [0, -1]
    classes = opened.schema.sensor("lidar_flow").fields[3].categories
    assert classes[19] == "REGULAR_VEHICLE"
    assert (flow["classes"] == 19).sum() > 1000


def test_maps_are_attached_with_their_nan(real_data: Path, sensor_root: Path) -> None:
    attachments = {item.name: item.read() for item in source(sensor_root).open_drive(LOG).attachments}
    known = {entry["file"].rsplit("/", 1)[1]: entry["sha256"] for entry in json.loads((real_data / "MANIFEST.json").read_text())}
    assert sum(name.startswith("map/") for name in attachments) == 3
    for name, data in attachments.items():
        assert hashlib.sha256(data).hexdigest() == known[name.rsplit("/", 1)[1]]


def test_mined_logs_hold_the_car_itself(real_data: Path) -> None:
    mined = source(real_data / "argoverse2/scenario_mining")
    assert mined.schema.reference == "boxes"
    drive = mined.open_drive(MINED)
    names = mined.schema.sensor("boxes").fields[4].categories
    seen = [
        names[number] for row in range(len(drive.timelines["boxes"].stamps)) for number in read(drive, "boxes", row)["category"]
    ]
    assert len(seen) == 13820
    assert seen.count("EGO_VEHICLE") == 157


def test_scenario_is_tracks_with_gaps(motion_root: Path) -> None:
    motion = source(motion_root)
    facts = motion.listings[0].attributes
    assert (facts["split"], facts["city"], facts["focal_track_id"], facts["map_id"]) == ("val", "austin", "138951", 74806)
    drive = motion.open_drive(SCENARIO)
    table = pq.read_table(next((motion_root / "val" / SCENARIO).glob("*.parquet")))
    steps = [read(drive, "tracks", row) for row in range(110)]
    assert sum(len(step["track_id"]) for step in steps) == len(table) == 2434
    assert len({name for step in steps for name in step["track_id"]}) == 58
    assert [bool(step["observed"].all()) for step in steps] == [True] * 50 + [False] * 60
    stamps = drive.timelines["tracks"].stamps
    assert (stamps[0], stamps[-1]) == (int(table["start_timestamp"][0].as_py()), int(table["end_timestamp"][0].as_py()))
    step = table.filter(pc.equal(table["timestep"], 70)).sort_by("track_id")
    assert steps[70]["track_id"] == step["track_id"].to_pylist()
    assert steps[70]["position"][:, 1].tolist() == step["position_y"].to_pylist()
    car = table.filter(pc.equal(table["track_id"], "AV")).sort_by("timestep")
    ego = drive.timelines["ego"].columns["ego_to_world"]
    assert ego[:, 0].tolist() == car["position_x"].to_pylist()
    forward = pose.rotation_matrix(ego[:, 3:])[:, :2, 0]
    np.testing.assert_allclose(np.arctan2(forward[:, 1], forward[:, 0]), car["heading"].to_numpy(), atol=1e-12)


@pytest.mark.parametrize("folder", ["sensor", "scenario_mining", "motion-forecasting"])
def test_packs_and_comes_back(real_data: Path, tmp_path: Path, folder: str) -> None:
    root = real_data / "argoverse2" / folder
    pack(SourceSpec(kind="argoverse2", path=str(root)), tmp_path / "set", PackOptions())
    opened = source(root)
    drive = opened.open_drive(opened.listings[0].name)
    with open_set(tmp_path / "set") as packed:
        assert len(packed) == len(drive.timelines[opened.schema.reference].stamps)
        for name, timeline in drive.timelines.items():
            found = packed.timeline(name)
            assert found.stamps(0).tolist() == timeline.stamps.tolist()
            if timeline.read is None:
                continue
            want, got = timeline.read(0), found.value(0)
            if isinstance(want, np.ndarray):
                assert isinstance(got, np.ndarray)
                assert got.tobytes() == want.tobytes()


def test_what_does_not_belong_together_is_refused(real_data: Path, sensor_root: Path) -> None:
    with pytest.raises(SourceError, match="do not belong in one set"):
        source(real_data / "argoverse2")
    with pytest.raises(SourceError, match="for split 'train'"):
        source(sensor_root, split="train")
    with pytest.raises(UsageError, match="no option 'sweeps'"):
        source(sensor_root, sweeps=3)
    assert source(real_data / "argoverse2", layout="sensor", split="val").listings[0].name == LOG


@pytest.fixture
def log(sensor_root: Path, tmp_path: Path) -> Path:
    shutil.copytree(sensor_root / "val" / LOG, tmp_path / "val" / LOG)
    return tmp_path / "val" / LOG


def test_a_damaged_sweep_is_one_bad_payload(log: Path) -> None:
    path = log / f"sensors/lidar/{SWEEPS[1]}.feather"
    path.write_bytes(path.read_bytes()[:-2000])
    drive = source(log.parent.parent).open_drive(LOG)
    assert len(read(drive, "lidar", 0)) == 99229
    with pytest.raises(DecodeError, match=f"{SWEEPS[1]}.feather"):
        read(drive, "lidar", 1)


def test_missing_and_dangling_files_are_named(log: Path) -> None:
    (log / "sensors/cameras/ring_front_left").mkdir(parents=True)
    (log / f"sensors/cameras/ring_front_left/{SWEEPS[0] + 123}.jpg").write_bytes(b"\xff\xd8\xff\xd9")
    drive = source(log.parent.parent).open_drive(LOG)
    camera = drive.timelines["ring_front_left"].columns
    assert (camera["height"][0], camera["width"][0]) == (1550, 2048)
    assert camera["intrinsics"][0, 0, 0] == 1687.5277831424328
    (log / "calibration/intrinsics.feather").unlink()
    with pytest.raises(SourceError, match=r"intrinsics\.feather: is missing"):
        source(log.parent.parent)
    shutil.rmtree(log / "sensors")
    with pytest.raises(SourceError, match="labels points of the first sweep"):
        source(log.parent.parent)


def test_exports_without_point_counts_say_unknown(log: Path) -> None:
    table = pyarrow.feather.read_table(log / "annotations.feather").drop_columns(["num_interior_pts"])
    pyarrow.feather.write_feather(table, log / "annotations.feather")
    assert (read(source(log.parent.parent).open_drive(LOG), "boxes")["lidar_points"] == -1).all()

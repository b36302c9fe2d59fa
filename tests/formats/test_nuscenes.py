"""What the nuScenes adapter makes of whole sources: sensors, frames, splits, radar, point labels, Lyft's habits."""

from __future__ import annotations

import json
import pickle
import shutil
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from numpy.typing import NDArray

from headway.formats import DecodeError, PackOptions, SourceError, UsageError, open_set, pack
from headway.formats.adapters import SourceSpec, open_source
from headway.formats.adapters import json_rows as json_rows_module
from headway.formats.adapters.json_rows import json_rows
from headway.formats.adapters.nuscenes import NuScenes, NuScenesOptions
from headway.formats.adapters.nuscenes_tables import TokenIndex, to_stamps
from headway.formats.source import SourceDrive
from headway.tools.synthetic import write_nuscenes

from .nuscenes_parts import RADAR_DTYPE, SMALLEST, Rows, add_point_labels, add_radar, edit, make_lyft, radar_bytes, rows_of

DRIVES = ["synthetic-0000", "synthetic-0001"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nuscenes(tmp_path_factory.mktemp("nuscenes") / "whole", drives=2, seconds=1.0, detail=SMALLEST)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "source"))


def read(drive: SourceDrive, sensor: str, row: int) -> Any:  # Any: the payload's kind is the sensor's
    reader = drive.timelines[sensor].read
    assert reader is not None
    return reader(row)


def test_every_row_is_on_its_timeline_once_with_its_own_pose(whole: Path) -> None:
    source = NuScenes(whole)
    poses = {row["token"]: row["translation"] + row["rotation"] for row in rows_of(whole, "ego_pose")}
    expected = {
        (row["filename"], row["timestamp"] * 1000, *poses[row["ego_pose_token"]]) for row in rows_of(whole, "sample_data")
    }
    found = set()
    for name in DRIVES:
        drive = source.open_drive(name)
        for sensor, timeline in drive.timelines.items():
            if sensor in ("sample", "ego", "boxes"):
                continue
            assert (np.diff(timeline.stamps) > 0).all()
            for row, stamp in enumerate(timeline.stamps):
                found.add((timeline.origin(row), int(stamp), *timeline.columns["ego_to_world"][row].tolist()))
    assert found == expected


def test_keyframes_belong_to_their_samples_and_sweeps_to_none(whole: Path) -> None:
    rows = {row["filename"]: row for row in rows_of(whole, "sample_data")}
    samples = rows_of(whole, "sample")
    for name in DRIVES:
        drive = NuScenes(whole).open_drive(name)
        stamps = drive.timelines["sample"].stamps
        token_at = {row["timestamp"] * 1000: row["token"] for row in samples}
        for sensor, timeline in drive.timelines.items():
            if sensor in ("sample", "ego", "boxes"):
                continue
            assert timeline.own is not None
            for frame, row in enumerate(timeline.own):
                data = rows[timeline.origin(int(row))]
                assert data["is_key_frame"]
                assert data["sample_token"] == token_at[int(stamps[frame])]
            assert len(timeline.stamps) > len(timeline.own) == 3


def test_velocity_is_the_devkits(whole: Path) -> None:
    """Neighbours' difference; one-sided at the ends; unknown for a single annotation."""
    rows = {row["token"]: row for row in rows_of(whole, "sample_annotation")}
    time = {row["token"]: row["timestamp"] for row in rows_of(whole, "sample")}
    drive = NuScenes(whole).open_drive(DRIVES[0])
    checked = 0
    for frame in range(3):
        boxes = read(drive, "boxes", frame)
        by_centre = {tuple(row["translation"]): row for row in rows.values()}
        for centre, velocity in zip(boxes["centre"], boxes["velocity"], strict=True):
            row = by_centre[tuple(centre.tolist())]
            first, last = rows[row["prev"] or row["token"]], rows[row["next"] or row["token"]]
            if first is last:
                assert np.isnan(velocity).all()
                continue
            seconds = 1e-6 * (time[last["sample_token"]] - time[first["sample_token"]])
            wanted = (np.array(last["translation"]) - np.array(first["translation"])) / seconds
            assert np.allclose(velocity, wanted, atol=1e-9)
            checked += 1
    assert checked > 20


def test_velocity_over_a_long_gap_is_unknown(root: Path) -> None:
    edit(root, "sample", lambda rows: [row.update(timestamp=row["timestamp"] + 2_000_000 * n) for n, row in enumerate(rows)])
    drive = NuScenes(root).open_drive(DRIVES[0])
    assert all(np.isnan(read(drive, "boxes", frame)["velocity"]).all() for frame in range(3))


def test_sources_without_annotations_are_normal(root: Path) -> None:
    for table in ("sample_annotation", "instance"):
        edit(root, table, lambda rows: rows.clear())
    source = NuScenes(root)
    assert "boxes" not in source.schema.by_name
    assert "boxes" not in source.open_drive(DRIVES[0]).timelines


def test_sensor_patterns_take_what_they_name_and_need_no_other_files(root: Path) -> None:
    shutil.rmtree(root / "sweeps" / "CAM_BACK")
    source = NuScenes(root, NuScenesOptions(sensors=("LIDAR_*", "CAM_FRONT", "ego")))
    assert set(source.schema.by_name) == {"sample", "LIDAR_TOP", "CAM_FRONT", "ego"}
    assert set(source.open_drive(DRIVES[0]).timelines) == {"sample", "LIDAR_TOP", "CAM_FRONT", "ego"}
    assert any("not asked for" in item.reason for item in source.ignored)
    with pytest.raises(SourceError, match="sweeps/CAM_BACK"):
        NuScenes(root)


def test_a_download_without_sweeps_packs_its_keyframes(root: Path) -> None:
    """mit-han-lab/bevfusion#528: tables of everything, files of key frames only."""
    shutil.rmtree(root / "sweeps")
    source = NuScenes(root, NuScenesOptions(allow_missing=True))
    drive = source.open_drive(DRIVES[0])
    assert {len(drive.timelines[name].stamps) for name in drive.timelines if "_" in name} == {3}
    assert len(drive.timelines["ego"].stamps) > 20
    assert len(source.ignored) == 2 * (6 * 10 + 18)


@pytest.mark.parametrize("text", ["synthetic-0001\n", "# validation\n\n synthetic-0001 \n", '["synthetic-0001"]'])
def test_a_split_is_a_list_of_scene_names(root: Path, tmp_path: Path, text: str) -> None:
    (tmp_path / "val.txt").write_text(text)
    source = NuScenes(root, NuScenesOptions(split=str(tmp_path / "val.txt")))
    assert [listing.name for listing in source.listings] == ["synthetic-0001"]
    one = NuScenes(root, NuScenesOptions(split="synthetic-0000"))
    assert [listing.name for listing in one.listings] == ["synthetic-0000"]


def test_a_split_that_names_what_is_not_there_is_refused(whole: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="scene-0103"):
        NuScenes(whole, NuScenesOptions(split="mini_val"))
    with pytest.raises(UsageError, match="nuscenes-devkit"):
        NuScenes(whole, NuScenesOptions(split="val"))
    (tmp_path / "odd.json").write_text("[1, 2]")
    with pytest.raises(UsageError, match="JSON list of scene names"):
        NuScenes(whole, NuScenesOptions(split=str(tmp_path / "odd.json")))
    (tmp_path / "broken.json").write_text('["a')
    with pytest.raises(UsageError, match=r"broken\.json"):
        NuScenes(whole, NuScenesOptions(split=str(tmp_path / "broken.json")))


def test_maps_expansions_and_bus_logs_are_attached(root: Path) -> None:
    (root / "maps" / "expansion").mkdir()
    (root / "maps" / "expansion" / "synthetic-town-0.json").write_text("{}")
    (root / "can_bus").mkdir()
    for name in ("synthetic-0000_pose.json", "synthetic-0001_pose.json"):
        (root / "can_bus" / name).write_text("[]")
    source = NuScenes(root)
    attached = {item.name: item.media_type for item in source.open_drive(DRIVES[0]).attachments}
    assert [name for name in attached if name.endswith(".png")]
    assert attached["maps/expansion/synthetic-town-0.json"] == "application/json"
    assert "can_bus/synthetic-0000_pose.json" in attached
    assert "can_bus/synthetic-0001_pose.json" not in attached
    assert list(source.ignored) == []


def test_a_map_that_was_not_downloaded_is_no_error_but_is_said(root: Path) -> None:
    shutil.rmtree(root / "maps")
    source = NuScenes(root)
    assert [item.path for item in source.ignored] == [row["filename"] for row in rows_of(root, "map")]
    assert list(source.open_drive(DRIVES[0]).attachments) == []


def radar_points(count: int) -> NDArray[Any]:
    points = np.zeros(count, RADAR_DTYPE)
    for number, name in enumerate(RADAR_DTYPE.names or ()):
        points[name] = np.arange(count) % 50 + number
    return points


@pytest.mark.slow
def test_radar_comes_through_with_its_eighteen_fields(root: Path, tmp_path: Path) -> None:
    points, none = radar_points(77), radar_points(1)
    none["x"] = np.nan  # how nuScenes writes a sweep without returns
    add_radar(root, [radar_bytes(points), radar_bytes(none), radar_bytes(points[:0])])
    drive = NuScenes(root).open_drive(DRIVES[0])
    assert len(RADAR_DTYPE.names or ()) == 18
    assert read(drive, "RADAR_FRONT", 0).tobytes() == points.tobytes()
    assert [len(read(drive, "RADAR_FRONT", row)) for row in range(3)] == [77, 0, 0]
    pack(SourceSpec(kind="nuscenes", path=str(root)), tmp_path / "set", PackOptions(workers=1))
    with open_set(tmp_path / "set") as packed:
        value = packed.timeline("RADAR_FRONT").value(0)
        assert isinstance(value, np.ndarray)
        assert value.tobytes() == points.tobytes()


def spoiled_radar() -> dict[str, bytes]:
    good, nan = radar_bytes(radar_points(5)), radar_points(5)
    nan["vx"][3] = np.nan
    return {
        "found .* download": good[:-1],
        "no PCD header": b"\xff" * 5000,
        "FIELDS is": good.replace(b"rcs", b"rsc"),
        "TYPE is": good.replace(b"TYPE F F F I", b"TYPE F F F F"),
        "DATA is": good.replace(b"DATA binary\n", b"DATA ascii\n"),
        "POINTS is": radar_bytes(radar_points(5), promised=10**12),
        "NaN or infinity in 'vx'": radar_bytes(nan),
    }


@pytest.mark.parametrize(("said", "data"), spoiled_radar().items(), ids=list(spoiled_radar()))
def test_broken_radar_names_file_sensor_and_stamp(root: Path, said: str, data: bytes) -> None:
    add_radar(root, [data])
    with pytest.raises(DecodeError, match=said) as caught:
        read(NuScenes(root).open_drive(DRIVES[0]), "RADAR_FRONT", 0)
    assert "samples/RADAR_FRONT/0.pcd" in str(caught.value)
    assert "stamp 1599999999987655000" in str(caught.value)


def test_point_labels_are_a_sensor_beside_their_sweep(root: Path) -> None:
    labels = add_point_labels(root)
    source = NuScenes(root)
    (field,) = source.schema.sensor("LIDAR_TOP_lidarseg").fields
    assert field.categories[1:] == tuple(row["name"] for row in rows_of(root, "category"))
    drive = source.open_drive(DRIVES[0])
    timeline, lidar = drive.timelines["LIDAR_TOP_lidarseg"], drive.timelines["LIDAR_TOP"]
    assert timeline.own is not None
    assert lidar.own is not None
    assert timeline.stamps.tolist() == lidar.stamps[lidar.own].tolist()
    for frame in range(3):
        assert read(drive, "LIDAR_TOP_lidarseg", int(timeline.own[frame]))["label"].tolist() == labels[frame].tolist()
    next((root / "lidarseg").rglob("*.bin")).write_bytes(b"\0" * 5)
    with pytest.raises(SourceError, match="5 labels for"):
        NuScenes(root)
    assert "LIDAR_TOP_lidarseg" not in NuScenes(root, NuScenesOptions(sensors=("LIDAR_TOP",))).schema.by_name


@pytest.mark.slow
def test_lyfts_habits_are_understood(root: Path, tmp_path: Path) -> None:
    make_lyft(root)
    source = NuScenes(root)
    assert "Lyft" in source.licence
    assert list(source.ignored) == []
    drive = source.open_drive(DRIVES[0])
    assert drive.timelines["sample"].stamps[0] == 1_600_000_000_000_000_200
    assert drive.timelines["LIDAR_TOP"].origin(0).startswith("lidar/")
    boxes = read(drive, "boxes", 0)
    assert set(boxes["visibility"]) == {0}
    assert set(boxes["lidar_points"]) == {-1}
    report = pack(SourceSpec(kind="nuscenes", path=str(root)), tmp_path / "set", PackOptions(workers=1))
    assert report.packed == 2 * (6 * 13 + 21 + 3)


def test_several_lidars_each_have_a_timeline(root: Path) -> None:
    def second(rows: Rows) -> None:
        mine = [row for row in rows if "LIDAR_TOP" in row["filename"]]
        rows += [
            {**row, "token": f"second {row['token']}", "calibrated_sensor_token": "b", "prev": "", "next": ""} for row in mine
        ]

    edit(root, "sensor", lambda rows: rows.append({"token": "b", "channel": "LIDAR_FRONT_LEFT", "modality": "lidar"}))
    calibration = {"token": "b", "sensor_token": "b", "translation": [0, 0, 1], "rotation": [1, 0, 0, 0], "camera_intrinsic": []}
    edit(root, "calibrated_sensor", lambda rows: rows.append(calibration))
    edit(root, "sample_data", second)
    drive = NuScenes(root).open_drive(DRIVES[1])
    first, other = drive.timelines["LIDAR_TOP"], drive.timelines["LIDAR_FRONT_LEFT"]
    assert first.stamps.tolist() == other.stamps.tolist()
    assert other.columns["sensor_to_ego"][0].tolist() == [0, 0, 1, 1, 0, 0, 0]


def test_strays_are_listed_by_name_until_there_are_many(root: Path) -> None:
    for number in range(250):
        (root / "sweeps" / "LIDAR_TOP" / f"stray{number:03}.bin").write_bytes(b"x")
    (root / "notes").mkdir()
    (root / "notes" / "readme.txt").write_text("x")
    (root / "loop").symlink_to(root, target_is_directory=True)
    paths = [item.path for item in NuScenes(root).ignored]
    assert len(paths) == 202
    assert "notes/readme.txt" in paths
    assert "sweeps/LIDAR_TOP/*: 50 more files" in paths


def assert_same_drive(found: SourceDrive, expected: SourceDrive) -> None:
    assert list(found.timelines) == list(expected.timelines)
    assert [item.name for item in found.attachments] == [item.name for item in expected.attachments]
    for sensor, timeline in expected.timelines.items():
        other = found.timelines[sensor]
        assert other.stamps.tobytes() == timeline.stamps.tobytes()
        assert {name: value.tobytes() for name, value in other.columns.items()} == {
            name: value.tobytes() for name, value in timeline.columns.items()
        }
        assert (other.own is None) == (timeline.own is None)
        if timeline.own is not None and other.own is not None:
            assert other.own.tolist() == timeline.own.tolist()
        for row in range(len(timeline.stamps) if timeline.read else 0):
            assert other.origin(row) == timeline.origin(row)
            assert repr(read(found, sensor, row)) == repr(read(expected, sensor, row))


@pytest.mark.slow
def test_a_portion_is_small_and_gives_the_same_drive(root: Path) -> None:
    add_point_labels(root)
    source = NuScenes(root)
    part = pickle.loads(pickle.dumps(source.portion(DRIVES[1:])))  # noqa: S301  # our own bytes, as they go to a pack worker
    assert [listing.name for listing in part.listings] == DRIVES[1:]
    assert part.schema == source.schema
    assert len(pickle.dumps(source.portion(DRIVES[1:]))) < 0.7 * len(pickle.dumps(source))
    assert_same_drive(part.open_drive(DRIVES[1]), source.open_drive(DRIVES[1]))
    with pytest.raises(UsageError, match="no drive"):
        part.open_drive(DRIVES[0])
    split = NuScenes(root, NuScenesOptions(split=DRIVES[1]))
    again = pickle.loads(pickle.dumps(split.portion(DRIVES[1:])))  # noqa: S301  # our own bytes
    assert (
        again.open_drive(DRIVES[1]).timelines["boxes"].stamps.tolist()
        == part.open_drive(DRIVES[1]).timelines["boxes"].stamps.tolist()
    )


def test_options_come_from_a_spec_and_unknown_ones_are_refused(whole: Path) -> None:
    options: dict[str, Any] = {"split": DRIVES[0], "sensors": ("CAM_FRONT",), "points_codec": "points-raw"}
    source = open_source(SourceSpec(kind="nuscenes", path=str(whole), options=options))
    assert set(source.schema.by_name) == {"sample", "CAM_FRONT"}
    with pytest.raises(UsageError, match="no option 'splitt'"):
        open_source(SourceSpec(kind="nuscenes", path=str(whole), options={"splitt": "x"}))
    for wrong in ({"points_layout": "xyz"}, {"points_codec": "zip"}):
        with pytest.raises(UsageError, match="is none of"):
            open_source(SourceSpec(kind="nuscenes", path=str(whole), options=wrong))
    with pytest.raises(UsageError, match="no drive 'x'"):
        source.open_drive("x")


def test_a_channel_named_like_a_sensor_of_ours_is_refused(root: Path) -> None:
    edit(root, "sensor", lambda rows: [row.update(channel="Boxes") for row in rows if row["channel"] == "CAM_BACK"])
    with pytest.raises(UsageError, match="cannot pack channel 'Boxes'"):
        NuScenes(root)


@pytest.mark.slow
@hypothesis.given(
    rows=st.lists(st.dictionaries(st.text(max_size=3), st.one_of(st.integers(), st.text(max_size=30)), max_size=3), max_size=30),
    indent=st.sampled_from([None, 0, 2]),
    ascii_only=st.booleans(),
    chunk=st.integers(1, 40),
)
def test_rows_come_out_whole_whatever_the_buffer(
    tmp_path_factory: pytest.TempPathFactory, rows: Rows, indent: int | None, ascii_only: bool, chunk: int
) -> None:
    path = tmp_path_factory.mktemp("json") / "rows.json"
    path.write_text(json.dumps(rows, indent=indent, ensure_ascii=ascii_only), "utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(json_rows_module, "_READ_BYTES", chunk)
        assert list(json_rows(path)) == rows


def test_a_row_without_end_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(json_rows_module, "_ROW_CHARACTERS", 1000)
    monkeypatch.setattr(json_rows_module, "_READ_BYTES", 100)
    (tmp_path / "rows.json").write_text('[{"a": "' + "x" * 100_000)
    with pytest.raises(ValueError, match="no complete row within 1000"):
        list(json_rows(tmp_path / "rows.json"))


@hypothesis.given(st.lists(st.text("abc", max_size=4), max_size=20), st.lists(st.text("abc", max_size=5), max_size=20))
def test_token_index_finds_what_a_dict_finds(held: list[str], asked: list[str]) -> None:
    tokens = np.array([token.encode() for token in held], "S8")
    index = TokenIndex(tokens)
    first = {token: row for row, token in reversed(list(enumerate(held)))}
    wanted = np.array([token.encode() for token in asked], "S8")
    assert index.rows(wanted).tolist() == [first.get(token, -1) for token in asked]
    assert index.duplicates().tolist() == [row for row, token in enumerate(held) if first[token] != row]


@hypothesis.given(st.integers(1, 9_000_000_000_000_000))
def test_integer_microseconds_become_exact_nanoseconds(stamp: int) -> None:
    assert to_stamps(np.array([stamp])).tolist() == [stamp * 1000]
    assert to_stamps(np.array([float(stamp)])).tolist() == [stamp * 1000]

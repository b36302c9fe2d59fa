"""Broken nuScenes sources: each defect is found before or while packing, named with its remedy, and nothing is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st

from headway.formats import PackOptions, SourceError, UsageError, open_set, pack
from headway.formats.adapters import SourceSpec
from headway.formats.adapters.nuscenes import NuScenes, NuScenesOptions
from headway.tools.synthetic import SYNTHETIC_VERSION, write_nuscenes

from .nuscenes_parts import SMALLEST, edit

LIDAR_ROW = 3


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_nuscenes(tmp_path_factory.mktemp("nuscenes") / "whole", drives=1, seconds=0.5, detail=SMALLEST)


@pytest.fixture
def root(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "source"))


def table(root: Path, name: str) -> Path:
    return root / SYNTHETIC_VERSION / f"{name}.json"


def files(root: Path, sensor: str) -> list[Path]:
    """Return the sensor's files in time order."""
    rows = json.loads(table(root, "sample_data").read_text())
    mine = sorted((row for row in rows if f"/{sensor}/" in row["filename"]), key=lambda row: int(row["timestamp"]))
    return [root / row["filename"] for row in mine]


def stamp_of(path: Path) -> int:
    found = re.search(r"__(\d+)\.", path.name)
    assert found is not None
    return int(found[1]) * 1000


def problems_of(root: Path, options: NuScenesOptions | None = None) -> SourceError:
    with pytest.raises(SourceError) as caught:
        NuScenes(root, options)
    return caught.value


def spec(root: Path) -> SourceSpec:
    return SourceSpec(kind="nuscenes", path=str(root))


def test_missing_tables_are_all_named(root: Path) -> None:
    for name in ("ego_pose", "visibility"):
        table(root, name).unlink()
    found = {problem.path: problem for problem in problems_of(root).problems if problem.code == "missing"}
    assert set(found) == {f"{SYNTHETIC_VERSION}/ego_pose.json", f"{SYNTHETIC_VERSION}/visibility.json"}
    assert all("download" in problem.reason for problem in found.values())


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda data: data[: len(data) // 2], "the file ends early"),
        (lambda data: data.rstrip()[:-1], "the file ends early"),
        (lambda data: b"", "the file ends early"),
        (lambda data: b'{"token": "a"}', "expected '['"),
        (lambda data: b"[1, 2]", "row 0 is int"),
        (lambda data: b"[" * 100_000, "nested too deeply"),
        (lambda data: data + b"]", "text after the closing bracket"),
        (lambda data: data.replace(b'"rotation": [', b'"rotation": [NaN, ', 1), "NaN is no JSON number"),
        (lambda data: b"\xff\xfe" + data, "utf-8"),
        (lambda data: data.replace(b'"rotation"', b'"spin"', 1), "has no field 'rotation'"),
        (lambda data: data.replace(b'"translation": [', b'"translation": [1e999, ', 1), "expected numbers of shape [3]"),
        (lambda data: data.replace(b'"timestamp"', b'"translation": [1e999, 0, 0], "timestamp"'), None),
    ],
)
def test_broken_json_is_named_with_its_row(root: Path, change: Callable[[bytes], bytes], said: str | None) -> None:
    path = table(root, "ego_pose")
    path.write_bytes(change(path.read_bytes()))
    if said is None:  # an earlier duplicate key: the later value counts, as everywhere in Python
        NuScenes(root)
        return
    found = [problem for problem in problems_of(root).problems if problem.code == "json"]
    assert found[0].path == f"{SYNTHETIC_VERSION}/ego_pose.json"
    assert said in found[0].reason


@pytest.mark.parametrize(
    ("name", "field", "value"),
    [
        ("sample_data", "timestamp", "1600000000"),
        ("sample_data", "timestamp", -5),
        ("sample_data", "timestamp", None),
        ("sample_data", "is_key_frame", 1),
        ("sample_data", "filename", 7),
        ("sample_data", "width", 10**30),
        ("sample_data", "token", "x" * 200),
        ("ego_pose", "rotation", [1, 0, 0]),
        ("ego_pose", "rotation", ["1", "0", "0", "0"]),
        ("ego_pose", "rotation", [3, 0, 0, 0]),
        ("sample_annotation", "attribute_tokens", "moving"),
        ("sample_annotation", "size", [1, -2, 3]),
        ("calibrated_sensor", "camera_intrinsic", [[1, 2], [3, 4]]),
        ("sensor", "modality", "sonar"),
    ],
)
def test_a_value_of_another_kind_is_named_with_its_field(root: Path, name: str, field: str, value: object) -> None:
    edit(root, name, lambda rows: rows[1].__setitem__(field, value))
    found = [problem for problem in problems_of(root).problems if problem.code == "json"]
    assert found[0].path == f"{SYNTHETIC_VERSION}/{name}.json"
    assert "row 1" in found[0].reason
    assert field in found[0].reason


def test_an_oversized_table_is_refused_unread(root: Path) -> None:
    found = problems_of(root, NuScenesOptions(table_bytes=100)).problems
    assert any(problem.code == "json" and "limit of 100" in problem.reason for problem in found)


@pytest.mark.parametrize(
    ("name", "field", "target"),
    [
        ("sample_data", "ego_pose_token", "ego_pose"),
        ("sample_data", "calibrated_sensor_token", "calibrated_sensor"),
        ("sample_data", "sample_token", "sample"),
        ("sample_data", "next", "sample_data"),
        ("calibrated_sensor", "sensor_token", "sensor"),
        ("sample", "scene_token", "scene"),
        ("scene", "log_token", "log"),
        ("scene", "last_sample_token", "sample"),
        ("sample_annotation", "instance_token", "instance"),
        ("sample_annotation", "prev", "sample_annotation"),
        ("sample_annotation", "visibility_token", "visibility"),
        ("instance", "category_token", "category"),
    ],
)
def test_dangling_references_name_both_tables(root: Path, name: str, field: str, target: str) -> None:
    edit(root, name, lambda rows: rows[0].__setitem__(field, "nowhere"))
    found = [problem for problem in problems_of(root).problems if "'nowhere'" in problem.reason]
    assert [problem.code for problem in found] == ["dangling"]
    assert found[0].path == f"{SYNTHETIC_VERSION}/{name}.json"
    assert f"{target}.json" in found[0].reason
    assert field in found[0].reason


def test_dangling_lists_inside_rows_are_found(root: Path) -> None:
    edit(root, "map", lambda rows: rows[0]["log_tokens"].append("no log"))
    edit(root, "sample_annotation", lambda rows: rows[0]["attribute_tokens"].append("no attribute"))
    reasons = " ".join(problem.reason for problem in problems_of(root).problems)
    assert "'no log'" in reasons
    assert "'no attribute'" in reasons


def test_duplicate_tokens_are_named(root: Path) -> None:
    edit(root, "sample_data", lambda rows: rows.append(dict(rows[0])))
    codes = {problem.code for problem in problems_of(root).problems}
    found = [problem for problem in problems_of(root).problems if "is used by an earlier row" in problem.reason]
    assert "duplicate" in codes
    assert found[0].path == f"{SYNTHETIC_VERSION}/sample_data.json"


def test_a_second_row_at_one_stamp_is_named_with_sensor_and_stamp(root: Path) -> None:
    def repeat(rows: list[dict[str, Any]]) -> None:
        rows.append({**rows[0], "token": "another", "prev": "", "next": ""})

    edit(root, "sample_data", repeat)
    found = [problem for problem in problems_of(root).problems if problem.code == "duplicate"]
    assert {(problem.sensor, problem.stamp_ns) for problem in found} == {("LIDAR_TOP", stamp_of(files(root, "LIDAR_TOP")[0]))}
    assert {"stamp" in problem.reason for problem in found} == {True, False}  # one for the stamp, one for the key frame


def test_every_missing_file_is_counted_and_listed(root: Path) -> None:
    """nutonomy/nuscenes-devkit#1148: one absent file at a time, after long work."""
    gone = [files(root, "CAM_BACK")[2], files(root, "LIDAR_TOP")[5], files(root, "CAM_FRONT")[0]]
    for path in gone:
        path.unlink()
    error = problems_of(root)
    assert {problem.path for problem in error.problems} == {path.relative_to(root).as_posix() for path in gone}
    assert {problem.stamp_ns for problem in error.problems} == {stamp_of(path) for path in gone}
    assert "3 problems (3 missing)" in error.message


def test_missing_files_can_be_allowed_and_are_listed(root: Path) -> None:
    gone = files(root, "CAM_FRONT")[0]
    gone.unlink()
    source = NuScenes(root, NuScenesOptions(allow_missing=True))
    assert [item.path for item in source.ignored] == [gone.relative_to(root).as_posix()]
    drive = source.open_drive("synthetic-0000")
    own = drive.timelines["CAM_FRONT"].own
    assert own is not None
    assert own.tolist() == [-1, 5]
    assert len(drive.timelines["CAM_FRONT"].stamps) == 6


def test_zero_bytes_are_named_with_sensor_and_stamp(root: Path) -> None:
    path = files(root, "CAM_BACK_LEFT")[1]
    path.write_bytes(b"")
    (problem,) = problems_of(root).problems
    assert (problem.code, problem.sensor, problem.stamp_ns) == ("truncated", "CAM_BACK_LEFT", stamp_of(path))
    assert "download" in problem.reason


def test_a_size_of_no_layout_is_named(root: Path) -> None:
    path = files(root, "LIDAR_TOP")[LIDAR_ROW]
    path.write_bytes(path.read_bytes()[:-7])
    (problem,) = problems_of(root).problems
    assert (problem.code, problem.sensor, problem.stamp_ns) == ("layout", "LIDAR_TOP", stamp_of(path))
    assert "no multiple of 20" in problem.reason


def test_a_size_of_two_layouts_is_settled_by_its_values(root: Path) -> None:
    """naurril/SUSTechPOINTS#105: one ending, four columns or five; 16 and 20 both divide 80 · n."""
    path = files(root, "LIDAR_TOP")[LIDAR_ROW]
    points = np.fromfile(path, np.float32).reshape(-1, 5)
    count = len(points) // 20 * 20
    points[:count].tofile(path)
    NuScenes(root)  # five columns, as declared
    np.ascontiguousarray(points[:count, :4]).tofile(path)
    (problem,) = problems_of(root).problems
    assert problem.code == "layout"
    assert "points_layout" in problem.reason
    assert "'xyzi'" in problem.reason
    rng = np.random.default_rng(0)
    rng.normal(0, 1e8, count * 5).astype(np.float32).tofile(path)
    (problem,) = problems_of(root).problems
    assert "download it again" in problem.reason


def test_four_columns_declared_are_read_as_four(root: Path) -> None:
    for path in files(root, "LIDAR_TOP"):
        np.ascontiguousarray(np.fromfile(path, np.float32).reshape(-1, 5)[:, :4]).tofile(path)
    source = NuScenes(root, NuScenesOptions(points_layout="xyzi"))
    assert [field.name for field in source.schema.sensor("LIDAR_TOP").fields] == ["x", "y", "z", "intensity"]
    read = source.open_drive("synthetic-0000").timelines["LIDAR_TOP"].read
    assert read is not None
    points = read(0)
    assert isinstance(points, np.ndarray)
    assert points.tobytes() == files(root, "LIDAR_TOP")[0].read_bytes()


def test_a_path_out_of_the_source_is_refused(root: Path) -> None:
    (root.parent / "secret").mkdir()
    (root.parent / "secret" / "a.jpg").write_bytes(b"\xff\xd8")
    edit(root, "sample_data", lambda rows: rows[0].__setitem__("filename", "samples/../../secret/a.jpg"))
    found = problems_of(root).problems
    assert any("leaves the source folder" in problem.reason for problem in found)


def test_an_absent_sensor_is_named_beside_those_there_are(root: Path) -> None:
    (problem,) = problems_of(root, NuScenesOptions(sensors=("LIDAR_*", "RADAR_*"))).problems
    assert (problem.code, problem.sensor) == ("absent", "RADAR_*")
    assert "LIDAR_TOP" in problem.reason
    assert "--sensors" in problem.reason


def test_everything_is_reported_in_one_go(root: Path) -> None:
    files(root, "CAM_BACK")[0].unlink()
    files(root, "CAM_FRONT")[0].write_bytes(b"")
    edit(root, "ego_pose", lambda rows: rows[4].pop("rotation"))
    edit(root, "instance", lambda rows: rows[2].__setitem__("category_token", "none"))
    codes = {problem.code for problem in problems_of(root).problems}
    assert {"missing", "truncated", "json", "dangling"} <= codes


def test_a_million_findings_are_counted_not_listed(root: Path) -> None:
    def copy(rows: list[dict[str, Any]]) -> None:
        first = dict(rows[0])
        rows += [{**first, "token": f"t{n}", "timestamp": first["timestamp"] + n, "filename": f"no/{n}.bin"} for n in range(1500)]

    edit(root, "sample_data", copy)
    error = problems_of(root, NuScenesOptions(sensors=("LIDAR_TOP",)))
    missing = [problem for problem in error.problems if problem.code == "missing"]
    assert len(missing) == 1001
    assert "500 more" in missing[-1].reason
    assert "1500 missing" in error.message


def nan_points(root: Path) -> Path:
    path = files(root, "LIDAR_TOP")[LIDAR_ROW]
    points = np.fromfile(path, np.float32).reshape(-1, 5)
    points[7, 1] = np.nan
    points.tofile(path)
    return path


def cut_jpeg(root: Path) -> Path:
    path = files(root, "CAM_FRONT")[3]
    path.write_bytes(path.read_bytes()[:-200])
    return path


def other_size(root: Path) -> Path:
    path = files(root, "CAM_FRONT")[2]
    stamp = stamp_of(path) // 1000
    edit(root, "sample_data", lambda rows: next(row for row in rows if row["timestamp"] == stamp).__setitem__("width", 65))
    return path


def odd_ring(root: Path) -> Path:
    path = files(root, "LIDAR_TOP")[LIDAR_ROW]
    points = np.fromfile(path, np.float32).reshape(-1, 5)
    points[-1, 4] = 3.5
    points.tofile(path)
    return path


@pytest.mark.parametrize("kind", ["arrow", "tar"])
@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (nan_points, "NaN or infinity in 'y'"),
        (cut_jpeg, "cut short|ends|EOI|truncated"),
        (other_size, "its sample_data row says 65"),
        (odd_ring, "ring"),
    ],
)
def test_a_bad_payload_stops_the_pack_and_leaves_nothing(
    root: Path, tmp_path: Path, spoil: Callable[[Path], Path], said: str, kind: Any
) -> None:
    path = spoil(root)
    before = sorted(item.name for item in tmp_path.iterdir())
    with pytest.raises(SourceError) as caught:
        pack(spec(root), tmp_path / "set", PackOptions(format=kind, workers=1))
    text = str(caught.value)
    assert path.name in text
    assert "CAM_FRONT" in text or "LIDAR_TOP" in text
    assert str(stamp_of(path)) in text
    assert re.search(said, text)
    assert sorted(item.name for item in tmp_path.iterdir()) == before


def test_what_a_missing_table_held_is_not_missed_a_second_time(root: Path) -> None:
    """One line a table, not one a row that points into it."""
    for name in ("sample", "log", "ego_pose"):
        table(root, name).unlink()
    edit(root, "sample_annotation", lambda rows: rows[0].__setitem__("instance_token", "nowhere"))
    problems = problems_of(root).problems
    assert sorted(problem.code for problem in problems) == ["dangling", "missing", "missing", "missing"]
    assert any("'nowhere'" in problem.reason for problem in problems)


@pytest.mark.parametrize("policy", ["reject", "keep"])
def test_an_empty_image_is_rejected_or_kept_as_asked(root: Path, tmp_path: Path, policy: Any) -> None:
    path = files(root, "CAM_FRONT")[1]
    path.write_bytes(b"")
    asked = SourceSpec(kind="nuscenes", path=str(root), options={"bad_images": policy})
    report = pack(asked, tmp_path / "set", PackOptions(workers=1, bad_images=policy))
    (problem,) = report.rejected if policy == "reject" else report.kept
    assert (problem.path, problem.stamp_ns) == (path.relative_to(root).as_posix(), stamp_of(path))
    assert "0 bytes" in problem.reason or "empty" in problem.reason


def test_points_without_a_position_are_left_out_as_asked(root: Path, tmp_path: Path) -> None:
    path = nan_points(root)
    asked = SourceSpec(kind="nuscenes", path=str(root), options={"drop_nan": True})
    options = PackOptions(workers=1, points_codec="points-quantised", drop_nan=True)
    report = pack(asked, tmp_path / "set", options)
    assert report.dropped_points == 1
    with open_set(report.location) as packed:
        points = packed.timeline("LIDAR_TOP").value(LIDAR_ROW)
    assert isinstance(points, np.ndarray)
    assert len(points) == path.stat().st_size // 20 - 1
    assert np.isfinite(points["y"]).all()


def test_points_are_not_left_out_without_a_grid(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--lidar-precision"):
        pack(spec(root), tmp_path / "set", PackOptions(workers=1, drop_nan=True))
    assert not (tmp_path / "set").exists()


def test_a_bad_payload_names_its_place_once(root: Path, tmp_path: Path) -> None:
    path = nan_points(root)
    with pytest.raises(SourceError) as caught:
        pack(spec(root), tmp_path / "set", PackOptions(workers=1))
    assert str(caught.value).count(path.name) == 1
    assert "--drop-nan" in str(caught.value)


@pytest.mark.slow
def test_command_line_says_it_in_one_line_and_exits_3(root: Path, tmp_path: Path) -> None:
    path = files(root, "CAM_FRONT")[1]
    path.write_bytes(b"")
    done = run(root, tmp_path / "set")
    assert done.returncode == 3
    line = next(line for line in done.stderr.splitlines() if path.name in line)
    assert "CAM_FRONT" in line
    assert str(stamp_of(path)) in line
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
def test_a_destination_with_files_in_it_is_left_alone(root: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    (tmp_path / "set" / "notes.txt").write_text("mine")
    done = run(root, tmp_path / "set")
    assert done.returncode == 2
    assert "notes.txt" in done.stderr or "empty" in done.stderr
    assert [item.name for item in (tmp_path / "set").iterdir()] == ["notes.txt"]


def run(root: Path, destination: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "headway.tools.pack_dataset", "nuscenes", str(root), str(destination)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, env={**os.environ, "COLUMNS": "400"})


def test_no_folder_no_tables_and_two_versions_are_told_apart(root: Path, tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no such folder"):
        NuScenes(tmp_path / "nowhere")
    (tmp_path / "empty").mkdir()
    with pytest.raises(SourceError, match="download the metadata archive"):
        NuScenes(tmp_path / "empty")
    with pytest.raises(SourceError, match="check --version"):
        NuScenes(root, NuScenesOptions(version="v1.0-trainval"))
    shutil.copytree(root / SYNTHETIC_VERSION, root / "v1.0-other")
    with pytest.raises(UsageError, match="choose one with --version"):
        NuScenes(root)
    assert len(NuScenes(root, NuScenesOptions(version=SYNTHETIC_VERSION)).listings) == 1


TABLES = (
    *("attribute", "calibrated_sensor", "category", "ego_pose", "instance", "log", "map", "sample", "sample_annotation"),
    *("sample_data", "scene", "sensor", "visibility"),
)
ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False),
    st.text(max_size=8),
    st.lists(st.one_of(st.integers(), st.floats(allow_nan=False), st.text(max_size=3)), max_size=4),
    st.just({}),
)


@pytest.mark.slow
@hypothesis.given(name=st.sampled_from(TABLES), row=st.integers(0, 10**6), column=st.integers(0, 10**6), value=ODD)
@hypothesis.settings(max_examples=60)
def test_no_value_in_any_table_breaks_the_preflight(whole: Path, name: str, row: int, column: int, value: object) -> None:
    """Whatever stands in a field, there is a source or an error of ours."""
    path = table(whole, name)
    kept = path.read_bytes()
    try:
        rows = json.loads(kept)
        target = rows[row % len(rows)]
        target[sorted(target)[column % len(target)]] = value
        path.write_text(json.dumps(rows))
        with contextlib.suppress(SourceError, UsageError):
            source = NuScenes(whole)
            for listing in source.listings:
                source.open_drive(listing.name)
    finally:
        path.write_bytes(kept)


@pytest.mark.slow
@hypothesis.given(name=st.sampled_from(TABLES), at=st.floats(0, 1), cut=st.integers(0, 40), put=st.binary(max_size=12))
@hypothesis.settings(max_examples=60)
def test_no_bytes_in_any_table_break_the_preflight(whole: Path, name: str, at: float, cut: int, put: bytes) -> None:
    path = table(whole, name)
    kept = path.read_bytes()
    place = int(at * len(kept))
    try:
        path.write_bytes(kept[:place] + put + kept[place + cut :])
        with contextlib.suppress(SourceError, UsageError):
            NuScenes(whole)
    finally:
        path.write_bytes(kept)

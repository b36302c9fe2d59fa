"""A described folder becomes drives; every mistake in it is named with file and sensor."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from headway.formats import SourceError
from headway.formats.adapters import SourceSpec, open_source
from headway.formats.adapters.folder import Folder

DESCRIPTION = """
reference: front
licence: internal
sensors:
  front: {kind: image, files: "cameras/front_{stamp}.jpg", unit: us, intrinsics: [[900, 0, 640], [0, 900, 360], [0, 0, 1]],
          sensor_to_ego: [1.5, 0, 1.6, 0.5, -0.5, 0.5, -0.5]}
  lidar: {kind: points, files: "lidar/{stamp}.bin", unit: us, fields: [x:float32:m, y:float32:m, z:float32:m, i:uint8]}
  ego: {kind: array, csv: poses.csv, unit: s, columns: {ego_to_world: [x, y, z, qw, qx, qy, qz], speed: v}}
  notes: {kind: text, files: "{stamp}.txt", unit: ms}
"""


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for number, drive in enumerate(("b", "a")):
        folder = tmp_path / drive
        (folder / "cameras").mkdir(parents=True)
        (folder / "lidar").mkdir()
        for stamp in (1_000_000, 1_500_000, 2_000_000):
            (folder / f"cameras/front_{stamp}.jpg").write_bytes(b"\xff\xd8" + bytes([number]) + b"\xff\xd9")
        (folder / "lidar/1250000.bin").write_bytes(bytes(13 * 4))
        (folder / "1100.txt").write_text("größer")
        (folder / "poses.csv").write_text(
            "stamp,x,y,z,qw,qx,qy,qz,v\n1.000000001,0,0,0,1,0,0,0,3\n2.000000001,10,0,0,1,0,0,0,4\n"
        )
        (folder / "stray.log").write_text("x")
    (tmp_path / "headway.yaml").write_text(DESCRIPTION)
    return tmp_path


def test_files_become_rows_at_their_stamps(root: Path) -> None:
    source = Folder(root)
    assert [listing.name for listing in source.listings] == ["a", "b"]
    assert source.licence == "internal"
    drive = source.open_drive("a")
    front = drive.timelines["front"]
    assert front.stamps.tolist() == [1_000_000_000, 1_500_000_000, 2_000_000_000]
    assert front.read is not None
    assert front.read(2) == b"\xff\xd8\x01\xff\xd9"
    assert front.columns["intrinsics"].shape == (3, 3, 3)
    np.testing.assert_allclose(front.columns["ego_to_world"][1, 0], 4.99999999)
    assert drive.timelines["ego"].stamps.tolist() == [1_000_000_001, 2_000_000_001]
    assert drive.timelines["ego"].columns["speed"].tolist() == [3.0, 4.0]
    lidar = drive.timelines["lidar"].read
    assert lidar is not None
    assert len(lidar(0)) == 4
    notes = drive.timelines["notes"].read
    assert notes is not None
    assert notes(0) == "größer"
    assert [item.path for item in source.ignored] == ["a/stray.log", "b/stray.log"]


def test_every_problem_is_named_in_one_go(root: Path) -> None:
    (root / "a/cameras/front_3000000.jpg").write_bytes(b"")
    (root / "a/cameras/front_03000000.jpg").write_bytes(b"x")
    (root / "a/cameras/front_003000000.jpg").write_bytes(b"x")
    (root / "b/lidar/7.bin").symlink_to("/etc/passwd")
    (root / "b/poses.csv").unlink()
    with pytest.raises(SourceError) as caught:
        Folder(root)
    codes = sorted(problem.code for problem in caught.value.problems)
    assert codes == ["duplicate", "layout", "missing", "truncated"]
    assert "front_3000000.jpg (sensor 'front', stamp 3000000000)" in str(caught.value)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("kind: image", "kind: picture", "kind must be one of"),
        ("unit: ms", "unit: min", "unit must be one of"),
        ('"{stamp}.txt"', '"../{stamp}.txt"', "relative"),
        ('"{stamp}.txt"', '"x.txt"', "once"),
        ('"{stamp}.txt"', '"{stamp}/x.txt"', "file name"),
        ("kind: text", "kind: text, colour: red", "unknown keys"),
        ("reference: front", "", "reference"),
        ("licence: internal", "licence: !!python/object/apply:os.system [true]", "could not determine a constructor"),
        ("[1.5, 0, 1.6, 0.5, -0.5, 0.5, -0.5]", "[1.5, 0, 1.6]", "shape"),
        ("speed: v", "speed: w", "no columns"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(root: Path, old: str, new: str, message: str) -> None:
    (root / "headway.yaml").write_text(DESCRIPTION.replace(old, new))
    with pytest.raises(SourceError, match=message):
        Folder(root).open_drive("a")


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("1.0000000001,0,0,0,1,0,0,0,3", "more digits"),
        ("1e9,0,0,0,1,0,0,0,3", "plain decimal"),
        ("1,0,0,0,1,0,0,x,3", "could not convert"),
    ],
)
def test_a_bad_table_row_is_named(root: Path, line: str, message: str) -> None:
    (root / "a/poses.csv").write_text(f"stamp,x,y,z,qw,qx,qy,qz,v\n{line}\n")
    with pytest.raises(SourceError, match=message) as caught:
        Folder(root).open_drive("a")
    assert "poses.csv: line 2" in str(caught.value)


def test_points_that_do_not_divide_are_refused(root: Path) -> None:
    (root / "a/lidar/1250000.bin").write_bytes(bytes(14))
    read = Folder(root).open_drive("a").timelines["lidar"].read
    assert read is not None
    with pytest.raises(ValueError, match="14 bytes are not a whole number of points of 13 bytes"):
        read(0)


def test_empty_images_are_the_packers_to_judge_where_asked(root: Path, tmp_path: Path) -> None:
    (root / "a/cameras/front_1500000.jpg").write_bytes(b"")
    spec = SourceSpec(kind="folder", path=str(root))
    with pytest.raises(SourceError, match="--bad-images reject"):
        open_source(spec)
    asked = replace(spec, options={"bad_images": "reject"})
    assert len(open_source(asked).open_drive("a").timelines["front"].stamps) == 3
    (root / "b/lidar/1250000.bin").write_bytes(b"")
    with pytest.raises(SourceError, match=r"1250000\.bin"):
        open_source(asked)

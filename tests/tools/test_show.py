"""`headway show`: facts, exports equal to the source, pictures, and clear refusals."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest

from headway.formats import CorruptShard
from headway.formats.packed_set import open_set
from headway.tools.show import export_frame

from .conftest import Runner

pytestmark = pytest.mark.slow


def test_json_holds_what_scripts_ask_for(run: Runner, tiny_set: Path) -> None:
    done = run("headway", "show", tiny_set, "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert len(facts["set_id"]) == 64
    assert facts["format"] == "arrow"
    assert [(drive["name"], drive["frames"]) for drive in facts["drives"]] == [("synthetic-0000", 5)]
    assert facts["frames"] == 5
    assert facts["bytes"] == sum(path.stat().st_size for path in tiny_set.glob("*.arrow"))
    camera = facts["sensors"]["CAM_FRONT"]
    assert (camera["kind"], camera["codec"], camera["payloads"]) == ("image", "jpeg", 25)
    assert camera["rate_hz"] == pytest.approx(12, rel=0.01)
    assert facts["sensors"]["ego"]["payloads"] == 0


def test_people_get_a_table(run: Runner, tiny_set: Path) -> None:
    done = run("headway", "show", tiny_set)
    assert done.code == 0
    assert "LIDAR_TOP" in done.out
    assert "20.0 Hz" in done.out
    assert "defines the frames" in done.out
    assert run("headway", "show", tiny_set, "synthetic-0000").code == 0
    frame = run("headway", "show", tiny_set, "synthetic-0000", 1)
    assert "own CAM_FRONT" in frame.out


def test_exported_payloads_are_the_source_s_bytes(run: Runner, tiny_source: Path, tiny_set: Path, tmp_path: Path) -> None:
    done = run("headway", "show", tiny_set, "synthetic-0000", 2, "--export", tmp_path / "frame")
    assert done.code == 0
    (tables,) = tiny_source.glob("v1.0*")
    rows = json.loads((tables / "sample_data.json").read_text())
    by_name = {(row["filename"].split("/")[1], row["timestamp"] * 1000): row["filename"] for row in rows}
    listed = json.loads((tmp_path / "frame/frame.json").read_text())
    compared = 0
    for sensor, filed in listed["sensors"].items():
        for row in filed:
            if (sensor, row["stamp"]) in by_name:
                suffix = "jpg" if sensor.startswith("CAM") else "bin"
                name = f"{sensor}.{suffix}" if row["own"] else f"{sensor}@{row['stamp']}.{suffix}"
                source = tiny_source / by_name[sensor, row["stamp"]]
                assert (tmp_path / "frame" / name).read_bytes() == source.read_bytes()
                compared += 1
    assert compared == len(list((tmp_path / "frame").glob("*.jpg"))) + len(list((tmp_path / "frame").glob("*.bin")))
    assert compared > 6 * 5
    boxes = json.loads((tmp_path / "frame/boxes.json").read_text())
    assert len(boxes["centre"]) == len(boxes["track_id"]) > 0


def test_exports_go_into_empty_folders_only(run: Runner, tiny_set: Path, tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    done = run("headway", "show", tiny_set, "synthetic-0000", 0, "--export", tmp_path)
    assert done.code == 2
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_export_returns_what_it_wrote(tiny_set: Path, tmp_path: Path) -> None:
    with open_set(tiny_set) as packed:
        written = export_frame(packed, 0, tmp_path / "frame")
    assert sorted(written) == sorted((tmp_path / "frame").iterdir())


def test_an_export_of_a_damaged_frame_leaves_nothing(tiny_set: Path, tmp_path: Path) -> None:
    damaged = Path(shutil.copytree(tiny_set, tmp_path / "set"))
    with open_set(damaged) as packed:
        rows = packed.filed("boxes", 0)  # the last sensor but one: much of the frame is written by then
        refs = packed.timeline("boxes").refs(np.array([rows[0]]))
        name = packed.manifest.shards[int(refs.shard[0])].data_name
    with open(damaged / name, "r+b") as file:
        file.seek(int(refs.offset[0]))
        byte = file.read(1)[0]
        file.seek(int(refs.offset[0]))
        file.write(bytes([byte ^ 1]))
    with open_set(damaged) as packed, pytest.raises(CorruptShard):
        export_frame(packed, 0, tmp_path / "frame")
    assert [path.name for path in tmp_path.iterdir()] == ["set"]


def test_the_picture_of_a_frame_is_written(run: Runner, tiny_set: Path, tmp_path: Path) -> None:
    done = run("headway", "show", tiny_set, "synthetic-0000", 1, "--png", tmp_path / "out.png")
    assert done.code == 0
    picture = cv2.imread(str(tmp_path / "out.png"))
    assert picture is not None
    assert picture.shape[1] == 2400
    assert float(np.std(picture)) > 20
    assert [path.name for path in tmp_path.iterdir()] == ["out.png"]


@pytest.mark.parametrize(
    ("arguments", "code", "hint"),
    [
        (["nothing-here"], 4, "manifest.json"),
        (["SET", "nowhere"], 2, "nowhere"),
        (["SET", "synthetic-0000", "99"], 2, "0 to 4"),
        (["SET", "--png", "x.png"], 2, "DRIVE FRAME"),
        (["SET", "synthetic-0000", "0", "--png", "x.txt"], 2, "use .png or .jpg"),
        (["SET", "bad\u202e\x1bname"], 2, "\\u202e"),
        ([], 2, "SET"),
    ],
)
def test_what_cannot_be_shown_is_refused(run: Runner, tiny_set: Path, arguments: list[str], code: int, hint: str) -> None:
    done = run("headway", "show", *(tiny_set if word == "SET" else word for word in arguments))
    assert done.code == code
    assert hint in done.err
    assert "\x1b" not in done.err
    assert "\u202e" not in done.err

"""Views over packed sets: which frames are items, their ids, and what filters, tombstones and gaps do."""

from __future__ import annotations

import doctest
import pickle
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from headway.formats import Camera, PackedSet, PackOptions, Sensor, UsageError, open_set, pack
from headway.loader import sweeps, trajectory, view, window
from headway.loader.frame_facts import FrameFacts
from headway.loader.view import View, default_windows
from headway.loader.window import Window
from tests.formats.ramp import ramp_spec

from .memory_set import MemorySet, camera, lidar

# The ramp's three drives have 4, 5 and 6 frames; drive 1 has no BOX.
STARTS = [0, 4, 9, 15]


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ramp, packed into several shards."""
    location = tmp_path_factory.mktemp("view") / "set"
    pack(ramp_spec(), location, PackOptions(shard_bytes=30_000, workers=1))
    return location


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep item indexes out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def packed(location: Path) -> Iterator[PackedSet]:
    """The set, opened."""
    with open_set(location) as packed:
        yield packed


def cached(tmp_path: Path) -> list[Path]:
    """Return the index files in the user's cache."""
    return sorted((tmp_path / "cache").rglob("*.items"))


def test_without_filters_every_frame_is_an_item_and_nothing_is_stored(packed: PackedSet, tmp_path: Path) -> None:
    view = View(packed)
    assert len(view) == 15
    assert view.info.drive_starts.tolist() == STARTS
    assert view.frames(np.array([0, -1, 14])).tolist() == [0, -1, 14]
    assert view.drive_of(np.array([0, 4, -1, 14])).tolist() == [0, 1, -1, 2]
    assert not (tmp_path / "cache").exists()


def test_by_default_each_sensor_gives_the_frames_own_payload(packed: PackedSet) -> None:
    view, items = View(packed), np.arange(15)
    assert view.names == ("BOX", "IMU", "KEY", "LIDAR", "ego", "camera")
    resolved = view.resolve(items, seed=0, epoch=0)
    for name in view.names:
        (sensor,) = view.sensors(name)
        assert resolved[name].rows.shape == (15, 1, 1)
        own = packed.own(sensor, items)
        rows = resolved[name].rows[:, 0, 0]
        assert np.array_equal(rows[own >= 0], own[own >= 0])
        assert np.array_equal(resolved[name].stamps[own >= 0, 0, 0], packed.timeline(sensor).take("stamp", own[own >= 0]))
    assert (resolved["camera"].sync_error == -20_000_000).all()
    assert not resolved["BOX"].valid[4:9].any()


@pytest.mark.parametrize(
    ("where", "expected"),
    [
        (pc.field("drive") == "drive-1", range(4, 9)),
        (pc.field("drive.night"), range(4, 9)),
        (~pc.field("drive.night") & (pc.field("frame") >= 3), [3, 12, 13, 14]),
        (pc.field("has.BOX") & (pc.field("id") < 12), [1, 3, 10]),
        (pc.field("stamp") < 1_500_001_000_000_000_000, range(4)),
        (pc.field("id").isin([3, 5, 14]), [3, 5, 14]),
        ([14, 3, 5], [3, 5, 14]),
        (np.array([0], np.uint32), [0]),
        (pa.array([7, 2]), [2, 7]),
    ],
)
def test_filters_choose_frames(packed: PackedSet, where: Any, expected: Any) -> None:
    view = View(packed, where=where)
    assert view.frames(np.arange(len(view))).tolist() == list(expected)


def test_columns_of_a_frames_own_payloads_can_be_filtered_on(packed: PackedSet) -> None:
    night = packed.timeline("CAM").take("night", packed.own("CAM", np.arange(15)))
    view = View(packed, where=pc.field("CAM.night"))
    assert view.frames(np.arange(len(view))).tolist() == np.flatnonzero(night).tolist()
    x = packed.timeline("CAM").take("ego_to_world", packed.own("CAM", np.arange(15)))[:, 0]
    view = View(packed, where=pc.list_element(pc.field("CAM.ego_to_world"), 0) > 0.25)
    assert view.frames(np.arange(len(view))).tolist() == np.flatnonzero(x > 0.25).tolist()


def test_null_facts_are_no_match() -> None:
    files = MemorySet(
        [lidar(), camera("CAM")], [{"LIDAR_TOP": [0, 1, 2], "CAM": [0, 2]}], own={"CAM": [0, -1, 1]},
        columns={("CAM", "ego_to_world"): np.arange(14.0).reshape(2, 7)},
    )  # fmt: skip
    for where in (pc.list_element(pc.field("CAM.ego_to_world"), 0) > 3, pc.field("CAM.ego_to_world").is_null()):
        view = View(files, where=where)
        assert view.frames(np.arange(len(view))).tolist() == ([2] if "list_element" in str(where) else [1])


def test_attributes_of_mixed_types_compare_as_numbers_or_as_text() -> None:
    drives = [{"LIDAR_TOP": [0]}] * 3
    files = MemorySet([lidar()], drives, attributes=[{"speed": 1, "tag": "a"}, {"speed": 2.5, "tag": 3}, {}])
    assert len(View(files, where=pc.field("drive.speed") > 0.5)) == 2
    assert View(files, where=pc.field("drive.tag") == "3").frames(np.array([0])).tolist() == [1]


def test_tombstones_take_out_drives_and_frames(packed: PackedSet) -> None:
    view = View(packed, exclude=["drive-1", ("drive-0", 2), ("drive-2", 5)])
    assert view.frames(np.arange(len(view))).tolist() == [0, 1, 3, 9, 10, 11, 12, 13]
    assert view.info.drive_starts.tolist() == [0, 3, 3, 8]
    assert view.info.frames is not None
    assert view.info.frames(np.array([3])).tolist() == [9]


def test_incomplete_windows_are_dropped_when_asked(packed: PackedSet) -> None:
    view = View(packed, windows=[Window("KEY", past=1, future=1, on_gap="drop")])
    assert view.frames(np.arange(len(view))).tolist() == [1, 2, 5, 6, 7, 10, 11, 12, 13]
    resolved = view.resolve(np.arange(len(view)), seed=0, epoch=0)["KEY"]
    assert resolved.valid.all()
    assert resolved.complete.all()


def test_windows_of_a_filtered_view_are_those_of_the_whole_set(packed: PackedSet) -> None:
    """huggingface/lerobot#2610: with one episode selected, every window counted as padding."""
    windows = [Window("CAM", past=2, future=1), Window("LIDAR", past="250ms", stride="50ms", sync="nearest")]
    whole, some = View(packed, windows=windows), View(packed, windows=windows, where=pc.field("drive") == "drive-1")
    a, b = whole.resolve(np.arange(4, 9), seed=0, epoch=0), some.resolve(np.arange(5), seed=0, epoch=0)
    for name in whole.names:
        for field in ("rows", "valid", "stamps", "sync_error"):
            assert np.array_equal(getattr(a[name], field), getattr(b[name], field))


def test_an_index_is_built_once_and_found_again(packed: PackedSet, tmp_path: Path) -> None:
    first = View(packed, where=pc.field("frame") > 1)
    assert not cached(tmp_path)
    assert len(first) == 9
    (path,) = cached(tmp_path)
    content = path.read_bytes()
    again = View(packed, where=pc.field("frame") > 1)
    assert again.view_id == first.view_id
    assert cached(tmp_path) == [path]
    assert path.read_bytes() == content


def test_long_value_lists_do_not_share_an_index(packed: PackedSet, tmp_path: Path) -> None:
    """pyarrow writes a long list as its first and last ten values: the text of an expression is no key."""
    a = pc.field("id").isin([*range(10), *range(100, 120), *range(20, 40)])
    b = pc.field("id").isin([*range(10), *range(4, 24), *range(20, 40)])
    assert str(a)[:80] == str(b)[:80]
    assert len(View(packed, where=a)) == 10
    assert len(View(packed, where=b)) == 15
    assert len(cached(tmp_path)) == 2


def test_the_view_id_covers_windows_items_and_set(packed: PackedSet) -> None:
    views = [
        View(packed),
        View(packed, windows=[Window("CAM")]),
        View(packed, windows=[Window("CAM", past=1)]),
        View(packed, where=pc.field("frame") > 0),
        View(packed, where=pc.field("frame") > 1),
        View(packed, exclude=["drive-0"]),
    ]
    assert len({view.view_id for view in views}) == len(views)
    assert all(len(view.view_id) == 64 for view in views)
    # How items were chosen does not matter, which they are does.
    assert View(packed, where=list(range(4, 15))).view_id == View(packed, exclude=["drive-0"]).view_id
    assert View(packed, windows=default_windows(packed)).view_id == View(packed).view_id


def test_a_view_goes_to_another_process(packed: PackedSet) -> None:
    view = View(packed, windows=[Window("CAM", past=2, choose=1)], where=pc.field("frame") > 1)
    assert len(view) == 9
    copy = pickle.loads(pickle.dumps(view))  # noqa: S301  our own bytes
    assert copy.view_id == view.view_id
    items = np.arange(9)
    ours, theirs = (each.resolve(items, seed=5, epoch=2)["CAM"].rows for each in (view, copy))
    assert np.array_equal(ours, theirs)


def test_the_read_set_is_what_windows_touch(packed: PackedSet) -> None:
    view = View(packed, windows=[Window("LIDAR", past=3), Window("ego", sync="interpolate", name="pose"), Window("CAM")])
    items = np.array([0, 1, 7, -1])
    rows, resolved = view.read_set(items, seed=0, epoch=0), view.resolve(items, seed=0, epoch=0)
    assert list(rows) == ["CAM", "LIDAR", "ego"]
    assert rows["LIDAR"].tolist() == sorted(set(resolved["LIDAR"].rows.ravel().tolist()) - {-1})
    pose = resolved["pose"]
    assert pose.right is not None
    assert set(rows["ego"].tolist()) == (set(pose.rows.ravel().tolist()) | set(pose.right.ravel().tolist())) - {-1}
    assert len(rows["CAM"]) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"where": pc.field("frmae") > 1}, "these facts by name: id, drive, frame, stamp, drive.night"),
        ({"where": pc.field("frame") + 1}, "must evaluate to bool"),
        ({"where": pc.field("frame") > "x"}, "cannot filter frames"),
        ({"where": pc.field("frame") > 100}, "has no items, of 15 frames"),
        ({"where": [15]}, "lists frame 15; this set has frames 0 to 14"),
        ({"where": [-1]}, "lists frame -1"),
        ({"where": [3, 3]}, "lists frame 3 twice"),
        ({"where": "frame > 3"}, "neither a pyarrow.compute expression nor a list"),
        ({"where": [1.5]}, "neither a pyarrow.compute expression nor a list"),
        ({"where": []}, "has no items"),
        ({"exclude": ["drive-7"]}, "drive 'drive-7', which this set does not have"),
        ({"exclude": [("drive-0", 4)]}, "frame 4 of drive 'drive-0', which has frames 0 to 3"),
        ({"exclude": ["drive-0", "drive-1", "drive-2"]}, "has no items"),
    ],
)
def test_what_cannot_be_meant_is_refused(packed: PackedSet, options: dict[str, Any], says: str) -> None:
    with pytest.raises(UsageError) as caught:
        len(View(packed, **options))
    assert says in str(caught.value)


def test_items_out_of_range_are_refused(packed: PackedSet) -> None:
    with pytest.raises(UsageError, match="has no item 15; it has items 0 to 14"):
        View(packed).frames(np.array([15]))
    with pytest.raises(UsageError, match="has no item -2"):
        View(packed).resolve(np.array([-2]), seed=0, epoch=0)


def test_every_fact_can_be_filtered_on(packed: PackedSet) -> None:
    for name in FrameFacts(packed).names:
        assert len(View(packed, where=pc.field(name).is_valid())) <= 15


def test_cameras_of_unlike_colour_do_not_share_a_window() -> None:
    depth = Sensor(name="DEPTH", kind="image", codec="png", camera=Camera(colour="depth"))
    drive = {"LIDAR_TOP": [0], "CAM_A": [0], "CAM_B": [0], "DEPTH": [0]}
    files = MemorySet([lidar(), camera("CAM_B"), camera("CAM_A"), depth], [drive])
    assert {window.name: tuple(window.sensors) for window in default_windows(files)[1:]} == {
        "camera": ("CAM_A", "CAM_B"), "camera_depth": ("DEPTH",),
    }  # fmt: skip


@pytest.mark.parametrize("module", [sweeps, trajectory, view, window])
def test_examples_run(packed: PackedSet, module: ModuleType) -> None:
    result = doctest.testmod(module, extraglobs={"packed": packed})
    assert result.attempted > 0
    assert not result.failed

"""An opened set by itself: filters, pickling, indexing from either end, and no torch until tensors are asked for."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pyarrow.compute as pc
import pytest

import headway
from headway import NotASet, UsageError, Window
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack
from tests.formats.ramp import ramp_spec


def test_filters_and_exclusions_choose_the_items(drives_set: Path) -> None:
    windows = [Window("note")]
    assert len(headway.open(drives_set, windows=windows)) == 18
    night = headway.open(drives_set, windows=windows, where=pc.field("drive.night") == pc.scalar(True))
    assert {sample["drive"] for sample in night} == {"drive-1"}
    rest = headway.open(drives_set, windows=windows, exclude=["drive-0", ("drive-2", 3)])
    assert len(rest) == 6 + 6
    assert ("drive-2", 3) not in {(sample["drive"], int(sample["frame"])) for sample in rest}


def test_a_pickled_dataset_reopens_its_set(drives_set: Path) -> None:
    dataset = headway.open(drives_set, windows=[Window("note")], exclude=["drive-1"])
    again = pickle.loads(pickle.dumps(dataset))  # noqa: S301  what pickle is for: an object of this very test
    assert len(again) == len(dataset)
    assert again.view.view_id == dataset.view.view_id
    assert again[3]["note"]["text"] == dataset[3]["note"]["text"]


def test_items_count_from_either_end(drives_set: Path) -> None:
    with headway.open(drives_set, windows=[Window("note")]) as dataset:
        assert dataset[-1]["note"]["text"] == dataset[17]["note"]["text"] == ["drive 2 frame 6"]
        with pytest.raises(IndexError):
            dataset[-19]


def test_what_is_no_set_or_no_sensor_is_said_at_once(drives_set: Path, tmp_path: Path) -> None:
    with pytest.raises(NotASet):
        headway.open(tmp_path)
    with pytest.raises(UsageError, match="'LIDAR_UPSIDE_DOWN'"):
        headway.open(drives_set, windows=[Window("LIDAR_UPSIDE_DOWN")])


@pytest.mark.slow
def test_opening_needs_no_torch(drives_set: Path) -> None:
    code = f"import sys, headway; headway.open({str(drives_set)!r}); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"


def test_images_that_cannot_be_decoded_yet_are_refused_by_name(tmp_path: Path) -> None:
    location = tmp_path / "ramp"
    pack(ramp_spec(drives=1), location, PackOptions(workers=1))
    with pytest.raises(UsageError, match="'CAM' are rgb in codec 'raw'"):
        headway.open(location)
    assert len(headway.open(location, windows=[Window("LIDAR")])) == 4

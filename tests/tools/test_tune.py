"""`headway tune`: a sample of a set packs anew as it was, knobs fit the set, and a whole run says what each gives."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from headway.formats.pack_options import PackOptions
from headway.formats.packed_set import open_set
from headway.formats.packer import pack
from headway.formats.schema import ImageEdit
from headway.tools import tune
from headway.tools._set_source import sample_of

from .conftest import Runner


def test_a_whole_sample_is_the_set_again(tiny_set: Path, tmp_path: Path) -> None:
    pack(sample_of(str(tiny_set), 1000), tmp_path / "again", PackOptions(workers=1))
    with open_set(tiny_set) as old, open_set(tmp_path / "again") as new:
        assert new.schema.by_name.keys() == old.schema.by_name.keys()
        for name in old.schema.by_name:
            before, after = old.timeline(name), new.timeline(name)
            assert len(after) > 0.9 * len(before) > 0  # what lies after the last frame stays behind
            rows = np.arange(len(after))
            if before.sensor.codec is not None:
                assert np.array_equal(after.refs(rows).hash, before.refs(rows).hash)
            for column in before.sensor.columns:
                assert np.array_equal(after.take(column.name, rows), before.take(column.name, rows), equal_nan=True)


def test_a_sample_holds_its_first_frames_and_takes_options(tiny_set: Path, tmp_path: Path) -> None:
    pack(sample_of(str(tiny_set), 2), tmp_path / "part", PackOptions(workers=1, image_edit=ImageEdit(scale=0.5)))
    with open_set(tiny_set) as old, open_set(tmp_path / "part") as new:
        assert len(new) == 2
        camera = next(sensor.name for sensor in new.schema.sensors if sensor.kind == "image")
        size = new.timeline(camera).take("image_size", np.array([0]))[0]
        assert (2 * size).tolist() == old.timeline(camera).take("image_size", np.array([0]))[0].tolist()


def test_knobs_fit_the_set(tiny_set: Path) -> None:
    with open_set(tiny_set) as packed:
        small = [knob.setting for knob in tune._pack_knobs(packed, (18, 32))]
        large = [knob.setting for knob in tune._pack_knobs(packed, (90, 160))]
        assert tune._scale(packed, (18, 32)) == 0.2
        assert tune._scale(packed, (900, 1600)) == 1.0
    assert "--camera-scale 0.2" in small
    assert not any("scale" in setting for setting in large)
    assert any("lidar-precision" in setting for setting in large)


def test_a_sample_too_small_for_a_step_is_refused(run: Runner, tiny_set: Path) -> None:
    ran = run("headway", "tune", tiny_set, "--frames", 4, "--batch-size", 8)
    assert ran.code == 2
    assert "--frames" in ran.err


@pytest.mark.full
def test_a_whole_run(run: Runner, tiny_set: Path) -> None:
    flags = ("--frames", 4, "--batch-size", 1, "--seconds", 0.5, "--image", "18x32", "--json")
    ran = run("headway", "tune", tiny_set, *flags)
    assert ran.code == 0, ran.err
    trials = json.loads(ran.out)["trials"]
    assert trials[0]["knob"] == "as it is"
    scaled = next(trial for trial in trials if "camera-scale" in trial["setting"])
    assert scaled["bytes_a_sample"] < trials[0]["bytes_a_sample"]
    assert all(trial["samples_per_s"] > 0 for trial in trials if trial["samples_per_s"] is not None)

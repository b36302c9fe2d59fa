"""Workloads: statistics of the real ones, the same bytes from the same seed, whatever is scaled or interrupted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import simplejpeg

from headway.bench.make_data import StoredWorkload, make_data
from headway.bench.workloads import WORKLOADS, jpeg, sample_columns, sweep, workload
from headway.formats import NotASet, UsageError


@pytest.mark.slow
@pytest.mark.parametrize(("name", "kilobytes"), [("W1", 206), ("W2", 96)])
def test_images_have_the_size_of_camera_jpegs(name: str, kilobytes: float) -> None:
    load = WORKLOADS[name]
    sizes = [len(jpeg(load, index)) for index in range(6 if name == "W1" else 24)]
    assert np.mean(sizes) / 1000 == pytest.approx(kilobytes, rel=0.2)
    assert max(sizes) > 1.05 * min(sizes), "no two scenes compress alike"


def test_images_are_baseline_420_of_the_asked_size() -> None:
    data = jpeg(workload("W1", image=(90, 160)), 0)
    height, width, colourspace, subsampling = simplejpeg.decode_jpeg_header(data)
    assert (height, width, colourspace, subsampling) == (90, 160, "YCbCr", "420")


def test_sweeps_look_like_a_spinning_lidar() -> None:
    cloud = sweep(WORKLOADS["W4"], 3)
    assert cloud.dtype == np.float32
    assert 33_000 <= len(cloud) <= 35_000
    assert cloud.shape[1] == 5
    assert set(np.unique(cloud[:, 4])) == set(range(32))
    assert cloud[:, 2].min() > -2.0, "nothing lies below the ground"
    assert 3 < np.median(np.linalg.norm(cloud[:, :3], axis=1)) < 40


def test_a_sample_is_what_its_workload_says() -> None:
    first = sample_columns(WORKLOADS["W1"], 0)
    assert first["images"].shape == (6,)
    assert first["trajectory"].shape == (100, 6)
    assert first["calibration"].shape == (6, 25)
    assert 15 <= len(first["boxes"]) <= 45
    assert set(sample_columns(WORKLOADS["W3"], 7)) == {"trajectory", "speed", "stamp", "command"}
    assert 0 <= sample_columns(WORKLOADS["W2"], 5)["label"] < 1000


@pytest.mark.parametrize("name", sorted(WORKLOADS))
def test_the_same_seed_gives_the_same_samples(name: str) -> None:
    small = {"samples": 5} | ({"image": (45, 80)} if WORKLOADS[name].cameras else {})
    load, other = workload(name, **small), workload(name, seed=7, **small)  # type: ignore[arg-type]  # built from plain values
    for index in (0, 4):
        mine, again, theirs = (sample_columns(one, index) for one in (load, load, other))
        assert all(np.array_equal(mine[key], again[key]) for key in mine)
        assert load.name == "W4" or any(not np.array_equal(mine[key], theirs[key]) for key in mine)
    if load.cameras:
        assert jpeg(load, 1) == jpeg(load, 1) != jpeg(other, 1)


def test_data_is_the_same_for_any_number_of_threads(tmp_path: Path) -> None:
    for threads in (1, 3):
        make_data(workload("W1", samples=4, image=(45, 80), points=200), tmp_path / str(threads), threads=threads)
    files = sorted(path.relative_to(tmp_path / "1") for path in (tmp_path / "1").rglob("*") if path.is_file())
    assert len(files) == 24 + 4 + 2
    for name in files:
        assert (tmp_path / "1" / name).read_bytes() == (tmp_path / "3" / name).read_bytes(), name


def test_samples_are_read_back(tmp_path: Path) -> None:
    load = workload("W1", samples=4, image=(45, 80), points=200)
    stored = make_data(load, tmp_path)
    assert len(stored) == len(list(stored)) == 4
    for index, sample in enumerate(stored):
        columns = sample_columns(load, index)
        assert sample["cam3"] == jpeg(load, int(columns["images"][3]))
        assert np.array_equal(sample["lidar"], sweep(load, columns["sweep"]))
        assert np.array_equal(sample["boxes"], columns["boxes"])
        assert np.array_equal(sample["trajectory"], columns["trajectory"])
    with pytest.raises(IndexError):
        stored[4]


def test_an_interrupted_run_is_completed(tmp_path: Path) -> None:
    load = workload("W2", samples=3, image=(45, 80))
    make_data(load, tmp_path)
    kept = tmp_path / "images/000000.jpg"
    before = kept.stat().st_mtime_ns
    (tmp_path / "workload.json").unlink()
    (tmp_path / "images/000001.jpg").unlink()
    with pytest.raises(NotASet):
        StoredWorkload(tmp_path)
    make_data(load, tmp_path)
    assert kept.stat().st_mtime_ns == before
    assert (tmp_path / "images/000001.jpg").exists()


def test_other_data_is_never_mixed_in(tmp_path: Path) -> None:
    make_data(workload("W3", samples=3), tmp_path / "w3")
    assert len(make_data(workload("W3", samples=3), tmp_path / "w3")) == 3
    with pytest.raises(UsageError, match="another directory"):
        make_data(workload("W3", samples=4), tmp_path / "w3")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("")
    with pytest.raises(UsageError, match=r"notes\.txt"):
        make_data(workload("W3", samples=3), tmp_path / "mine")


@pytest.mark.parametrize(
    "wrong", [{"name": "W9"}, {"name": "W3", "cameras": 2}, {"name": "W2", "points": 5}, {"name": "W1", "samples": 0}]
)
def test_what_cannot_be_scaled_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(UsageError):
        workload(**wrong)  # type: ignore[arg-type]  # the arguments are the test


def test_parameters_are_on_disk(tmp_path: Path) -> None:
    make_data(workload("W4", samples=2, points=50), tmp_path)
    stored = json.loads((tmp_path / "workload.json").read_text())
    assert (stored["name"], stored["samples"], stored["seed"], stored["points"][1]) == ("W4", 2, 61, 50)

"""Padded points and tables: everything there, zeros behind it, one of the asked sizes, and one compilation for each."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import headway
from headway import DataLoader, UsageError, Window
from headway.loader.padding import Padding
from headway.loader.sweeps import Sweeps

WINDOWS = [Window("LIDAR", past=1), Window("RADAR"), Window("boxes", past=1), Window("note"), Window("imu")]


def batches(drives_set: Path, *padding: Padding, windows: Any = WINDOWS) -> list[headway.Batch]:
    dataset = headway.open(drives_set, windows=windows, padding=padding)
    return list(DataLoader(dataset, 4, shuffle=True, num_workers=0))


def test_points_are_the_packed_ones_with_zeros_behind(drives_set: Path) -> None:
    padded = batches(drives_set, Padding(["LIDAR", "RADAR"], sizes=(64, 80)))
    for plain, batch in zip(batches(drives_set), padded, strict=True):
        for name, times in (("LIDAR", 2), ("RADAR", 1)):
            points, offsets, count = batch[name]["points"], plain[name]["offsets"], batch[name]["count"]
            assert points.shape[:3] in {(4, times, 64), (4, times, 80)}
            assert torch.equal(count, offsets.diff().reshape(4, times))
            for place in range(4 * times):
                sweep = points.flatten(0, 1)[place]
                assert torch.equal(sweep[: count.flatten()[place]], plain[name]["points"][offsets[place] : offsets[place + 1]])
                assert not sweep[count.flatten()[place] :].any()
        assert batch["RADAR"]["fields"]["t"].shape == batch["RADAR"]["points"].shape[:3]
        assert "offsets" not in batch["LIDAR"]


def test_tables_keep_their_rows(drives_set: Path) -> None:
    padded = batches(drives_set, Padding("boxes", sizes=(9,)), Padding("imu", sizes=(5,)))
    for plain, batch in zip(batches(drives_set), padded, strict=True):
        assert batch["boxes"]["centre"].shape == (4, 2, 9, 3)
        assert batch["imu"]["value"].shape == (4, 1, 5, 2)
        longest = plain["boxes"]["centre"].shape[2]
        assert torch.equal(batch["boxes"]["category"][:, :, :longest], plain["boxes"]["category"])
        assert not batch["boxes"]["centre"][:, :, longest:].any()
        assert batch["boxes"]["track_id"] == plain["boxes"]["track_id"]
        assert torch.equal(batch["boxes"]["count"], plain["boxes"]["count"])


def test_the_smallest_size_that_holds_the_longest_is_taken(drives_set: Path) -> None:
    for batch in batches(drives_set, Padding("LIDAR", sizes=(100, 50, 62))):
        longest = int(batch["LIDAR"]["count"].max())
        assert batch["LIDAR"]["points"].shape[2] == (50 if longest <= 50 else 62 if longest <= 62 else 100)


def test_what_does_not_fit_is_an_error_or_thinned_and_said(drives_set: Path) -> None:
    with pytest.raises(UsageError, match=r"'LIDAR': found \d+ rows where at most 10 fit"):
        batches(drives_set, Padding("LIDAR", sizes=(10,)))
    thinned = batches(drives_set, Padding(["LIDAR", "boxes"], sizes=(2,), over="thin"))
    for plain, batch in zip(batches(drives_set), thinned, strict=True):
        assert torch.equal(batch["LIDAR"]["found"].flatten(), plain["LIDAR"]["offsets"].diff())
        assert batch["LIDAR"]["count"].max() == 2
        first, last = plain["LIDAR"]["offsets"][:2].tolist()
        kept = [first, first + (last - first) // 2][: last - first]
        assert torch.equal(batch["LIDAR"]["points"][0, 0, : len(kept)], plain["LIDAR"]["points"][kept])
        for texts, count in zip(batch["boxes"]["track_id"], batch["boxes"]["count"], strict=True):
            assert [len(text) for text in texts] == count.tolist()


def test_sweeps_made_into_one_cloud_are_padded_as_one(drives_set: Path) -> None:
    windows = [Sweeps("LIDAR", past=2, drop_self_m=0.0)]
    padded = batches(drives_set, Padding("LIDAR", sizes=(256,)), windows=windows)
    for plain, batch in zip(batches(drives_set, windows=windows), padded, strict=True):
        (key,) = [name for name, entry in batch.items() if isinstance(entry, dict) and "points" in entry]
        assert batch[key]["points"].shape[:3] == (4, 1, 256)
        assert torch.equal(batch[key]["count"].flatten(), plain[key]["offsets"].diff())


def test_samples_of_a_padded_dataset_lose_their_first_axis(drives_set: Path) -> None:
    dataset = headway.open(drives_set, windows=WINDOWS, padding=Padding("LIDAR", sizes=(80,)))
    assert dataset[3]["LIDAR"]["points"].shape == (2, 80, 4)


@pytest.mark.parametrize(
    ("entries", "sizes", "match"),
    [
        ("LIDAR", (), "sizes"),
        ("LIDAR", (0,), "sizes"),
        ("", (5,), "entries"),
        ("SONAR", (5,), "SONAR"),
        ("note", (5,), "neither"),
    ],
)
def test_what_makes_no_sense_is_refused(drives_set: Path, entries: str, sizes: tuple[int, ...], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        batches(drives_set, Padding(entries, sizes=sizes))


@pytest.mark.slow
def test_a_compiled_step_is_not_compiled_again(drives_set: Path) -> None:
    compiled = []

    def backend(graph: Any, inputs: Any) -> Any:
        compiled.append(graph)
        return graph.forward

    def step(points: torch.Tensor, count: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
        there = torch.arange(points.shape[2]) < count[..., None]
        return (points * there[..., None]).sum() + boxes.sum()

    compiled_step = torch.compile(step, backend=backend, dynamic=False)
    found = [
        float(compiled_step(batch["LIDAR"]["points"], batch["LIDAR"]["count"], batch["boxes"]["centre"]))
        for batch in batches(drives_set, Padding("LIDAR", sizes=(80,)), Padding("boxes", sizes=(8,)))
    ]
    plain = batches(drives_set)
    assert found == pytest.approx(
        [float(batch["LIDAR"]["points"].sum() + batch["boxes"]["centre"].sum()) for batch in plain], rel=1e-4
    )
    assert len(found) == 5
    assert len(compiled) == 1

"""`headway plan` and `headway replay` of weighted, mixed and slot-sticky orders: what the loader handed out, id by id."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway import DataLoader, LoaderOptions, Mixture, SlotSticky, Weighted, WeightTable, Window
from headway.loader.weighted import WeightJournal
from headway.tools.main import main
from tests.loader.drives import write_drives

WINDOWS = [Window("ego", past=1)]


@pytest.fixture(scope="module")
def sets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Two sets of 11 and 5 frames."""
    root = tmp_path_factory.mktemp("orders")
    return write_drives(root / "one", drives=2), write_drives(root / "two", drives=1)


@pytest.fixture
def windows(tmp_path: Path) -> list[str]:
    """The windows as flags."""
    path = tmp_path / "windows.json"
    path.write_text(json.dumps([window.to_json() for window in WINDOWS]))
    return ["--windows", str(path)]


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert ending.value.code == code, output.err
    return output.err if code else output.out


def batches(dataset: headway.Dataset, sampler: Any) -> list[Any]:  # Any: one of headway's samplers; batches
    return list(DataLoader(dataset, 4, sampler=sampler, options=LoaderOptions(seed=6), num_workers=0))


def check(
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    found: list[Any],
    location: Path,
    sampler: list[object],
    view: list[object],
) -> None:
    """Compare all steps that `plan` shows, and the one that `replay` shows of a saved state, with what a loader handed out."""
    plan = json.loads(run(capsys, "plan", location, "--batch-size", 4, "--seed", 6, "--steps", ":", *sampler, *view, "--json"))
    assert [line["items"] for line in plan["steps"]] == [batch["id"].tolist() for batch in found]
    assert [line["drives"] for line in plan["steps"]] == [batch["drive"] for batch in found]
    state = tmp_path / "state.json"
    state.write_text(json.dumps(found[1]["state"]))
    given = [
        flag for at, flag in enumerate(sampler) if flag in ("--weights", "--mix") or sampler[at - 1] in ("--weights", "--mix")
    ]
    replay = json.loads(run(capsys, "replay", location, "--state", state, *given, *view, "--json"))
    assert replay["step"] == 1
    assert [slot["id"] for slot in replay["slots"]] == found[1]["id"].tolist()
    assert [slot["occurrence"] for slot in replay["slots"]] == found[1]["occurrence"].tolist()
    for name, field in (("set", "set"), ("is_first", "is_first")):
        if name in found[1]:
            assert [slot[field] for slot in replay["slots"]] == found[1][name].tolist()
    for slot, stamps in zip(replay["slots"], found[1]["ego"]["stamp"].tolist(), strict=True):
        assert [place["stamp"] for place in slot["windows"]["ego"]["ego"]] == stamps
    assert "slot 0 (rank 0): id" in run(capsys, "replay", location, "--state", state, *given, *view)


def test_sticky(sets: tuple[Path, Path], tmp_path: Path, windows: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    found = batches(headway.open(sets[0], windows=WINDOWS), SlotSticky(chunk_items=2))
    check(capsys, tmp_path, found, sets[0], ["--sampler", "sticky", "--chunk-items", 2], windows)
    assert "drive-0:0*" in run(capsys, "plan", sets[0], "--sampler", "sticky", "--steps", ":")


@pytest.mark.parametrize("kept", ["file", "journal"])
def test_weighted(
    sets: tuple[Path, Path], tmp_path: Path, windows: list[object], capsys: pytest.CaptureFixture[str], kept: str
) -> None:
    table = WeightTable.of(np.arange(11))
    path = tmp_path / "weights.npy"
    if kept == "journal":
        path = tmp_path / "journal"
        WeightJournal(path).append(0, table)
    else:
        table.save(path)
    found = batches(headway.open(sets[0], windows=WINDOWS), Weighted(table=table, epoch_items=13))
    check(capsys, tmp_path, found, sets[0], ["--sampler", "weighted", "--weights", path, "--epoch-items", 13], windows)
    state, other = tmp_path / "state.json", WeightTable.of(np.ones(11)).save(tmp_path / "other.npy")
    replay = ["replay", sets[0], "--state", state, *windows]
    assert "needs its weights" in run(capsys, *replay, code=2)
    assert "sampler.weights" in run(capsys, *replay, "--weights", other, code=2)


def test_mixture(sets: tuple[Path, Path], tmp_path: Path, windows: list[object], capsys: pytest.CaptureFixture[str]) -> None:
    mixed = headway.mix([headway.open(each, windows=WINDOWS) for each in sets])
    found = batches(mixed, Mixture(weights=(3, 1), virtual_slots=3, epoch_items=20))
    flags = ["--mix", sets[1], "--sampler", "mixture", "--shares", "3,1", "--virtual-slots", 3, "--epoch-items", 20]
    check(capsys, tmp_path, found, sets[0], flags, windows)
    assert "1/drive-0:" in run(capsys, "plan", sets[0], "--mix", sets[1], "--sampler", "mixture", "--shares", "1,9", *windows)
    assert "the state's view is" in run(capsys, "replay", sets[0], "--state", tmp_path / "state.json", *windows, code=2)


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (["--sampler", "weighted"], "needs its weights"),
        (["--sampler", "mixture", "--shares", "1"], "--mix"),
        (["--chunk-items", "3"], "goes with --sampler sticky"),
        (["--sampler", "evaluation", "--drop-last"], "no meaning in evaluation order"),
        (["--sampler", "sticky", "--shares", "2,1"], "goes with --sampler mixture"),
    ],
)
def test_flags_that_mean_nothing_are_refused(
    sets: tuple[Path, Path], capsys: pytest.CaptureFixture[str], flags: list[str], says: str
) -> None:
    assert says in run(capsys, "plan", sets[0], *flags, code=2)

"""The quarantine ledger over real flips in tar sets: one line a bad payload, equal steps, and the next view without them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headway
from headway import CorruptShard, DataLoader, DecodeError, Images, LoaderOptions, Topology, UsageError, Window, read_quarantine
from headway.loader.quarantine import quarantine_entries
from headway.tools.main import main

from .drives import JPEG, write_drives

FLIPPED = {"CAM_BACK": (4, 7), "LIDAR": (9,), "note": (12,)}
"""Sensor → global rows of which a byte is flipped; each is the frame of that number."""
BAD = {4, 7, 9, 12}
DRIVE_STARTS = (0, 5, 11)


@pytest.fixture(scope="module")
def flipped_set(tmp_path_factory: pytest.TempPathFactory) -> Path:
    location = write_drives(tmp_path_factory.mktemp("flipped") / "set", kind="tar")
    with headway.open(location).packed as packed:
        places = []
        for sensor, rows in FLIPPED.items():
            refs = packed.timeline(sensor).refs(np.array(rows))
            for shard, offset, length in zip(refs.shard.tolist(), refs.offset.tolist(), refs.length.tolist(), strict=True):
                places.append((location / packed.manifest.shards[shard].data_name, offset + length // 2))
    for path, place in places:
        data = bytearray(path.read_bytes())
        data[place] ^= 16
        path.write_bytes(data)
    return location


def run(location: Path, ledger: Path, on_error: Any, *, ranks: int = 1, exclude: Any = (), **more: Any) -> list[list[Any]]:
    windows = [Window("CAM_BACK", name="camera"), Window("LIDAR"), Window("note")]
    dataset = headway.open(location, windows=windows, images=Images("CAM_BACK", size=JPEG), exclude=exclude)
    options = LoaderOptions(seed=2, on_error=on_error, quarantine=ledger, **more)
    return [
        list(DataLoader(dataset, 4 // ranks, True, num_workers=2, options=options, topology=Topology(rank=rank, size=ranks)))
        for rank in range(ranks)
    ]


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_every_bad_payload_has_its_line(flipped_set: Path, tmp_path: Path, on_error: str) -> None:
    ledger = tmp_path / "bad.jsonl"
    (batches,) = run(flipped_set, ledger, on_error)
    found: dict[int, dict[str, Any]] = {}
    for entry in quarantine_entries(ledger):
        found.setdefault(entry["failed"], entry)
    assert set(found) == BAD
    steps = {item: number for number, batch in enumerate(batches) for item in batch["id"].tolist()}
    with headway.open(flipped_set).packed as packed:
        for sensor, rows in FLIPPED.items():
            for row in rows:
                entry = found[row]
                assert entry["set"] == packed.set_id
                assert entry["sensor"] == sensor
                assert entry["stamp"] == int(packed.timeline(sensor).take("stamp", np.array([row]))[0])
                drive = sum(row >= start for start in DRIVE_STARTS) - 1
                assert (entry["drive"], entry["frame"]) == (f"drive-{drive}", row - DRIVE_STARTS[drive])
                assert (entry["action"], entry["epoch"], entry["step"]) == (on_error, 0, steps[entry["item"]])
                assert entry["error"] == "CorruptShard"
                assert repr(sensor) in entry["reason"]
                assert (entry["replaced"] == -1) is (on_error == "mask")


def test_what_is_raised_is_written_down_first(flipped_set: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "bad.jsonl"
    with pytest.raises(CorruptShard):
        run(flipped_set, ledger, "raise")
    entries = quarantine_entries(ledger)
    # Another bad payload may have been met, and written down, while the first one was on its way to the consumer.
    assert {entry["action"] for entry in entries} == {"raise"}
    assert len({entry["failed"] for entry in entries}) == len(entries)
    assert {entry["failed"] for entry in entries} <= BAD


@pytest.mark.parametrize("on_error", ["mask", "replace"])
def test_ranks_keep_equal_steps_and_share_the_ledger(flipped_set: Path, tmp_path: Path, on_error: str) -> None:
    one = run(flipped_set, tmp_path / "one", on_error)
    several = run(flipped_set, tmp_path / "several", on_error, ranks=4)
    assert {len(batches) for batches in several} == {len(one[0])}
    lines = [sorted((tmp_path / name).read_text().splitlines()) for name in ("one", "several")]
    assert lines[0] == lines[1]


def test_the_next_view_leaves_out_what_the_ledger_names(flipped_set: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "bad.jsonl"
    run(flipped_set, ledger, "mask")
    again = tmp_path / "again.jsonl"
    (batches,) = run(flipped_set, again, "raise", exclude=read_quarantine(ledger))
    assert not again.exists()
    frames = {
        (drive, int(frame)) for batch in batches for drive, frame in zip(batch["drive"], batch["frame"], strict=True) if drive
    }
    assert len(frames) == 18 - len(BAD)
    assert not frames & set(read_quarantine(ledger))


def test_replay_says_what_became_of_bad_items(flipped_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    ledger, state, windows = tmp_path / "bad.jsonl", tmp_path / "state.json", tmp_path / "windows.json"
    (batches,) = run(flipped_set, ledger, "mask")
    entry = quarantine_entries(ledger)[0]
    state.write_text(json.dumps(batches[entry["step"]]["state"]))
    names = ("CAM_BACK", "LIDAR", "note")
    windows.write_text(
        json.dumps([{"kind": "window", "sensors": name, **({"name": "camera"} if name == "CAM_BACK" else {})} for name in names])
    )
    flags = ["--state", state, "--windows", windows, "--quarantine", ledger, "--json"]
    with pytest.raises(SystemExit) as ended:
        main(["replay", str(flipped_set), *map(str, flags)])
    printed = capsys.readouterr()
    assert ended.value.code == 0, printed.err
    faults = {slot["id"]: slot["faults"] for slot in json.loads(printed.out)["slots"]}
    assert entry in faults[entry["item"]]
    assert all(found["item"] == item for item, some in faults.items() for found in some)


def test_a_used_up_budget_raises_with_everything_written(flipped_set: Path, tmp_path: Path) -> None:
    ledger = tmp_path / "bad.jsonl"
    with pytest.raises(DecodeError, match="max_bad allows 2"):
        run(flipped_set, ledger, "mask", max_bad=2)
    assert len(quarantine_entries(ledger)) >= 3


def test_a_line_cut_off_by_a_crash_is_passed_over(tmp_path: Path) -> None:
    line = json.dumps({"set": "s", "drive": "d", "frame": 1, "item": 1, "action": "mask", "epoch": 0, "step": 0})
    (tmp_path / "bad").write_text(f"{line}\n{line[:30]}")
    assert read_quarantine(tmp_path / "bad") == [("d", 1)]


@pytest.mark.parametrize("text", ["nothing\n", "[1]\n", '{"set": 3}\n', "[" * 100_000 + "\n"])
def test_what_is_no_ledger_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "bad").write_text(text)
    with pytest.raises(UsageError, match="line 1"):
        read_quarantine(tmp_path / "bad")


def test_a_ledger_of_several_sets_asks_which(tmp_path: Path) -> None:
    entries = [{"set": name, "drive": name, "frame": 1, "item": 1, "action": "mask", "epoch": 0, "step": 0} for name in "st"]
    (tmp_path / "bad").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    with pytest.raises(UsageError, match="several sets"):
        read_quarantine(tmp_path / "bad")
    assert read_quarantine(tmp_path / "bad", set_id="t") == [("t", 1)]

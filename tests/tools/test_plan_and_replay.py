"""`headway plan` and `headway replay`: what they print is what the loader's plan and windows say."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest

from headway.formats import PackOptions, open_set, pack
from headway.loader.plan import Plan
from headway.loader.shuffled import Shuffled
from headway.loader.state import State
from headway.loader.view import View
from headway.loader.window import Window
from headway.tools.main import main
from tests.formats.ramp import ramp_spec
from tests.loader.drives import write_drives

WINDOWS = '[{"kind": "window", "sensors": "LIDAR", "past": 4, "choose": 2}, {"kind": "window", "sensors": "CAM", "past": 1}]'
SPECS = [Window("LIDAR", past=4, choose=2), Window("CAM", past=1)]


@pytest.fixture(scope="module")
def location(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The ramp of 15 frames, packed."""
    location = tmp_path_factory.mktemp("replay") / "set"
    pack(ramp_spec(), location, PackOptions(shard_bytes=30_000, workers=1))
    return location


@pytest.fixture(autouse=True)
def private_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep item indexes out of the user's cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def windows(tmp_path: Path) -> str:
    """The windows as a file."""
    path = tmp_path / "windows.json"
    path.write_text(WINDOWS)
    return str(path)


def run(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    """Run a command; return what it printed (on stderr if it was to fail)."""
    with pytest.raises(SystemExit) as ending:
        main([str(argument) for argument in arguments])
    output = capsys.readouterr()
    assert ending.value.code == code, output.err
    return output.err if code else output.out


def run_json(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    """Run a command with --json."""
    return json.loads(run(capsys, *arguments, "--json"))


def test_plan_lists_the_plan(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "plan", location, "--ranks", 2, "--batch-size", 3, "--steps", "0:", "--seed", 7)
    with open_set(location) as packed:
        view = View(packed)
        plan = Plan(view.info, Shuffled(), seed=7, epoch=0, segments=[(6, 0)])
    assert facts["view"] == view.view_id
    assert facts["steps_in_epoch"] == plan.steps == 3
    planned = plan.look_ahead(0, 3).items
    listed = np.array([line["items"] for line in facts["steps"]]).reshape(3, 6)
    assert np.array_equal(listed, planned)
    assert sorted(planned.ravel().tolist()) == [-1, -1, -1, *range(15)]
    assert [(line["step"], line["rank"], line["first_slot"]) for line in facts["steps"][:3]] == [(0, 0, 0), (0, 1, 3), (1, 0, 0)]


def test_plan_counts_the_bytes_that_windows_read(location: Path, windows: str, capsys: pytest.CaptureFixture[str]) -> None:
    facts = run_json(capsys, "plan", location, "--steps", "0:", "--batch-size", 4, "--windows", windows, "--no-shuffle")
    with open_set(location) as packed:
        view = View(packed, windows=SPECS)
        each = [view.read_set(np.array([item]), seed=0, epoch=0) for item in range(15)]
        sizes = [int(packed.timeline(name).refs(rows).length.sum()) for found in each for name, rows in found.items()]
        together = view.read_set(np.arange(15), seed=0, epoch=0)
        once = sum(int(packed.timeline(name).refs(rows).length.sum()) for name, rows in together.items())
    assert facts["read"]["bytes"] == sum(sizes)
    assert facts["read"]["bytes_once"] == once
    assert facts["read"]["read_amplification"] == pytest.approx(sum(sizes) / once)
    assert facts["read"]["read_amplification_rank_cache"] == 1


def test_one_rank_of_a_plan_is_its_part_of_the_whole(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = run_json(capsys, "plan", location, "--ranks", 3, "--batch-size", 1, "--accumulate", 2)
    part = run_json(capsys, "plan", location, "--ranks", 3, "--batch-size", 1, "--accumulate", 2, "--rank", 1)
    assert part["steps"] == [line for line in whole["steps"] if line["rank"] == 1]


def test_plan_reads_well(location: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = run(capsys, "plan", location, "--no-shuffle", "--batch-size", 8, "--steps", 1, "--where", "drive != 'drive-0'")
    assert "11 items, 3 drives" in text
    assert "step 1\n  rank 0    slots 0–7" in text
    assert "drive-2:3  drive-2:4  drive-2:5  (padding)" in text
    assert "read amplification" in text


def save_state(tmp_path: Path, location: Path, *, steps: int, where: list[int] | None = None) -> tuple[Path, Plan]:
    """Write the state after `steps` steps of a shuffled epoch with a global batch of 6."""
    with open_set(location) as packed:
        info = View(packed, windows=SPECS, where=where).info
    start = State.start(info, Shuffled(), seed=3, epoch=2, batch_size=6)
    plan = start.plan(info, Shuffled())
    state = start.after(plan, step=steps - 1)
    path = tmp_path / "state.json"
    path.write_text(json.dumps(state.to_json()))
    return path, plan


def test_replay_shows_the_last_step_received(
    location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = save_state(tmp_path, location, steps=2)
    facts = run_json(capsys, "replay", location, "--state", path, "--windows", windows)
    assert (facts["epoch"], facts["step"], facts["received"]) == (2, 1, True)
    assert [slot["id"] for slot in facts["slots"]] == plan.step(1).items.tolist()
    with open_set(location) as packed:
        resolved = View(packed, windows=SPECS).resolve(plan.step(1).items, seed=3, epoch=2)
    for at, slot in enumerate(facts["slots"]):
        for name, (sensor, places) in ((name, next(iter(found.items()))) for name, found in slot["windows"].items()):
            assert sensor == name
            assert [place["row"] for place in places] == resolved[name].rows[at, :, 0].tolist()
            assert [place["stamp"] for place in places] == resolved[name].stamps[at, :, 0].tolist()
            assert [place["sync_error_ns"] for place in places] == resolved[name].sync_error[at, :, 0].tolist()


def test_replay_shows_any_step_and_rank(location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, plan = save_state(tmp_path, location, steps=1)
    whole = run_json(capsys, "replay", location, "--state", path, "--windows", windows, "--step", 2, "--ranks", 3)
    part = run_json(capsys, "replay", location, "--state", path, "--windows", windows, "--step", -1, "--ranks", 3, "--rank", 1)
    assert (whole["step"], whole["received"]) == (2, False)
    assert part["slots"] == [slot for slot in whole["slots"] if slot["rank"] == 1]
    assert [slot["id"] for slot in part["slots"]] == plan.step(2, 2, 4).items.tolist()


def test_replay_after_a_changed_batch_size_shows_each_step_with_its_own(
    location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = save_state(tmp_path, location, steps=1)
    with open_set(location) as packed:
        info = View(packed, windows=SPECS).info
    with pytest.warns(UserWarning, match="another batch size"):
        state = State.from_json(json.loads(path.read_text())).resume(info, Shuffled(), seed=3, batch_size=3)
    path.write_text(json.dumps(state.to_json()))
    facts = [run_json(capsys, "replay", location, "--state", path, "--windows", windows, "--step", step) for step in range(4)]
    assert [fact["global_batch"] for fact in facts] == [6, 3, 3, 3]
    assert sorted(slot["id"] for fact in facts for slot in fact["slots"]) == list(range(15))


def test_replay_of_another_view_is_refused(location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = save_state(tmp_path, location, steps=1)
    assert "the state's view is" in run(capsys, "replay", location, "--state", path, code=2)


def test_replay_of_a_filtered_run_takes_the_filter_in_other_words(
    location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, plan = save_state(tmp_path, location, steps=1, where=list(range(4, 15)))
    facts = run_json(capsys, "replay", location, "--state", path, "--windows", windows, "--exclude", "drive-0")
    assert [slot["id"] for slot in facts["slots"]] == plan.step(0).items.tolist()
    assert all(slot["global_frame"] == slot["id"] + 4 for slot in facts["slots"])


def test_replay_reads_well(location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, _ = save_state(tmp_path, location, steps=1)
    text = run(capsys, "replay", location, "--state", path, "--windows", windows)
    assert "epoch 2, step 0 of 3 (received when the state was saved), global batch 6, shuffled order, seed 3" in text
    assert "slot 0 (rank 0): id" in text
    assert "(-20.0 ms)" in text


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["plan", "SET", "--steps", "99"], "name no step of an epoch"),
        (["plan", "SET", "--steps", "a:b"], "name no step of an epoch"),
        (["plan", "SET", "--rank", "2"], "none of the 1 ranks"),
        (["plan", "SET", "--batch-size", "16", "--drop-last"], "no complete batch"),
        (["plan", "SET", "--where", "frame >"], "cannot read the filter"),
        (["plan", "SET", "--exclude", "drive-9"], "does not have"),
        (["plan", "SET", "--exclude", "drive-0:9"], "frames 0 to 3"),
        (["replay", "SET", "--state", "BAD"], "cannot read a loader state"),
        (["replay", "SET", "--state", "MISSING"], "No such file"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    location: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], says: str
) -> None:
    (tmp_path / "bad.json").write_text("[1]")
    places = {"SET": str(location), "BAD": str(tmp_path / "bad.json"), "MISSING": str(tmp_path / "missing.json")}
    code = 5 if "MISSING" in arguments else 2
    message = run(capsys, *[places.get(argument, argument) for argument in arguments], code=code)
    assert says in message
    assert message.count("\n") == 1


def test_orders_that_a_state_does_not_hold_are_refused(
    location: Path, windows: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, _ = save_state(tmp_path, location, steps=1)
    state = json.loads(path.read_text())
    path.write_text(json.dumps(state | {"sampler": {"kind": "weighted", "digest": "00"}}))
    assert "needs its weights" in run(capsys, "replay", location, "--state", path, "--windows", windows, code=2)


@pytest.mark.slow
def test_a_picture_of_what_was_seen(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    location, state, picture = write_drives(tmp_path / "set", drives=1, frames=3), tmp_path / "state.json", tmp_path / "seen.png"
    with open_set(location) as packed:
        info = View(packed).info
    start = State.start(info, Shuffled(), seed=0, epoch=0, batch_size=2)
    state.write_text(json.dumps(start.to_json()))
    run(capsys, "replay", location, "--state", state, "--png", picture)
    drawn = cv2.imread(str(picture))
    assert drawn is not None
    assert drawn.shape[1] == 1600
    assert drawn.std() > 1

"""`pack-dataset`: what it packs, reports, refuses and leaves behind."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from headway.formats import UsageError
from headway.formats.adapters import KINDS
from headway.formats.packed_set import open_set
from headway.tools.adapter_commands import ADAPTERS, field_texts, options_class
from headway.tools.pack_dataset import parse_size
from headway.tools.progress import Bar

from .conftest import Runner

pytestmark = pytest.mark.slow


def test_packing_ends_with_a_report_of_everything(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", "--workers", 1)
    assert done.code == 0
    with open_set(tmp_path / "set") as packed:
        assert f"set id    {packed.set_id}" in done.out
        assert packed.manifest.digest in done.out
        payloads = sum(stats.payloads for stats in packed.manifest.sensors.values())
    assert f"packed    1 drives, 5 frames, {payloads:,} payloads" in done.out
    assert "ratio" in done.out
    assert "\x1b" not in done.out + done.err, "colours belong to terminals"


def test_formats_hold_the_same_set(run: Runner, tiny_source: Path, tiny_set: Path, tmp_path: Path) -> None:
    done = run(
        "pack-dataset",
        "nuscenes",
        tiny_source,
        tmp_path / "tar",
        "--format",
        "tar",
        "--shard-size",
        "200kB",
        "--workers",
        1,
        "--json",
    )
    assert done.code == 0
    facts = json.loads(done.out)
    with open_set(tiny_set) as packed:
        assert facts["set_id"] == packed.set_id
    assert facts["format"] == "tar"
    assert facts["shards"] > 1
    assert facts["rejected"] == []
    for suffix in (".arrow", ".sums", ".tar"):
        assert len(list((tmp_path / "tar").glob(f"shard-*{suffix}"))) == facts["shards"]


def test_sensors_are_chosen_by_pattern(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", "--sensors", "CAM_FRONT*,ego", "--sensors", "LIDAR_TOP")
    assert done.code == 0, done.err
    with open_set(tmp_path / "set") as packed:
        chosen = {"CAM_FRONT", "CAM_FRONT_LEFT", "CAM_FRONT_RIGHT", "LIDAR_TOP", "ego", "sample"}
        assert set(packed.schema.by_name) == chosen


def test_limit_packs_the_first_drives(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", "--limit", 1, "--workers", 1, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["drives"] == 1
    with open_set(tmp_path / "set") as packed:
        assert packed.manifest.source == "nuscenes"


def test_splits_are_reported_before_and_after_packing(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    split = ("--split", "train=0.999999,val=0.000001", "--workers", 1)
    planned = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", *split, "--dry-run", "--limit", 1)
    assert planned.code == 0, planned.err
    assert "split     train: 1 drives" in planned.out
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", *split, "--json")
    assert json.loads(done.out)["splits"] == {"train": {"drives": 1, "frames": 5}}
    with open_set(tmp_path / "set") as packed:
        assert packed.drives[0].attributes["split"] == "train"
    wrong = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "other", "--split", "train=2")
    assert wrong.code == 2
    assert "train=0.8,val=0.2" in wrong.err


def test_a_dry_run_writes_nothing(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path / "set", "--dry-run")
    assert done.code == 0
    assert "1 would be written" in done.out
    assert "CAM_FRONT" in done.out
    assert list(tmp_path.iterdir()) == []


def test_inspect_guesses_the_kind(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    done = run("pack-dataset", "inspect", tiny_source, "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert facts["kind"] == "nuscenes"
    assert facts["sensors"]["CAM_FRONT"] == {"kind": "image", "codec": "jpeg"}
    nothing = run("pack-dataset", "inspect", tmp_path)
    assert nothing.code == 2
    assert "give --kind" in nothing.err


def test_a_full_destination_is_refused_and_kept(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = run("pack-dataset", "nuscenes", tiny_source, tmp_path)
    assert done.code == 2
    assert done.err.count("error:") == 1
    assert "not empty" in done.err
    assert [path.name for path in tmp_path.iterdir()] == ["notes.txt"]


def test_overwrite_replaces_a_set(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    target = tmp_path / "set"
    assert run("pack-dataset", "nuscenes", tiny_source, target, "--sensors", "LIDAR_TOP").code == 0
    again = run("pack-dataset", "nuscenes", tiny_source, target, "--sensors", "boxes")
    assert again.code == 2
    assert "--overwrite" in again.err
    assert run("pack-dataset", "nuscenes", tiny_source, target, "--sensors", "boxes", "--overwrite").code == 0
    with open_set(target) as packed:
        assert "LIDAR_TOP" not in packed.schema.by_name


def test_source_problems_are_listed_and_nothing_is_written(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_source, broken)
    gone = sorted((broken / "samples/CAM_FRONT").iterdir())[:2]
    for path in gone:
        path.unlink()
    done = run("pack-dataset", "nuscenes", broken, tmp_path / "set")
    assert done.code == 3
    assert all(path.name in done.err for path in gone)
    assert not (tmp_path / "set").exists()


def test_rejected_images_are_named_and_give_their_own_code(run: Runner, tiny_source: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_source, broken)
    bad = sorted((broken / "samples/CAM_FRONT").iterdir())[1]
    bad.write_bytes(bad.read_bytes()[:700])
    failed = run("pack-dataset", "nuscenes", broken, tmp_path / "failed")
    assert failed.code == 3
    assert bad.name in failed.err
    assert not (tmp_path / "failed").exists()
    done = run("pack-dataset", "nuscenes", broken, tmp_path / "set", "--bad-images", "reject")
    assert done.code == 7
    assert bad.name in done.out
    assert "rejected  1 payloads" in done.out


@pytest.mark.parametrize(
    ("arguments", "hint"),
    [
        (["nuscenes", "nowhere", "set"], "nowhere"),
        (["nuscenes", ".", "set", "--shard-size", "many"], "256MB"),
        (["nuscenes", ".", "set", "--format", "zip"], "zip"),
        (["nuscenes", ".", "set", "--workers", "0"], "workers"),
        (["nuscene", ".", "set"], "nuscene"),
    ],
)
def test_what_cannot_be_meant_is_refused(run: Runner, arguments: list[str], hint: str) -> None:
    done = run("pack-dataset", *arguments)
    assert done.code in (2, 3)
    assert hint in done.err
    assert "Traceback" not in done.err


def test_help_shows_an_example(run: Runner) -> None:
    assert "inspect" in run("pack-dataset", "--help").out
    shown = run("pack-dataset", "nuscenes", "--help").out
    assert "Example: pack-dataset nuscenes" in shown
    assert "--version" in shown


@pytest.mark.parametrize("row", ADAPTERS, ids=lambda row: row.kind)
def test_each_adapter_explains_each_of_its_options(row: object) -> None:
    from headway.tools.adapter_commands import AdapterRow

    assert isinstance(row, AdapterRow)
    assert row.kind in KINDS
    options = options_class(row)
    assert set(field_texts(options)) == set(options.__dataclass_fields__)


def test_every_adapter_that_exists_has_a_command() -> None:
    written = {kind for kind, module in KINDS.items() if importlib.util.find_spec(f"headway.formats.adapters{module}")}
    assert {row.kind for row in ADAPTERS} == written


@pytest.mark.parametrize(
    ("text", "size"),
    [("256MB", 256_000_000), ("1GiB", 1 << 30), ("1.5 kB", 1500), ("64 mib", 64 << 20), ("1000", 1000), ("7b", 7)],
)
def test_sizes_are_read_as_people_write_them(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "MB", "1XB", "-", "1e999", "nan"])
def test_other_sizes_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="not a number of bytes"):
        parse_size(text)


def test_ctrl_c_leaves_nothing_half_written(tiny_source: Path, tmp_path: Path) -> None:
    target = tmp_path / "set"
    command = [sys.executable, "-m", "headway.tools.pack_dataset", "nuscenes", str(tiny_source), str(target), "--workers", "1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as child:
        assert child.stderr is not None
        assert child.stderr.readline().startswith("checking")
        child.send_signal(signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode in (0, 130)  # a pack this small may be done by then
    assert "Traceback" not in err
    assert (target / "manifest.json").exists() == (child.returncode == 0)
    assert child.returncode == 0 or not target.exists()


@pytest.mark.slow
def test_ctrl_c_while_workers_start_is_one_clean_end(tiny_source: Path, tmp_path: Path) -> None:
    """A terminal interrupts the whole group; workers that still import must not print tracebacks of their own."""
    target = tmp_path / "set"
    command = [sys.executable, "-m", "headway.tools.pack_dataset", "nuscenes", str(tiny_source), str(target)]
    command += ["--workers", "2", "--shard-size", "300kB"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True) as child:
        children = Path(f"/proc/{child.pid}/task/{child.pid}/children")
        while child.poll() is None and len(children.read_text().split()) < 3:  # multiprocessing's resource tracker, two workers
            pass
        os.killpg(child.pid, signal.SIGINT)
        _, err = child.communicate(timeout=60)
    assert child.returncode == 130
    assert "Traceback" not in err
    assert not target.exists()


def test_an_interrupted_resumable_run_loses_no_finished_shard(
    run: Runner, tiny_source: Path, tiny_set: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "set"
    advance = Bar.advance

    def interrupt(bar: Bar, amount: int) -> None:
        advance(bar, amount)
        if bar.done > 0.6 * bar.total:
            signal.raise_signal(signal.SIGINT)

    arguments = ["nuscenes", tiny_source, target, "--workers", 1, "--shard-size", "300kB", "--resume"]
    with monkeypatch.context() as patch:
        patch.setattr(Bar, "advance", interrupt)
        stopped = run("pack-dataset", *arguments)
    assert stopped.code == 130
    assert "finished shards are kept" in stopped.err
    assert not (target / "manifest.json").exists()
    done = run("pack-dataset", *arguments, "--json")
    assert done.code == 0
    facts = json.loads(done.out)
    assert facts["resumed_shards"] > 0
    with open_set(tiny_set) as packed:
        assert facts["set_id"] == packed.set_id

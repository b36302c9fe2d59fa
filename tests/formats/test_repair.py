"""`verify` finds damage wherever it is, `repair` undoes what can be undone and lists the rest."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from headway.formats import NotASet, PackOptions, SetError, open_set, pack, repair_set, verify_set
from tests.formats.ramp import ramp_spec
from tests.formats.test_packer import tree

# Shards above 64 KiB, so that payloads have chunks of their own.
OPTIONS = {"drives": 2, "frames": 30, "image_bytes": 1500}


@pytest.fixture(scope="module", params=["arrow", "tar"])
def sound(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A sound set of two shards."""
    location = tmp_path_factory.mktemp("sound") / "set"
    pack(ramp_spec(**OPTIONS), location, PackOptions(format=request.param, workers=1, shard_bytes=280_000))
    assert verify_set(location).ok
    assert len(open_set(location).manifest.shards) == 2
    return location


@pytest.fixture
def damaged(sound: Path, tmp_path: Path) -> Path:
    """A copy of the sound set, to be damaged."""
    return Path(shutil.copytree(sound, tmp_path / "set"))


def overwrite(path: Path, at: int, data: bytes) -> None:
    """Overwrite bytes of a file in place."""
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


@pytest.mark.parametrize("what", ["manifest missing", "manifest damaged", "sums missing", "sums damaged", "index missing"])
def test_what_can_be_rebuilt_is_rebuilt_without_loss(what: str, damaged: Path, sound: Path) -> None:
    """mosaicml/streaming#335: an index that was lost while every payload is intact."""
    shard = open_set(damaged).manifest.shards[1]
    file, kind = what.split()
    path = damaged / {"manifest": "manifest.json", "sums": shard.sums_name, "index": shard.index_name}[file]
    if file == "index" and shard.kind == "arrow":
        pytest.skip("an arrow shard is its own index")
    if kind == "missing":
        path.unlink()
    else:
        overwrite(path, path.stat().st_size // 2, b"\x00\xff\x00\xff")
    if what == "manifest missing":
        with pytest.raises(NotASet):
            verify_set(damaged)
    else:
        assert not verify_set(damaged).ok
    report = repair_set(damaged)
    assert report.exit_code == 0
    assert report.rebuilt
    assert tree(damaged) == tree(sound)


def test_a_damaged_payload_is_dropped_and_listed(damaged: Path, sound: Path) -> None:
    """foxglove/mcap#1390: one damaged block costs what it holds, and the rest is saved."""
    with open_set(damaged) as packed:
        timeline = packed.timeline("CAM")
        offsets = timeline.refs(np.arange(len(timeline))).offset
        # One whose 64 KiB chunk holds nothing but payloads: damage beside index bytes takes an arrow shard's index along.
        row = int(np.flatnonzero(offsets > offsets[0] + 70_000)[0])
        stamp = int(timeline.take("stamp", np.array([row]))[0])
        refs = timeline.refs(np.array([row]))
        path = damaged / packed.manifest.shards[int(refs.shard[0])].data_name
        before = len(timeline)
    overwrite(path, int(refs.offset[0]), b"\xaa\xbb\xcc\xdd")
    report = verify_set(damaged)
    assert ("CAM", stamp) in {(problem.sensor, problem.stamp_ns) for problem in report.errors}
    repaired = repair_set(damaged)
    assert repaired.exit_code == 7
    assert [(problem.sensor, problem.stamp_ns) for problem in repaired.dropped] == [("CAM", stamp)]
    assert verify_set(damaged).ok
    with open_set(damaged) as packed, open_set(sound) as wanted:
        assert len(packed.timeline("CAM")) == before - 1
        assert len(packed) == len(wanted)
        for old in range(before):
            if old != row:
                new = old - (old > row)
                assert packed.timeline("CAM").payload(new) == wanted.timeline("CAM").payload(old)
        own = wanted.own("CAM", np.arange(len(wanted)))
        kept = np.where(own == row, -1, own - (own > row))
        assert np.array_equal(packed.own("CAM", np.arange(len(packed))), kept)


@pytest.mark.slow
@pytest.mark.parametrize("flips", [60, pytest.param(2000, marks=pytest.mark.full)])
def test_verify_finds_every_flipped_bit(damaged: Path, flips: int) -> None:
    """foxglove/mcap#535: a checker that passes over the end of a file."""
    files = sorted(path for path in damaged.rglob("*") if path.is_file())
    rng = np.random.default_rng(0)
    for number in range(flips):
        path = files[number % len(files)]
        size = path.stat().st_size
        at = size - 1 - number // len(files) if number < 5 * len(files) else int(rng.integers(size))
        with open(path, "r+b") as file:
            file.seek(at)
            before = file.read(1)
            overwrite(path, at, bytes((before[0] ^ 1 << int(rng.integers(8)),)))
            try:
                assert not verify_set(damaged).ok, (path.name, at)
            except SetError:
                assert path.name == "manifest.json"
            overwrite(path, at, before)
    assert verify_set(damaged).ok


def test_a_frame_without_its_reference_payload_goes_as_a_whole(damaged: Path) -> None:
    with open_set(damaged) as packed:
        refs = packed.timeline("KEY").refs(np.array([3]))
        path = damaged / packed.manifest.shards[int(refs.shard[0])].data_name
        frames = len(packed)
    overwrite(path, int(refs.offset[0]) + 6, b"\xee\xee")
    repaired = repair_set(damaged)
    assert repaired.dropped
    assert verify_set(damaged).ok
    assert len(open_set(damaged)) < frames


def test_a_cut_off_shard_is_named_and_left_out(damaged: Path) -> None:
    (damaged / "manifest.json").unlink()
    shards = sorted(damaged.glob("shard-00001-*"))
    data = next(path for path in shards if path.suffix == (".tar" if any(p.suffix == ".tar" for p in shards) else ".arrow"))
    data.write_bytes(data.read_bytes()[:-1000])
    report = repair_set(damaged)
    assert report.exit_code == 7
    assert any(problem.path == data.name for problem in report.dropped)
    assert verify_set(damaged).ok
    assert not list(damaged.glob("shard-00001-*"))


def test_a_damaged_attachment_is_left_out(damaged: Path) -> None:
    with open_set(damaged) as packed:
        file = packed.drives[0].attachments[0]
    overwrite(damaged / file.path, 0, b"\xff\xff")
    assert any(problem.code == "attachment" for problem in verify_set(damaged).errors)
    report = repair_set(damaged)
    assert report.exit_code == 7
    assert verify_set(damaged).ok
    with open_set(damaged) as packed:
        assert [item.name for item in packed.drives[0].attachments] == ["map.bin"]


def test_repairing_a_sound_set_changes_nothing(damaged: Path, sound: Path) -> None:
    report = repair_set(damaged)
    assert (report.exit_code, report.rebuilt, report.dropped) == (0, (), ())
    assert tree(damaged) == tree(sound)


def test_quick_verify_reads_no_payloads(damaged: Path) -> None:
    report = verify_set(damaged, quick=True)
    assert report.ok
    assert report.payloads == 0


def test_a_directory_without_a_set_cannot_be_repaired(tmp_path: Path) -> None:
    with pytest.raises(NotASet):
        repair_set(tmp_path)


class Meter:
    """Counts what it is told."""

    def __init__(self) -> None:
        self.total = self.done = 0

    def begin(self, stage: str, total: int) -> None:
        self.total = total

    def advance(self, amount: int) -> None:
        self.done += amount


def test_progress_reaches_its_total(sound: Path, tmp_path: Path) -> None:
    """NVIDIA/Megatron-Energon#165: progress is in bytes, not in shards of which the last one takes a day."""
    meter = Meter()
    verify_set(sound, progress=meter)
    assert meter.done == meter.total > 0
    meter = Meter()
    pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1), meter)
    assert meter.done == meter.total > 0

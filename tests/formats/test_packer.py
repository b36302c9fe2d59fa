"""Packing is reproducible, all or nothing, and accounts for every payload."""

from __future__ import annotations

import hashlib
import os
import select
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headway.formats import (
    LimitExceeded,
    Limits,
    NoSpace,
    NotASet,
    PackOptions,
    ShardKind,
    SourceError,
    UsageError,
    WorkerDied,
    open_set,
    pack,
    pack_pool,
    pack_worker,
    verify_set,
)
from headway.formats.codec import encode
from headway.formats.pack_worker import pack_in_turn
from tests.formats.ramp import Ramp, ramp_spec

SMALL = 20_000


def tree(location: Path) -> dict[str, str]:
    """Digest of each file below a directory."""
    files = (path for path in sorted(location.rglob("*")) if path.is_file())
    return {str(path.relative_to(location)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.slow
@pytest.mark.parametrize("format", ["arrow", "tar"])
def test_bytes_do_not_depend_on_workers_locale_or_umask(format: ShardKind, tmp_path: Path) -> None:
    """Lightning-AI/litData#245: several writers, one result, nothing left over."""
    script = (
        "import os,sys; os.umask(int(sys.argv[3])); from headway.formats import *; from tests.formats.ramp import ramp_spec\n"
        "if __name__ == '__main__':\n"
        f"    pack(ramp_spec(), sys.argv[1], PackOptions(format={format!r}, shard_bytes={SMALL}, workers=int(sys.argv[2])))"
    )
    program = tmp_path / "program.py"
    program.write_text(script)
    pack(ramp_spec(), tmp_path / "here", PackOptions(format=format, shard_bytes=SMALL, workers=1))
    env = {**os.environ, "TZ": "Asia/Kathmandu", "LC_ALL": "C", "PYTHONHASHSEED": "7", "PYTHONPATH": os.getcwd()}
    subprocess.run([sys.executable, str(program), str(tmp_path / "there"), "3", "63"], check=True, env=env, timeout=100)
    trees = [tree(tmp_path / name) for name in ("here", "there")]
    assert trees[0] == trees[1]
    assert len(trees[0]) > 8
    assert not any(name.startswith(".") for name in trees[0])


@pytest.mark.parametrize(("drives", "frames"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_sets_of_any_size_pack(drives: int, frames: int, tmp_path: Path) -> None:
    """libffcv/ffcv#1: fewer samples than workers times chunk."""
    pack(ramp_spec(drives=drives, frames=frames), tmp_path / "set", PackOptions(shard_bytes=500, workers=1))
    packed = open_set(tmp_path / "set")
    assert len(packed) == sum(frames + at for at in range(drives))


def test_a_source_without_drives_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="no drives"):
        pack(ramp_spec(drives=0), tmp_path / "set")
    assert not (tmp_path / "set").exists()


@pytest.mark.parametrize("format", ["arrow", "tar"])
def test_an_oversized_shard_goes_on_in_a_continuation(format: ShardKind, tmp_path: Path) -> None:
    options = PackOptions(format=format, shard_bytes=3_000, workers=1)
    report = pack(ramp_spec(drives=1, frames=6, understate=10), tmp_path / "set", options)
    names = [shard.name for shard in report.manifest.shards]
    assert any("-001-" in name for name in names)
    assert names == sorted(names)
    assert len(open_set(tmp_path / "set")) == 6


@pytest.mark.parametrize("workers", [1, None])
@pytest.mark.parametrize(("fault", "message"), [(4, "RuntimeError"), (5, "Input/output error")])
def test_an_error_while_reading_leaves_nothing(fault: int, message: str, workers: int | None, tmp_path: Path) -> None:
    with pytest.raises((RuntimeError, SourceError), match=message if fault == 5 else "bug"):
        pack(ramp_spec(fault=fault), tmp_path / "set", PackOptions(shard_bytes=SMALL, workers=workers))
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
@pytest.mark.parametrize("worth_s", [1e9, 0.0])
def test_workers_that_join_later_change_no_byte(worth_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pack_pool, "_WORTH_S", worth_s)
    pack(ramp_spec(drives=6), tmp_path / "here", PackOptions(shard_bytes=SMALL, workers=1))
    report = pack(ramp_spec(drives=6), tmp_path / "joined", PackOptions(shard_bytes=SMALL))
    assert tree(tmp_path / "joined") == tree(tmp_path / "here")
    assert report.exit_code == 0


@pytest.mark.slow
@pytest.mark.parametrize("fault", [3, 4])
def test_a_worker_that_joins_later_and_dies_never_leads_to_success(
    fault: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_pool, "_WORTH_S", 0.0)
    monkeypatch.setattr(pack_pool, "pack_in_turn", lambda tasks, advance, source: pack_in_turn(islice(tasks, 1), advance, source))
    with pytest.raises((WorkerDied, RuntimeError)):
        pack(ramp_spec(fault=fault), tmp_path / "set", PackOptions(shard_bytes=SMALL))
    assert not (tmp_path / "set").exists()


@pytest.mark.slow
@pytest.mark.parametrize("fault", [1, 2, 3, 4])
def test_a_dead_worker_never_leads_to_success(fault: int, tmp_path: Path) -> None:
    """The-AI-Framework-and-Data-Tech-Lab-HK/MULLER#75: pool workers whose exceptions nobody sees."""
    with pytest.raises((WorkerDied, RuntimeError)):
        pack(ramp_spec(fault=fault), tmp_path / "set", PackOptions(shard_bytes=SMALL, workers=2))
    assert not (tmp_path / "set").exists()


def test_bad_images_fail_by_default_and_are_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        pack(ramp_spec(fault=6, jpeg=1), tmp_path / "set", PackOptions(workers=1))
    (problem,) = caught.value.problems
    assert (problem.path, problem.sensor, problem.code) == ("drive-1/CAM/5", "CAM", "image")
    assert not (tmp_path / "set").exists()


def test_rejected_images_are_left_out_and_listed(tmp_path: Path) -> None:
    whole = pack(ramp_spec(jpeg=1), tmp_path / "whole", PackOptions(workers=1))
    report = pack(ramp_spec(fault=6, jpeg=1), tmp_path / "set", PackOptions(workers=1, bad_images="reject"))
    assert [problem.path for problem in report.rejected] == ["drive-1/CAM/5"]
    assert report.exit_code == 7
    assert report.manifest.rejected == 1
    assert report.packed == whole.packed - 1
    assert len(report.ignored) == 1


def test_a_rejected_reference_image_takes_its_frame_along(tmp_path: Path) -> None:
    options = PackOptions(workers=1, bad_images="reject", shard_bytes=SMALL)
    report = pack(ramp_spec(fault=6, jpeg=1, cam_reference=1), tmp_path / "set", options)
    assert [problem.path for problem in report.rejected] == ["drive-1/CAM/5"]
    with open_set(tmp_path / "set") as packed:
        frames = np.arange(len(packed))
        assert np.array_equal(packed.own("CAM", frames), frames)
        stamps = Ramp().open_drive("drive-1").timelines["CAM"].stamps
        assert np.array_equal(packed.timeline("CAM").stamps(1), np.delete(stamps, 5))
        assert len(packed.timeline("LIDAR").stamps(1)) == len(Ramp().open_drive("drive-1").timelines["LIDAR"].stamps)
    assert verify_set(tmp_path / "set").ok


def test_a_shard_above_the_limit_is_refused(tmp_path: Path) -> None:
    options = PackOptions(workers=1, shard_bytes=3_000, limits=Limits(shard_bytes=3_000))
    with pytest.raises(LimitExceeded, match=r"Limits\.shard_bytes"):
        pack(ramp_spec(), tmp_path / "set", options)
    assert not (tmp_path / "set").exists()


def test_kept_images_are_in_the_set_and_listed(tmp_path: Path) -> None:
    report = pack(ramp_spec(fault=6, jpeg=1), tmp_path / "set", PackOptions(workers=1, bad_images="keep"))
    assert [problem.path for problem in report.kept] == ["drive-1/CAM/5"]
    assert report.exit_code == 0
    packed = open_set(tmp_path / "set")
    timeline = packed.timeline("CAM")
    row = int(timeline.starts[1]) + 5
    assert bytes(timeline.payload(row)) == b"\xff\xd8\xff\xd9"
    sizes = timeline.take("image_size", np.array([row - 1, row]))
    assert sizes.tolist() == [[24, 16], [0, 0]]


@pytest.mark.parametrize("kilobytes", [1, 4, 12, 30])
def test_no_space_is_a_typed_error_and_leaves_nothing(kilobytes: int, tmp_path: Path) -> None:
    script = (
        "import resource,sys\nfrom headway.formats import *\nfrom tests.formats.ramp import ramp_spec\n"
        f"resource.setrlimit(resource.RLIMIT_FSIZE, ({kilobytes * 1024}, {kilobytes * 1024}))\n"
        "try:\n    pack(ramp_spec(), sys.argv[1], PackOptions(workers=1))\n"
        "except NoSpace as error:\n    sys.exit(error.exit_code)"
    )
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "set")], timeout=60, check=False)
    assert done.returncode == NoSpace.exit_code
    assert not (tmp_path / "set").exists()


def test_overwriting_keeps_the_old_set_until_the_new_one_stands(tmp_path: Path) -> None:
    place = tmp_path / "set"
    pack(ramp_spec(), place, PackOptions(workers=1, shard_bytes=SMALL))
    before = tree(place)
    with pytest.raises(UsageError, match="--overwrite"):
        pack(ramp_spec(seed=1), place, PackOptions(workers=1))
    with pytest.raises(SourceError):
        pack(ramp_spec(seed=1, fault=5), place, PackOptions(workers=1, overwrite=True))
    assert tree(place) == before
    pack(ramp_spec(seed=1), place, PackOptions(workers=1, overwrite=True))
    pack(ramp_spec(seed=1), tmp_path / "fresh", PackOptions(workers=1))
    assert tree(place) == tree(tmp_path / "fresh")


def test_strangers_files_are_never_touched(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("final")
    for options in (PackOptions(workers=1), PackOptions(workers=1, overwrite=True)):
        with pytest.raises(UsageError, match=r"thesis\.txt"):
            pack(ramp_spec(), tmp_path, options)
    assert tree(tmp_path) == {"thesis.txt": hashlib.sha256(b"final").hexdigest()}


def test_two_packers_at_one_place_exclude_each_other(tmp_path: Path) -> None:
    from headway.formats.publish import staged

    with staged(tmp_path / "set", overwrite=False, resume=False), pytest.raises(UsageError, match="another packer"):
        pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1))


CRASH = """
import itertools, os, signal, sys
from headway.formats import *
from tests.formats.ramp import ramp_spec
place, first, step, mode = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
EVENTS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.listdir", "shutil.rmtree")
def crash_at(count):
    def hook(event, args):
        nonlocal count
        if event in EVENTS and place in str(args[0]):
            count -= 1
            if count == 0:
                if mode == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                raise OSError(28, "No space left on device", str(args[0]))
    sys.addaudithook(hook)
for number in itertools.count(first, step):
    child = os.fork()
    if child == 0:
        crash_at(number)
        try:
            pack(ramp_spec(seed=1, drives=2), f"{place}/{number}", PackOptions(workers=1, shard_bytes=SMALL, overwrite=True))
        except HeadwayError as error:
            os._exit(error.exit_code)
        os._exit(0)
    status = os.waitpid(child, 0)[1]
    print(number, os.waitstatus_to_exitcode(status), flush=True)
    if status == 0 or number > 400:
        break
""".replace("SMALL", str(SMALL))


def _crashes(tmp_path: Path, first: int, step: int, mode: str) -> list[tuple[int, int]]:
    """Pack over an old set, ending the n-th file system call for n = first, first + step, … until the run passes."""
    for number in range(first, 400, step):
        if number == first:
            pack(ramp_spec(seed=0, drives=2), tmp_path / str(first), PackOptions(workers=1, shard_bytes=SMALL))
        else:
            subprocess.run(["cp", "-r", str(tmp_path / str(first)), str(tmp_path / str(number))], check=True)
    command = [sys.executable, "-c", CRASH, str(tmp_path), str(first), str(step), mode]
    lines = subprocess.run(command, check=True, capture_output=True, text=True, timeout=110).stdout.split()
    return list(zip(map(int, lines[::2]), map(int, lines[1::2]), strict=True))


def _check_crashes(tmp_path: Path, first: int, step: int, mode: str) -> int:
    pack(ramp_spec(seed=0, drives=2), tmp_path / "old", PackOptions(workers=1, shard_bytes=SMALL))
    pack(ramp_spec(seed=1, drives=2), tmp_path / "new", PackOptions(workers=1, shard_bytes=SMALL))
    old, new = tree(tmp_path / "old"), tree(tmp_path / "new")
    ids = {open_set(tmp_path / name).set_id for name in ("old", "new")}
    codes = _crashes(tmp_path, first, step, mode)
    for number, code in codes:
        place = tmp_path / str(number)
        packed = open_set(place)
        assert packed.set_id in ids
        for sensor in packed.schema.sensors:
            for row in range(len(packed.timeline(sensor.name)) if sensor.codec else 0):
                packed.timeline(sensor.name).payload(row)
        if mode == "fail" and code:
            assert code == NoSpace.exit_code
            assert tree(place) in (old, new)
        pack(ramp_spec(seed=1, drives=2), place, PackOptions(workers=1, shard_bytes=SMALL, overwrite=True))
        assert tree(place) == new
    assert codes[-1][1] == 0 or mode == "fail"
    return len(codes)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["kill", "fail"])
def test_a_reader_sees_the_old_or_the_new_set_after_any_crash(mode: str, tmp_path: Path) -> None:
    assert _check_crashes(tmp_path, 2, 13, mode) > 3


@pytest.mark.full
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("mode", "first"), [(mode, first) for mode in ("kill", "fail") for first in range(1, 5)])
def test_every_crash_point(mode: str, first: int, tmp_path: Path) -> None:
    _check_crashes(tmp_path, first, 4, mode)


def test_a_half_published_set_is_no_set(tmp_path: Path) -> None:
    pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1))
    (tmp_path / "set" / "manifest.json").unlink()
    with pytest.raises(NotASet, match="never finished"):
        open_set(tmp_path / "set")


@pytest.mark.slow
def test_resume_continues_a_killed_run_and_gives_the_same_bytes(tmp_path: Path) -> None:
    """rom1504/img2dataset#171: what is done is counted once, whichever input it belongs to."""
    script = (
        "import sys\nfrom headway.formats import *\nfrom tests.formats.ramp import ramp_spec\n"
        f"pack(ramp_spec(fault=2), sys.argv[1], PackOptions(workers=1, shard_bytes={SMALL}, resume=True))"
    )
    killed = subprocess.run([sys.executable, "-c", script, str(tmp_path / "set")], timeout=60, check=False)
    assert killed.returncode == -9
    receipts = list((tmp_path / "set" / ".packing").glob("*.receipt"))
    assert receipts
    with pytest.raises(NotASet):
        open_set(tmp_path / "set")
    # The interrupted source and the whole one differ in an option, so their receipts must not be mixed up.
    fresh = pack(ramp_spec(), tmp_path / "fresh", PackOptions(workers=1, shard_bytes=SMALL))
    other = pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1, shard_bytes=SMALL, resume=True))
    assert other.resumed == 0
    assert tree(tmp_path / "set") == tree(tmp_path / "fresh")
    assert other.manifest == fresh.manifest


KILLED_AT = """
import os, signal, sys
from headway.formats import *
from tests.formats.ramp import ramp_spec
class Killer:
    def begin(self, stage, total): self.left = total * float(sys.argv[2])
    def advance(self, amount):
        self.left -= amount
        if self.left < 0: os.kill(os.getpid(), signal.SIGKILL)
pack(ramp_spec(), sys.argv[1], PackOptions(workers=1, shard_bytes=SMALL, resume=True), Killer())
""".replace("SMALL", str(SMALL))


@pytest.mark.slow
@pytest.mark.parametrize("kills", [3, pytest.param(10, marks=pytest.mark.full)])
def test_resume_takes_over_finished_shards(kills: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """mosaicml/streaming#737, ruimalheiro/gradient-garden#7: killed again and again, nothing finished is done or read twice."""
    place = tmp_path / "set"
    finished: list[str] = []
    for kill in range(kills):
        part = str(0.9 * (kill + 1) / kills)
        command = [sys.executable, "-c", KILLED_AT, str(place), part]
        assert subprocess.run(command, timeout=60, check=False).returncode == -9
        receipts = sorted(path.name for path in (place / ".packing").glob("*.receipt"))
        assert set(finished) <= set(receipts)
        finished = receipts
    read = 0

    def counted(*values: Any, **options: Any) -> bytes:  # Any: as `encode` takes them
        nonlocal read
        read += 1
        return encode(*values, **options)

    monkeypatch.setattr(pack_worker, "encode", counted)
    report = pack(ramp_spec(), place, PackOptions(workers=1, shard_bytes=SMALL, resume=True))
    assert report.resumed == len(finished) > 0
    assert 0 < read < 0.4 * report.packed  # a tenth, and up to a shard of the few there are
    pack(ramp_spec(), tmp_path / "fresh", PackOptions(workers=1, shard_bytes=SMALL))
    assert tree(place) == tree(tmp_path / "fresh")


SIGNALLED = """
import os, signal, sys, time
from pathlib import Path
from headway.formats import *
from tests.formats.ramp import ramp_spec
if __name__ == "__mp_main__" and sys.argv[3] == "late":  # one of the two workers is slow to start
    try:
        Path(sys.argv[1] + ".slow").touch(exist_ok=False)
        time.sleep(3)
    except FileExistsError:
        pass
class Signaller:
    def begin(self, stage, total): self.seen = 0
    def advance(self, amount):
        self.seen += amount
        if self.seen > 20_000:
            print(*children(), flush=True)
            os.kill(os.getpid(), getattr(signal, sys.argv[2]))
            self.seen = -1e9
def children():
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if open(f"/proc/{name}/stat").read().rsplit(")", 1)[1].split()[1] == str(os.getpid()):
                    yield name
            except OSError:
                pass
if __name__ == "__main__":
    pack(ramp_spec(drives=12, frames=30), sys.argv[1], PackOptions(workers=2, shard_bytes=30_000), Signaller())
"""


def _signalled(tmp_path: Path, signal_name: str, workers: str = "prompt") -> tuple[int, list[int]]:
    """Send a signal to a packing parent; return its exit code and its workers' ids."""
    program = tmp_path / "program.py"
    program.write_text(SIGNALLED)
    command = [sys.executable, str(program), str(tmp_path / "set"), signal_name, workers]
    env = {**os.environ, "PYTHONPATH": os.getcwd()}
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, [int(word) for word in done.stdout.split()]


def _gone(workers: list[int]) -> None:
    """Wait until processes have ended."""
    for worker in workers:
        try:
            handle = os.pidfd_open(worker)
        except ProcessLookupError:
            continue
        assert select.select([handle], [], [], 10)[0], f"process {worker} outlived its parent by ten seconds"
        os.close(handle)


@pytest.mark.slow
def test_an_interrupt_leaves_nothing(tmp_path: Path) -> None:
    code, workers = _signalled(tmp_path, "SIGINT")
    assert code != 0
    assert workers
    assert not (tmp_path / "set").exists()
    _gone(workers)


@pytest.mark.slow
@pytest.mark.parametrize("start", ["prompt", "late"])
def test_workers_die_with_a_killed_parent(tmp_path: Path, start: str) -> None:
    code, workers = _signalled(tmp_path, "SIGKILL", start)
    assert code == -9
    _gone(workers)
    with pytest.raises(NotASet):
        open_set(tmp_path / "set")
    pack(ramp_spec(), tmp_path / "set", PackOptions(workers=1))
    assert not (tmp_path / "set" / ".packing").exists()

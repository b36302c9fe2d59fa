"""Ranks that say how urgent they are: least slack first, real processes, dead ones ignored, nothing of others' trusted."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from headway.formats import StoreError
from headway.loader.arbiter import Seat, job_key, runtime_directory, take_seat


@pytest.fixture
def private(tmp_path: Path) -> Path:
    tmp_path.chmod(0o700)
    return tmp_path


def seats(path: Path, count: int) -> list[Seat]:
    return [Seat(path, local_rank=rank, local_size=count) for rank in range(count)]


def test_the_late_rank_gets_what_others_do_not_need(private: Path) -> None:
    late, early = seats(private / "ranks", 2)
    late.say(10.0, deadline_s=9.0, work_s=0.1, decode=4)
    early.say(10.0, deadline_s=14.0, work_s=0.1, decode=4)
    assert (late.decode_threads(10.0, 4), early.decode_threads(10.0, 4)) == (3, 1)
    early.say(10.0, deadline_s=14.0, work_s=0.1, decode=0)
    assert (late.decode_threads(10.0, 4), early.decode_threads(10.0, 4)) == (4, 0)
    late.close()
    early.close()


def test_slack_shrinks_while_a_rank_says_nothing_until_it_is_taken_for_absent(private: Path) -> None:
    quiet, talking = seats(private / "ranks", 2)
    quiet.say(10.0, deadline_s=11.0, work_s=0.0, decode=2)
    for now, expected in ((10.5, 1), (12.0, 2), (16.0, 0)):
        talking.say(now, deadline_s=now + 0.3, work_s=0.0, decode=2)
        assert quiet.decode_threads(now, 3) == expected
    quiet.say(10.0, deadline_s=11.0, work_s=0.0, decode=2, waits=True)  # it is blocked, and the most urgent of all
    assert quiet.decode_threads(100.0, 3) == 2
    quiet.close()
    talking.close()


def test_the_last_one_to_leave_removes_the_file(private: Path) -> None:
    one, other = seats(private / "ranks", 2)
    one.close()
    assert (private / "ranks").exists()
    one.close()
    other.close()
    assert not list(private.iterdir())


_RANK = """
import sys, time
from headway.loader.arbiter import take_seat
from pathlib import Path
seat = take_seat(local_rank=int(sys.argv[2]), local_size=2, directory=Path(sys.argv[1]))
now = time.monotonic()
seat.say(now, deadline_s=now - 1.0, work_s=0.0, decode=2)
print("ready", flush=True)
sys.stdin.read()
"""


def test_a_killed_rank_asks_for_nothing(private: Path) -> None:
    """Both ranks are children of one launcher, so they find one file; the parent of this test's own seat is another."""
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", _RANK, str(private), str(rank)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    for rank in ranks:
        assert rank.stdout is not None
        assert rank.stdout.readline() == "ready\n"
    (path,) = private.glob("ranks-*")
    ranks[0].kill()
    ranks[0].wait()
    seat = Seat(path, local_rank=0, local_size=2)  # a restarted rank 0 takes the same seat
    now = time.monotonic()
    seat.say(now, deadline_s=now + 9, work_s=0.0, decode=2)
    assert seat.decode_threads(now, 2) == 1
    ranks[1].kill()
    ranks[1].wait()
    assert seat.decode_threads(now + 3, 2) == 2
    seat.close()
    for rank in ranks:
        rank.communicate()
    assert not path.exists()


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    planted = tmp_path / "headway"
    planted.mkdir(mode=0o777)
    planted.chmod(0o777)
    with pytest.raises(StoreError, match="open to others"):
        runtime_directory()
    assert take_seat(local_rank=0, local_size=2) is None
    planted.chmod(0o700)
    assert runtime_directory() == planted


def test_a_planted_link_is_not_followed(private: Path) -> None:
    victim = private / "victim"
    victim.write_text("precious")
    (private / "ranks").symlink_to(victim)
    with pytest.raises(OSError, match="symbolic link"):
        Seat(private / "ranks", local_rank=0, local_size=2)
    assert victim.read_text() == "precious"


def test_old_files_of_dead_jobs_are_swept(private: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = private / "ranks-0123"
    old.write_bytes(bytes(128))
    os.utime(old, (1.0, 1.0))
    seat = take_seat(local_rank=0, local_size=2, directory=private)
    assert seat is not None
    assert not old.exists()
    seat.close()
    assert take_seat(local_rank=0, local_size=1, directory=private) is None


def test_training_and_validation_of_a_process_share_its_seat(private: Path) -> None:
    train = take_seat(local_rank=1, local_size=2, directory=private)
    validation = take_seat(local_rank=1, local_size=2, directory=private)
    assert train is not None
    assert validation is train
    validation.close()
    now = time.monotonic()
    train.say(now, deadline_s=now, work_s=0.0, decode=2)
    assert train.decode_threads(now, 2) == 2
    train.close()
    assert not list(private.iterdir())
    again = take_seat(local_rank=1, local_size=2, directory=private)
    assert again is not None
    assert again is not train
    again.close()


def test_jobs_have_names_of_their_own() -> None:
    names = {job_key(environ) for environ in ({}, {"MASTER_PORT": "1"}, {"MASTER_PORT": "2"}, {"SLURM_JOB_ID": "1"})}
    assert len(names) == 4

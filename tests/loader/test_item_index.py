"""The item index: one build among racing processes, equal bytes, and no trust in what lies in the cache."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from headway.formats import StoreError
from headway.formats.cache_directory import cache_directory, private_directory
from headway.loader.item_index import CHUNK_FRAMES, open_index

FRAMES = 3 * CHUNK_FRAMES + 5
# A process that opens the index: reports each build of its own in a shared log, and obeys "go" and "block".
BUILDER = """
import os, sys
import numpy as np
from pathlib import Path
from headway.loader.item_index import CHUNK_FRAMES, open_index

directory, log, mode = Path(sys.argv[1]), sys.argv[2], sys.argv[3]

def select(start, stop):
    if start == 0:
        with open(log, "ab", buffering=0) as file:
            file.write(b"build\\n")
    if start == CHUNK_FRAMES and mode == "block":
        print("inside", flush=True)
        sys.stdin.readline()
    return np.arange(start, stop) % 3 == 1

print("ready", flush=True)
sys.stdin.readline()
items = open_index(directory, "k" * 64, frames=3 * CHUNK_FRAMES + 5, select=select)
print(len(items), int(items.sum()), flush=True)
"""


def select(start: int, stop: int) -> NDArray[np.bool_]:
    """Select every third frame, as the builder process does."""
    return np.asarray(np.arange(start, stop) % 3 == 1)


EXPECTED = np.flatnonzero(select(0, FRAMES))


def start(directory: Path, log: Path, mode: str = "go") -> subprocess.Popen[str]:
    """Start a builder process and wait until it is ready."""
    command = [sys.executable, "-c", BUILDER, str(directory), str(log), mode]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1)
    assert read_line(process) == "ready"
    return process


def read_line(process: subprocess.Popen[str]) -> str:
    """Return the next line the process prints."""
    assert process.stdout is not None
    return process.stdout.readline().strip()


def say(process: subprocess.Popen[str]) -> None:
    """Let the process go on."""
    assert process.stdin is not None
    process.stdin.write("go\n")
    process.stdin.flush()


def finish(process: subprocess.Popen[str]) -> str:
    """Return the process's last line."""
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    return out.strip().splitlines()[-1]


def index_file(directory: Path) -> Path:
    """Return the one index in the directory; nothing but its lock lies beside it."""
    (path,) = directory.glob("*.items")
    assert sorted(other.suffix for other in directory.iterdir()) == [".items", ".lock"]
    return path


@pytest.mark.slow
def test_racing_processes_build_once_and_read_equal_bytes(tmp_path: Path) -> None:
    """mosaicml/streaming#345: ranks on a fresh cache directory must not read what another still writes."""
    directory, log = tmp_path / "cache", tmp_path / "log"
    directory.mkdir()
    processes = [start(directory, log) for _ in range(5)]
    for process in processes:
        say(process)
    assert {finish(process) for process in processes} == {f"{len(EXPECTED)} {EXPECTED.sum()}"}
    assert log.read_text() == "build\n"
    assert index_file(directory).stat().st_size == 64 + 8 * len(EXPECTED)


@pytest.mark.slow
def test_a_killed_builder_is_taken_over(tmp_path: Path) -> None:
    log = tmp_path / "log"
    builder, waiter = start(tmp_path, log, "block"), start(tmp_path, log)
    say(builder)
    assert read_line(builder) == "inside"
    say(waiter)
    builder.kill()
    builder.communicate()
    assert finish(waiter) == f"{len(EXPECTED)} {EXPECTED.sum()}"
    log.unlink()
    index_file(tmp_path)  # what the dead builder had begun is gone, too


@pytest.mark.slow
def test_a_builder_without_progress_is_overtaken_and_may_come_back(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir()
    directory, log = tmp_path / "cache", tmp_path / "log"
    builder = start(directory, log, "block")
    say(builder)
    assert read_line(builder) == "inside"
    os.kill(builder.pid, signal.SIGSTOP)
    items = open_index(directory, "k" * 64, frames=FRAMES, select=select, deadline_s=0.1)
    assert np.array_equal(items, EXPECTED)
    before = next(directory.glob("*.items")).read_bytes()
    os.kill(builder.pid, signal.SIGCONT)
    say(builder)
    assert finish(builder) == f"{len(EXPECTED)} {EXPECTED.sum()}"
    assert index_file(directory).read_bytes() == before


def test_the_second_opening_builds_nothing(tmp_path: Path) -> None:
    first = open_index(tmp_path, "k", frames=FRAMES, select=select)

    def refuse(start: int, stop: int) -> NDArray[np.bool_]:
        raise AssertionError("built again")

    assert np.array_equal(open_index(tmp_path, "k", frames=FRAMES, select=refuse), first)
    assert not first.flags.writeable


@pytest.mark.parametrize("at", [0, 9, 20, 40, 64, 1000, -1])
def test_a_damaged_index_is_never_read(tmp_path: Path, at: int) -> None:
    open_index(tmp_path, "k", frames=FRAMES, select=select)
    path = index_file(tmp_path)
    good = path.read_bytes()
    bad = bytearray(good)
    bad[at] ^= 0x10
    path.write_bytes(bad)
    assert np.array_equal(open_index(tmp_path, "k", frames=FRAMES, select=select), EXPECTED)
    assert path.read_bytes() == good or at == 40  # bytes 32 to 63 of the header mean nothing


@pytest.mark.parametrize("size", [0, 10, 64, 1000])
def test_a_truncated_index_is_built_again(tmp_path: Path, size: int) -> None:
    open_index(tmp_path, "k", frames=FRAMES, select=select)
    os.truncate(index_file(tmp_path), size)
    assert np.array_equal(open_index(tmp_path, "k", frames=FRAMES, select=select), EXPECTED)


def test_without_a_usable_directory_items_are_kept_in_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert np.array_equal(open_index(None, "k", frames=FRAMES, select=select), EXPECTED)
    (tmp_path / "file").write_text("no directory")
    assert np.array_equal(open_index(tmp_path / "file" / "x", "k", frames=FRAMES, select=select), EXPECTED)
    assert "built into memory instead" in caplog.text


@pytest.mark.slow
def test_a_full_disk_costs_time_and_nothing_else(tmp_path: Path) -> None:
    limit = "import resource, signal\nresource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))\n"
    command = [sys.executable, "-c", limit + BUILDER, str(tmp_path), str(tmp_path / "log"), "go"]
    process = subprocess.run(command, input="go\n", capture_output=True, text=True, timeout=60, check=True)
    assert process.stdout.split("\n")[1] == f"{len(EXPECTED)} {EXPECTED.sum()}"
    assert not list(tmp_path.glob("*.items")) + list(tmp_path.glob("*.tmp"))


def test_an_error_in_the_filter_leaves_no_lock_and_no_file(tmp_path: Path) -> None:
    def broken(start: int, stop: int) -> NDArray[np.bool_]:
        raise ValueError("bad filter")

    with pytest.raises(ValueError, match="bad filter"):
        open_index(tmp_path, "k", frames=FRAMES, select=broken)
    assert [path.name for path in tmp_path.iterdir()] == ["k.lock"]
    assert np.array_equal(open_index(tmp_path, "k", frames=FRAMES, select=select), EXPECTED)


def test_the_cache_directory_is_ours_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made = cache_directory("items")
    assert made == tmp_path / "cache" / "headway" / "items"
    assert made.stat().st_mode & 0o777 == 0o700
    assert made.parent.stat().st_mode & 0o777 == 0o700
    assert cache_directory("items") == made


def test_a_relative_cache_home_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_directory("items") == tmp_path / ".cache" / "headway" / "items"


@pytest.mark.parametrize("mode", [0o755, 0o777, 0o1777, 0o770])
def test_a_directory_open_to_others_is_refused(tmp_path: Path, mode: int) -> None:
    planted = tmp_path / "headway"
    planted.mkdir()
    planted.chmod(mode)
    with pytest.raises(StoreError, match="open to others"):
        private_directory(planted)


def test_a_link_in_place_of_the_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "headway").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="a symbolic link"):
        private_directory(tmp_path / "headway")


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give a directory away")
def test_a_directory_of_another_user_is_refused(tmp_path: Path) -> None:
    planted = tmp_path / "headway"
    planted.mkdir(mode=0o700)
    os.chown(planted, 12345, 12345)
    with pytest.raises(StoreError, match="owned by user 12345"):
        private_directory(planted)


def test_a_cache_that_cannot_be_made_is_done_without(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("no directory")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert cache_directory("items") is None
    assert "going on without" in caplog.text

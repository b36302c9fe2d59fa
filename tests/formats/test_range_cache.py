"""The node cache: single flight, limit, eviction by the plan, and what it survives (reliability R36)."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from headway.formats import StoreError, UsageError
from headway.formats.byte_locks import ByteLocks
from headway.formats.next_uses import REFRESH_S, NextUses, PublishedUses, extent_keys
from headway.formats.process_name import LEASE_S, process_name
from headway.formats.range_cache import EXTENT, CacheOptions, RangeCache

from .test_process_name import CONTAINER, has_containers

SHARD, OTHER = "ab" + "0" * 62, "cd" + "1" * 62
SIZE = 1000


def data_of(extent: int) -> memoryview:
    return memoryview(bytes([extent % 251]) * SIZE)


def opened(root: Path, limit: int = 10 * SIZE) -> RangeCache:
    found = CacheOptions(directory=root / "cache", limit_bytes=limit).open()
    assert found is not None
    return found


def held(cache: RangeCache, shard: str = SHARD, most: int = 40) -> set[int]:
    out = memoryview(bytearray(SIZE))
    return {extent for extent in range(most) if cache.read_into(shard, extent, 0, out, SIZE) and out == data_of(extent)}


def publish_uses(cache: RangeCache, steps: dict[int, int], *, position: int = 0, step_s: float = 1.0) -> PublishedUses:
    keys = extent_keys([bytes.fromhex(SHARD)] * len(steps), np.array(list(steps), np.int64))
    uses = PublishedUses(cache.uses, keys, np.array(list(steps.values()), np.int64), step_s=step_s)
    uses.advance(position, step_s)
    return uses


def test_what_is_published_is_read_back_in_parts(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    assert cache.publish(SHARD, 3, memoryview(bytes(range(200))))
    out = memoryview(bytearray(10))
    assert cache.read_into(SHARD, 3, 50, out, 200)
    assert bytes(out) == bytes(range(50, 60))
    assert not cache.read_into(SHARD, 4, 0, out, 200)
    assert not cache.read_into(OTHER, 3, 0, out, 200)
    assert not cache.read_into(SHARD, 3, 0, out, 199), "an extent of another size is not the one that is meant"


def test_files_are_private(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.publish(SHARD, 0, data_of(0))
    for path in [cache.root, *cache.root.rglob("*")]:
        assert path.stat().st_mode & 0o077 == 0, path


def test_a_planted_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").mkdir(mode=0o777)
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(StoreError, match="open to others"):
        opened(tmp_path)
    (tmp_path / "link").symlink_to(tmp_path)
    with pytest.raises(StoreError, match="symbolic link"):
        CacheOptions(directory=tmp_path / "link").open()


def test_a_planted_link_or_fifo_is_not_read(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.publish(SHARD, 0, data_of(0))
    path = cache.root / SHARD[:2] / SHARD / "0"
    secret = tmp_path / "secret"
    secret.write_bytes(bytes(SIZE))
    path.unlink()
    path.symlink_to(secret)
    assert held(cache) == set()
    path.unlink()
    os.mkfifo(path)
    assert held(cache) == set()


@pytest.mark.parametrize("count", [5, 30])
def test_the_limit_holds(tmp_path: Path, count: int) -> None:
    cache = opened(tmp_path, limit=10 * SIZE)
    for extent in range(count):
        cache.publish(SHARD, extent, data_of(extent))
        on_disk = sum(path.stat().st_size for path in (cache.root / SHARD[:2] / SHARD).iterdir() if path.name.isdigit())
        assert on_disk == cache.held_bytes <= 10 * SIZE
    assert len(held(cache)) == min(count, 10)


def test_without_a_plan_the_oldest_goes(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=3 * SIZE)
    for extent in range(5):
        cache.publish(SHARD, extent, data_of(extent))
    assert held(cache) == {2, 3, 4}


def test_the_extent_that_is_needed_last_goes(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=3 * SIZE)
    uses = publish_uses(cache, {0: 50, 1: 10, 2: 30, 3: 20, 4: 99})
    for extent in range(4):
        cache.publish(SHARD, extent, data_of(extent))
    assert held(cache) == {1, 2, 3}
    assert not cache.publish(SHARD, 4, data_of(4)), "needed later than all that is held: not worth keeping"
    assert held(cache) == {1, 2, 3}
    uses.advance(25, 1.0)  # 1 and 3 have been read
    cache = opened(tmp_path, limit=3 * SIZE)
    cache.publish(SHARD, 0, data_of(0))
    assert 2 in held(cache)
    assert 0 in held(cache)
    uses.close()


def test_the_soonest_of_all_processes_counts(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=2 * SIZE)
    ours = publish_uses(cache, {0: 100, 1: 10, 2: 50})
    theirs = publish_uses(cache, {0: 10}, step_s=0.5)
    for extent in range(3):
        cache.publish(SHARD, extent, data_of(extent))
    assert held(cache) == {0, 1}
    ours.close()
    theirs.close()


def test_a_dead_process_no_longer_counts(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    publish_uses(cache, {0: 5})
    (found,) = cache.uses.glob("*.uses")
    found.rename(found.with_name(f"{named(999999999)}-{'0' * 16}.uses"))
    keys = extent_keys([bytes.fromhex(SHARD)], np.array([0], np.int64))
    assert NextUses(cache.uses).seconds(keys)[0] == np.inf
    assert list(cache.uses.iterdir()) == []


def named(number: int, namespace: str = "") -> str:
    """Name a process of today's boot as it would name itself."""
    _, _, boot, own = process_name().split("-")
    return f"{number}-1-{boot}-{namespace or own}"


@pytest.mark.parametrize(("age_s", "counts"), [(0.0, True), (LEASE_S / 2, True), (2 * LEASE_S, False)])
def test_a_process_of_another_container_counts_while_it_refreshes(tmp_path: Path, age_s: float, counts: bool) -> None:
    cache = opened(tmp_path)
    publish_uses(cache, {0: 5})
    (found,) = cache.uses.glob("*.uses")
    theirs = found.rename(found.with_name(f"{named(999999999, '4026539999')}-{'0' * 16}.uses"))
    then = time.time() - age_s
    os.utime(theirs, (then, then))
    keys = extent_keys([bytes.fromhex(SHARD)], np.array([0], np.int64))
    assert (NextUses(cache.uses).seconds(keys)[0] == 5.0) == counts
    assert theirs.exists() == counts


def test_uses_are_refreshed_once_a_minute(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    uses = publish_uses(cache, {0: 5})
    (found,) = cache.uses.glob("*.uses")
    os.utime(found, (1.0, 1.0))
    uses.refresh()
    assert found.stat().st_mtime == 1.0
    uses._refreshed_s -= REFRESH_S
    uses.refresh()
    assert found.stat().st_mtime > 1.0
    uses.close()


LOOK = """
import sys
from pathlib import Path
import numpy as np
from headway.formats.next_uses import NextUses, extent_keys
from headway.formats.range_cache import CacheOptions
cache = CacheOptions(directory=Path(sys.argv[1]), limit_bytes=10_000).open()  # sweeps
print(NextUses(cache.uses).seconds(extent_keys([bytes.fromhex(sys.argv[2])], np.array([0], np.int64)))[0])
"""


def test_two_containers_share_a_folder_and_leave_each_other_what_is_live(tmp_path: Path) -> None:
    if not has_containers():
        pytest.skip("this system lets us make no pid namespace")
    cache = opened(tmp_path)
    cache.publish(SHARD, 0, data_of(0))
    uses = publish_uses(cache, {0: 5})
    (lease,) = cache.uses.glob("*.uses")
    half = cache.root / SHARD[:2] / SHARD / f".{process_name()}-1-0"
    half.write_bytes(b"half")
    done = subprocess.run(
        [*CONTAINER, sys.executable, "-c", LOOK, str(cache.root), SHARD], capture_output=True, text=True, check=True, timeout=60
    )
    assert float(done.stdout) == 5.0
    assert lease.exists()
    assert half.exists()
    uses.close()


def test_a_forked_child_leaves_its_parents_uses_alone(tmp_path: Path) -> None:
    uses = publish_uses(opened(tmp_path), {0: 5})
    child = os.fork()
    if child == 0:
        uses.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert uses._path.exists()
    uses.close()
    assert not uses._path.exists()


def test_looking_uses_up_copies_no_table(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    count = 500_000
    keys = extent_keys([bytes.fromhex(SHARD)] * count, np.arange(count) // 5)
    uses = PublishedUses(cache.uses, keys, np.arange(count), step_s=1.0)
    uses.advance(7, 1.0)
    seen, wanted = NextUses(cache.uses), extent_keys([bytes.fromhex(SHARD)] * 4, np.array([0, 1, 2, count], np.int64))
    assert seen.seconds(wanted).tolist() == [np.inf, 0.0, 3.0, np.inf]  # steps 0–4, 5–9, 10–14; none
    tracemalloc.start()
    seen.seconds(wanted)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < count, "bytes: a table has 16 for each pair"
    uses.close()


def test_damaged_uses_are_ignored(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    (cache.uses / f"{process_name()}-0.uses").write_bytes(b"HWUSES01" + bytes(10))
    keys = extent_keys([bytes.fromhex(SHARD)], np.array([0], np.int64))
    assert NextUses(cache.uses).seconds(keys)[0] == np.inf


def test_what_others_remove_is_missed_and_may_come_again(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.publish(SHARD, 0, data_of(0))
    (cache.root / SHARD[:2] / SHARD / "0").unlink()
    assert held(cache) == set()
    assert cache.publish(SHARD, 0, data_of(0))
    assert held(cache) == {0}
    assert cache.held_bytes == SIZE


def test_files_of_others_are_never_deleted(tmp_path: Path) -> None:
    cache = opened(tmp_path, limit=2 * SIZE)
    cache.publish(SHARD, 0, data_of(0))
    path = cache.root / SHARD[:2] / SHARD / "0"
    path.unlink()
    path.write_bytes(b"mine")  # a stranger's, under the name of ours
    (path.parent / "7").write_bytes(b"mine")
    (cache.root / "thesis.txt").write_bytes(b"mine")
    for extent in range(1, 6):
        cache.publish(SHARD, extent, data_of(extent))
    cache.drop(SHARD, 0)
    cache.drop(SHARD, 7)
    opened(tmp_path)  # sweeps
    for kept in (path, path.parent / "7", cache.root / "thesis.txt"):
        assert kept.read_bytes() == b"mine"


def test_a_dropped_extent_is_gone(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    for extent in range(3):
        cache.publish(SHARD, extent, data_of(extent))
    cache.drop(SHARD, 1)
    assert held(cache) == {0, 2}
    assert cache.held_bytes == 2 * SIZE


def test_what_killed_processes_left_is_swept_and_what_live_ones_write_is_not(tmp_path: Path) -> None:
    cache = opened(tmp_path)
    cache.publish(SHARD, 0, data_of(0))
    folder = cache.root / SHARD[:2] / SHARD
    dead, live = folder / f".{named(999999999)}-5-0", folder / f".{process_name()}-6-0"
    elsewhere = cache.root / "ml" / "project" / ".pre-commit-config.yaml"
    elsewhere.parent.mkdir(parents=True)
    for path in (dead, live, elsewhere):
        path.write_bytes(b"half")
    opened(tmp_path)
    assert elsewhere.exists()
    assert not dead.exists()
    assert live.exists()


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS])
def test_a_full_or_broken_disk_is_no_error(tmp_path: Path, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    cache = opened(tmp_path)

    def fail(*arguments: object) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(os, "replace", fail)
    assert not cache.publish(SHARD, 0, data_of(0))
    monkeypatch.undo()
    assert held(cache) == set()
    assert not list((cache.root / SHARD[:2] / SHARD).glob(".*"))
    assert cache.publish(SHARD, 0, data_of(0))


@pytest.mark.parametrize("trouble", ["below a file", "no catalogue"])
def test_where_there_can_be_no_cache_a_warning_says_so(tmp_path: Path, trouble: str, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "cache"
    if trouble == "below a file":
        root.write_bytes(b"mine")
        root /= "cache"
    else:
        (root / "catalogue").mkdir(parents=True)
        root.chmod(0o700)
    assert CacheOptions(directory=root).open() is None
    (said,) = caplog.messages
    assert str(root) in said
    assert "without a cache" in said
    assert "\n" not in said


READ_ONLY = """
mount --bind "$1" "$1" && mount -o remount,bind,ro "$1" && exec "$2" -c '
import sys
from pathlib import Path
from headway.formats.range_cache import CacheOptions
print(CacheOptions(directory=Path(sys.argv[1])).open())
' "$1/cache"
"""


def test_a_read_only_folder_is_done_without(tmp_path: Path) -> None:
    opened(tmp_path).publish(SHARD, 0, data_of(0))
    if subprocess.run(["unshare", "--mount", "mount", "--bind", "/tmp", "/tmp"], capture_output=True).returncode:
        pytest.skip("this system lets us mount nothing")
    command = ["unshare", "--mount", "sh", "-c", READ_ONLY, "sh", str(tmp_path), sys.executable]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout) == (0, "None\n")
    assert "Read-only file system" in done.stderr
    assert "CacheOptions(directory=" in done.stderr


def test_a_limit_of_0_means_no_cache_and_below_is_refused(tmp_path: Path) -> None:
    assert CacheOptions(directory=tmp_path / "cache", limit_bytes=0).open() is None
    with pytest.raises(UsageError, match="limit_bytes"):
        CacheOptions(limit_bytes=-1)


def test_the_default_limit_is_half_of_what_is_free(tmp_path: Path) -> None:
    cache = CacheOptions(directory=tmp_path / "cache").open()
    space = os.statvfs(tmp_path)
    assert cache is not None
    assert 0.4 <= cache.limit_bytes / (space.f_bavail * space.f_frsize) <= 0.6


def test_locks_go_with_their_process(tmp_path: Path) -> None:
    program = (
        "import os, sys; from pathlib import Path; from headway.formats.byte_locks import ByteLocks\n"
        "print(ByteLocks(Path(sys.argv[1])).take([1, 2]), flush=True); sys.stdin.read(1); os._exit(9)"
    )
    with ByteLocks(tmp_path / "lock") as mine:
        child = subprocess.Popen(
            [sys.executable, "-c", program, str(tmp_path / "lock")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        assert child.stdout.readline() == "[1, 2]\n"
        assert mine.take([1, 2, 3]) == [3]
        child.communicate("x")
        assert mine.take([1, 2]) == [1, 2]


RACER = """
import sys
from pathlib import Path
from headway.formats.range_cache import CacheOptions
cache = CacheOptions(directory=Path(sys.argv[1]), limit_bytes=int(sys.argv[2])).open()
shard, rounds, fetched = sys.argv[3], int(sys.argv[4]), 0
for extent in range(rounds):
    with cache.locks(shard) as locks:
        locks.take([extent], wait=True)
        if not cache.has(shard, extent):
            fetched += 1
            cache.publish(shard, extent, memoryview(bytes([extent % 251]) * 1000))
    out = memoryview(bytearray(1000))
    if cache.read_into(shard, extent, 0, out, 1000):
        assert bytes(out) == bytes([extent % 251]) * 1000
print(fetched)
"""


def _race(tmp_path: Path, processes: int, rounds: int, limit: int, during: Callable[[RangeCache], None] | None = None) -> int:
    cache = opened(tmp_path, limit=limit)
    command = [sys.executable, "-c", RACER, str(cache.root), str(limit), SHARD, str(rounds)]
    racers = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    if during is not None:
        during(cache)
    fetched = 0
    for racer in racers:
        output, _ = racer.communicate(timeout=100)
        assert racer.returncode == 0
        fetched += int(output)
    return fetched


@pytest.mark.slow
def test_each_extent_is_fetched_once_whoever_races(tmp_path: Path) -> None:
    assert _race(tmp_path, 4, 60, limit=1000 * SIZE) == 60


@pytest.mark.slow
def test_racers_survive_deletions_within_the_limit(tmp_path: Path) -> None:
    """Lightning-AI/litData#566: a lock file beside each chunk was gone between two processes that had finished with it."""

    def delete(cache: RangeCache) -> None:
        for extent in range(60):
            (cache.root / SHARD[:2] / SHARD / str(extent)).unlink(missing_ok=True)

    assert _race(tmp_path, 4, 60, limit=8 * SIZE, during=delete) >= 60
    assert opened(tmp_path).held_bytes <= 8 * SIZE


@pytest.mark.full
def test_eight_processes_race_for_500_extents(tmp_path: Path) -> None:
    assert _race(tmp_path, 8, 500, limit=1000 * SIZE) == 500


def test_an_extent_is_a_megabyte() -> None:
    assert EXTENT == 1 << 20

"""A set read where it lies: what is kept here and damaged, what could not be fetched ahead, whose turn it is, and slow disks."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import numpy as np
import pytest

from headway.formats import CorruptShard, PackOptions, StoreError, open_set, pack
from headway.formats.manifest import MANIFEST_NAME
from headway.formats.open_shard import Place
from headway.formats.packed_set import PackedSet
from headway.formats.range_cache import CacheOptions, RangeCache
from headway.formats.remote_set import RemoteSet
from headway.formats.shard import ShardKind

from .file_server import FileServer
from .ramp import ramp_spec

pytestmark = pytest.mark.slow

KINDS: tuple[ShardKind, ...] = ("arrow", "tar")
CODE_S = 30.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sets")
    for kind in KINDS:
        pack(ramp_spec(drives=4, seed=1), made / kind, PackOptions(format=kind, workers=1, shard_bytes=9_000))
    return made


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with FileServer(folder) as running:
        yield running


def opened(server: FileServer, kind: str, extents: Path | None = None) -> PackedSet:
    cache = CacheOptions(limit_bytes=0) if extents is None else CacheOptions(directory=extents, limit_bytes=1 << 30)
    return open_set(f"{server.url}/{kind}", cache=cache)


def remote_of(packed: PackedSet) -> RemoteSet:
    assert packed.remote is not None
    return packed.remote


def content(packed: PackedSet, every: int = 9) -> list[bytes]:
    """One of `every` payloads of each sensor, of all shards."""
    return [
        bytes(timeline.payload(row))
        for sensor in packed.schema.sensors
        if sensor.codec
        for timeline in [packed.timeline(sensor.name)]
        for row in range(0, len(timeline), every)
    ]


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + CODE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


def in_child(call: Callable[[], object]) -> int:
    """Return how a forked child ends that does this; one that hangs is killed."""
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        try:
            call()
            os._exit(0)
        finally:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


@pytest.mark.parametrize("damage", ["zeroed", "cut", "a flipped bit", "no sums"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_index_that_a_crash_tore_is_fetched_again(server: FileServer, folder: Path, kind: str, damage: str) -> None:
    first = opened(server, kind)
    expected = content(first)
    shard = first.manifest.shards[0]
    path = first.directory / shard.index_name
    if damage == "no sums":
        (first.directory / shard.sums_name).write_bytes(bytes(8))
    elif damage == "cut":
        os.truncate(path, 100)
    else:
        data = bytearray(path.read_bytes())
        data[: len(data) if damage == "zeroed" else 1] = bytes(len(data)) if damage == "zeroed" else bytes([data[0] ^ 1])
        path.write_bytes(data)
    server.asked.clear()
    assert content(opened(server, kind)) == expected
    assert server.asked.count(f"{kind}/{shard.sums_name}") == 1
    server.asked.clear()
    assert content(opened(server, kind)) == expected
    assert f"{kind}/{shard.sums_name}" not in server.asked, "it was mended for good"


def test_an_index_that_is_damaged_in_the_store_is_an_error(folder: Path, tmp_path: Path, server: FileServer) -> None:
    shutil.copytree(folder / "tar", tmp_path / "damaged")
    server.root = tmp_path
    packed = opened(server, "damaged")
    path = tmp_path / "damaged" / packed.manifest.shards[0].index_name
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptShard, match="copy it there again"):
        packed.shard(0)


@pytest.mark.parametrize("pinned", [True, False])
def test_a_torn_manifest_is_fetched_again(server: FileServer, folder: Path, pinned: bool) -> None:
    first = opened(server, "tar")
    path, digest = first.directory / MANIFEST_NAME, first.manifest.digest
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    again = open_set(f"{server.url}/tar", expect_digest=digest if pinned else None, cache=CacheOptions(limit_bytes=0))
    assert again.set_id == first.set_id
    assert path.read_bytes() == whole


OPEN = """
import sys
from headway.formats import open_set
from headway.formats.range_cache import CacheOptions
packed = open_set(sys.argv[1], cache=CacheOptions(limit_bytes=0))
for shard in range(len(packed.manifest.shards)):
    packed.shard(shard)
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_what_is_kept_is_synced_before_it_gets_its_name(server: FileServer, tmp_path: Path) -> None:
    log = tmp_path / "calls"
    calls = "trace=fsync,fdatasync,rename,renameat,renameat2"
    command = ["strace", "-f", "-y", "-s", "4096", "-o", str(log), "-e", calls, sys.executable, "-c", OPEN, f"{server.url}/tar"]
    subprocess.run(command, check=True, timeout=100)
    synced: set[str] = set()
    renamed = 0
    for line in log.read_text().splitlines():
        if found := re.search(r"f(?:data)?sync\(\d+<([^>]*)>", line):
            synced.add(found[1])
        elif found := re.search(r'rename\w*\((?:[^"]*)"([^"]*)", (?:[^"]*)"([^"]*)"', line):
            assert found[1] in synced, line
            synced.discard(found[1])
            renamed += 1
    assert renamed >= 2 * len(opened(server, "tar").manifest.shards) + 1


def test_an_index_that_could_not_be_fetched_ahead_is_tried_again_when_it_is_needed(server: FileServer) -> None:
    packed = opened(server, "tar")
    remote = remote_of(packed)
    server.act = lambda name: "403"
    remote.prepare([0, 1])
    until(lambda: all(remote._coming[shard].done() for shard in (0, 1)))
    server.act = lambda name: "ok"
    packed.shard(0)
    remote.prepare([1])  # looking ahead again fetches it, too
    remote._coming[1].result(CODE_S)


def test_an_index_whose_fetch_ahead_fails_while_it_is_waited_for_is_tried_once_more(server: FileServer) -> None:
    packed = opened(server, "tar")
    remote = remote_of(packed)
    server.act = lambda name: "hold"
    remote.prepare([0])
    until(lambda: len(server.asked) >= 3)  # manifest, index and sums
    shutil.rmtree(packed.directory)  # nothing can be kept: that attempt fails
    waiter = threading.Thread(target=lambda: packed.shard(0))
    waiter.start()
    until(lambda: waiter.is_alive())
    server.act = lambda name: "ok"
    packed.directory.mkdir(mode=0o700)
    server.release.set()
    waiter.join(CODE_S)
    assert remote.is_open(0)


def test_what_fails_when_it_is_needed_is_raised(server: FileServer) -> None:
    packed = opened(server, "tar")
    server.act = lambda name: "403"
    with pytest.raises(StoreError, match="auth"):
        packed.shard(0)


def test_who_waits_for_a_request_that_began_before_and_fails_asks_again(server: FileServer) -> None:
    asked, requests = threading.Event(), count()

    def act(name: str) -> str:
        if name.endswith(".tar") and next(requests) == 0:
            asked.set()
            server.release.wait(CODE_S)
            return "403"
        return "ok"

    async def nothing() -> None:
        """Come after all that was submitted before."""

    with opened(server, "tar") as packed:
        timeline = next(packed.timeline(sensor.name) for sensor in packed.schema.sensors if sensor.codec)
        refs = timeline.refs(np.zeros(1, np.int64))
        owner = packed.remote_shard(int(refs.shard[0]))
        assert owner is not None
        (remote, shard), start = owner, int(refs.offset[0])
        place = Place(start, start + int(refs.length[0]), int(refs.hash[0]))
        server.act = act
        first = remote.payloads.submit(shard, [place], want_by=time.monotonic())
        assert asked.wait(CODE_S)
        second = remote.payloads.submit(shard, [place], want_by=time.monotonic())
        remote.reader.submit(nothing()).result(CODE_S)
        server.release.set()
        with pytest.raises(StoreError, match="auth"):
            first.result(CODE_S)
        assert len(second.result(CODE_S)[0]) == place.stop - place.start


def test_the_shard_that_is_waited_for_passes_those_that_are_fetched_ahead(server: FileServer) -> None:
    packed = opened(server, "tar")
    remote, last = remote_of(packed), len(packed.manifest.shards) - 1
    assert last >= 3
    remote._index._few.at_once = 1
    server.asked.clear()
    server.act = lambda name: "hold"
    remote.prepare(range(last + 1), want_by=time.monotonic() + 100)
    until(lambda: len(server.asked) == 2 and remote._index._few.waiting == last)
    waiter = threading.Thread(target=lambda: packed.shard(last))
    waiter.start()
    until(lambda: remote._index._few.waiting == last + 1)
    server.act = lambda name: "ok"
    server.release.set()
    waiter.join(CODE_S)
    until(lambda: all(coming.done() for coming in remote._coming.values()))
    order = [name for name in server.asked if name.endswith(".sums")]
    names = [f"tar/{shard.sums_name}" for shard in packed.manifest.shards]
    assert order == [names[0], names[last], *names[1:last]]


@pytest.fixture
def busy_disk() -> Iterator[Callable[[PackedSet], Callable[[], None]]]:
    """Return what holds up whatever is to be kept in a set's cache, and returns what lets it go on."""
    held: list[int] = []

    def release() -> None:
        while held:
            os.close(held.pop())

    def hold(packed: PackedSet) -> Callable[[], None]:
        cache = remote_of(packed).payloads.cache
        assert cache is not None
        held.append(os.open(cache.root / "catalogue", os.O_CREAT | os.O_RDWR, 0o600))
        fcntl.flock(held[-1], fcntl.LOCK_EX)
        return release

    yield hold
    release()


def extents_of(packed: PackedSet) -> list[tuple[str, int]]:
    return [
        (shard.data.sha256, extent) for shard in packed.manifest.shards for extent in range(-(-shard.data.bytes // (1 << 20)))
    ]


def kept(cache: RangeCache | None, packed: PackedSet) -> int:
    assert cache is not None
    return sum(cache.has(*extent) for extent in extents_of(packed))


def test_payloads_do_not_wait_for_the_caches_disk(
    server: FileServer, folder: Path, tmp_path: Path, busy_disk: Callable[[PackedSet], Callable[[], None]]
) -> None:
    packed = opened(server, "tar", tmp_path / "extents")
    release = busy_disk(packed)
    found: list[list[bytes]] = []
    reader = threading.Thread(target=lambda: found.append(content(packed)), daemon=True)
    reader.start()
    reader.join(CODE_S)
    cache = remote_of(packed).payloads.cache
    try:
        assert found, "it waits for a disk that writes nothing"
        assert kept(cache, packed) == 0
    finally:
        release()
    assert found[0] == content(open_set(folder / "tar"))
    remote_of(packed).payloads.close()  # with what it has
    assert kept(cache, packed) == len(extents_of(packed))


def test_a_disk_that_falls_behind_keeps_less(
    server: FileServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from headway.formats import remote_payloads

    monkeypatch.setattr(remote_payloads, "_MOST_KEEPING", 1)
    packed = opened(server, "tar", tmp_path / "extents")
    assert content(packed) == content(open_set(folder / "tar"))
    payloads = remote_of(packed).payloads
    assert kept(payloads.cache, packed) == 0
    assert payloads.cache is not None
    sha, extent = extents_of(packed)[0]
    with payloads.cache.locks(sha) as locks:
        assert locks.take([extent]) == [extent], "and lets others fetch it"


def test_a_file_system_without_locks_costs_a_warning(
    server: FileServer, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*arguments: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    packed = opened(server, "tar", tmp_path / "extents")
    monkeypatch.setattr(fcntl, "fcntl", refuse)
    assert content(packed) == content(open_set(folder / "tar"))
    (said,) = caplog.messages
    assert str(tmp_path / "extents") in said
    assert "No locks available" in said


FULL = """
import resource, sys
from headway.formats import HeadwayError, open_set
from headway.formats.range_cache import CacheOptions
packed = open_set(sys.argv[1], cache=CacheOptions(limit_bytes=0))
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, resource.RLIM_INFINITY))
try:
    packed.shard(0)
except HeadwayError as error:
    print(type(error).__name__, error)
"""


def test_an_index_that_cannot_be_kept_is_one_typed_line(server: FileServer, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", FULL, f"{server.url}/tar"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("\n") == 1
    assert re.match(
        r"NoSpace cannot keep the index of shard .*/home/headway/index/.*: File too large; .*XDG_CACHE_HOME", done.stdout
    )


def test_a_forked_child_closes_nothing_of_its_parents(server: FileServer, tmp_path: Path) -> None:
    packed = opened(server, "tar", tmp_path / "extents")
    expected = content(packed)
    payloads = remote_of(packed).payloads
    inside, end = threading.Event(), threading.Event()

    def hold() -> None:
        with payloads._disk._shutdown_lock:
            inside.set()
            end.wait(CODE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(CODE_S)
    code = in_child(payloads.close)
    end.set()
    holder.join()
    assert code == 0
    assert content(packed) == expected

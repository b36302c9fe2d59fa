"""Ranges of a store that stalls, breaks off and fails: one right answer each, soon, within the budget (R32–R34, R37)."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from headway.formats import StoreError
from headway.formats.stores import Retry
from headway.formats.stores.hedged import Answer, ByPercentile, RangeReader, Traffic
from headway.formats.stores.remote import RemoteStore

BODY = bytes(range(256)) * 4096


class _Server(BaseHTTPRequestHandler):
    """Answers ranges of BODY; `act` decides what happens to request number n (from 1)."""

    act: Callable[[int], str]
    asked: list[tuple[str, str]]
    release: threading.Event
    lock: threading.Lock
    etag = '"v1"'

    def do_GET(self) -> None:
        cls = type(self)
        with cls.lock:
            cls.asked.append((self.headers["Range"], self.headers.get("If-Match", "")))
            number = len(cls.asked)
        action = cls.act(number)
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        if action == "stall":
            cls.release.wait(20)
        if action.isdigit():
            self.send_response(int(action))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        etag = '"v2"' if action == "replaced" else cls.etag
        if self.headers.get("If-Match", etag).strip('"') != etag.strip('"'):
            self.send_response(412)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        body = BODY[first : last + 1]
        self.send_response(206)
        shift = 1 if action == "shifted" else 0
        self.send_header("Content-Range", f"bytes {first + shift}-{last + shift}/{len(BODY)}")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", etag)
        self.end_headers()
        try:
            self.wfile.write(body[: 2 * len(body) // 3] if action == "cut" else body)
            if action == "cut":
                self.wfile.flush()
                self.connection.shutdown(socket.SHUT_RDWR)
        except OSError:
            return  # whoever asked has another answer

    def log_message(self, *args: Any) -> None:
        """Keep the test's output clean."""


Made = Callable[..., tuple[RangeReader, type[_Server]]]


@pytest.fixture
def made() -> Iterator[Made]:
    """Return a reader and its server, which acts as told."""
    ends: list[Callable[[], object]] = []

    def make(act: Callable[[int], str], *, deadline_s: float = 20.0) -> tuple[RangeReader, type[_Server]]:
        release = threading.Event()
        fields = {"act": staticmethod(act), "asked": [], "release": release, "lock": threading.Lock()}
        handler = type("Server", (_Server,), fields)
        httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        httpd.daemon_threads = True
        thread = threading.Thread(target=httpd.serve_forever, daemon=True)
        thread.start()
        retry = Retry(deadline_s=deadline_s, first_wait_s=0.001, longest_wait_s=0.01)
        reader = RangeReader(RemoteStore(f"http://127.0.0.1:{httpd.server_port}", retry=retry))
        ends.extend((release.set, reader.close, httpd.shutdown, httpd.server_close, thread.join))
        return reader, handler

    yield make
    for end in ends:
        end()


def ask(reader: RangeReader, start: int, length: int, **more: Any) -> Future[Answer]:
    return reader.submit(reader.read("x", start, length, **more))


def test_many_ranges_at_once_are_each_the_right_bytes(made: Made) -> None:
    reader, _ = made(lambda number: "ok")
    futures = [ask(reader, start, 50_000) for start in range(40)]
    for start, future in enumerate(futures):
        assert future.result(20).data == BODY[start : start + 50_000]
    assert reader.traffic.requests == 40
    assert reader.traffic.bytes >= 2_000_000


def test_a_stalled_request_gets_a_second_one_which_wins(made: Made) -> None:
    reader, server = made(lambda number: "stall" if number == 30 else "ok")
    reader.hedging = ByPercentile(0.5)  # on a busy machine others are slow, too, and would use the budget up
    for start in range(60):
        assert ask(reader, start, 1000).result(15).data == BODY[start : start + 1000]
    assert reader.traffic.hedge_wins >= 1
    assert not server.release.is_set(), "the stalled one is still stalled"


def test_second_requests_stay_within_their_budget(made: Made) -> None:
    slow = frozenset(range(20, 130, 4))

    def act(number: int) -> str:
        if number in slow:
            time.sleep(0.02)
        return "ok"

    reader, server = made(act)
    for start in range(120):
        ask(reader, start, 100).result(15)
    assert reader.traffic.hedged <= max(1, 0.02 * reader.traffic.requests)
    assert len(server.asked) == reader.traffic.requests + reader.traffic.hedged


@pytest.mark.parametrize(("requests", "hedged", "allowed"), [(0, 0, True), (49, 1, False), (99, 1, False), (100, 1, True)])
def test_the_budget_is_a_share_of_all_requests(requests: int, hedged: int, allowed: bool) -> None:
    assert ByPercentile().allows(Traffic(requests=requests, hedged=hedged), waited_s=1, p98_s=1, left_s=0) == allowed
    assert not ByPercentile(0).allows(Traffic(), waited_s=1, p98_s=1, left_s=0)


def test_an_answer_that_breaks_off_goes_on_where_it_stopped_under_its_version(made: Made) -> None:
    reader, server = made(lambda number: "cut" if number == 1 else "ok")
    assert ask(reader, 0, 900_000).result(15).data == BODY[:900_000]
    assert reader.traffic.retried == 1
    (first, condition), (second, version) = server.asked[:2]
    assert first == "bytes=0-899999"
    assert condition == ""
    assert int(second.removeprefix("bytes=").split("-")[0]) > 0, "what had come was not fetched again"
    assert version == '"v1"'


def test_versions_are_never_spliced(made: Made) -> None:
    reader, _ = made(lambda number: "cut" if number == 1 else "replaced")
    with pytest.raises(StoreError, match=r"changed|was replaced"):
        ask(reader, 0, 900_000).result(15)


def test_another_range_than_the_one_asked_for_is_refused(made: Made) -> None:
    reader, _ = made(lambda number: "shifted", deadline_s=0.3)
    with pytest.raises(StoreError):
        ask(reader, 10, 100).result(15)


@pytest.mark.parametrize(("status", "kind"), [("404", FileNotFoundError), ("403", StoreError), ("400", StoreError)])
def test_final_failures_are_asked_for_once(made: Made, status: str, kind: type[Exception]) -> None:
    reader, server = made(lambda number: status)
    with pytest.raises(kind):
        ask(reader, 0, 100).result(15)
    assert len(server.asked) == 1


@pytest.mark.slow
def test_a_throttling_store_is_asked_once_a_second(made: Made) -> None:
    reader, server = made(lambda number: "429", deadline_s=2.5)
    began = time.monotonic()
    futures = [ask(reader, start, 100) for start in range(8)]
    for future in futures:
        with pytest.raises(StoreError, match="throttled"):
            future.result(30)
    took = time.monotonic() - began
    assert len(server.asked) <= 8 + took + 1, "after the first refusals, all together ask once a second"
    assert len(server.asked) < 8 + 8, "who waits for a turn gives up at the deadline, too"


def test_the_most_urgent_goes_first(made: Made) -> None:
    reader, server = made(lambda number: "stall" if number == 1 else "ok")
    reader.at_once = 1
    first = ask(reader, 0, 10)
    futures = [ask(reader, 100 * k, 10, want_by=time.monotonic() + 1000 - k) for k in range(1, 6)]
    while len(server.asked) < 1 or reader._turns.waiting < 5:
        time.sleep(0.01)
    server.release.set()
    for future in (first, *futures):
        future.result(15)
    order = [int(asked.removeprefix("bytes=").split("-")[0]) for asked, _ in server.asked if not asked.startswith("bytes=0-")]
    assert order == sorted(order, reverse=True)


def test_renewed_credentials_are_read_once(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    reader, server = made(lambda number: "401" if number == 1 else "ok")
    monkeypatch.setenv("AWS_SESSION_TOKEN", "renewed meanwhile")
    assert ask(reader, 0, 100).result(15).data == BODY[:100]
    assert len(server.asked) == 2


def test_closing_ends_what_is_under_way(made: Made) -> None:
    reader, server = made(lambda number: "stall")
    future = ask(reader, 0, 10)
    while not server.asked:
        time.sleep(0.01)
    with closing(reader):
        pass
    assert future.done()
    assert "headway-store" not in [thread.name for thread in threading.enumerate() if thread.is_alive()]


def test_a_forked_child_is_refused_and_does_not_hang(made: Made) -> None:
    reader, _ = made(lambda number: "ok")
    ask(reader, 0, 10).result(15)
    from headway.formats.stores import remote

    assert remote._user[0] == os.getpid()
    remote._user[0] -= 1  # as a forked child sees it, without forking a threaded test process
    try:
        with pytest.raises(Exception, match="spawn"):
            RemoteStore("http://127.0.0.1:1")
    finally:
        remote._user[0] = os.getpid()

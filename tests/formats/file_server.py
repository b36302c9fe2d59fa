"""A folder served over HTTP by ranges, as an object store would, that refuses or holds requests as told."""

from __future__ import annotations

import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

__all__ = ["FileServer"]

PATIENCE_S = 30.0


class FileServer:
    """Serves `root` while its block runs."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.act: Callable[[str], str] = lambda name: "ok"
        """Says what happens to a request for a file: "ok", a status, or "hold" until `release` is set."""
        self.asked: list[str] = []
        """Names of files, in the order in which they were asked for."""
        self.release = threading.Event()
        owner = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                owner._answer(self)

            do_HEAD = do_GET

            def log_message(self, *args: Any) -> None:
                """Keep the test's output clean."""

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)

    @property
    def url(self) -> str:
        """Where the root is."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FileServer:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def _answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.lstrip("/")
        self.asked.append(name)
        action = self.act(name)
        if action == "hold":
            self.release.wait(PATIENCE_S)
        path = self.root / name
        if action.isdigit() or not path.is_file():
            request.send_response(int(action) if action.isdigit() else 404)
            request.send_header("Content-Length", "0")
            request.end_headers()
            return
        data, span = path.read_bytes(), request.headers.get("Range")
        if span is None:
            body = data
            request.send_response(200)
        else:
            first, last = (int(part) for part in span.removeprefix("bytes=").split("-"))
            body = data[first : last + 1]
            request.send_response(206)
            request.send_header("Content-Range", f"bytes {first}-{first + len(body) - 1}/{len(data)}")
        request.send_header("Content-Length", str(len(body)))
        request.send_header("ETag", '"v1"')
        request.send_header("Last-Modified", "Mon, 30 Nov 2026 00:00:00 GMT")
        request.end_headers()
        if request.command == "GET":
            request.wfile.write(body)

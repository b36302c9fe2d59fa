"""A drive of sweeps of half a mebibyte each, so that a loader waits for where they come from; and a store that is slow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np

from headway.formats import Column, DriveListing, Ignored, Schema, Sensor, SourceDrive, SourceTimeline
from headway.formats.adapters import SourceSpec
from headway.formats.pack_options import PackOptions
from headway.formats.packer import pack

__all__ = ["slow_store", "write_heavy"]

KIND = "tests.tools.heavy_drives:open_heavy"
POINTS = 1 << 15
_XYZI = tuple(Column(name=name, dtype="float32", unit="m") for name in ("x", "y", "z", "intensity"))
SCHEMA = Schema(reference="LIDAR", sensors=(Sensor(name="LIDAR", kind="points", codec="points-raw", fields=_XYZI),))


def write_heavy(destination: Path, *, frames: int) -> Path:
    """Pack one drive."""
    spec = SourceSpec(kind=KIND, path="", options={"frames": frames})
    pack(spec, destination, PackOptions(workers=1, points_codec="points-raw"), None)
    return destination


def open_heavy(spec: SourceSpec) -> Heavy:
    """Open the source that a spec names."""
    return Heavy(frames=int(str(spec.options["frames"])))


@dataclass(frozen=True, kw_only=True)
class Heavy:
    """The source."""

    frames: int
    kind: str = "heavy-drives"
    licence: str = "CC0-1.0"
    schema: Schema = SCHEMA
    ignored: Sequence[Ignored] = ()

    @property
    def listings(self) -> Sequence[DriveListing]:
        return [DriveListing(name="drive", source_bytes=self.frames * POINTS * 16)]

    def open_drive(self, name: str) -> SourceDrive:
        def sweep(row: int) -> np.ndarray:
            values = np.random.default_rng(row).normal(scale=20, size=(POINTS, 4)).astype(np.float32)
            return values.view(SCHEMA.sensor("LIDAR").record_dtype)[:, 0]

        stamps = 10**18 + np.arange(self.frames, dtype=np.int64) * 10**8
        timeline = SourceTimeline(stamps=stamps, columns={}, read=sweep, origin=lambda row: f"{name}/{row}")
        return SourceDrive(timelines={"LIDAR": timeline})


@contextmanager
def slow_store(root: Path, bytes_per_s: Mapping[str, float]) -> Iterator[str]:
    """Serve `root` under URL/<name>/, each name as quick as told over all its requests together; yields URL."""
    gates = {name: _Gate(rate) for name, rate in bytes_per_s.items()}

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, *, body: bool) -> None:
            _, name, path = self.path.split("/", 2)
            file = root / path
            if not file.is_file():
                self.send_response(404)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            data = file.read_bytes()
            first, last = 0, len(data) - 1
            asked = self.headers.get("Range")
            if asked:
                begin, _, end = asked.removeprefix("bytes=").partition("-")
                first, last = int(begin), min(last, int(end) if end else last)
            self.send_response(206 if asked else 200)
            self.send_header("Content-Length", str(last - first + 1))
            self.send_header("ETag", f'"{len(data)}"')
            self.send_header("Last-Modified", "Mon, 30 Nov 2026 12:00:00 GMT")
            if asked:
                self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
            self.end_headers()
            for start in range(first, last + 1 if body else first, 1 << 16):
                part = data[start : min(start + (1 << 16), last + 1)]
                gates[name].take(len(part))
                self.wfile.write(part)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Gate:
    """Lets so many bytes a second through, whoever asks."""

    def __init__(self, bytes_per_s: float) -> None:
        self._rate, self._lock, self._free = bytes_per_s, threading.Lock(), 0.0

    def take(self, size: int) -> None:
        with self._lock:
            self._free = max(self._free, time.monotonic()) + size / self._rate
            until = self._free
        time.sleep(max(0.0, until - time.monotonic()))

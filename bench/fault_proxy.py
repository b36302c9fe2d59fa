"""A proxy in front of an object store that is slow and fails as told: what makes a loopback store behave like a far one.

HTTP/1.1 over plain TCP, request by request, bodies streamed. What happens to a request is drawn from a seeded generator. Only
GETs suffer; what publishes a set passes untouched. Run it in a thread (`FaultProxy`) or, where its CPU time must not be that of
what is measured, in a process of its own (`proxy_process`).
"""

from __future__ import annotations

import asyncio
import math
import multiprocessing
import random
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Final, Literal

__all__ = ["FaultProxy", "Faults", "Request", "proxy_process"]

Fault = Literal["none", "stall", "503", "429", "reset", "truncate", "flip", "drip"]

_CHUNK: Final = 64 << 10
_DRIP_BYTES: Final = 512
_Z99: Final = 2.326347874  # of the standard normal distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Faults:
    """How slow the store is, and how often it fails. Shares are of GET requests."""

    p50_s: float = 0.0
    """Median time to the first byte, log-normal."""
    p99_s: float = 0.0
    stall_share: float = 0.0
    stall_s: float = 3.0
    bytes_per_s: float = math.inf
    """Of all answers together."""
    throttle_share: float = 0.0
    """503 SlowDown and 429, half each."""
    retry_after_s: int | None = None
    reset_share: float = 0.0
    """The connection is reset somewhere in the body."""
    truncate_share: float = 0.0
    """The body ends early, by closing."""
    flip_share: float = 0.0
    """One bit of the body is another."""
    drip_share: float = 0.0
    """512 bytes every 50 ms."""
    seed: int = 0

    def draw(self, rng: random.Random) -> tuple[Fault, float]:
        """Return what happens to one request, and after how many seconds its answer begins."""
        at = rng.random()
        kinds: list[tuple[Fault, float]] = [
            ("stall", self.stall_share),
            ("503", self.throttle_share / 2),
            ("429", self.throttle_share / 2),
            ("reset", self.reset_share),
            ("truncate", self.truncate_share),
            ("flip", self.flip_share),
            ("drip", self.drip_share),
        ]
        chosen: Fault = "none"
        for kind, share in kinds:
            if at < share:
                chosen = kind
                break
            at -= share
        sigma = math.log(self.p99_s / self.p50_s) / _Z99 if 0 < self.p50_s < self.p99_s else 0.0
        delay = self.p50_s * math.exp(sigma * rng.gauss(0, 1))
        return chosen, delay + (self.stall_s if chosen == "stall" else 0.0)


@dataclass(frozen=True, slots=True)
class Request:
    """One request that passed."""

    method: str
    path: str
    span: str
    """Its Range header."""
    fault: str
    at: float
    """When it came, monotonic seconds."""


class FaultProxy:
    """Listens on a free loopback port and forwards to `upstream` (host, port). `faults` may be changed at any time."""

    def __init__(self, upstream: tuple[str, int], faults: Faults | None = None) -> None:
        self.upstream = upstream
        self.faults = faults or Faults()
        self.requests: list[Request] = []
        self.sent_bytes = 0
        """Of bodies of GETs."""
        self._rng = random.Random(self.faults.seed)
        self._free_at = 0.0
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.port: int = self._listener.getsockname()[1]
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._serve, name="fault-proxy", daemon=True)

    @property
    def endpoint(self) -> str:
        """Where it answers."""
        return f"http://127.0.0.1:{self.port}"

    def counts(self) -> dict[str, int]:
        """Return how many GETs met which fault."""
        return dict(Counter(request.fault for request in list(self.requests) if request.method == "GET"))

    def __enter__(self) -> FaultProxy:
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._listener.close()

    def _serve(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._client, sock=self._listener))
        self._loop.run_forever()
        server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.close()

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        try:
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if upstream is None:
                    upstream = await asyncio.open_connection(*self.upstream)
                if not await self._exchange(head, reader, writer, *upstream):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            return
        finally:
            for each in (writer, *(upstream[1:] if upstream is not None else ())):
                with suppress(OSError, RuntimeError):
                    each.close()

    async def _exchange(
        self,
        head: bytes,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        from_store: asyncio.StreamReader,
        to_store: asyncio.StreamWriter,
    ) -> bool:
        """Forward one request and its answer; False if the connection is not to be used any more."""
        method, path, *_ = head.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
        fields = _fields(head)
        fault, delay = self.faults.draw(self._rng) if method == "GET" else ("none", 0.0)
        self.requests.append(Request(method, path, fields.get("range", ""), fault, self._loop.time()))
        if delay:
            await asyncio.sleep(delay)
        if fault in ("503", "429"):
            body = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
            after = f"Retry-After: {self.faults.retry_after_s}\r\n" if self.faults.retry_after_s is not None else ""
            reason = "Slow Down" if fault == "503" else "Too Many Requests"
            writer.write(f"HTTP/1.1 {fault} {reason}\r\n{after}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            await writer.drain()
            return True
        to_store.write(head)
        await _copy(reader, to_store, int(fields.get("content-length", 0)))
        await to_store.drain()
        answer = await from_store.readuntil(b"\r\n\r\n")
        if b" 100 " in answer.split(b"\r\n", 1)[0]:
            answer = await from_store.readuntil(b"\r\n\r\n")
        writer.write(answer)
        fields = _fields(answer)
        if method == "HEAD" or b" 304 " in answer[:32] or b" 204 " in answer[:32]:
            await writer.drain()
            return True
        if "chunked" in fields.get("transfer-encoding", ""):
            await _copy_chunks(from_store, writer)
            return True
        size = int(fields.get("content-length", 0))
        if method != "GET":
            await _copy(from_store, writer, size)
            await writer.drain()
            return True
        return await self._body(from_store, writer, size, fault)

    async def _body(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, size: int, fault: str) -> bool:
        end = self._rng.randrange(size) if size and fault in ("reset", "truncate") else size
        flip = self._rng.randrange(8 * size) if size and fault == "flip" else -1
        step = _DRIP_BYTES if fault == "drip" else _CHUNK
        done = 0
        while done < end:
            data = await source.read(min(step, end - done))
            if not data:
                raise asyncio.IncompleteReadError(b"", size - done)
            if done <= flip // 8 < done + len(data):
                changed = bytearray(data)
                changed[flip // 8 - done] ^= 1 << flip % 8
                data = bytes(changed)
            done += len(data)
            self.sent_bytes += len(data)
            sink.write(data)
            await sink.drain()
            if fault == "drip":
                await asyncio.sleep(0.05)
            if self.faults.bytes_per_s < math.inf:
                now = self._loop.time()
                self._free_at = max(now, self._free_at) + len(data) / self.faults.bytes_per_s
                await asyncio.sleep(self._free_at - now)
        if fault == "reset":
            transport_socket = sink.get_extra_info("socket")
            transport_socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        return fault not in ("reset", "truncate")


def _fields(head: bytes) -> dict[str, str]:
    lines = head.decode("latin-1").split("\r\n")[1:]
    return {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines) if name}


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, size: int) -> None:
    while size:
        data = await source.read(min(_CHUNK, size))
        if not data:
            raise asyncio.IncompleteReadError(b"", size)
        size -= len(data)
        sink.write(data)
        await sink.drain()


async def _copy_chunks(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    while True:
        line = await source.readuntil(b"\r\n")
        sink.write(line)
        size = int(line.split(b";")[0], 16)
        await _copy(source, sink, size + 2)
        if not size:
            return


@contextmanager
def proxy_process(upstream: tuple[str, int], faults: Faults) -> Iterator[tuple[str, Connection]]:
    """Run a proxy in a process of its own; yields its endpoint, and a pipe that answers anything sent with its counts."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_run, args=(upstream, faults, theirs), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours.recv(), ours
    finally:
        ours.close()
        process.join(5)
        process.kill()


def _run(upstream: tuple[str, int], faults: Faults, pipe: Connection) -> None:
    with FaultProxy(upstream, faults) as proxy:
        pipe.send(proxy.endpoint)
        with suppress(EOFError, OSError):
            while True:
                message = pipe.recv()
                if isinstance(message, Faults):
                    proxy.faults = message
                pipe.send({"faults": proxy.counts(), "bytes": proxy.sent_bytes})

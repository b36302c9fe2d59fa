"""What a node sustains: N real rank processes stream one set side by side, and the ceilings say what binds them.

Predicted stands beside measured: the slowest stage, each ceiling divided by what a sample costs of it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..formats import SetError, UsageError, WorkerDied
from ..formats.packed_set import PackedSet, open_set
from ..loader.cores import usable_cores
from .limits import Limit, measure_limits
from .node_rank import MARK
from .peer_rounds import watch

__all__ = ["NodeBench", "NodeOptions", "predict"]


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """How to run the ranks."""

    ranks: int = 1
    batch_size: int = 4
    """Per rank."""
    seconds: float = 8.0
    consumer_ms: float = 0.0
    """What a step of the consumer takes."""
    busy: bool = False
    """The consumer holds the interpreter and a core (as a Python-heavy trainer does), instead of waiting for a device."""
    cold: bool = False
    """Drop the set from the page cache first."""
    image: tuple[int, int] = (256, 704)
    threads: int | None = None
    memory_bytes: int = 1 << 30
    seed: int = 1

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.batch_size < 1 or self.seconds <= 0 or self.consumer_ms < 0:
            raise UsageError(f"bench node: ranks and batch size from 1, seconds above 0, consumer time from 0; found {self}")


class NodeBench:
    """Runs ranks over one set and puts their figures together."""

    def __init__(self, location: Path, *, say: Callable[[str], None] = lambda _: None) -> None:
        self.location, self._say = location, say
        with open_set(location) as packed:
            self.cameras = [sensor.name for sensor in packed.schema.sensors if sensor.kind == "image"]
            self.frames = len(packed)

    def limits(self, *, image: tuple[int, int]) -> list[Limit]:
        """Measure this node's ceilings for the set."""
        self._say("measuring the ceilings of this node")
        with open_set(self.location) as packed:
            return measure_limits(packed, target=image)

    def run(self, options: NodeOptions) -> list[dict[str, Any]]:
        """Return one row a rank."""
        if self.frames < options.ranks * options.batch_size:
            raise UsageError(
                f"bench node: {self.frames} frames do not fill one step of {options.ranks} × {options.batch_size}; "
                "lower --ranks or --batch-size"
            )
        if options.cold:
            _drop_from_cache(self.location)
        self._say(f"{options.ranks} ranks for {options.seconds:g} s")
        tasks = [self._task(options, rank) for rank in range(options.ranks)]
        processes = [
            subprocess.Popen(
                [sys.executable, "-m", "headway.bench.node_rank", json.dumps(task)],
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
                start_new_session=True,
            )
            for task in tasks
        ]
        rows: list[dict[str, Any]] = [{} for _ in processes]
        watchers = [
            threading.Thread(target=self._collect, args=(process, options, rows, rank)) for rank, process in enumerate(processes)
        ]
        for watcher in watchers:
            watcher.start()
        for watcher in watchers:
            watcher.join()
        failed = [row["error"] for row in rows if "error" in row]
        if failed:
            raise WorkerDied(f"bench node: {len(failed)} of {options.ranks} ranks failed: {failed[0]}")
        return rows

    def _task(self, options: NodeOptions, rank: int) -> dict[str, Any]:
        return {
            "set": str(self.location),
            "cameras": self.cameras,
            "image": list(options.image),
            "rank": rank,
            "ranks": options.ranks,
            "batch_size": options.batch_size,
            "seconds": options.seconds,
            "consumer_ms": options.consumer_ms,
            "busy": options.busy,
            "threads": options.threads,
            "memory_bytes": options.memory_bytes,
            "seed": options.seed,
            "batches": 0,
        }

    @staticmethod
    def _collect(process: subprocess.Popen[str], options: NodeOptions, rows: list[dict[str, Any]], rank: int) -> None:
        memory: dict[str, float] = {}
        sampler = threading.Thread(target=lambda: memory.update(watch(process, options.seconds * 3 + 60)))
        sampler.start()
        output, errors = process.communicate()
        sampler.join()
        lines = [line.removeprefix(MARK) for line in output.splitlines() if line.startswith(MARK)]
        last = (errors.strip().splitlines() or ["no output"])[-1]
        rows[rank] = (
            json.loads(lines[-1]) | memory if lines else {"error": f"rank {rank} ended with {process.returncode}: {last}"}
        )


def predict(packed: PackedSet, limits: Sequence[Limit], *, cores: float | None = None) -> dict[str, float]:
    """Return samples/s that each stage alone would allow on this node, for one frame's own payloads of every sensor."""
    cores = usable_cores() if cores is None else cores
    rates: dict[str, float] = {}
    images = sum(sensor.kind == "image" for sensor in packed.schema.sensors)
    decode = [limit for limit in limits if limit.unit == "images" and "→" in limit.what]
    if images and decode:
        rates["decode"] = max(limit.per_core for limit in decode) * cores / images
    points = [limit for limit in limits if limit.unit == "points"]
    for limit in points:
        sensor = limit.what.split()[1]
        timeline = packed.timeline(sensor)
        count = len(timeline.value(0)) if len(timeline) else 0
        if count:
            rates[f"points of {sensor}"] = limit.per_core * cores / count
    if not packed.frame_starts[-1]:
        raise SetError(f"cannot predict for {packed.location}: the set has no frames")
    return rates


def _drop_from_cache(location: Path) -> None:
    """Ask the kernel to forget the set's pages; clean pages go at once."""
    for path in location.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)

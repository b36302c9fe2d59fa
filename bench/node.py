"""What a node sustains: N real rank processes stream one set side by side, and the ceilings say what binds them.

`roofline` puts what is predicted beside what they measured.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..formats import UsageError, WorkerDied
from ..formats.packed_set import open_set
from .limits import Limit, measure_limits
from .machine import Noise, NoiseMeter
from .memory_limit import MemoryGroup
from .node_rank import MARK
from .peer_process import end_group, error_line, figures_in, run_module, watch

__all__ = ["NodeBench", "NodeOptions", "has_images"]


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
    """The consumer trains a small model, which holds the interpreter and a core, instead of waiting as for a device."""
    iterations: int = 0
    """Work in a busy consumer's step, from `NodeBench.calibrate`."""
    cold: bool = False
    """Drop the set from the page cache first."""
    image: tuple[int, int] = (256, 704)
    threads: int | None = None
    memory_bytes: int = 1 << 30
    """For batches, per rank."""
    limit_bytes: int = 0
    """Of memory for all ranks together, page cache included; 0: none."""
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
        with MemoryGroup(options.limit_bytes) if options.limit_bytes else nullcontext() as group:
            rows = self._run(options, "" if group is None else str(group.path))
            events = {} if group is None else group.events()
        failed = [row["error"] for row in rows if "error" in row]
        if failed:
            killed = f" (the kernel killed {events['oom_kill']} for memory)" if events.get("oom_kill") else ""
            raise WorkerDied(f"bench node: {len(failed)} of {options.ranks} ranks failed{killed}: {failed[0]}")
        return [row | {f"group_{name}": value for name, value in events.items()} for row in rows]

    def run_quietly(self, options: NodeOptions, *, repeats: int = 2) -> tuple[list[dict[str, Any]], Noise, int]:
        """Run until others leave the machine alone, at most `1 + repeats` times; return the least disturbed run.

        Returns the rows, what others used meanwhile, and how many runs there were.
        """
        best: tuple[list[dict[str, Any]], Noise] | None = None
        for number in range(1, 2 + repeats):
            with NoiseMeter() as meter:
                rows = self.run(options)
            if best is None or meter.noise.others < best[1].others:
                best = rows, meter.noise
            if best[1].quiet:
                break
            self._say(f"others used {meter.noise.others:.2f} cores meanwhile" + ("; again" if number <= repeats else ""))
        assert best is not None
        return *best, number

    def calibrate(self, step_ms: float) -> tuple[int, float]:
        """Return the work that fills a busy consumer's step while nothing else runs, and how long it then takes, ms."""
        self._say(f"fitting a training step of {step_ms:g} ms")
        found = _consumer({"do": "calibrate", "step_ms": step_ms})
        return int(found["iterations"]), float(found["step_ms"])

    def paced(self, iterations: int, pause_s: float, seconds: float) -> dict[str, float]:
        """Return how long such a step takes (median, p95) while nothing else runs, with `pause_s` before each."""
        self._say(f"the step alone, {pause_s * 1e3:.0f} ms apart")
        return _consumer({"do": "pace", "iterations": iterations, "pause_s": pause_s, "seconds": seconds})

    def _run(self, options: NodeOptions, group: str) -> list[dict[str, Any]]:
        self._say(f"{options.ranks} ranks for {options.seconds:g} s")
        tasks = [self.task(options, rank) | {"group": group} for rank in range(options.ranks)]
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
        try:
            for watcher in watchers:
                watcher.join()
        except BaseException:  # interrupted: the ranks would stream on
            for process in processes:
                end_group(process)
            raise
        return rows

    def task(self, options: NodeOptions, rank: int) -> dict[str, Any]:
        """Return what `node_rank` is told for one rank."""
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
            "iterations": options.iterations if options.busy else 0,
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
        found = figures_in(output, MARK)
        rows[rank] = (
            {"error": f"rank {rank} ended with {process.returncode}: {error_line(errors)}"} if found is None else found | memory
        )


def has_images(location: Path) -> bool:
    """Say whether a set has cameras."""
    with open_set(location) as packed:
        return any(sensor.kind == "image" for sensor in packed.schema.sensors)


def _drop_from_cache(location: Path) -> None:
    """Ask the kernel to forget the set's pages; clean pages go at once."""
    for path in location.rglob("*"):
        if path.is_file():
            descriptor = os.open(path, os.O_RDONLY)
            try:
                os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            finally:
                os.close(descriptor)


def _consumer(task: dict[str, Any]) -> dict[str, float]:
    """Run a busy consumer in a process of its own."""
    return run_module("bench.node_rank", task, MARK, what="bench: no training step on this machine", limit_s=120)

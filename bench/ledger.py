"""What the stall ledger costs: the same epochs without it, with it, and with its files written, in turns.

A loader without a consumer is bound by its processor time, so that is compared, step by step; the wall clock, which others on the
machine disturb more, stands beside it. "off" puts a ledger in the loader's place that notes nothing.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any, Final

from ..formats.packed_set import open_set
from ..loader.dataloader import DataLoader
from ..loader.dataset import Dataset, open_dataset
from ..loader.images import Images
from ..loader.options import LoaderOptions
from ..loader.recorder import Recorder, Sources, Step
from ..loader.stall import STAGES, Booked, Stage, StallLedger, Trail
from ..loader.telemetry import Telemetry
from ..loader.topology import Topology

__all__ = ["booking_s", "measure_ledger", "open_for_bench", "summarise", "writing_s"]

CASES: Final = ("off", "ledger", "files")
_WARM: Final = 2


class _NoTrail(Trail):
    """Notes nothing."""

    __slots__ = ()

    def begin(self, stage: Stage, queued_ns: int = 0) -> None:
        pass

    def end(self) -> None:
        pass


class _NoLedger(StallLedger):
    """Books nothing."""

    _NOTHING: Final = Booked(0, 0, 0, {})

    def begin(self) -> None:
        pass

    def begun(self) -> None:
        pass

    def asked(self, *, is_ready: bool) -> int:
        return 1

    def delivered(self, trail: Trail | None) -> Booked:
        return self._NOTHING


def measure_ledger(
    dataset: Dataset, *, batch_size: int, steps: int, rounds: int, threads: int | None = None
) -> Iterator[dict[str, float]]:
    """Yield one row a round: µs of processor and wall time a step in each case, and its cost over "off"."""
    for turn in range(rounds):
        found: dict[str, tuple[float, float]] = {}
        for at in range(len(CASES)):
            case = CASES[(at + turn) % len(CASES)]
            found[case] = _measure(dataset, case, batch_size=batch_size, steps=steps, threads=threads)
        row: dict[str, float] = {"round": turn}
        for case, (cpu, wall) in found.items():
            row |= {f"{case}_cpu_us": cpu * 1e6, f"{case}_wall_us": wall * 1e6}
        for case in CASES[1:]:
            row |= {
                f"{case}_cost": found[case][0] / found["off"][0] - 1,
                f"{case}_wall_cost": found[case][1] / found["off"][1] - 1,
            }
        yield row


def summarise(rows: Sequence[Mapping[str, Any]]) -> dict[str, float]:  # Any: values of a result's rows
    """Return medians over the rounds."""
    keys = ("ledger_cost", "files_cost", "ledger_wall_cost", "files_wall_cost", "off_cpu_us", "ledger_cpu_us", "files_cpu_us")
    found: dict[str, float] = {key: median(row[key] for row in rows) for key in keys}
    for name, seconds in (("booking", booking_s()), ("writing", writing_s())):
        found |= {f"{name}_us": seconds * 1e6, f"{name}_share": seconds * 1e6 / found["off_cpu_us"]}
    return found


def booking_s(calls: int = 20_000) -> float:
    """Return the processor seconds that booking a usual step takes, by itself: four pieces of work, a wait cut along them."""
    ledger = StallLedger()
    ledger.begin()
    ledger.begun()
    best = float("inf")
    for _ in range(5):
        began = time.process_time()
        for _ in range(calls):
            trail = Trail()
            for stage in STAGES[1:3] + STAGES[6:8]:
                trail.begin(stage)
                trail.end()
            ledger.asked(is_ready=False)
            ledger.delivered(trail)
        best = min(best, (time.process_time() - began) / calls)
    return best


def writing_s(steps: int = 20_000) -> float:
    """Return the processor seconds that a step's line in the ledger's file takes, by itself."""
    trail = Trail()
    for stage in STAGES[1:3] + STAGES[6:8]:
        trail.begin(stage)
        trail.end()
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as directory:
        recorder = Recorder(Telemetry(directory=directory), Topology())
        recorder.begin(Sources(dict, lambda: "plan"))
        began = time.process_time()
        for number in range(steps):
            booked = Booked(10**12 + number, 300_000, 100_000, {"decode": 90_000, "handover": 10_000})
            recorder.delivered(Step(0, number, booked, 1, 4, 1 << 20, trail))
        recorder.ended(None)
        took = time.process_time() - began
        recorder.close()
    return took / steps


def open_for_bench(location: Path, image: tuple[int, int]) -> Dataset:
    """Return the set with all its cameras at one size."""
    with open_set(location) as packed:
        cameras = [sensor.name for sensor in packed.schema.sensors if sensor.kind == "image"]
    return open_dataset(location, images=[Images(cameras, size=image, dtype="float32")] if cameras else [])


def _measure(dataset: Dataset, case: str, *, batch_size: int, steps: int, threads: int | None) -> tuple[float, float]:
    """Return (processor, wall) seconds a step."""
    with tempfile.TemporaryDirectory(prefix="headway-bench-") as directory:
        telemetry = Telemetry(directory=directory) if case == "files" else None
        loader = DataLoader(dataset, batch_size, True, num_workers=threads, options=LoaderOptions(seed=1, telemetry=telemetry))
        counted = loader._loading.counted
        if case == "off":
            counted.ledger, counted.trail = _NoLedger(), _NoTrail  # type: ignore[method-assign]  # that is the case
        batches = iter(loader)
        for _ in range(_WARM):
            next(batches)
        count = min(steps, len(loader) - _WARM - 1)
        cpu, wall = time.process_time(), time.perf_counter()
        for _ in range(count):
            next(batches)
        cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
        recorder = counted.recorder
        del batches
        if recorder is not None:
            recorder.close()
    return cpu / count, wall / count

"""How well the simulation foretells real runs here: `headway bench predict`.

Each workload's batch is measured once, by one rank alone (`batch_cost`). From that, configurations with other numbers of ranks,
batch sizes, threads, consumers and memory are predicted first and run afterwards, by `bench node`'s real rank processes. Also
timed: the simulation of 1,024 ranks over a plan of 10⁹ items.
"""

from __future__ import annotations

import resource
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..formats.adapters import SourceSpec
from ..formats.pack_options import PackOptions
from ..formats.packer import pack
from ..loader.cores import decode_threads
from ..loader.plan import Plan
from ..loader.sampler import ViewInfo
from ..loader.scenario import BatchCost, Job, Machine, Scenario, StoreModel
from ..loader.shuffled import Shuffled
from ..loader.simulate import simulate
from .batch_cost import NodeLimits, measure_node
from .make_data import make_data
from .node import NodeBench, NodeOptions
from .workload_source import SPEC_KIND
from .workloads import workload

__all__ = ["CONFIGURATIONS", "Configuration", "predict_all", "scenario_of", "time_simulation"]

Row = dict[str, Any]  # Any: plain JSON data


@dataclass(frozen=True, slots=True, kw_only=True)
class Configuration:
    """One run to foretell."""

    load: str
    ranks: int = 1
    batch_size: int = 4
    consumer: float = 0.0
    """The consumer's step, as a multiple of what one batch costs a rank that is alone; 0: it takes whatever comes."""
    threads: int | None = None
    batches: float = 0.0
    """Memory, in batches; 0: a GiB."""


_SMALL: Final[dict[str, dict[str, Any]]] = {
    "W1": {"samples": 360, "image": (450, 800), "points": 12_000},
    "W2": {"samples": 4000},
    "W3": {"samples": 150_000},
    "W4": {"samples": 1000, "points": 20_000},
}
"""Made and packed in a minute, with epochs of a second or more; all run in the page cache, as in `bench node`."""
_OPTIONS: Final[dict[str, dict[str, str]]] = {"W4": {"points_codec": "points-lossless"}}
"""So that there is something to decode: raw sweeps run through an epoch in a few steps' time."""
_TARGET: Final[dict[str, tuple[int, int]]] = {"W1": (256, 704), "W2": (224, 224), "W3": (0, 0), "W4": (0, 0)}
_MEASURING_S: Final = 120.0
_MEASURED: Final = {"W1": 4, "W2": 16, "W3": 256, "W4": 16}
"""Batch size at which a workload is measured; a quarter or four times as many beside it."""

CONFIGURATIONS: Final = (
    Configuration(load="W1", ranks=2, batch_size=8),
    Configuration(load="W1", ranks=1, batch_size=8),
    Configuration(load="W1", ranks=1, batch_size=4, consumer=1.5),
    Configuration(load="W1", ranks=2, batch_size=2, consumer=1.0),
    Configuration(load="W1", ranks=1, batch_size=6, threads=1, batches=2.5),
    Configuration(load="W2", ranks=2, batch_size=32),
    Configuration(load="W2", ranks=1, batch_size=8, threads=1),
    Configuration(load="W2", ranks=2, batch_size=16, consumer=3.0),
    Configuration(load="W3", ranks=1, batch_size=512),
    Configuration(load="W3", ranks=2, batch_size=512),
    Configuration(load="W4", ranks=2, batch_size=32),
    Configuration(load="W4", ranks=1, batch_size=32, consumer=1.5),
)


def predict_all(
    scratch: Path,
    configurations: Sequence[Configuration] = CONFIGURATIONS,
    *,
    seconds: float = 4.0,
    repeats: int = 1,
    say: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Return one row a configuration: predicted and measured samples a second, and by how much they differ.

    `scratch` holds the sets, and keeps those that are there. A run that others disturb is repeated up to `repeats` times, and
    the least disturbed one counts.
    """
    rows: list[Row] = []
    for name in dict.fromkeys(configuration.load for configuration in configurations):
        bench = NodeBench(_make(name, scratch, say=say))
        image = _TARGET[name]
        say(f"{name}: measuring what a batch costs")
        limits = measure_node(bench, batch_size=_MEASURED[name], image=image, seconds=min(seconds, 1.5), within_s=_MEASURING_S)
        for configuration in configurations:
            if configuration.load != name:
                continue
            scenario = scenario_of(configuration, limits, frames=bench.frames)
            outcome = simulate(scenario, steps=600)
            options = NodeOptions(
                ranks=configuration.ranks,
                batch_size=configuration.batch_size,
                seconds=seconds,
                consumer_ms=scenario.job.step_s * 1e3,
                image=image,
                threads=configuration.threads,
                memory_bytes=int(scenario.machine.memory_bytes),
            )
            ranks, noise, _ = bench.run_quietly(options, repeats=repeats)
            rate = sum(float(row["samples_per_s"]) for row in ranks)
            waited = max(float(row["waited_share"]) for row in ranks)
            rows.append(
                {
                    "load": name,
                    "ranks": configuration.ranks,
                    "batch_size": configuration.batch_size,
                    "step_ms": round(scenario.job.step_s * 1e3, 2),
                    "threads": scenario.machine.threads,
                    "memory_mib": round(scenario.machine.memory_bytes / 2**20, 1),
                    "predicted_samples_per_s": round(outcome.samples_per_s, 2),
                    "samples_per_s": round(rate, 2),
                    "error": round(outcome.samples_per_s / rate - 1, 4) if rate else None,
                    "predicted_stall_share": round(outcome.stall_share, 4),
                    "stall_share": round(waited, 4),
                    "binding": outcome.binding,
                    "others_cores": round(noise.others, 2),
                }
            )
            say(_line(rows[-1]))
    return rows


def scenario_of(configuration: Configuration, limits: NodeLimits, *, frames: int) -> Scenario:
    """Return the configuration as the simulation is told it."""
    cost = limits.cost(configuration.batch_size, ranks=configuration.ranks)
    threads = decode_threads(configuration.ranks) if configuration.threads is None else configuration.threads
    alone = max(cost.serial_s + cost.parallel_s / limits.cores, cost.cpu_s / limits.cores)
    memory = configuration.batches * _lease_bytes(cost) if configuration.batches else float(1 << 30)
    return Scenario(
        job=Job(
            ranks=configuration.ranks,
            ranks_per_node=configuration.ranks,
            batch_size=configuration.batch_size,
            step_s=configuration.consumer * alone,
            epoch_steps=frames // (configuration.ranks * configuration.batch_size),
            holds_batch=False,  # `node_rank` drops its batch before it works
        ),
        cost=cost,
        machine=Machine(cores=limits.cores, threads=threads, memory_bytes=memory),
    )


def time_simulation(*, items: int = 10**9, ranks: int = 1024, steps: int = 2000) -> Row:
    """Return what simulating a large job takes, and what it says."""
    view = ViewInfo(view_id="bench", items=items, drive_starts=np.array([0, items]))
    batch_size = 4
    plan = Plan(view, Shuffled(drop_last=True), seed=0, epoch=0, segments=[(ranks * batch_size, 0)])
    scenario = Scenario(
        job=Job(ranks=ranks, ranks_per_node=8, batch_size=batch_size, step_s=0.3),
        cost=BatchCost(parallel_s=0.2, cpu_s=0.2, decoded_bytes=52e6, encoded_bytes=5.2e6),
        machine=Machine(cores=56, threads=7, memory_bytes=4 << 30),
        store=StoreModel(latency_s=0.03, latency_p99_s=0.4, stall_share=0.01, bandwidth=3e9),
    )
    started = time.monotonic()
    outcome = simulate(scenario, plan, steps=steps)
    return {
        "items": items,
        "ranks": ranks,
        "steps": steps,
        "wall_s": round(time.monotonic() - started, 2),
        "peak_rss_mib": round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1),
        "stall_share": round(outcome.stall_share, 4),
        "binding": outcome.binding,
    }


def _make(name: str, scratch: Path, *, say: Callable[[str], None]) -> Path:
    place = scratch / f"{name}-set"
    if not place.is_dir():
        say(f"{name}: making a set")
        make_data(workload(name, **_SMALL[name]), scratch / f"{name}-data")
        spec = SourceSpec(kind=SPEC_KIND, path=str(scratch / f"{name}-data"), options=_OPTIONS.get(name, {}))
        pack(spec, place, PackOptions(workers=1))
    return place


def _lease_bytes(cost: BatchCost) -> float:
    """Return what a batch takes of the buffer pool, whose blocks are up to an eighth larger than asked for."""
    return 1.13 * cost.decoded_bytes


def _line(row: Row) -> str:
    error = "" if row["error"] is None else f"{row['error']:+7.1%}"
    return (
        f"{row['load']} {row['ranks']} ranks × {row['batch_size']:>3}, step {row['step_ms']:8.1f} ms, {row['threads']} threads: "
        f"predicted {row['predicted_samples_per_s']:>10,.1f}/s, measured {row['samples_per_s']:>10,.1f}/s {error}"
        f"  stall {row['predicted_stall_share']:6.1%} / {row['stall_share']:6.1%}  {row['binding']}"
    )

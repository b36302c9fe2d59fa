"""What a batch costs on this node, from real ranks that drain the loader: the numbers that predictions start from.

One rank alone, with one decode thread and with one a core, at two batch sizes: what more threads do not shorten is the serial
part, what more samples do not lengthen is the part a batch. Core-seconds are those of the whole process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..formats import SetError, UsageError
from ..formats.packed_set import PackedSet
from ..loader.cores import usable_cores
from ..loader.dataset import Dataset, open_dataset
from ..loader.draft import Draws
from ..loader.images import Images
from ..loader.native_decode import default_decoder
from ..loader.scenario import BatchCost
from .node import NodeBench, NodeOptions

__all__ = ["NodeLimits", "encoded_sample_bytes", "measure_node", "read_limits"]

_VERSION: Final = 1
_BUSY: Final = 0.75
_SAMPLED_ROWS: Final = 4096
_SAMPLED_ITEMS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """This node's limits for one set; times in seconds, sizes in bytes."""

    cores: float
    serial_batch_s: float
    """Of each batch, not shortened by threads; `…_sample_s`: more of it for every sample."""
    serial_sample_s: float
    parallel_batch_s: float
    """Of each batch, divided by the number of threads."""
    parallel_sample_s: float
    cpu_batch_s: float
    """Core-seconds of each batch, all threads together."""
    cpu_sample_s: float
    first_batch_s: float
    """From a new iterator to its first batch."""
    first_sample_s: float
    decoded_sample_bytes: float
    encoded_sample_bytes: float
    image: str = ""
    """Target size of images, height × width."""

    def cost(self, batch_size: int) -> BatchCost:
        """Return what a batch of so many samples costs."""
        return BatchCost(
            serial_s=self.serial_batch_s + batch_size * self.serial_sample_s,
            parallel_s=self.parallel_batch_s + batch_size * self.parallel_sample_s,
            cpu_s=self.cpu_batch_s + batch_size * self.cpu_sample_s,
            first_s=self.first_batch_s + batch_size * self.first_sample_s,
            decoded_bytes=batch_size * self.decoded_sample_bytes,
            encoded_bytes=batch_size * self.encoded_sample_bytes,
        )

    def times(self, factor: float) -> NodeLimits:
        """Return the limits of a machine on which everything the CPU does takes `factor` times as long."""
        names = (
            "first_batch_s",
            "first_sample_s",
            "serial_batch_s",
            "serial_sample_s",
            "parallel_batch_s",
            "parallel_sample_s",
            "cpu_batch_s",
            "cpu_sample_s",
        )
        return replace(self, **{name: factor * getattr(self, name) for name in names})

    def to_json(self) -> dict[str, Any]:  # Any: plain JSON data
        """Return plain JSON data, which `read_limits` reads."""
        return {"headway_limits": _VERSION, **asdict(self)}


def read_limits(path: Path) -> NodeLimits:
    """Read what `headway estimate --write-limits` wrote, here or on another machine.

    Raises:
        SetError: not such a file, or numbers that cannot be.
    """
    try:
        data = json.loads(path.read_text("utf-8"))
        if data.pop("headway_limits") != _VERSION:
            raise ValueError(f"expected version {_VERSION}")
        limits = NodeLimits(**data)
        numbers = [value for name, value in asdict(limits).items() if name != "image"]
        if (
            not all(isinstance(value, int | float) and np.isfinite(value) and value >= 0 for value in numbers)
            or limits.cores <= 0
        ):
            raise ValueError("expected numbers from 0, and cores above 0")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SetError(
            f"cannot read node limits {str(path)!r}: {error!r}; write them with headway estimate SET --write-limits"
        ) from error
    return limits


def measure_node(
    bench: NodeBench,
    *,
    batch_size: int,
    image: tuple[int, int] = (256, 704),
    seconds: float = 2.0,
    rounds: int = 2,
    memory_bytes: int = 1 << 30,
    progress: Callable[[int], None] | None = None,
) -> NodeLimits:
    """Return this node's limits for the bench's set, in four runs a round, each of about `seconds` and a start."""
    cores = usable_cores()
    if batch_size > bench.frames:
        raise UsageError(f"{bench.frames} frames do not fill a batch of {batch_size}; lower --batch-size")
    sizes = sorted({batch_size, max(1, batch_size // 4) if 4 * batch_size > bench.frames else 4 * batch_size})
    cases = [(size, threads) for size in sizes for threads in sorted({1, cores})]
    batch_s, cpu_s, first_s = (dict.fromkeys(cases, math.inf) for _ in range(3))
    for _ in range(rounds):
        for size, threads in cases:
            options = NodeOptions(
                ranks=1, batch_size=size, seconds=seconds, image=image, threads=threads, memory_bytes=memory_bytes
            )
            (row,) = bench.run(options)
            rate = float(row["samples_per_s"])
            if rate:
                # The best round: whatever else ran on the machine only made the others slower.
                first_s[size, threads] = min(first_s[size, threads], float(row["first_batch_s"]))
                each = _without_starts(size / rate, first_s[size, threads], int(row["batches"]), bench.frames // size)
                batch_s[size, threads] = min(batch_s[size, threads], each)
                cpu_s[size, threads] = min(cpu_s[size, threads], float(row["cpu_cores"]) * size / rate)
            if progress is not None:
                progress(1)
    slow = [case for case in cases if math.isinf(batch_s[case])]
    if slow:
        raise UsageError(f"no batch of {slow[0][0]} came within {seconds:g} s; lower --batch-size")
    found: dict[int, tuple[float, float, float, float]] = {}
    for size in sizes:
        one, most = batch_s[size, 1], batch_s[size, cores]
        parallel = min(one, max(0.0, (one - most) / (1 - 1 / cores))) if cores > 1 else one
        cpu = cpu_s[size, cores]
        if cpu > _BUSY * cores * most:  # what all cores together then reached is what a node has: the rest goes into switching
            cpu = cores * most
        found[size] = one - parallel, parallel, cpu, min(first_s[size, 1], first_s[size, cores])
    with _dataset(bench, image) as dataset:
        encoded, decoded = encoded_sample_bytes(dataset.packed), _decoded_sample_bytes(dataset)
    serial, parallel_part, cpu_part, first = (
        _line({size: values[place] for size, values in found.items()}) for place in range(4)
    )
    return NodeLimits(
        cores=cores,
        serial_batch_s=serial[0],
        serial_sample_s=serial[1],
        parallel_batch_s=parallel_part[0],
        parallel_sample_s=parallel_part[1],
        cpu_batch_s=cpu_part[0],
        cpu_sample_s=cpu_part[1],
        first_batch_s=first[0],
        first_sample_s=first[1],
        decoded_sample_bytes=decoded,
        encoded_sample_bytes=encoded,
        image=f"{image[0]}x{image[1]}",
    )


def _without_starts(batch_s: float, first_s: float, batches: int, epoch_batches: int) -> float:
    """Return a batch's time without its share of the epochs' beginnings that fell into the run."""
    starts = (batches // max(1, epoch_batches)) / max(1, batches)
    return (batch_s - starts * first_s) / (1 - starts) if starts < 0.5 and batch_s > 2 * starts * first_s else batch_s


def encoded_sample_bytes(packed: PackedSet) -> float:
    """Return the stored bytes of one frame's own payloads, all sensors: the mean of some."""
    total = 0.0
    for sensor in packed.schema.sensors:
        timeline = packed.timeline(sensor.name)
        if sensor.codec is None or not len(timeline):
            continue
        rows = np.unique(np.linspace(0, len(timeline) - 1, _SAMPLED_ROWS).astype(np.int64))
        total += float(timeline.refs(rows).length.mean())
    return total


def _dataset(bench: NodeBench, image: tuple[int, int]) -> Dataset:
    """Return the set as `node_rank` opens it."""
    return open_dataset(bench.location, images=[Images(bench.cameras, size=image, dtype="float32")] if bench.cameras else [])


def _decoded_sample_bytes(dataset: Dataset) -> float:
    """Return the batch memory of one sample: the mean of some."""
    items = np.unique(np.linspace(0, len(dataset) - 1, _SAMPLED_ITEMS).astype(np.int64))
    draws = Draws(seed=0, epoch=0, occurrence=np.zeros(len(items), np.int64))
    _, prepared = dataset.assembler(default_decoder()).begin(0, items, draws)
    return sum(size for part in prepared for size in part.sizes) / len(items)


def _line(values: Mapping[int, float]) -> tuple[float, float]:
    """Return (fixed part, part a sample) of a cost measured at one or two batch sizes; neither is negative."""
    sizes = sorted(values)
    low, high = sizes[0], sizes[-1]
    if low == high:
        return 0.0, values[low] / low
    slope = min(max(0.0, (values[high] - values[low]) / (high - low)), values[high] / high)
    return max(0.0, values[high] - slope * high), slope

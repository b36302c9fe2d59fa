"""What a batch costs on this node, from real ranks that drain the loader: the numbers that predictions start from.

One rank alone, with one decode thread and with one a core, at two batch sizes: what more threads do not shorten is the serial
part, what more samples do not lengthen is the part a batch. Core-seconds come from ranks that fill all cores together.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

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
_MOST_RANKS: Final = 8
_FIRST_BATCHES: Final = 4  # the first batch of an epoch takes two to four times as long as the later ones: nothing overlaps yet
_PATIENCE: Final = 4  # × as long for a run in which no batch came
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
    handover_s: float
    """What the loader takes of the consumer's own thread each step, the switching between threads included."""
    decoded_sample_bytes: float
    encoded_sample_bytes: float
    image: str = ""
    """Target size of images, height × width."""

    def cost(self, batch_size: int, *, ranks: int) -> BatchCost:
        """Return what a batch of so many samples costs one of `ranks` of a node."""
        serial = self.serial_batch_s + batch_size * self.serial_sample_s
        parallel = self.parallel_batch_s + batch_size * self.parallel_sample_s
        cpu = self.cpu_batch_s + batch_size * self.cpu_sample_s
        if ranks == 1:  # nobody to share the cores with: what it reached with all of them is what it gets
            cpu = min(cpu, self.cores * serial + parallel)
        return BatchCost(
            serial_s=serial,
            parallel_s=parallel,
            cpu_s=cpu,
            handover_s=self.handover_s,
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
    seconds: float = 1.5,
    rounds: int = 2,
    within_s: float = 60.0,
    memory_bytes: int = 1 << 30,
    progress: Callable[[int], None] | None = None,
) -> NodeLimits:
    """Return this node's limits for the bench's set, in at most seven runs a round, each of about `seconds` and a start.

    A further round is begun only while half of `within_s` is left.
    """
    cores = usable_cores()
    if batch_size > bench.frames:
        raise UsageError(f"{bench.frames} frames do not fill a batch of {batch_size}; lower --batch-size")
    sizes = sorted({batch_size, max(1, batch_size // 4) if 4 * batch_size > bench.frames else 4 * batch_size})
    full = {size: max(1, min(_MOST_RANKS, cores, bench.frames // size)) for size in sizes}
    cases = [
        *(_Case(1, size, threads) for size in sizes for threads in sorted({1, cores})),
        *(_Case(full[size], size, max(1, cores // full[size])) for size in sizes if full[size] > 1),
    ]
    best = dict.fromkeys(cases, _Cost())
    own_s = math.inf
    started = time.monotonic()
    for number in range(rounds):
        if number and time.monotonic() - started > within_s / 2:
            break
        for case in cases:
            for patience in (1, _PATIENCE):
                rows = bench.run(case.options(seconds=patience * seconds, image=image, memory_bytes=memory_bytes))
                best[case] = best[case].better(_Cost.of(rows, case.size, bench.frames // (case.ranks * case.size)))
                if math.isfinite(best[case].batch_s):
                    break
            if progress is not None:
                progress(1)
        # A consumer that never waits for long: what the loader takes of its own thread.
        case = _Case(1, batch_size, cores)
        step_s = 1.5 * best[case].batch_s
        if math.isfinite(step_s):
            (row,) = bench.run(case.options(seconds=seconds, image=image, memory_bytes=memory_bytes, step_s=step_s))
            if rate := float(row["samples_per_s"]):
                own_s = min(own_s, max(0.0, batch_size / rate * (1 - float(row["waited_share"])) - step_s))
        if progress is not None:
            progress(1)
    if slow := [case for case in cases if math.isinf(best[case].batch_s)]:
        raise UsageError(f"no batch of {slow[0].size} came within {_PATIENCE * seconds:g} s; lower --batch-size")
    parts: list[dict[int, float]] = [{}, {}, {}, {}]
    for size in sizes:
        one, most = best[_Case(1, size, 1)], best[_Case(1, size, cores)]
        parallel = min(one.batch_s, max(0.0, (one.batch_s - most.batch_s) / (1 - 1 / cores))) if cores > 1 else one.batch_s
        together = best.get(_Case(full[size], size, max(1, cores // full[size])))
        # What ranks that share all cores reach is what a node has: the rest goes into switching between them.
        cpu = most.cpu_s if together is None else max(most.cpu_s, cores * together.batch_s / full[size])
        values = one.batch_s - parallel, parallel, cpu, min(one.first_s, most.first_s)
        for part, value in zip(parts, values, strict=True):
            part[size] = value
    serial, shared, cpu_part, first = map(_line, parts)
    with _dataset(bench, image) as dataset:
        encoded, decoded = encoded_sample_bytes(dataset.packed), _decoded_sample_bytes(dataset)
    return NodeLimits(
        cores=cores,
        serial_batch_s=serial[0],
        serial_sample_s=serial[1],
        parallel_batch_s=shared[0],
        parallel_sample_s=shared[1],
        cpu_batch_s=cpu_part[0],
        cpu_sample_s=cpu_part[1],
        first_batch_s=first[0],
        first_sample_s=first[1],
        handover_s=own_s if math.isfinite(own_s) else 0.0,
        decoded_sample_bytes=decoded,
        encoded_sample_bytes=encoded,
        image=f"{image[0]}x{image[1]}",
    )


class _Case(NamedTuple):
    """One kind of run; the consumer takes whatever comes."""

    ranks: int
    size: int
    threads: int

    def options(self, *, seconds: float, image: tuple[int, int], memory_bytes: int, step_s: float = 0.0) -> NodeOptions:
        """Return the run."""
        return NodeOptions(
            ranks=self.ranks,
            batch_size=self.size,
            threads=self.threads,
            seconds=seconds,
            image=image,
            memory_bytes=memory_bytes,
            consumer_ms=step_s * 1e3,
        )


class _Cost(NamedTuple):
    """What a run showed of a batch, seconds; of several, the best: what else ran on the machine only made others slower."""

    batch_s: float = math.inf
    cpu_s: float = math.inf
    first_s: float = math.inf

    @classmethod
    def of(cls, rows: Sequence[Mapping[str, Any]], size: int, epoch_batches: int) -> _Cost:
        """Return what the ranks' rows say; nothing where a rank delivered nothing."""
        rates = [float(row["samples_per_s"]) for row in rows]
        if not all(rates):
            return cls()
        each = size * len(rates) / sum(rates)
        # The process's own start is in it, too, and later iterators do not have that.
        first = min(_FIRST_BATCHES * each, *(float(row["first_batch_s"]) for row in rows))
        cpu = sum(float(row["cpu_cores"]) for row in rows) / sum(rates) * size
        return cls(_without_starts(each, first, int(rows[0]["batches"]), epoch_batches), cpu, first)

    def better(self, other: _Cost) -> _Cost:
        """Return the lower of each."""
        return _Cost(*map(min, zip(self, other, strict=True)))


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

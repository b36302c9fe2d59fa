"""SPDL: threads in the trainer's process; one thread makes a whole batch, or samples that are then aggregated."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from typing import Any

from .contract import Peer, Run, Setting
from .samples import BATCH, FileSamples, MapDataset, Stored, collate, shuffled_batches, w3_batch

__all__ = ["PEER", "pipeline"]


def pipeline(source: Any, stages: list[tuple[Callable[[Any], Any], int]], *, threads: int, aggregate: int = 0) -> Iterator[Any]:
    """Run stages (function, concurrency) over `source`; `aggregate` groups the first stage's results."""
    from spdl.pipeline import PipelineBuilder

    builder = PipelineBuilder().add_source(source)
    for place, (work, concurrency) in enumerate(stages):
        builder = builder.pipe(work, concurrency=concurrency)
        if aggregate and place == 0:
            builder = builder.aggregate(aggregate, drop_last=True)
    built = builder.add_sink(2).build(num_threads=threads)
    with built.auto_stop():
        yield from built.get_iterator(timeout=60)


def _open(run: Run, *, threads: int, unit: str) -> Callable[[], Iterator[Any]]:
    samples = FileSamples(run.packed, run.workload)
    dataset, size, epochs = MapDataset(samples, run.workload), BATCH[run.workload], count()

    def batch(index: Any) -> Any:
        return w3_batch(samples.small, index) if run.workload == "W3" else collate([dataset[i] for i in index])

    def epoch() -> Iterator[Any]:
        batches = shuffled_batches(len(samples), size, next(epochs))
        if unit == "batch":
            return pipeline(batches, [(batch, threads)], threads=threads)
        rows = (int(i) for each in batches for i in each)
        return pipeline(rows, [(dataset.__getitem__, threads), (collate, 1)], threads=threads + 1, aggregate=size)

    return epoch


def _settings(workload: str) -> list[Setting]:
    threads = (1, 2) if workload == "W3" else (2, 3)
    units = ("batch",) if workload == "W3" else ("batch", "sample")
    return [{"threads": number, "unit": unit} for number in threads for unit in units]


PEER = Peer(
    name="spdl",
    requirements=("spdl==0.8.0",),
    settings=_settings,
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=_open,
    packs_like="torch",
)

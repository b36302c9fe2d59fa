"""torchdata.nodes: sampler, parallel mapper, batcher, prefetcher."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from .contract import Peer, Resumable, Run, Setting
from .samples import BATCH, FileSamples, MapDataset, Stored, collate, w3_batch

__all__ = ["PEER"]


def _loader(run: Run, workers: int, unit: str) -> Any:
    import torchdata.nodes as nodes
    from torch.utils.data import RandomSampler

    samples = FileSamples(run.packed, run.workload)
    dataset, size = MapDataset(samples, run.workload), BATCH[run.workload]

    def batch(index: list[int]) -> Any:
        return w3_batch(samples.small, np.asarray(index)) if run.workload == "W3" else collate([dataset[i] for i in index])

    source = nodes.SamplerWrapper(RandomSampler(range(len(samples))))
    if unit == "sample":
        mapped = nodes.ParallelMapper(source, dataset.__getitem__, num_workers=workers, method="thread")
        node = nodes.Mapper(nodes.Batcher(mapped, size, drop_last=True), collate)
    else:
        node = nodes.ParallelMapper(nodes.Batcher(source, size, drop_last=True), batch, num_workers=workers, method="thread")
    return nodes.Loader(nodes.Prefetcher(node, 2))


def _open(run: Run, *, workers: int, unit: str) -> Callable[[], Iterator[Any]]:
    loader = _loader(run, workers, unit)
    return lambda: iter(loader)


def _resumable(run: Run) -> Resumable:
    loader = _loader(run, 1, "batch")
    return Resumable(lambda: iter(loader), loader.state_dict, loader.load_state_dict)


def _settings(workload: str) -> list[Setting]:
    counts = (1, 2) if workload == "W3" else (2, 3)
    units = ("batch",) if workload == "W3" else ("batch", "sample")
    return [{"workers": number, "unit": unit} for number in counts for unit in units]


PEER = Peer(
    name="torchdata.nodes",
    requirements=("torchdata==0.11.0",),
    settings=_settings,
    pack=lambda run: FileSamples.write(Stored(run.data), run.packed),
    open=_open,
    packs_like="torch",
    resumable=_resumable,
    note="threads; its process mode hung on W1 when the baseline was made",
)

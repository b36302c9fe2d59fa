"""Hugging Face datasets: an Arrow table saved to disk, rows of a batch read in one call."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

from .contract import Peer, Resumable, Run, workers
from .samples import BATCH, Stored, prepare
from .torch_loader import torch_dataloader

__all__ = ["PEER"]


def _pack(run: Run) -> None:
    import datasets
    import pyarrow as pa

    from .arrow_rows import record_batches

    shutil.rmtree(run.packed, ignore_errors=True)
    table = pa.Table.from_batches(list(record_batches(Stored(run.data))))
    datasets.Dataset(table).save_to_disk(str(run.packed), max_shard_size="200MB")


def _open(run: Run, *, workers: int) -> Callable[[], Iterator[Any]]:
    import datasets
    from torch.utils.data import BatchSampler, RandomSampler

    from .arrow_rows import to_batch

    rows, work = datasets.load_from_disk(str(run.packed)).with_format("arrow"), prepare(run.workload)

    class Batches:
        def __len__(self) -> int:
            return len(rows)

        def __getitem__(self, index: list[int]) -> Any:
            return to_batch(run.workload, rows[index], work)

    sampler = BatchSampler(RandomSampler(range(len(rows))), BATCH[run.workload], drop_last=True)
    options = {"batch_size": None, "sampler": sampler, "collate_fn": None, "drop_last": False}
    loader = torch_dataloader(Batches(), run.workload, workers, **options)
    return lambda: iter(loader)


def _resumable(run: Run) -> Resumable:
    import datasets
    import torch

    stored = datasets.load_from_disk(str(run.packed)).to_iterable_dataset(num_shards=16)
    rows = stored.shuffle(seed=1, buffer_size=5000).with_format("arrow").batch(BATCH[run.workload], drop_last_batch=True)

    def batches() -> Iterator[Any]:
        for table in rows:  # one row a batch, its columns lists
            yield {"stamp": torch.from_numpy(table["stamp"].combine_chunks().flatten().to_numpy().copy())}

    return Resumable(batches, rows.state_dict, rows.load_state_dict)


PEER = Peer(name="hf-datasets", requirements=("datasets==5.2.0",), settings=workers, pack=_pack, open=_open, resumable=_resumable)
